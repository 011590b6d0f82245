"""How long each canned query takes on a database of a million probes and twenty million metric values.

The rows are made up and written straight into the tables, as the store would have written them: 1,000 workloads, each
probed at 1,000 commits; a probe has one rank and two phases, which is 20 numbers of phases and 9 of the rank. Readings
are simulated for four workloads in five; the others are noisy. One probe in 50 ran out of memory, one in 50 is
unresolved, one in 20 was replayed.

Run: `python benchmarks/history_scale.py FOLDER [--workloads 1000] [--commits 1000] [--keep]` (about half an hour and 2
GB). The database is deleted at the end.
"""

from __future__ import annotations

import argparse
import json
import random
import sqlite3
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "src"))

from oombisect.cli.query_of import GPUS, now_text
from oombisect.history.connection import Connection
from oombisect.history.queries import Query, queries
from oombisect.history.reader import Reader
from oombisect.history.series import keep
from oombisect.units import GIB, MIB

MODELS = ("qwen3_8b", "llama3_8b", "llama3_70b", "deepseek_v3", "nemotron_h_8b", "gpt_oss_20b", "glm45_air", "mixtral")
DEVICES = ("virtual:h100-80gb", "virtual:a100-40gb", "virtual:b200-180gb", "virtual:h200-141gb", "cuda")
GIVEN = {"between-releases": ("old={first}", "new={last}"), "steps-between": ("since=2025-06-01", "until=2025-06-30")}


def day(number: int, of: int) -> str:
    """One of `of` moments of 2024 and 2025, in order."""
    seconds = number * 2 * 365 * 86400 // of
    moment = time.gmtime(1704067200 + seconds)
    return time.strftime("%Y-%m-%dT%H:%M:%S.000000Z", moment)


def fill(db: sqlite3.Connection, workloads: int, commits: int, rng: random.Random) -> None:
    """All rows but the derived ones."""
    now = day(1, 2)
    db.execute("PRAGMA synchronous = OFF")
    for table in ("rank_readings", "phase_metrics", "ooms"):  # nothing is added to a finished probe, but by us
        db.execute(f"DROP TRIGGER {table}_sealed")
    db.execute("BEGIN")
    session = ("20240101-1", now, now, "run", "[]", "{}", "r", "many", "d", None, "a", "b", "0", "running", None, None)
    db.execute(f"INSERT INTO sessions VALUES ({', '.join('?' * len(session))})", session)
    points = [
        (n + 1, "bridge", f"{rng.getrandbits(160):040x}", f"[area] fix: change {n}", day(n, commits))
        for n in range(commits)
    ]
    db.executemany("INSERT INTO points VALUES (?, ?, ?, ?, ?)", points)
    db.executemany("INSERT INTO places VALUES (?, '', ?)", [(n + 1, 100 + 2 * n) for n in range(commits)])
    db.execute("INSERT INTO configs VALUES (1, 'h', '{}')")
    db.execute("INSERT INTO environments VALUES (1, 'h', '{}')")
    for workload in range(1, workloads + 1):
        device = DEVICES[workload % len(DEVICES)]
        recipe = f"{MODELS[workload % len(MODELS)]}_{('pretrain', 'sft', 'lora')[workload % 3]}_{workload // 24}"
        settings = json.dumps({"iterations": 3, "overrides": [f"model.seq_length={1024 * (workload % 7 + 1)}"]})
        simulated = int(device != "cuda")
        db.execute("INSERT INTO workloads VALUES (?, ?, ?, ?, ?)", [workload, recipe, device, simulated, settings])
        db.execute("INSERT INTO workload_changes VALUES (?, 1, 0)", [workload])
        probes = list(probes_of(workload, commits, bool(simulated), rng))
        marks = ", ".join("?" * len(probes[0]["row"]))
        db.executemany(f"INSERT INTO probes VALUES ({marks})", [p["row"] for p in probes])
        db.executemany("INSERT INTO jobs VALUES (?, ?)", [(p["row"][0], '{"ranks":[]}') for p in probes])
        read = [p for p in probes if p["rank"]]
        db.executemany(f"INSERT INTO rank_readings VALUES ({', '.join('?' * 14)})", [p["rank"] for p in read])
        db.executemany(
            f"INSERT INTO phase_metrics VALUES ({', '.join('?' * 17)})", [phase for p in read for phase in p["phases"]]
        )
        db.executemany(
            "INSERT INTO ooms VALUES (?, 0, 'step_1', 'CUDA out of memory.', ?, ?, ?, ?, ?)",
            [p["oom"] for p in read if p["oom"]],
        )
        db.executemany(
            "INSERT INTO replays (probe, rank, alloc_conf, model, survived, peak_allocated, peak_reserved,"
            " needed_bytes, recorded) VALUES (?, 0, '', 'torch', 1, ?, ?, ?, ?)",
            [p["replay"] for p in read if p["replay"]],
        )
        if workload % 50 == 0:
            print(f"  {workload} of {workloads} workloads", file=sys.stderr, flush=True)
    db.execute("COMMIT")


def probes_of(workload: int, commits: int, simulated: bool, rng: random.Random) -> Iterator[dict[str, Any]]:
    """A workload at every commit: a few steps, some creep in one of ten, noise on real devices."""
    level = rng.randrange(20 * GIB, 90 * GIB)
    steps = {rng.randrange(commits): rng.randrange(-2 * GIB, 3 * GIB) for _ in range(rng.randrange(8))}
    slope = rng.randrange(MIB, 4 * MIB) if workload % 10 == 0 else 0
    for n in range(commits):
        level += steps.get(n, 0) + slope
        probe = (workload - 1) * commits + n + 1
        value = level
        if not simulated and rng.random() < 0.35:
            value = int(level * (1 + rng.uniform(-0.001, 0.001)))
        chance = rng.random()
        outcome = "censored" if chance < 0.02 else "unresolved" if chance < 0.04 else "exact"
        reserved, external = value + value // 20, GIB
        started = day(n, commits)
        told = outcome != "unresolved"
        sizes = (0, value, reserved, reserved + external, external) if told else (None,) * 5
        row = (
            probe, "20240101-1", workload, n + 1, "measure", f"{rng.getrandbits(256):064x}", "1" * 16, None, started,
            started, outcome, 1, "" if outcome == "exact" else "why", "m:f()", 1, 1, None, 1, "Fused", "", "[]", *sizes,
        )  # fmt: skip
        rank = (
            probe,
            0,
            0,
            value,
            reserved,
            value,
            value,
            value // 30,
            reserved + external,
            external,
            90000,
            0,
            0,
            None,
        )
        phases = [
            (
                probe,
                0,
                k,
                phase,
                value,
                value // 2,
                reserved,
                reserved,
                value,
                value,
                value // 30,
                value // 40,
                40000,
                0,
                0,
                reserved,
                1.5,
            )
            for k, phase in enumerate(("setup", "step_1"))
        ]
        oom = (probe, GIB, 80 * GIB, MIB, value, reserved) if outcome == "censored" else None
        replay = (probe, value, reserved, value + value // 50, started) if told and rng.random() < 0.05 else None
        yield {"row": row, "rank": rank if told else None, "phases": phases, "oom": oom, "replay": replay}


def timed(path: Path, query: Query, points: tuple[str, str]) -> tuple[float, float, int]:
    """Milliseconds in a process's first run of it and the median of five, and the number of rows."""
    given = [text.format(first=points[0], last=points[1]) for text in GIVEN.get(query.name, ())]
    times, rows = [], 0
    with Reader(Connection(path, now_text, 30.0, readonly=True)) as reader:
        for _ in range(6):
            begun = time.perf_counter()
            rows = len(reader.ask(query.sql, query.values(given)).rows)
            times.append(1000 * (time.perf_counter() - begun))
    return times[0], sorted(times[1:])[2], rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--workloads", type=int, default=1000)
    parser.add_argument("--commits", type=int, default=1000)
    parser.add_argument("--keep", action="store_true")
    arguments = parser.parse_args()
    path = arguments.folder / "scale.db"
    fresh = not path.exists()
    connection = Connection(path, now_text, 30.0, readonly=False)
    try:
        if fresh:
            begun = time.perf_counter()
            fill(connection.db.conn, arguments.workloads, arguments.commits, random.Random(1))
            print(f"filled in {time.perf_counter() - begun:.0f} s", file=sys.stderr)
        db = connection.db
        count = {
            t: db.execute(f"SELECT count(*) FROM {t}").fetchone()[0]
            for t in ("probes", "phase_metrics", "rank_readings")
        }
        values = 10 * count["phase_metrics"] + 9 * count["rank_readings"]
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        size = path.stat().st_size
        each = size / count["probes"]
        print(f"{count['probes']:,} probes, {values:,} metric values, {size / 1e6:,.0f} MB: {each:.0f} bytes a probe")
        begun = time.perf_counter()
        keep(connection, GPUS)
        took = time.perf_counter() - begun
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        series, steps, creeps = (
            db.execute(f"SELECT count(*) FROM {t}").fetchone()[0] for t in ("series", "steps", "creeps")
        )
        more = (path.stat().st_size - size) / 1e6
        print(f"{series:,} series fitted in {took:.0f} s: {steps:,} steps, {creeps:,} creeps, {more:.1f} MB")
        begun = time.perf_counter()
        db.execute("UPDATE workload_changes SET changes = changes + 1 WHERE workload = 1")
        keep(connection, GPUS)
        print(f"one workload with a new reading: {1000 * (time.perf_counter() - begun):.0f} ms")
        ends = tuple(
            db.execute(
                "SELECT min(key) FILTER (WHERE id = 1), min(key) FILTER (WHERE id = ?) FROM points", [arguments.commits]
            ).fetchone()
        )
        connection.close()
        print("\n| query | first, ms | again, ms | rows |\n|---|---|---|---|")
        slow = []
        for query in queries().values():
            first, again, rows = timed(path, query, ends)
            print(f"| {query.name} | {first:.0f} | {again:.0f} | {rows} |")
            slow += [query.name] if again > 200 else []
        print(f"\nover 200 ms: {', '.join(slow) or 'none'}")
    finally:
        if not arguments.keep:
            for file in arguments.folder.glob("scale.db*"):
                file.unlink()


if __name__ == "__main__":
    main()
