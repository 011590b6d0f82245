"""Replays answer for probes: where the history can be replayed, no probe with a limit is needed."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from oombisect.cli.main import main
from oombisect.errors import ExitCode

from .recording import Recording, record
from .toy import MIB, RECIPE, mib
from .world import World

E = 500 * MIB  # the toy's external memory


NEEDED_GOOD, NEEDED_BAD = 5500 * MIB, 9700 * MIB


def pinned() -> list[tuple[str, str, int]]:
    """Five segments of 1100 MiB, each kept alive by a block of 100 MiB; what is left of them is too small for more."""
    program = []
    for n in range(5):
        program += [("alloc", f"whole{n}", 1100 * MIB), ("free", f"whole{n}", 0)]
        program += [("alloc", f"part{n}", 1000 * MIB), ("alloc", f"keep{n}", 100 * MIB)]
    program += [("free", f"part{n}", 0) for n in range(5)]
    return [*program, *(("alloc", f"again{n}", 1050 * MIB) for n in range(4))]


def plain() -> list[tuple[str, str, int]]:
    """As much at the peak, and what is freed serves again."""
    program = [("alloc", f"keep{n}", 100 * MIB) for n in range(5)]
    program += [("alloc", f"part{n}", 1000 * MIB) for n in range(5)]
    program += [("free", f"part{n}", 0) for n in range(5)]
    return [*program, *(("alloc", f"again{n}", 1000 * MIB) for n in range(4))]


@pytest.fixture
def good(tmp_path: Path) -> Recording:
    return record(tmp_path / "good.gz", plain())


@pytest.fixture
def bad(tmp_path: Path) -> Recording:
    return record(tmp_path / "bad.gz", pinned())


@pytest.fixture
def bad_expandable(tmp_path: Path) -> Recording:
    return record(tmp_path / "bad-expandable.gz", pinned(), "expandable_segments:True")


def test_the_programs_are_what_they_should_be(good: Recording, bad: Recording, bad_expandable: Recording) -> None:
    assert good.allocated == bad.allocated == bad_expandable.allocated == good.reserved == NEEDED_GOOD
    assert bad.reserved == NEEDED_BAD


def told(one: Recording, expandable: Recording, needed: int) -> dict[str, Any]:
    return one.told(needed=needed, expandable=expandable.told(needed=NEEDED_GOOD))


def test_a_fragmentation_step_is_proved_by_replays_and_two_probes(
    world: World,
    good: Recording,
    bad: Recording,
    bad_expandable: Recording,
) -> None:
    limit = 7000 * MIB
    fine = good.told(expandable=good.told())
    worse = told(bad, bad_expandable, NEEDED_BAD)
    report = world.run(
        [{**fine, "tag": n} for n in range(4)] + [{**worse, "tag": 3}, *({**worse, "tag": n} for n in range(4, 7))],
        probe={"limit_bytes": limit},
    )
    assert report.exit_code is ExitCode.CULPRIT
    (step,) = report.verdict.steps
    assert (step.point, step.kind, step.crosses_limit) == (world.shas[4], "fragmentation", True)
    needed = step.evidence["needed_capacity"]
    assert (needed["method"], needed["rank"], needed["resolution_bytes"]) == ("replay", 0, 2 * MIB)
    assert (needed["smaller_bytes"], needed["larger_bytes"]) == (NEEDED_GOOD + E, NEEDED_BAD + E)
    assert NEEDED_GOOD + E <= needed["larger_expandable_bytes"] < NEEDED_GOOD + E + 200 * MIB
    enforced = {"limit_bytes": limit, "survives": False, "survives_with_expandable_segments": True}
    assert step.evidence["limit_enforced"] == enforced
    stranded = step.evidence["stranded"]
    assert stranded["enforced"] and stranded["limit_bytes"] == limit
    assert stranded["requested_by"] == ["again (/slot/src/megatron/bridge/again.py:7)"]
    (holder,) = stranded["holders"]
    assert holder["stack"] == ["keep (/slot/src/megatron/bridge/keep.py:7)"]
    assert holder["never_freed"] == holder["blocks"] > 0
    assert (holder["blocks"], holder["size_bytes"]) == (5, 500 * MIB)
    assert holder["stranded_bytes"] == stranded["stranded_bytes"] == 5000 * MIB
    parts = ("asked_for_bytes", "rounding_bytes", "stranded_bytes")
    assert sum(stranded[part] for part in parts) == stranded["reserved_bytes"]
    assert stranded["largest_free_bytes"] == 1000 * MIB and stranded["requested_bytes"] == 1050 * MIB
    # Only the A/B test enforces the limit.
    assert [probe["limit"] for probe in world.probes() if probe["limit"]] == [limit, limit]


def test_a_probe_that_contradicts_the_replay_takes_the_class_away(
    world: World,
    good: Recording,
    bad: Recording,
    bad_expandable: Recording,
) -> None:
    fine = good.told(expandable=good.told())
    worse = told(bad, bad_expandable, NEEDED_GOOD)  # the probe survives where the replay does not
    report = world.run([fine, {**fine, "tag": 1}, {**worse, "tag": 1}, {**worse, "tag": 2}],
                       probe={"limit_bytes": 7000 * MIB})  # fmt: skip
    (step,) = report.verdict.steps
    assert step.kind == "unknown"
    assert step.evidence["limit_enforced"]["survives"] is True


@pytest.mark.parametrize("damage", ["cut off", "other peaks", "no trace", "gone", "another program"])
def test_a_history_that_cannot_be_replayed_leaves_it_to_probes(
    world: World,
    tmp_path: Path,
    bad: Recording,
    good: Recording,
    damage: str,
) -> None:
    more: dict[str, Any] = {}
    if damage == "cut off":
        bad.path.write_bytes(bad.path.read_bytes()[:-200])
    elif damage == "other peaks":
        more["reserved"] = bad.reserved + 200 * MIB
    elif damage == "no trace":
        more["trace"] = None
    elif damage == "gone":
        bad.path.write_bytes(b"")
    else:
        bad.path.write_bytes(gzip.compress(b"cos\nsystem\n(S'touch pwned'\ntR."))
    worse = {**bad.told(needed=NEEDED_BAD), **more}
    fine = mib(5500, 5550)
    report = world.run([fine, {**fine, "tag": 1}, {**worse, "tag": 1}, {**worse, "tag": 2}],
                       probe={"limit_bytes": 7000 * MIB})  # fmt: skip
    (step,) = report.verdict.steps
    assert step.kind == "fragmentation"
    assert step.evidence["needed_capacity"]["method"] == "probes"
    assert step.evidence["stranded"] is None
    assert len([probe for probe in world.probes() if probe["limit"]]) > 2


def run_cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *arguments: str) -> tuple[int, str]:
    monkeypatch.setattr("sys.argv", ["oombisect", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0), capsys.readouterr().out


@pytest.fixture
def calm(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command line within a test: signals are pytest's."""
    for name in ("ignore_signals", "raise_on_signals"):
        monkeypatch.setattr(f"oombisect.cli.main.{name}", lambda: None)


def probe_arguments(world: World, limit: int) -> list[str]:
    return [
        "probe", "HEAD", "--recipe", RECIPE, "--repo", str(world.repo), "--python", str(world.python),
        "--limit", str(limit), "--db", str(world.folder / "db.sqlite"), "--json",
    ]  # fmt: skip


def test_probe_classifies_what_does_not_fit(
    world: World, bad: Recording, bad_expandable: Recording, calm: None,
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    from .toy import history

    history(world.repo, [told(bad, bad_expandable, NEEDED_BAD)])
    code, out = run_cli(capsys, monkeypatch, *probe_arguments(world, 7000 * MIB))
    found = json.loads(out)["classification"]
    assert (code, found["class"], found["needed_capacity_method"]) == (1, "fragmentation", "replay")
    assert found["needed_capacity"] == NEEDED_BAD + E
    assert found["needed_capacity_expandable"] < NEEDED_GOOD + E + 200 * MIB
    assert found["fits_with_expandable_segments"] is True
    assert found["perfect_allocator_needs"] == bad.allocated + E
    assert found["stranded"]["holders"][0]["stack"][0].startswith("keep ")
    assert [probe["limit"] for probe in world.probes()] == [None, None]  # the probe and its A/B

    code, out = run_cli(capsys, monkeypatch, *probe_arguments(world, 5600 * MIB))
    assert (code, json.loads(out)["classification"]["class"]) == (1, "capacity")
    code, out = run_cli(capsys, monkeypatch, *probe_arguments(world, 10_200 * MIB))
    assert (code, json.loads(out)["classification"]) == (0, None)


UNCUT = 11 * MIB + 1
"""A block of 12 MiB in a segment of its own: the rest is too small to be cut off, save with expandable segments."""


def uncut(count: int, size: int = UNCUT) -> list[tuple[str, str, int]]:
    """`count` tensors of that size; by default a byte more than fits in 11 MiB."""
    return [("alloc", f"tensor{n}", size) for n in range(count)]


def test_what_is_left_uncut_is_no_capacity_whatever_is_allocated(
    world: World, tmp_path: Path, calm: None,
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    small, large = record(tmp_path / "small.gz", uncut(458, 12 * MIB)), record(tmp_path / "large.gz", uncut(500))
    cut = record(tmp_path / "cut.gz", uncut(500), "expandable_segments:True")
    assert (large.requested, large.allocated) == (500 * UNCUT, 6000 * MIB)
    limit = 5800 * MIB + E
    fine = small.told(expandable=small.told())
    worse = large.told(needed=6000 * MIB, expandable=cut.told(needed=5520 * MIB))
    report = world.run([fine, {**fine, "tag": 1}, {**worse, "tag": 1}, {**worse, "tag": 2}],
                       probe={"limit_bytes": limit})  # fmt: skip
    (step,) = report.verdict.steps
    assert (step.point, step.kind, step.crosses_limit) == (world.shas[2], "fragmentation", True)
    assert step.evidence["limit_enforced"]["survives_with_expandable_segments"] is True
    assert step.evidence["classification"]["growth"]["requested"] == 4 * MIB + 500

    code, out = run_cli(capsys, monkeypatch, *probe_arguments(world, limit))
    found = json.loads(out)["classification"]
    assert (code, found["class"], found["requested_counted"]) == (1, "fragmentation", True)
    assert found["perfect_allocator_needs"] == 500 * UNCUT + E <= limit < large.allocated + E
    assert found["stranded_bytes"] == found["needed_capacity"] - found["perfect_allocator_needs"]
    assert found["expandable_segments"]["fits_by"] == "peak"
    code, out = run_cli(capsys, monkeypatch, *probe_arguments(world, 5000 * MIB + E))
    assert (code, json.loads(out)["classification"]["class"]) == (1, "capacity")


def test_replay_command(
    world: World, bad: Recording, calm: None,
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    world.store().close()
    bare = ["replay", str(bad.path), "--db", str(world.folder / "db.sqlite"), "--json"]
    code, out = run_cli(capsys, monkeypatch, *bare)
    report = json.loads(out)
    rows = {row["alloc_conf"]: row for row in report["settings"]}
    assert code == 0 and report["fidelity"]["exact"] and report["limit_bytes"] is None
    assert rows[""]["recorded"] and rows[""]["peak_reserved"] == rows[""]["min_limit_bytes"] == NEEDED_BAD
    assert rows["expandable_segments:True"]["min_limit_bytes"] < NEEDED_GOOD + 200 * MIB
    assert report["perfect"] == {"min_limit_bytes": NEEDED_GOOD, "fits": None}
    assert all(row["fits"] is None for row in rows.values())

    code, out = run_cli(capsys, monkeypatch, *bare, "--limit", "7500MiB", "--external", "500MiB",
                        "--alloc-conf", "expandable_segments:True", "--alloc-conf", "nonsense:1")  # fmt: skip
    report = json.loads(out)
    assert code == 1
    assert [row["fits"] for row in report["settings"]] == [False, True, None]
    assert "nonsense" in report["settings"][2]["refused"]
    assert report["settings"][0]["ooms"] == 1
    assert report["first_oom"]["requested_bytes"] == 1050 * MIB
    assert report["settings"][0]["min_limit_bytes"] == NEEDED_BAD + 500 * MIB
