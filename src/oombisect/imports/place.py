"""Where an imported run belongs: its name, its device, and the commit it ran at, or else the day."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from oombisect.errors import OombisectError
from oombisect.printable import printable
from oombisect.repo.dates import parse_date
from oombisect.repo.git import Git, GitError, Kind

UNDATED = "run"  # the repo of points that are no commits
UNKNOWN = "unknown"
_DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", re.ASCII)
_PROJECTS = {"bridge": "src/megatron/bridge", "megatron-lm": "megatron/core"}


@dataclass(frozen=True, slots=True)
class Point:
    """A place on a time axis; the fields are those of an imported reading."""

    repo: str
    point: str
    subject: str = ""
    committed: datetime | None = None


@dataclass(frozen=True, slots=True)
class Place:
    """What the user said of where runs belong; what is None is taken from the source.

    Args:
        clone: where commits are looked up.
        settings: all else that tells this series from others.
    """

    recipe: str | None = None
    device: str | None = None
    commit: str | None = None
    date: datetime | None = None
    clone: Path | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Plain values, to be recorded with what was imported."""
        return {
            "recipe": self.recipe,
            "device": self.device,
            "commit": self.commit,
            "date": self.date.isoformat() if self.date else None,
            "settings": dict(self.settings),
        }


def point_of(place: Place, commit: str | None, date: datetime | None, source: Point) -> Point:
    """The point of a run.

    Args:
        commit, date: what the run itself tells; the user's word counts more.
        source: where it belongs if neither does.

    Raises:
        OombisectError: the commit is not in the clone.
    """
    revision = place.commit or (None if place.date else commit)
    if revision is not None:
        return commits_in(place.clone or Path(), [revision])[revision]
    day = place.date or date
    return source if day is None else Point(UNDATED, day.isoformat(), "", day)


def commits_in(clone: Path, revisions: Sequence[str]) -> dict[str, Point]:
    """The points of commits.

    Raises:
        OombisectError: one is not there.
    """
    git = Git(clone, Kind.FOREIGN)
    found: dict[str, Point] = {}
    project = None
    for revision in dict.fromkeys(revisions):
        try:
            if revision.startswith("-") or not revision.strip():
                raise OombisectError("")
            told = git.run("log", "-1", "--format=%H%x00%ct%x00%s", f"{revision}^{{commit}}", "--")
            project = project or _project(git)
        except (OombisectError, OSError) as error:
            why = f": {error.reason}" if isinstance(error, GitError) else ""
            raise OombisectError(
                f"There is no commit {revision!r} in {str(clone.absolute())!r}{why}",
                "Name the clone that has it with --repo, or give --date in place of a commit.",
            ) from error
        sha, seconds, subject = told.rstrip("\n").split("\0", 2)
        found[revision] = Point(project, sha, printable(subject), _time(seconds))
    return found


def _project(git: Git) -> str:
    """What the history is called where points are: `bridge`, `megatron-lm`, or `repo`."""
    for name, folder in _PROJECTS.items():
        if git.run("ls-tree", "-d", "--name-only", "HEAD", "--", f":(top){folder}").strip():
            return name
    return "repo"


def _time(seconds: str) -> datetime | None:
    try:
        return datetime.fromtimestamp(int(seconds), UTC)
    except (ValueError, OverflowError, OSError):
        return None


def parse_begin(text: str, now: datetime) -> datetime:
    """As `repo.dates.parse_date`, but for a day alone it is where that begins: a range by date has all of its last day.

    Raises:
        OombisectError: it is no date.
    """
    return parse_date(f"{text.strip()}T00:00" if _DAY.fullmatch(text.strip()) else text, now)
