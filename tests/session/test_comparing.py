"""Two probes compared, their commits in a real repository: stacks matched, culprits shown, sums exact."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from oombisect.errors import OombisectError
from oombisect.history.store import Store, open_store
from oombisect.readings import Outcome
from oombisect.reports.compare import comparison_json, render_comparison
from oombisect.session.comparing import Comparison
from oombisect.session.sides_of import compare_named
from tests.repo.history import GITLINK, RECIPE, History, modules
from tests.session.memories import Allocation, add_probe, session_spec, write_snapshot

MODEL = "src/megatron/bridge/model.py"
CORE = "megatron/core/a.py"
TORCH = "/venv/lib/python3.12/site-packages/torch/nn/modules/module.py"
TE = "/venv/lib/python3.12/site-packages/transformer_engine/linear.py"

BEFORE = """import torch


class MLP(MegatronModule):
    def forward(self, x):
        y = self.up(x)
        return self.act(y)


def main():
    return MLP().forward(1)
"""
AFTER = """import torch

# a comment moves everything


class MLP(MegatronModule):
    def forward(self, x):
        y = self.up(x)
        kept = y.clone()
        return self.act(y)


def main():
    return MLP().forward(1)
"""


def line(text: str, part: str) -> int:
    return next(number for number, content in enumerate(text.split("\n"), 1) if part in content)


def forward(text: str, part: str, slot: str) -> list[tuple[str, int, str]]:
    """The stack of an allocation in `MLP.forward`, as it lies in a worktree slot."""
    file = f"/cache/slots/{slot}/{MODEL}"
    return [
        (file, line(text, part), "forward"),
        (TORCH, 10, "_call_impl"),
        (file, line(text, "MLP().forward"), "main"),
        ("/x/probes/bridge_train.py", 5, "<module>"),
    ]


def core(slot: str) -> list[tuple[str, int, str]]:
    return [(f"/cache/slots/{slot}/{GITLINK}/{CORE}", 1, "fill")]


@dataclass
class World:
    store: Store
    repo: History
    cache: Path
    good: str
    bad: str
    session: str

    def probe(self, point: str, allocations: Sequence[Allocation], **more: Any) -> int:
        return add_probe(self.store, more.pop("session", self.session), point, allocations, **more)

    def compare(self, first: str | int, second: str | int | None = None, **options: Any) -> Comparison:
        settings: dict[str, Any] = {"rank": None, "ends": False, "database": None, "default": self.store.path}
        return compare_named(
            str(first), None if second is None else str(second), cache=self.cache, say=lambda _: None,
            clock=lambda: datetime(2026, 11, 30, tzinfo=UTC), **(settings | options),
        )  # fmt: skip

    def told(self, found: Comparison, by: str = "stack", top: int = 10) -> str:
        out = StringIO()
        render_comparison(found, Console(file=out, width=400, highlight=False), by=by, top=top)
        return out.getvalue()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    megatron = History(tmp_path / "Megatron-LM")
    pin = megatron.commit("core", {CORE: "def fill(): ...\n", "megatron/core/__init__.py": ""})
    repo = History(tmp_path / "Megatron-Bridge")
    base = {".gitmodules": modules("../Megatron-LM"), RECIPE: "def q() -> ConfigContainer: ...\n", MODEL: BEFORE}
    good = repo.commit("start", base, gitlinks={GITLINK: pin})
    bad = repo.commit("keep a copy", {MODEL: AFTER})
    repo.check_out()
    with open_store(tmp_path / "o.db", clock=lambda: datetime(2026, 11, 30, tzinfo=UTC)) as store:
        session = store.create_session(session_spec(repo.path, good, bad)).id
        yield World(store, repo, tmp_path / "cache", good, bad, session)


def layers(text: str, slot: str, part: str, size: int, count: int) -> list[Allocation]:
    return [(size, forward(text, part, slot))] * count


def test_the_culprits_line_and_hunk_are_shown_and_all_else_cancels(world: World) -> None:
    first = world.probe(world.good, [*layers(BEFORE, "slot-0", "self.up", 1000, 4), (5000, core("slot-0"))])
    blocks = [
        *layers(AFTER, "slot-1", "self.up", 1000, 4),
        *layers(AFTER, "slot-1", "y.clone", 700, 4),
        (5000, core("slot-1")),
    ]
    second = world.probe(world.bad, blocks)
    found = world.compare(first, second)
    assert found.delta == 4 * 1024 and found.adjacent
    culprit, *rest = found.entries
    assert culprit.entry.delta == found.delta and all(one.entry.delta == 0 for one in rest)
    assert not any(one.entry.moved for one in found.entries) and len(rest) == 2
    assert (culprit.entry.first.count, culprit.entry.second.count) == (0, 4)
    assert culprit.module == f"{MODEL} MLP.forward"
    frame = culprit.touched
    assert frame is not None and (frame.source, frame.function) == ("kept = y.clone()", "MLP.forward")
    assert frame.hunk is not None and "+        kept = y.clone()" in frame.hunk.lines
    assert {one.module for one in rest} == {f"{MODEL} MLP.forward", f"{CORE} fill"}
    text = world.told(found)
    assert "+4096 B (simulated)  0 B x0 -> 4096 B x4" in text
    assert f"changed by {world.bad[:10]}: {MODEL}:9" in text and "+        kept = y.clone()" in text
    assert "2 stacks hold the same on both sides" in text
    assert "_call_impl" not in text and "bridge_train" not in text


def test_the_groupings_sum_to_the_difference(world: World) -> None:
    first = world.probe(
        world.good,
        [*layers(BEFORE, "a", "self.up", 1000, 3), (700, core("a")), (512, ())],
        phases=[("model", 2), ("step_1", 3)],
    )
    second = world.probe(
        world.bad,
        [*layers(AFTER, "b", "self.act", 1000, 2), (9000, core("b")), (512, ()), (512, ())],
        phases=[("model", 1), ("step_1", 1), ("step_2", 2)],  # one more came after the last phase
    )
    found = world.compare(first, second)
    told = comparison_json(found)
    assert json.loads(json.dumps(told)) == told
    assert told["delta_bytes"] == told["second"]["peak_allocated"] - told["first"]["peak_allocated"] != 0
    for grouping in ("stacks", "modules", "phases"):
        assert sum(item["delta_bytes"] for item in told[grouping]) == told["delta_bytes"]
    phases = {item["name"]: (item["first_bytes"], item["second_bytes"]) for item in told["phases"]}
    assert phases == {
        "model": (2048, 1024),
        "step_1": (1024 + 1024 + 512, 1024),
        "step_2": (0, 9216 + 512),
        "after the last phase": (0, 512),
    }
    assert told["second"]["peak_phase"] == "after the last phase" and told["first"]["peak_phase"] == "step_1"
    modules_ = {item["name"]: item["delta_bytes"] for item in told["modules"]}
    assert modules_["autograd backward (no Python stack)"] == 512
    for by in ("module", "phase"):
        assert f"B - A: +{told['delta_bytes']} B (simulated)" in world.told(found, by)
    assert "more (--top shows more)" in world.told(found, "module", top=1)


def test_what_is_cut_off_is_summed(world: World) -> None:
    first = world.probe(world.good, [(512, ())])
    second = world.probe(world.bad, [(512, ()), (1024, core("b")), (2048, [(TE, 1, "init")])])
    assert "+1024 B (simulated) in 1 more stack " in world.told(world.compare(first, second), top=1)


def test_a_session_is_compared_at_its_ends_and_at_its_largest_step(world: World) -> None:
    world.probe(world.good, [(512, ())])
    world.probe(world.bad, [(1024, ())], request="remeasure")
    world.probe(world.bad, [(4096, ())], capacity_bytes=1)  # not a plain one
    found = world.compare("last", ends=True)
    assert (found.first.located.point, found.second.located.point, found.delta) == (world.good, world.bad, 512)
    with pytest.raises(OombisectError, match="no verdict"):
        world.compare(world.session)
    world.store.finish_session(
        world.session, 0, report([step(world, 5), step(world, -512), step(world, 9, named=False)])
    )
    found = world.compare("last")
    assert (found.first.located.point, found.second.located.point, found.delta) == (world.good, world.bad, 512)


def test_it_is_said_which_step_is_compared_and_another_can_be_chosen(world: World) -> None:
    world.probe(world.good, [(512, ())])
    world.probe(world.bad, [(1024, ())])
    small = step(world, -512)
    crossing = step(world, 5) | {"point": "7" * 40, "crosses_limit": True}
    large = step(world, 4096) | {"point": world.bad, "parent": world.good}
    small |= {"point": world.good, "parent": world.bad}
    world.store.finish_session(world.session, 0, report([crossing, large, small]))
    found = world.compare("last")
    assert found.step is not None and (found.step.number, found.step.count, found.step.why) == (2, 3, "the largest")
    text = world.told(found)
    assert f"step 2 of 3 of session {world.session}: {world.bad[:10]} (capacity), the largest" in text
    assert f"others: 7777777777 (crosses the limit), {world.good[:10]}; to see one" in text
    assert f"oombisect compare {world.session} --step COMMIT" in text
    assert comparison_json(found)["step"]["crossing"] == "7" * 40
    chosen = world.compare("last", step=world.good[:8])
    assert (chosen.delta, chosen.step and chosen.step.number) == (-512, 3)
    assert world.compare("last", ends=True).step is None
    with pytest.raises(OombisectError, match="is no named step"):
        world.compare("last", step="abcdef0123")
    with pytest.raises(OombisectError, match="is no named step"):
        world.compare("last", step="")


@pytest.mark.parametrize("kind", ["fragmentation", "mixed", "capacity"])
def test_equal_peaks_of_a_step_do_not_look_like_innocence(world: World, kind: str) -> None:
    first = world.probe(world.good, [(512, ()), (512, ())])
    second = world.probe(world.bad, [(1024, ())])
    needed = {"needed_capacity": {"rank": 0, "smaller_bytes": 1 << 30, "larger_bytes": 3 << 30}}
    moved = step(world, -512) | {"class": kind, "evidence": needed, "delta_bytes": {"allocated": 0, "reserved": 1}}
    world.store.finish_session(world.session, 0, report([moved]))
    text = world.told(world.compare("last"))
    assert "The peaks are equal, which does not tell how the allocator lays the blocks out" in text
    assert "Live blocks at the peak: 2 -> 1." in text
    assert f"The step is called {kind}; needed capacity: 1.00 GiB -> 3.00 GiB (simulated)" in text
    for probe in (first, second):
        assert f"`oombisect replay {world.session}/{probe}`" in text
    assert text.count("the same on both sides") == 1


@pytest.mark.parametrize(("kind", "told"), [("fragmentation", True), ("mixed", True), ("capacity", False)])
def test_a_step_of_layout_points_to_it_though_the_peaks_differ(world: World, kind: str, told: bool) -> None:
    world.probe(world.good, [(512, ())])
    world.probe(world.bad, [(1024, ())])
    world.store.finish_session(world.session, 0, report([step(world, -512) | {"class": kind}]))
    text = world.told(world.compare("last"))
    assert ("What is live differs, but that does not tell" in text) is told
    assert ("oombisect replay" in text) is told


def test_a_roll_is_compared_at_the_commit_of_megatron_lm_inside_it(world: World) -> None:
    megatron = History(world.repo.path.parent / "Megatron-LM")
    old = megatron.tip()
    new = megatron.commit("fill twice", {CORE: "# twice\ndef fill(): ...\n"})
    before, after = f"{world.bad}+{old}", f"{world.bad}+{new}"
    filled = [(f"/cache/slots/slot-1/{GITLINK}/{CORE}", 2, "fill")]
    world.probe(before, [(512, core("slot-0"))])
    world.probe(after, [(512, filled), (1024, filled)], repo="megatron-lm")
    world.probe(world.bad, [(4096, ())])
    undone = world.probe(f"{after}-{new}", [(512, core("slot-0"))])
    inside = step(world, 1024) | {"point": new, "parent": old, "repo": "megatron-lm"}
    outer = step(world, 1024) | {"evidence": {"descent": {"base": {"bridge": world.bad}, "steps": [inside]}}}
    world.store.finish_session(world.session, 0, report([outer]))
    found = world.compare("last")
    assert (found.first.located.point, found.second.located.point) == (before, after)
    assert found.delta == 1024 and found.adjacent
    assert found.entries[0].module == f"{CORE} fill"
    assert found.second.projects["megatron-lm"].commit == new
    without = world.compare(undone, undone).first.projects["megatron-lm"]
    assert without.commit not in (old, new) and without.text(CORE) == "def fill(): ...\n"


def step(world: World, delta: int, named: bool = True) -> dict[str, Any]:
    """A step; only that of -512 bytes has probes."""
    known = delta == -512
    return {
        "point": world.bad if known else "9" * 40, "parent": world.good if known else "8" * 40, "subject": "s",
        "repo": "bridge", "delta_bytes": {"allocated": delta}, "class": "capacity", "confirmed": "yes", "named": named,
        "crosses_limit": False, "blurred": [], "evidence": {},
    }  # fmt: skip


def report(steps: list[dict[str, Any]]) -> dict[str, Any]:
    reading = {"outcome": "exact", "device": "virtual:toy", "simulated": True, "ranks": []}
    verdict = {
        "kind": "culprit", "limit_bytes": 1, "crossing": None, "steps": steps, "growth": {}, "explained": 1.0,
        "unresolved": [], "notes": [],
    }  # fmt: skip
    return {
        "session": "s", "verdict": verdict, "good": reading, "bad": reading, "probes": 2, "probes_cached": 0,
        "points": 2, "workload": {}, "reproduce": [],
    }  # fmt: skip


def test_releases_are_compared_under_the_commit_of_bridge_they_ran_at(world: World) -> None:
    def released(package: str) -> str:
        probe = {"repo": str(world.repo.path), "megatron": None, "recipe": "toy"}
        arguments = {
            "package": package,
            "at": world.bad,
            "versions": ["2.9", "2.10", "3.0"],
            "search": {"probe": probe},
        }
        spec = session_spec(
            world.repo.path, f"{package} 2.9", f"{package} 3.0", kind="releases", arguments=arguments
        )  # what the ends are called is not what their probes are stored under
        return world.store.create_session(spec).id

    torch, other = released("torch"), released("numpy")
    kept = layers(AFTER, "0", "kept", 512, 1)
    for version, count in (("2.9", 0), ("3.0", 2)):
        world.probe(version, [(512, ()), *kept * count], session=torch, repo="package")
    found = world.compare(torch, ends=True)
    assert (found.first.located.point, found.second.located.point, found.delta) == ("2.9", "3.0", 1024)
    assert "kept = y.clone()" in world.told(found) and "no repository" not in world.told(found)
    with pytest.raises(OombisectError, match=r"No probe of 3\.0") as refused:
        world.compare(other, ends=True)  # another package has that version, too
    assert refused.value.way_out == f"Run `oombisect resume {other}`."


def test_a_session_that_named_nothing(world: World) -> None:
    world.store.finish_session(world.session, 10, report([]))
    with pytest.raises(OombisectError, match="named no single change") as refused:
        world.compare(world.session)
    assert "--ends" in refused.value.way_out


def test_a_probe_reused_from_an_earlier_session_is_found(world: World) -> None:
    world.probe(world.good, [(512, ())])
    later = world.store.create_session(session_spec(world.repo.path, world.good, world.bad)).id
    world.probe(world.bad, [(1024, ())], session=later)
    assert world.compare(later, ends=True).delta == 512
    other = session_spec(world.repo.path, world.good, world.bad, arguments={"probe": {"recipe": "other"}})
    alien = world.store.create_session(other).id
    with pytest.raises(OombisectError, match="No probe of"):
        world.compare(alien, ends=True)


def test_the_config_is_compared_too(world: World) -> None:
    first = world.probe(world.good, [(512, ())], config={"model": {"layers": 2}})
    second = world.probe(world.bad, [(1024, ())], config={"model": {"layers": 4}})
    found = world.compare(first, second)
    assert comparison_json(found)["config_changes"] == [{"path": "model.layers", "before": 2, "after": 4}]
    assert "model.layers: 2 -> 4" in world.told(found)


def test_unlike_runs_are_pointed_out(world: World) -> None:
    first = world.probe(world.good, [(512, ())], world_size=2, settings={"overrides": ["a=1"]})
    second = world.probe(world.bad, [(1024, ())], rank=1, outcome=Outcome.CENSORED, settings={"overrides": ["a=2"]})
    notes = "\n".join(world.compare(first, second).notes)
    assert "different ranks: 0 and 1" in notes
    assert "different world sizes: 2 and 1" in notes
    assert "different overrides: ['a=1'] and ['a=2']" in notes
    assert "ran out of memory: shown is the most it held until then" in notes
    assert "at least" in world.told(world.compare(first, second))


def test_both_ranks_are_the_one_asked_for(world: World) -> None:
    first, second = world.probe(world.good, [(512, ())]), world.probe(world.bad, [(512, ())], rank=1)
    with pytest.raises(OombisectError, match="measured no rank 1"):
        world.compare(first, second, rank=1)


def test_without_the_repository_lines_are_matched_by_order(world: World) -> None:
    slots = ("slot-0", "slot-1")
    sides = [
        world.probe(point, [*layers(text, slot, "self.up", 1000, 2), *layers(text, slot, "self.act", 512, 2)])
        for point, text, slot in zip((world.good, world.bad), (BEFORE, AFTER), slots)
    ]
    world.repo.path.rename(world.repo.path.with_name("elsewhere"))
    found = world.compare(*sides)
    assert [one.entry.delta for one in found.entries] == [0, 0] and not any(one.entry.moved for one in found.entries)
    assert any("no repository" in note for note in found.notes)
    again = world.compare(*sides, repo=world.repo.path.with_name("elsewhere"))
    assert again.entries[0].frames[0].source == "y = self.up(x)"


def test_bare_snapshots_need_no_database(tmp_path: Path, world: World) -> None:
    stacks = [[(f"/home/{user}/train.py", number, "step")] for user, number in (("ann", 10), ("bob", 12))]
    first = write_snapshot(tmp_path / "a.pickle.gz", [(512, stacks[0])])
    second = write_snapshot(tmp_path / "b.pickle.gz", [(512, stacks[1]), (1024, [("/home/bob/train.py", 4, "init")])])
    found = world.compare(first, second, default=tmp_path / "none.db")
    assert [one.entry.delta for one in found.entries] == [1024, 0]
    assert found.entries[0].module == "/home/bob/train.py init"
    told = comparison_json(found)
    assert told["simulated"] is False and told["config_changes"] is None and told["first"]["probe"] is None
    assert any("phases are not known" in note for note in found.notes)
    assert "(simulated)" not in world.told(found)


def test_a_bare_snapshot_against_a_probe(tmp_path: Path, world: World) -> None:
    first = write_snapshot(tmp_path / "a.pickle.gz", layers(BEFORE, "mine", "self.up", 1000, 2))
    second = world.probe(world.bad, layers(AFTER, "slot-0", "self.up", 1000, 2))
    found = world.compare(first, second)
    assert [one.entry.delta for one in found.entries] == [0]


def test_only_what_is_known_to_be_simulated_is_labelled_so(tmp_path: Path, world: World) -> None:
    first = write_snapshot(tmp_path / "a.pickle.gz", [(512, ())])
    second = world.probe(world.bad, [(512, ()), (1024, core("slot-0"))])
    found = world.compare(first, second)
    told, text = comparison_json(found), world.told(found)
    assert (told["simulated"], told["first"]["simulated"], told["second"]["simulated"]) == (True, False, True)
    one, other, delta, *_ = text.split("\n")
    assert one.startswith("A:") and "512 B peak allocated" in one and "simulated" not in one
    assert other.startswith("B:") and "1536 B (simulated) peak allocated" in other
    assert delta == "B - A: +1024 B (B simulated) peak allocated"
    assert "bytes at the peak (B simulated)" in world.told(found, "module")


@pytest.mark.parametrize("outcome", [Outcome.UNRESOLVED, Outcome.INFRA])
def test_a_probe_that_measured_nothing_is_an_error(world: World, outcome: Outcome) -> None:
    first = world.probe(world.good, [(512, ())])
    second = world.probe(world.bad, [(512, ())], outcome=outcome)
    with pytest.raises(OombisectError, match=f"measured nothing: it is {outcome}") as refused:
        world.compare(first, second)
    assert refused.value.exit_code == 2 and refused.value.way_out


def test_what_the_allocator_left_uncut_is_told_from_what_was_asked_for(tmp_path: Path, world: World) -> None:
    frames = [("/p/a.py", 1, "f")]
    first = write_snapshot(tmp_path / "a.pickle.gz", [(1000, frames)])
    second = write_snapshot(tmp_path / "b.pickle.gz", [(1000, frames)], conf="roundup_power2_divisions:1")
    found = world.compare(first, second)
    assert found.delta == 0 and any("different allocator settings" in note for note in found.notes)


@pytest.mark.parametrize("damage", [b"", b"\x1f\x8b", b"not a pickle", None])
def test_a_damaged_snapshot_is_an_error_with_its_name(tmp_path: Path, world: World, damage: bytes | None) -> None:
    good = write_snapshot(tmp_path / "good.pickle.gz", [(512, ())])
    bad = tmp_path / "bad.pickle.gz"
    bad.write_bytes(good.read_bytes()[:-20] if damage is None else damage)
    with pytest.raises(OombisectError, match=r"bad\.pickle\.gz is no snapshot that can be read") as refused:
        world.compare(good, bad)
    assert refused.value.exit_code == 2


def test_one_thing_alone_is_no_comparison(tmp_path: Path, world: World) -> None:
    probe = world.probe(world.good, [(512, ())])
    for name in (str(probe), f"{world.session}/{probe}", str(write_snapshot(tmp_path / "a.pickle.gz", [(512, ())]))):
        with pytest.raises(OombisectError, match="nothing to compare"):
            world.compare(name)
