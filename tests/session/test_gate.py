"""`check` and `watch` over toy histories: git, probes, store and search are real."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from oombisect.errors import ExitCode, OombisectError
from oombisect.history.records import SessionState
from oombisect.repo.bridge import open_repository
from oombisect.reports.gate import check_headline, check_markdown, watch_headline, watch_markdown
from oombisect.session.checking import Checked, check_change
from oombisect.session.gate import CheckRequest, WatchRequest, chosen
from oombisect.session.request import ProbeRequest
from oombisect.session.watching import Watched, watch_once
from tests.cli.test_documents import keys, named, nullable, nulls, section

from . import toy
from .toy import MIB, mib
from .world import Quiet, World

LIMIT = 10_000 * MIB


def probe_request(world: World) -> ProbeRequest:
    return ProbeRequest(repo=str(world.repo), python=str(world.python), recipe=toy.RECIPE, limit_bytes=LIMIT)


def told(world: World) -> dict[str, Any]:
    return {"watcher": Quiet(), "cwd": world.folder, "cache": world.folder / "cache", "command": ("oombisect", "x")}


def check(world: World, range_: str, min_step: int = 64 * MIB) -> Checked:
    with world.store() as store:
        return check_change(store, CheckRequest(range_, probe_request(world), min_step), **told(world))


def watch(world: World, **asked: Any) -> Watched:
    with world.store() as store:
        return watch_once(store, WatchRequest(probe_request(world), branch="main", **asked), **told(world))


def commit(world: World, memory: Mapping[str, Any], subject: str = "more") -> str:
    """One more commit on the branch that is checked out."""
    folder = world.repo / "src/megatron/bridge/memory"
    for name, value in memory.items():
        (folder / name).write_text(f"{value}\n")
    toy.git(world.repo, "add", "--all")
    toy.git(world.repo, "commit", "--quiet", "-m", subject)
    return toy.git(world.repo, "rev-parse", "HEAD")


def started(world: World, memories: Sequence[Mapping[str, Any] | None]) -> World:
    world.shas = toy.history(world.repo, memories)
    return world


@pytest.fixture
def branch(world: World) -> tuple[str, str]:
    """A branch that takes 100 MiB more, and main, which has since grown by 500 MiB in a file of its own."""
    started(world, [mib(8000, tag=0)])
    toy.git(world.repo, "checkout", "-q", "-b", "topic")
    head = commit(world, {"allocated": 8100 * MIB, "reserved": 8200 * MIB}, "grow | @all <b>")
    toy.git(world.repo, "checkout", "-q", "main")
    return commit(world, {"external": 1000 * MIB}, "more outside"), head


def test_a_change_is_compared_as_it_would_be_merged(world: World, branch: tuple[str, str]) -> None:
    base, head = branch
    checked = check(world, f"{base}..topic")
    assert (checked.base, checked.head, checked.notes) == (base, head, ())
    assert checked.grew == 100 * MIB and checked.exit_code is ExitCode.GREW
    assert checked.step is not None and (checked.step.kind, checked.step.confirmed) == ("capacity", "yes")
    assert (checked.report.good.external, checked.report.bad.external) == (1000 * MIB, 1000 * MIB)
    repository = open_repository(world.repo, world.folder, world.folder / "cache")
    merge = repository.resolve(f"{head} onto {base}")
    assert repository.commit(merge).parents == (base,), "what is compared can be looked up later"
    document = checked.to_json()
    own = set(document) - set(checked.report.to_json())
    assert own and own <= named(section("`check`")) and document["exit"] == 15
    assert toy.git(world.repo, "rev-parse", "main", "topic").split() == [base, head]
    assert toy.git(world.repo, "status", "--porcelain") == ""
    with world.store() as store:
        session = store.session("last")
        assert (session.spec.kind, session.state, session.exit_code) == ("check", SessionState.FINISHED, 15)
        keys = {probe.spec.point for probe in store.probes(session.id)}
        assert keys == {base, f"{head} onto {base}"}
        with store._connection.reading() as db:  # what is not merged is no part of a series
            rows = db.execute("SELECT DISTINCT point FROM measurements").fetchall()
        assert rows == [(base,)]


def test_less_than_the_least_step_is_fine(world: World, branch: tuple[str, str]) -> None:
    checked = check(world, "main..topic", min_step=101 * MIB)
    assert (checked.grew, checked.exit_code) == (100 * MIB, 0)
    assert "less than 101.0 MiB" in check_headline(checked)


def test_a_change_with_conflicts_is_compared_with_where_it_parted(world: World, branch: tuple[str, str]) -> None:
    commit(world, {"allocated": 8050 * MIB}, "in the way")
    checked = check(world, "main..topic")
    (note,) = checked.notes
    assert "does not merge" in note and world.shas[0][:10] in note
    assert checked.grew == 100 * MIB and checked.report.good.external == 500 * MIB


def test_a_change_past_the_limit_is_refused_whatever_it_adds(world: World) -> None:
    started(world, [mib(9490, tag=0), mib(9510, tag=1)])
    checked = check(world, f"{world.shas[0]}..main")
    assert (checked.grew, checked.over_limit, checked.exit_code) == (20 * MIB, True, ExitCode.GREW)
    assert "no longer fits" in check_headline(checked)


def test_a_change_that_shrinks_memory(world: World) -> None:
    started(world, [mib(8000, tag=0), mib(7000, tag=1)])
    checked = check(world, f"{world.shas[0]}..main")
    assert (checked.grew, checked.exit_code) == (-1000 * MIB, 0)
    assert check_headline(checked) == "Memory shrinks by 0.98 GiB (simulated)"


def test_a_side_that_cannot_be_probed_is_an_error(world: World) -> None:
    started(world, [mib(8000, tag=0), {**mib(8000), "unresolved": "ImportError: no x"}])
    with pytest.raises(OombisectError, match="ImportError: no x"):
        check(world, f"{world.shas[0]}..main")


def test_commits_without_a_common_history_are_refused(world: World) -> None:
    started(world, [mib(8000, tag=0)])
    toy.git(world.repo, "checkout", "-q", "--orphan", "other")
    commit(world, {"tag": 9})
    with pytest.raises(OombisectError, match="no history in common"):
        check(world, "main..other")


def test_markdown_of_a_check_is_inert(world: World, branch: tuple[str, str]) -> None:
    text = check_markdown(check(world, "main..topic"))
    assert len(text) < 2000
    assert "| peak allocated | 7.81 GiB | 7.91 GiB | &#43;100.0 MiB |" in text, text
    assert "on virtual&#58;toy &#40;simulated&#41;, <code>" in text
    assert "@all" not in text and "<b>" not in text
    assert "(simulated)" in text.replace("&#40;", "(").replace("&#41;", ")")


def test_which_points_are_chosen() -> None:
    assert chosen(6, 1) == [0, 1, 2, 3, 4, 5]
    assert chosen(6, 2) == [0, 2, 4, 5]
    assert chosen(7, 3) == [0, 3, 6]
    assert chosen(2, 10) == [0, 1]


def test_a_watch_begins_a_commit_back_and_goes_on_where_it_ended(world: World) -> None:
    started(world, [mib(8000, tag=i) for i in range(4)])
    first = watch(world)
    assert (first.begin, first.end, first.commits, first.exit_code) == (world.shas[2], world.shas[3], 1, 0)
    assert [one.point for one in first.seen] == world.shas[2:]
    again = watch(world)
    assert (again.session, again.begin, again.exit_code) == (None, world.shas[3], 0)
    assert "Nothing new" in watch_headline(again)

    new = [commit(world, {"tag": 10}), commit(world, {"allocated": 8500 * MIB, "reserved": 8600 * MIB}, "grow")]
    third = watch(world)
    assert (third.begin, third.commits, third.exit_code) == (world.shas[3], 2, ExitCode.GREW)
    (landed,) = third.landed
    assert (landed.before.point, landed.after.point, landed.grew) == (*new, 500 * MIB)
    (step,) = landed.report.verdict.steps
    assert (step.point, step.confirmed, step.kind) == (new[1], "yes", "capacity")
    assert watch(world).exit_code == 0, "a step is told once"
    with world.store() as store:
        kinds = [session.spec.kind for session in store.sessions()]
        assert kinds == ["run", "watch", "watch"]


def test_a_gap_is_searched_with_what_was_measured(world: World) -> None:
    started(world, [mib(8000 if i < 6 else 8300, tag=i) for i in range(9)])
    watched = watch(world, every=8)
    (landed,) = watched.landed
    (step,) = landed.report.verdict.steps
    assert (step.point, step.parent) == (world.shas[6], world.shas[5])
    assert len(watched.seen) == 2
    document, text = watched.to_json(), section("`watch`")
    report = document["landed"][0].pop("report")
    assert keys(document) <= named(text) and nulls(document) <= nullable(text)
    assert report["session"] == landed.report.session
    assert landed.report.probes_cached == 2
    assert world.shas[6][:10] in watch_markdown(watched)


def test_growth_over_many_commits_is_seen(world: World) -> None:
    started(world, [mib(8000 + 20 * i, tag=i) for i in range(6)])
    watched = watch(world, every=1, since=world.shas[0])
    (landed,) = watched.landed
    assert (landed.before.point, landed.after.point, landed.grew) == (world.shas[0], world.shas[5], 100 * MIB)


def test_a_commit_that_cannot_be_probed_hides_nothing(world: World) -> None:
    broken = {"unresolved": "ImportError: no", "allocated": 0, "reserved": 0, "tag": 1}
    started(world, [mib(8000, tag=0), broken, mib(8300, tag=2), mib(8300, tag=3)])
    watched = watch(world, since=world.shas[0])
    (landed,) = watched.landed
    assert (landed.before.point, landed.after.point) == (world.shas[0], world.shas[2])
    assert landed.report.exit_code is ExitCode.BLURRED and watched.exit_code is ExitCode.GREW
    assert "unresolved: ImportError" in watch_markdown(watched).replace("&#58;", ":")


def test_nothing_lands_behind_a_commit_that_cannot_be_probed(world: World) -> None:
    broken = {**mib(8000, tag=1), "unresolved": "ImportError: no"}
    started(world, [mib(8000, tag=0), broken])
    blurred = watch(world)
    assert (blurred.exit_code, blurred.next_begin) == (ExitCode.BLURRED, world.shas[0])
    assert "could not be measured" in watch_headline(blurred)
    toy.git(world.repo, "rm", "-q", "src/megatron/bridge/memory/unresolved")
    grown = commit(world, {"allocated": 8300 * MIB, "reserved": 8400 * MIB})
    watched = watch(world)
    assert (watched.begin, watched.exit_code, watched.next_begin) == (world.shas[0], ExitCode.GREW, grown)


def test_a_watch_that_was_stopped_probes_nothing_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    started(world, [mib(8000, tag=0), mib(8300, tag=1)])

    def stop(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("oombisect.session.watching.bisect_range", stop)
        with pytest.raises(KeyboardInterrupt):
            watch(world)
    probed = len(world.probes())
    with world.store() as store:
        assert store.session("last").state is SessionState.INTERRUPTED
    watched = watch(world)
    assert len(watched.landed) == 1 and watched.begin == world.shas[0]
    assert len(world.probes()) > probed
    plain = [probe["told"]["tag"] for probe in world.probes()[:probed]]
    assert plain == [0, 1]
    assert watched.landed[0].report.probes_cached == 2


def test_a_rewritten_branch_is_taken_up_where_it_parted(world: World) -> None:
    started(world, [mib(8000, tag=i) for i in range(4)])
    watch(world)
    toy.git(world.repo, "reset", "-q", "--hard", world.shas[1])
    new = commit(world, {"tag": 20})
    watched = watch(world)
    assert (watched.begin, watched.end) == (world.shas[1], new)
    assert "was rewritten" in watched.notes[0]


@pytest.mark.parametrize("kept", [True, False], ids=["unrelated", "gone"])
def test_a_branch_that_shares_nothing_with_the_last_look_begins_anew(world: World, kept: bool) -> None:
    started(world, [mib(8000, tag=i) for i in range(2)])
    watch(world)
    toy.git(world.repo, "checkout", "-q", "--orphan", "new")
    first, second = commit(world, {"tag": 20}), commit(world, {"allocated": 8300 * MIB, "reserved": 8400 * MIB})
    toy.git(world.repo, "checkout", "-q", "-B", "main")
    if not kept:  # as in a fresh clone, where the cache was lost
        toy.git(world.repo, "reflog", "expire", "--expire=now", "--all")
        toy.git(world.repo, "gc", "-q", "--prune=now")
        shutil.rmtree(world.folder / "cache")
    watched = watch(world)
    assert (watched.begin, watched.end, watched.exit_code) == (first, second, ExitCode.GREW)
    assert "was rewritten" in watched.notes[0] and "as a first one does" in watched.notes[0]
    assert watch(world).notes == ()


def test_another_workload_is_another_watch(world: World) -> None:
    started(world, [mib(8000, tag=i) for i in range(2)])
    watch(world)
    with world.store() as store:
        other = WatchRequest(ProbeRequest(repo=str(world.repo), python=str(world.python), recipe=toy.RECIPE), "main")
        assert watch_once(store, other, **told(world)).session is not None


def test_a_machine_that_fails_ends_the_watch_without_a_verdict(world: World) -> None:
    started(world, [mib(8000, tag=0), mib(8000, signal=9)])
    with pytest.raises(OombisectError) as failed:
        watch(world)
    assert failed.value.exit_code == ExitCode.INFRASTRUCTURE
    with world.store() as store:
        assert store.session("last").state is SessionState.INTERRUPTED


@pytest.mark.parametrize(("every", "min_step"), [(0, MIB), (1, 0), (1_000_001, MIB)])
def test_impossible_requests_are_refused(every: int, min_step: int) -> None:
    with pytest.raises(OombisectError, match="out of range"):
        WatchRequest(ProbeRequest(recipe="x"), every=every, min_step_bytes=min_step)
