"""Revisions by date."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from oombisect.axes.commits import commit_range, range_ends
from oombisect.errors import ExitCode, OombisectError
from oombisect.repo.dates import Dated, dated, parse_date
from tests.repo.history import git
from tests.repo.project import Project

NOW = datetime(2026, 3, 31, 12, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "date"),
    [
        ("now", NOW),
        ("yesterday", NOW - timedelta(days=1)),
        ("2 weeks ago", NOW - timedelta(days=14)),
        ("2.weeks.ago", NOW - timedelta(days=14)),
        ("1 month ago", datetime(2026, 2, 28, 12, 0, tzinfo=UTC)),
        ("1 year 3 months 2 days ago", datetime(2024, 12, 29, 12, 0, tzinfo=UTC)),
        ("90 Minutes ago", NOW - timedelta(minutes=90)),
        ("2026-02-01", datetime(2026, 2, 1, 23, 59, 59, tzinfo=UTC)),
        ("2026-02-01 10:30", datetime(2026, 2, 1, 10, 30, tzinfo=UTC)),
        ("2026-02-01T10:30:05Z", datetime(2026, 2, 1, 10, 30, 5, tzinfo=UTC)),
        ("2026-02-01 10:30 +0100", datetime(2026, 2, 1, 10, 30, tzinfo=timezone(timedelta(hours=1)))),
    ],
)
def test_a_date(text: str, date: datetime) -> None:
    assert parse_date(text, NOW) == date


@pytest.mark.parametrize(
    "text",
    ["", "soon", "2 fortnights ago", "two weeks ago", "2 weeks", "2026-02-30", "2026-13-01", "20260801", "2026-W05-1",
     "9999 years ago", "999999 months ago", "2026-02-01 25:00", "tea", "-1 day ago"],
)  # fmt: skip
def test_what_git_would_read_as_some_date_is_none(text: str) -> None:
    with pytest.raises(OombisectError, match="is no date") as told:
        parse_date(text, NOW)
    assert told.value.exit_code == ExitCode.USAGE and "2 weeks ago" in told.value.way_out


@pytest.mark.parametrize("revision", ["main", "main@{1}", "@{-1}", "@{u}", "main@{upstream}", "HEAD^{commit}", "v1^{}"])
def test_other_braces_are_gits(revision: str) -> None:
    assert dated(revision, NOW) is None


def test_branch_and_what_follows() -> None:
    yesterday = NOW - timedelta(days=1)
    assert dated("@{yesterday}", NOW) == Dated("HEAD", yesterday)
    assert dated("origin/main@{yesterday}~3", NOW) == Dated("origin/main", yesterday, "~3")


def test_the_newest_commit_of_the_branch_that_is_not_after_it(project: Project) -> None:
    """Of the first-parent line: what a merge brought counts from the merge on."""
    bridge, ids = project.bridge, project.ids
    early = bridge.commit("early", {"src/e.py": "1"}, branch="side", start=ids["grow"])
    bridge.clock += 3600
    merge = bridge.commit("merge", {"src/e.py": "1"}, merge=early)
    repository = project.open()
    other, done = (int(git(bridge.path, "show", "--no-patch", "--format=%ct", sha)) for sha in (ids["other"], merge))
    said: list[str] = []
    repository.say = said.append
    repository.clock = lambda: datetime.fromtimestamp(done + 60, UTC)
    assert repository.resolve("main@{now}") == merge
    assert repository.resolve("main@{61 seconds ago}") == ids["other"], "the side branch has a later commit"
    assert repository.resolve("main@{61 seconds ago}~1") == ids["lock"]
    exact = datetime.fromtimestamp(other, UTC).isoformat()
    assert repository.resolve(f"@{{{exact}}}") == ids["other"]
    assert said[1] == f"main@{{61 seconds ago}} is {ids['other'][:12]}, of {exact[:16].replace('T', ' ')} UTC"
    good, bad, _ = range_ends(repository, "v1.0.0..main@{61 seconds ago}")
    assert commit_range(repository, good, bad).points[-1].key == ids["other"]
    good, bad, _ = range_ends(repository, f"main@{{{exact}}}...side")
    assert (good, bad) == (ids["grow"], "side")
    for revision in ("main@{2001-01-01}", "main@{1900-01-01}"):
        with pytest.raises(OombisectError, match="main has no commit from"):
            repository.resolve(revision)
    with pytest.raises(OombisectError, match="no revision 'mian'"):
        repository.resolve("mian@{yesterday}")
