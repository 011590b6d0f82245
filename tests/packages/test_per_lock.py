"""Whole sessions in which each commit is probed with the packages of its own lock."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oombisect.axes.releases import Moved, arrange, moved
from oombisect.errors import ExitCode, OombisectError
from tests.session.toy import MIB, mib

from .pretend import PackageWorld
from .wheels import make_wheel


@pytest.fixture
def packages(world: PackageWorld) -> PackageWorld:
    """torch, and four packages of which transformers 5.1 adds memory and wants tokenizers 0.23."""
    for version in ("2.13", "2.14"):
        make_wheel(world.index, "torch", version)
    world.releases_of(
        "transformers", {"5.0": 0, "5.1": 1800}, {"5.0": ["tokenizers<0.23"], "5.1": ["tokenizers>=0.23"]}
    )
    world.releases_of("tokenizers", {"0.22": 0, "0.23": 0})
    world.releases_of("numpy", {"1.26": 0, "2.0": 0})
    world.releases_of("rich", {"14.0": 0, "15.0": 0})
    world.environment("torch==2.14", "transformers==5.0", "tokenizers==0.22", "numpy==2.0", "rich==15.0")
    return world


_OLD = {"torch": "", "transformers": "5.0", "tokenizers": "0.22", "numpy": "1.26", "rich": "14.0"}
_NEW = {"torch": "", "transformers": "5.1", "tokenizers": "0.23", "numpy": "2.0", "rich": "15.0"}


def test_a_bump_is_named_by_the_packages_that_brought_it(packages: PackageWorld) -> None:
    packages.locked([(mib(8000), _OLD), (mib(8000, tag=1), None), (None, _NEW), (mib(8000, tag=2), None)])
    report = packages.per_lock()
    assert report.exit_code is ExitCode.CULPRIT
    (step,) = report.verdict.steps
    assert (step.point, step.repo, step.named, step.confirmed) == (packages.shas[2], "package", True, "yes")
    assert step.delta["allocated"] == 1800 * MIB
    assert step.evidence["dependencies"] == [
        {"package": "numpy", "before": "1.26", "after": "2.0"},
        {"package": "rich", "before": "14.0", "after": "15.0"},
        {"package": "tokenizers", "before": "0.22", "after": "0.23"},
        {"package": "transformers", "before": "5.0", "after": "5.1"},
    ]
    told = step.evidence["packages"]
    assert told["same_code"] is True
    assert told["part_bytes"]["allocated"] == 1800 * MIB
    (found,) = told["verdict"]["steps"]
    assert (found["repo"], found["named"], found["confirmed"]) == ("package", True, "yes")
    assert found["point"] == "tokenizers==0.23+transformers==5.1"  # neither takes the other's old version
    assert found["delta_bytes"]["allocated"] == 1800 * MIB
    assert any("torch 2.14" in note for note in told["notes"])
    assert {probe["versions"]["torch"] for probe in packages.probes()} == {"2.14"}
    assert report.good.versions["numpy"] == "1.26" and report.bad.versions["numpy"] == "2.0"
    assert any("container" in note for note in report.good.notes)
    assert any("--env per-lock" in line for line in report.reproduce)


def test_code_that_came_with_a_bump_is_told_from_it(packages: PackageWorld) -> None:
    packages.locked([(mib(8000), {"numpy": "1.26"}), (mib(9800, tag=1), {"numpy": "2.0"})])
    report = packages.per_lock()
    (step,) = report.verdict.steps
    assert (step.point, step.repo) == (packages.shas[1], "bridge")
    told = step.evidence["packages"]
    assert (told["same_code"], told["part_bytes"]["allocated"], told["verdict"]) == (False, 0, None)


def test_a_bump_that_came_with_code_is_told_from_it(packages: PackageWorld) -> None:
    old = {"transformers": "5.0", "tokenizers": "0.22"}
    packages.locked([(mib(8000), old), (mib(8200, tag=1), {"transformers": "5.1", "tokenizers": "0.23"})])
    report = packages.per_lock()
    (step,) = report.verdict.steps
    assert (step.point, step.repo, step.delta["allocated"]) == (packages.shas[1], "package", 2000 * MIB)
    assert step.evidence["packages"]["part_bytes"]["allocated"] == 1800 * MIB


def test_a_lock_that_cannot_be_built_is_never_blamed(packages: PackageWorld) -> None:
    broken = _OLD | {"rich": "99.0"}
    packages.locked([(mib(8000), _OLD), (None, broken), (mib(9800, tag=1), _OLD), (mib(9800, tag=2), None)])
    report = packages.per_lock()
    assert report.exit_code is ExitCode.BLURRED
    (step,) = report.verdict.steps
    assert set(step.blurred) == {packages.shas[1], packages.shas[2]}
    with packages.store() as store:
        reasons = {p.reading.reason for p in store.probes(report.session) if p.reading and p.reading.reason}
    assert any("rich==99.0" in reason for reason in reasons)
    make_wheel(packages.index, "rich", "99.0")  # what could not be had then may be had now
    (step,) = packages.per_lock().verdict.steps
    assert (step.point, step.blurred) == (packages.shas[2], ())


def test_a_commit_without_a_lock_says_so(packages: PackageWorld) -> None:
    packages.locked([(mib(8000), None), (mib(9800, tag=1), None)])
    with pytest.raises(OombisectError, match=r"good end .* has no uv\.lock") as caught:
        packages.per_lock()
    assert caught.value.exit_code == ExitCode.USAGE


def test_locks_that_differ_in_nothing_a_probe_needs_are_one(packages: PackageWorld) -> None:
    locks = [_OLD | {"mlflow": f"3.{minor}"} for minor in range(4)]
    packages.locked([(mib(8000) if place == 0 else None, lock) for place, lock in enumerate(locks)])
    report = packages.per_lock()
    assert report.exit_code is ExitCode.NO_REGRESSION
    assert len(packages.probes()) == 1


def test_without_the_option_nothing_changes(packages: PackageWorld) -> None:
    packages.locked([(mib(8000), _OLD), (None, _NEW)])
    report = packages.run([])
    assert report.exit_code is ExitCode.NO_REGRESSION
    assert not (packages.folder / "cache/environments").exists()
    with packages.store() as store:
        trees = [probe.spec.job["trees"] for probe in store.probes(report.session)]
    assert all(tree.keys() == {"bridge", "megatron-lm"} for tree in trees)  # measured before, measured still


def test_a_build_from_source_is_stood_in_for_by_the_release_below_it(world: PackageWorld) -> None:
    for version in ("2.16.0", "2.17.0", "2.18.0"):
        make_wheel(world.index, "transformer-engine", version)
    make_wheel(world.index, "torch", "2.14")
    world.environment("torch", "transformer-engine==2.16.0")
    world.locked([(mib(8000), {"transformer-engine": "git+2.17.1+4329ff84"}), (mib(8000, tag=1), None)])
    report = world.per_lock()
    assert report.bad.versions["transformer-engine"] == "2.17.0"
    assert any("from source" in note for note in report.bad.notes)


def test_a_compiled_part_that_is_not_there_does_not_come(world: PackageWorld) -> None:
    for name in ("transformer-engine", "transformer-engine-cu13"):
        make_wheel(world.index, name, "2.18.0")
    make_wheel(world.index, "transformer-engine", "2.17.0")
    make_wheel(world.index, "torch", "2.14")
    world.environment("torch", "transformer-engine==2.17.0")
    world.locked(
        [(mib(8000), {"transformer-engine": "2.18.0", "transformer-engine-cu13": "2.18.0"}), (mib(9800), None)]
    )
    report = world.per_lock()
    assert report.bad.versions["transformer-engine"] == "2.18.0"
    assert "transformer-engine-cu13" not in report.bad.versions
    assert any("does without" in note for note in report.bad.notes)


def test_one_of_ones_own_making_is_kept(world: PackageWorld) -> None:
    """A container's compiled Transformer Engine cannot be replaced by a release."""
    make_wheel(world.index, "transformer-engine", "2.17.0")
    files = {"transformer_engine/__init__.py": "", "transformer_engine/wheel_lib/transformer_engine_torch.so": ""}
    make_wheel(world.index, "transformer-engine", "2.16.0+mine", files=files)
    make_wheel(world.index, "torch", "2.14")
    world.environment("torch", "transformer-engine==2.16.0+mine")
    world.locked([(mib(8000), {"transformer-engine": "git+2.17.1+4329ff84"}), (mib(8000, tag=1), None)])
    report = world.per_lock()
    assert report.bad.versions["transformer-engine"] == "2.16.0+mine"
    assert any("is kept" in note for note in report.bad.notes)


def _moves(*names: str) -> list[Moved]:
    return list(moved(dict.fromkeys(names, "1"), dict.fromkeys(names, "2")))


def _order(*args: dict[str, list[str]]) -> list[str]:
    names = sorted(args[0].keys() | args[1].keys())
    return ["+".join(change.package for change in group) for group in arrange(_moves(*names), *args)]


def test_packages_move_in_an_order_that_breaks_nothing() -> None:
    assert _order({"a": ["b<2"], "b": []}, {"a": ["b"], "b": []}) == ["a", "b"]
    assert _order({"a": [], "b": []}, {"a": ["b>=2"], "b": []}) == ["b", "a"]
    assert _order({"a": ["b<2"], "b": []}, {"a": ["b>=2"], "b": []}) == ["a+b"]
    assert _order({"a": ["b<2"], "b": ["c<2"], "c": []}, {"a": [], "b": [], "c": ["a>=2"]}) == ["a", "b", "c"]
    assert _order({"a": ["b<2"], "b": ["c<2"], "c": ["a<2"]}, {"a": [], "b": [], "c": []}) == ["a+b+c"]


_NAMES = "abcdef"
_RULES = st.dictionaries(st.sampled_from(_NAMES), st.lists(st.sampled_from(_NAMES), max_size=3), max_size=6)


@given(before=_RULES, after=_RULES)
def test_no_state_on_the_way_breaks_a_rule_that_its_packages_have(
    before: dict[str, list[str]], after: dict[str, list[str]]
) -> None:
    old = {name: [f"{other}<2" for other in before.get(name, ())] for name in _NAMES}
    new = {name: [f"{other}>=2" for other in after.get(name, ())] for name in _NAMES}
    groups = arrange(_moves(*_NAMES), old, new)
    done: set[str] = set()
    for group in groups:
        done |= {change.package for change in group}
        for name in _NAMES:
            assert name not in done or not set(after.get(name, ())) - done
            assert name in done or not set(before.get(name, ())) & done
    assert done == set(_NAMES) and sum(map(len, groups)) == len(_NAMES)


def test_what_is_likely_to_matter_moves_first() -> None:
    nothing: dict[str, list[str]] = {"absl-py": [], "torch": [], "rich": []}
    assert _order(nothing, nothing) == ["torch", "absl-py", "rich"]


def test_a_requirement_of_another_machine_orders_nothing() -> None:
    assert _order(
        {"a": ["b<2; sys_platform == 'win32'", "b<2; extra == 'x'", "=broken"], "b": []}, {"a": ["b>=2"]}
    ) == [
        "b",
        "a",
    ]


def test_packages_come_and_go() -> None:
    changes = moved({"old": "1", "kept": "1"}, {"new": "1", "kept": "2"})
    assert changes == (Moved("kept", "1", "2"), Moved("new", None, "1"), Moved("old", "1", None))
    groups = arrange(changes, {"kept": ["old"], "old": []}, {"kept": ["new"], "new": []})
    order = [change.package for group in groups for change in group]
    assert order.index("new") < order.index("kept") < order.index("old")
