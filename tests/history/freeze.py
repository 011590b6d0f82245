"""Write `versions/NNN_name.sql`: a database as the newest migration leaves it, with a session in it.

Run once, when a migration is added: `PYTHONPATH=src:tests/history python tests/history/freeze.py`. Those files stand
for the databases that users have; one that was released is never written again.
"""

from __future__ import annotations

import sqlite3
import sys
import tempfile
from pathlib import Path

from history_support import SESSION, Clock, probe_spec

from oombisect.history.imported import ImportedReading, ImportSpec
from oombisect.history.migrations import APPLICATION_ID, shipped
from oombisect.history.records import ReplayRecord
from oombisect.history.store import open_store
from oombisect.readings import Oom, Outcome, PhaseMetrics, RankReading, Reading

VERSIONS = Path(__file__).parent / "versions"
PHASES = {"setup": PhaseMetrics(*range(1, 12), None, 0.1), "step_1": PhaseMetrics(*range(21, 32), 33, 1 / 3)}
READINGS = (
    Reading(
        Outcome.CENSORED,
        "out of memory in step_1",
        "virtual:h100-80gb",
        True,
        (
            RankReading(
                7, PHASES, 512, Oom("step_1", "CUDA out of memory. é", 1, 2, 3, 4, None), "snapshot-7.gz", "5f" * 32
            ),
            RankReading(0),
        ),
        recipe_function="bridge.recipes:f(a='b')",
        config_hash="0" * 64,
        versions={"torch": "2.9.0", "cuda": "13.0"},
        world_size=8,
        attention_backend="FusedAttention",
        imported=("bridge:src/a.py", "megatron-lm:b.py"),
        notes=("capped",),
    ),
    Reading(Outcome.UNRESOLVED, "ImportError: no module named x", "virtual:h100-80gb", True),
)
CONFIG = {"model": {"seq_length": 2048, "name": "é", "dropout": 0.1, "rope": None}}
IMPORT = ImportSpec("log", "train.log", "ab" * 32, {"recipe": "é"})
IMPORTED = (
    ImportedReading("é", "dgx_h100", "megatron-lm", "d" * 40, "train.log", rank=0, config={"tp": 2}, peak_allocated=5),
    ImportedReading("é", "dgx_h100", "megatron-lm", "d" * 40, "train.log", rank=1, reason="out of memory",
                    values={"allocated": {2: 7, 3: 7, 4: 7, 5: 8}}),
)  # fmt: skip
EVENTS = ({"points": ["a"]}, {"probe": 1})
VERDICT = {"kind": "none"}


def replay(probe: int, limit: int | None) -> ReplayRecord:
    return ReplayRecord(probe, 7, "", "torch 2.14, 1", limit, limit is None, 1, 2, None if limit else 3)


def fill(database: Path) -> None:
    with open_store(database, clock=Clock()) as store:
        session = store.create_session(SESSION).id
        for n, reading in enumerate(READINGS):
            probe = store.begin_probe(probe_spec(session, f"signature {n}"))
            config = CONFIG if reading.config_hash else None
            store.finish_probe(probe, reading, config, allocator_settings="expandable_segments:True")
            if reading.ranks:
                for limit in (None, 4096):
                    store.add_replay(replay(probe, limit))
        store.begin_probe(probe_spec(session, "signature 2"))
        for payload in EVENTS:
            store.append_event(session, "plan", payload)
        store.finish_session(session, 10, VERDICT)
        store.create_session(SESSION)
        store.add_import(IMPORT, IMPORTED)


def main() -> None:
    target = VERSIONS / f"{shipped()[-1].name}.sql"
    if target.exists():
        sys.exit(f"{target} is frozen already")
    with tempfile.TemporaryDirectory() as folder:
        fill(Path(folder) / "oombisect.db")
        database = sqlite3.connect(Path(folder) / "oombisect.db")
        target.parent.mkdir(exist_ok=True)
        lines = [f"PRAGMA application_id = {APPLICATION_ID};", *database.iterdump()]
        target.write_text("\n".join(lines) + "\n", encoding="utf-8")
        database.close()
    print(f"wrote {target}")


if __name__ == "__main__":
    main()
