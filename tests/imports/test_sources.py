"""The pure parsers: logs, event files, exports, tables."""

from __future__ import annotations

import json
import random
import re
import struct
from datetime import UTC, datetime

import pytest

from oombisect.errors import OombisectError
from oombisect.imports.content import Content, RunMemory, Unreadable
from oombisect.imports.export import parse_export
from oombisect.imports.metrics import is_unknown, metric_of
from oombisect.imports.snapshot import rank_in
from oombisect.imports.table import columns_of, parse_table
from oombisect.imports.tensorboard import parse_events
from oombisect.imports.training_log import parse_log

MIB, GB = 1 << 20, 10**9


@pytest.mark.parametrize(
    ("tag", "metric"),
    [
        ("mem-max-allocated-bytes", ("peak_allocated", 1)),
        ("mem-allocated-bytes", ("allocated", 1)),
        ("mem-reserved-bytes", ("reserved", 1)),
        ("memory/mem-max-reserved-gigabytes", ("peak_reserved", GB)),
        ("memory/mem-max-inactive-gigabytes", ("peak_inactive_split", GB)),
        ("system.gpu.3.memoryAllocatedBytes", ("device", 1)),
        ("mem-something-new-bytes", ("something_new", 1)),
        ("mem-allocated-count", None),
        ("memory/mem-alloc-retires", None),
        ("lm loss", None),
        ("mem-max-allocated-bytes vs samples", None),
    ],
)
def test_names_of_scalars(tag: str, metric: tuple[str, int] | None) -> None:
    assert metric_of(tag) == metric


def test_what_looks_like_memory_and_is_not_known_is_noticed() -> None:
    assert [is_unknown(tag) for tag in ("memory/foo", "gpu_memory_used", "mem-max-allocated-bytes vs samples")] == [
        True, True, True,
    ]  # fmt: skip
    assert not any(
        map(is_unknown, ("mem-allocated-count", "lm loss", "memory/mem-alloc-retires", "member", "remember"))
    )


# Logs: lines as Megatron-LM and Bridge printed them through the years.

MEGATRON = (
    "[Rank 0] (after 2 iterations) memory (MB) | allocated: 1.50 | max allocated: 3.00 | reserved: 5.0 "
    "| max reserved: 7.5"
)


def by_rank(content: Content) -> dict[int | None, RunMemory]:
    return {run.rank: run for run in content.runs}


@pytest.mark.parametrize(
    ("line", "rank", "told"),
    [
        (MEGATRON, 0, {"allocated": {2: 1.5 * MIB}, "peak_allocated": {2: 3 * MIB}, "reserved": {2: 5 * MIB},
                       "peak_reserved": {2: 7.5 * MIB}}),
        (f"{MEGATRON} | total device memory used: 9.00", 0, {"device": {2: 9 * MIB}}),
        ("after 100 iterations memory (MB) | allocated: 1 | max allocated: 2 | cached: 3 | max cached: 4", None,
         {"reserved": {0: 3 * MIB}, "peak_reserved": {0: 4 * MIB}}),
        ("[Rank 12] (after 1 iterations) memory (GB) | mem-allocated-gigabytes: 1.2345 | mem-max-allocated-gigabytes: "
         "2.5e-05 | mem-alloc-retires: 0 | mem-allocated-count: 77", 12,
         {"allocated": {1: 1234500000}, "peak_allocated": {1: 25000}}),
        ("[Rank 3] (before save_checkpoint for iteration 500) memory (MB) | allocated: 2.0", 3,
         {"allocated": {500: 2 * MIB}}),
        (f"7: \x1b[32m{MEGATRON}\x1b[0m", 0, {"allocated": {2: 1.5 * MIB}}),
    ],
    ids=["megatron", "device", "2019", "bridge", "checkpoint", "srun, coloured"],
)  # fmt: skip
def test_lines_of_a_log(line: str, rank: int | None, told: dict[str, dict[int, int]]) -> None:
    content = parse_log(f"noise\n {line}\r\nmore\n".encode())
    (run,) = content.runs
    assert content.problems == () and run.rank == rank
    assert {metric: run.values[metric] for metric in told} == told
    assert run.peak_allocated == max(run.values.get("peak_allocated", {}).values(), default=None)


def test_ranks_that_print_at_once() -> None:
    other = MEGATRON.replace("Rank 0", "Rank 4").replace("3.00", "4.00")
    runs = by_rank(parse_log(f"{MEGATRON}{other}\n".encode()))
    assert (runs[0].peak_allocated, runs[4].peak_allocated) == (3 * MIB, 4 * MIB)
    assert runs[0].peak_reserved == 7.5 * MIB


def test_a_line_that_is_cut_is_named() -> None:
    content = parse_log(
        f"{MEGATRON[:-30]}\n[Rank 1] (after 2 iterations) memory (MB) | allocated: nan | x: 1\n".encode()
    )
    assert {problem.where for problem in content.problems} == {"line 1", "line 2"}
    assert len(content.problems) == 3
    assert by_rank(content).keys() == {0}


def test_what_the_log_says_of_the_run() -> None:
    head = "using world size: 16, data-parallel size: 4\n [2026-08-01 12:00:00.123456] iteration        2/  10 | x\n"
    content = parse_log(f"{head}{MEGATRON}\n".encode())
    assert content.runs[0].world_size == 16 and content.date == datetime(2026, 8, 1, 12, tzinfo=UTC)


OOM = (
    "[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has a total capacity of "
    "79.15 GiB of which 1.00 GiB is free. Process 1 has 78.00 GiB memory in use. Of the allocated memory 70.00 GiB is "
    "allocated by PyTorch, and 1.00 GiB is reserved by PyTorch but unallocated."
)


def test_out_of_memory_makes_lower_bounds_of_all_ranks() -> None:
    runs = by_rank(parse_log(f"{MEGATRON}\n{OOM}\n".encode()))
    assert runs[0].reason == "rank 1 ran out of memory" and runs[0].peak_allocated == 3 * MIB
    died = runs[1]
    assert died.reason == "out of memory (line 2)"
    assert died.peak_allocated is not None and 69.99 < died.peak_allocated / 2**30 <= 70
    assert died.peak_reserved is not None and 70.98 < died.peak_reserved / 2**30 <= 71


def test_no_log_breaks_the_parser() -> None:
    seed = random.Random(5)
    pieces = [MEGATRON, OOM, "memory (MB) |", "[Rank 9", "] (after", "\x1b[", "|", ":", "1e999", "\r", "é", "9" * 40]
    for _ in range(300):
        text = "".join(seed.choice(pieces) for _ in range(seed.randrange(12)))
        for run in parse_log(text.encode()).runs:
            assert all(size >= 0 for sizes in run.values.values() for size in sizes.values())


# Event files.

tensorboard = pytest.importorskip("tensorboard", reason="the extra tensorboard is not installed")


def record(data: bytes) -> bytes:
    from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import masked_crc32c

    head = struct.pack("<Q", len(data))
    return head + struct.pack("<I", masked_crc32c(head)) + data + struct.pack("<I", masked_crc32c(data))


def event(step: int, value: float | None = None, tag: str = "mem-max-allocated-bytes", tensor: bool = False) -> bytes:
    from tensorboard.compat.proto.event_pb2 import Event

    made = Event(wall_time=1_700_000_000.0 + step, step=step)
    if value is None:
        made.file_version = "brain.Event:2"
    else:
        added = made.summary.value.add(tag=tag)
        if tensor:
            added.tensor.dtype = 1
            added.tensor.tensor_content = struct.pack("<f", value)
        else:
            added.simple_value = value
    return made.SerializeToString()


def events(*made: bytes) -> bytes:
    return b"".join(map(record, (event(0), *made)))


def test_scalars_of_an_event_file() -> None:
    content = parse_events(
        events(
            event(1, 4096.0), event(2, 8192.0, tensor=True), event(2, 1.5, "memory/mem-reserved-gigabytes"),
            event(3, 10.5, "lm loss"), event(3, 7.0, "mem-allocated-count"),
        ),
        "a",
    )  # fmt: skip
    (run,) = content.runs
    assert run.values == {"peak_allocated": {1: 4096, 2: 8192}, "reserved": {2: 1_500_000_000}}
    assert (run.peak_allocated, run.peak_reserved, content.problems) == (8192, None, ())
    assert content.date == datetime.fromtimestamp(1_700_000_000, UTC)


def text_event(tag: str, text: str) -> bytes:
    from tensorboard.compat.proto.event_pb2 import Event

    made = Event(wall_time=1_700_000_001.0)
    made.summary.value.add(tag=f"{tag}/text_summary").tensor.string_val.append(text.encode())
    return made.SerializeToString()


@pytest.mark.parametrize(("text", "rank"), [("7", 7), ("0", 0), ("None", None), ("-1", None), ("1" * 99, None)])
def test_an_event_file_that_tells_its_rank(text: str, rank: int | None) -> None:
    made = events(text_event("rank", text), text_event("world_size", "16"), event(1, 4096.0))
    (run,) = parse_events(made, "a").runs
    assert (run.rank, run.world_size) == (rank, 16)


def test_damaged_event_files_are_read_as_far_as_they_go() -> None:
    whole = events(event(1, 4096.0), event(2, 8192.0), event(3, 1.0, "memory/odd"))
    cut = parse_events(whole[:-40], "a")
    assert "ends within a record" in cut.problems[0].what and cut.runs[0].peak_allocated == 8192
    spoiled = bytearray(whole)
    spoiled[len(record(event(0))) + 20] ^= 1
    damaged = parse_events(bytes(spoiled), "a")
    assert "damaged" in damaged.problems[0].what and damaged.runs[0].values == {"peak_allocated": {2: 8192}}
    lost = bytearray(whole)
    lost[len(record(event(0)))] ^= 1
    assert [p.what for p in parse_events(bytes(lost), "a").problems] == [
        "no record begins here: the rest of the file is not read"
    ]
    assert "'memory/odd', 1 times, is not known" in parse_events(whole, "a").problems[0].what
    assert "no size at step" in parse_events(events(event(1, float("nan"))), "a").problems[0].what


# Exports of Weights & Biases.

ROWS = [{"_step": 1, "mem-max-allocated-bytes": 5, "_timestamp": 1_700_000_000}, {"_step": 2, "loss": 3.0}]


@pytest.mark.parametrize(
    "data",
    [
        json.dumps(ROWS),
        "\n".join(map(json.dumps, ROWS)),
        json.dumps(
            {"_step": {"0": 1, "1": 2}, "mem-max-allocated-bytes": {"0": 5, "1": None}, "_timestamp": {"0": 1.7e9}}
        ),
        json.dumps({"columns": ["_step", "mem-max-allocated-bytes", "_timestamp"], "data": [[1, 5, 1.7e9]]}),
        "_step,mem-max-allocated-bytes,_timestamp\r\n1,5,1700000000\r\n2,,1700000001\r\n",
        '\ufeff"Step","mem-max-allocated-bytes","mem-max-allocated-bytes__MIN","_timestamp"\n1,5.0,1,1700000000\n',
    ],
    ids=["rows", "lines", "pandas", "split", "csv", "chart"],
)
def test_every_form_of_an_export(data: str) -> None:
    content = parse_export(data.encode())
    (run,) = content.runs
    assert run.values == {"peak_allocated": {1: 5}} and run.peak_allocated == 5
    assert content.problems == () and content.date == datetime.fromtimestamp(1_700_000_000, UTC)


@pytest.mark.parametrize("before", ["", "config.", "config/"])
def test_an_export_that_tells_ranks(before: str) -> None:
    rows = [
        {"_step": step, "mem-max-allocated-bytes": 10 * rank + step, f"{before}rank": rank, f"{before}world_size": 16.0}
        for step in (1, 2)
        for rank in (7, 0)
    ]
    runs = parse_export(json.dumps(rows).encode()).runs
    assert [(run.rank, run.world_size, run.peak_allocated) for run in runs] == [(0, 16, 2), (7, 16, 72)]


def test_the_runs_of_a_chart_are_told_apart() -> None:
    data = "Step,a - b - mem-max-allocated-bytes,c - mem-max-allocated-bytes\n1,5,6\n2,7,\n"
    content = parse_export(data.encode())
    assert [(run.run, run.peak_allocated) for run in content.runs] == [("a - b", 7), ("c", 6)]


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        ('{"_step": 1, "mem-max-allocated-bytes": "many"}\n{"_step": 2, "mem-max-allocated-bytes": 5}', "no size"),
        ('{"_step": 1, "mem-max-allocated-bytes": 5}\nnonsense', "line 2"),
        ('{"mem-max-allocated-bytes": 5}\n{"_step": 2, "mem-max-allocated-bytes": 5}', "no step"),
        ("Step,mem-max-allocated-bytes\n1,5\n2,5,6\n", "3 cells"),
        ("Step,memory/odd,mem-max-allocated-bytes\n1,5,5\n", "'memory/odd' is not known"),
    ],
)
def test_what_of_an_export_cannot_be_read_is_named(data: str, problem: str) -> None:
    content = parse_export(data.encode())
    assert len(content.runs) == 1
    assert any(problem in f"{found.where}: {found.what}" for found in content.problems)


@pytest.mark.parametrize("data", ["", "{", "loss,mem-max-allocated-bytes\n1,2\n", 'a\n"'])
def test_what_is_no_export_is_refused(data: str) -> None:
    with pytest.raises(Unreadable):
        parse_export(data.encode())


# Tables.


def table(text: str, columns: str | None = None, unit: str = "") -> Content:
    return parse_table(text.encode(), columns_of(columns), unit)


def test_columns_are_known_by_name_and_have_their_unit_there() -> None:
    (run,) = table("Peak allocated (GiB),rank,commit,outcome\n1.5,3,abc,censored\n").runs
    assert (run.peak_allocated, run.rank, run.told) == (3 << 29, 3, {"commit": "abc"})
    assert run.reason


@pytest.mark.parametrize(
    ("text", "columns", "unit"),
    [
        ("x\n2\n", "peak_allocated=x:MiB", ""),
        ("x_mib\n2\n", "peak_allocated=x_mib", ""),
        ("peak_allocated\n2\n", None, "MiB"),
        ("peak_allocated\n2MiB\n", None, ""),
        ("peak_allocated_bytes\n2097152\n", None, ""),
        ("peak_allocated\n2097152\n", None, "B"),
    ],
)
def test_where_a_unit_may_stand(text: str, columns: str | None, unit: str) -> None:
    (run,) = table(text, columns, unit).runs
    assert run.peak_allocated == 2 * MIB


def test_iterations_of_a_run_are_one_reading() -> None:
    text = "recipe,rank,iteration,allocated,peak_allocated\na,0,1,1MiB,2MiB\na,0,2,1MiB,3MiB\na,1,1,1MiB,9MiB\n"
    runs = table(text).runs
    assert [(run.rank, run.peak_allocated) for run in runs] == [(0, 3 * MIB), (1, 9 * MIB)]
    assert runs[0].values == {"allocated": {1: MIB, 2: MIB}, "peak_allocated": {1: 2 * MIB, 2: 3 * MIB}}


@pytest.mark.parametrize(
    ("row", "what"),
    [
        ("2,0", "without a unit"), ("x,0", "not a memory size"), ("-1MiB,0", "not a memory size|too little"),
        (",0", "no size"), ("2MiB,0,3", "3 cells"), ("2MiB,first", "no number"),
    ],
)  # fmt: skip
def test_a_bad_row_is_named_and_left_out(row: str, what: str) -> None:
    content = table(f"peak_allocated,rank\n{row}\n5MiB,1\n")
    assert [run.rank for run in content.runs] == [1]
    (problem,) = content.problems
    assert problem.where == "line 2" and re.search(what, problem.what), problem


@pytest.mark.parametrize("columns", ["x", "nonsense=x", "rank=", "rank=a,,"])
def test_columns_that_name_nothing_are_refused(columns: str) -> None:
    with pytest.raises(OombisectError, match="--columns"):
        columns_of(columns)


@pytest.mark.parametrize(
    ("text", "columns"),
    [("a\n1\n", None), ("a\n1\n", "peak_allocated=b"), ("a,a\n1,2\n", "peak_allocated=a"), ("", None), ('a\n"', None)],
)
def test_tables_without_the_columns_are_refused(text: str, columns: str | None) -> None:
    with pytest.raises(Unreadable):
        table(text, columns)


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("snapshot-3.json.gz", 3), ("mem_rank12.pickle", 12), ("snapshot_7.pickle", 7), ("rank_0_snapshot.pickle", 0),
        ("snapshot.pickle", None), ("2026_08_01.pickle.gz", None),
    ],
)  # fmt: skip
def test_ranks_in_names_of_snapshots(name: str, rank: int | None) -> None:
    assert rank_in(name) == rank
