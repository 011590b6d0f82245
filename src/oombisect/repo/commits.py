"""The commits of one history, seen through a mirror."""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from oombisect.errors import OombisectError
from oombisect.repo.git import printable
from oombisect.repo.mirror import Mirror
from oombisect.repo.trees import PACKAGE_DIR

_LITERAL_PATHS = {"GIT_LITERAL_PATHSPECS": "1"}


@dataclass(frozen=True, slots=True)
class Commit:
    """One commit as a history lists it.

    `author_date` is ISO 8601 as `datetime.fromisoformat` takes it, "" where the commit's own is beyond the calendar;
    `parents` in git's order.
    """

    sha: str
    tree: str
    parents: tuple[str, ...]
    author_date: str
    author: str
    subject: str


@dataclass(frozen=True, slots=True)
class CommitGraph:
    """The history in a mirror; commits are named by id, for the mirror has no branches."""

    mirror: Mirror

    @property
    def is_shallow(self) -> bool:
        return (self.mirror.path / "shallow").is_file()

    def is_ancestor(self, ancestor: str, descendant: str) -> bool:
        return self.mirror.local.succeeds("merge-base", "--is-ancestor", ancestor, descendant)

    def merge_base(self, one: str, other: str) -> str | None:
        code, output = self.mirror.local.call("merge-base", one, other, ok=(0, 1))
        return output.decode().strip() if code == 0 else None

    def committed(self, sha: str) -> datetime:
        """When a commit was committed, UTC."""
        seconds = self.mirror.local.run("show", "--no-patch", "--format=%ct", sha)
        return datetime.fromtimestamp(int(seconds), UTC)

    def log(self, *arguments: str, paths: Sequence[str] = ()) -> list[Commit]:
        """Commits as `git log ARGUMENTS -- PATHS` lists them; the mirror has no branches: name commits by id.

        Paths are taken to the letter, without wildcards or pathspec magic.

        Raises:
            OombisectError: a path is none inside the repository.
        """
        check_paths(paths)
        layout = "--format=tformat:%H%x00%T%x00%P%x00%aI%x00%an%x00%s"
        output = replace(self.mirror.local, variables=_LITERAL_PATHS).run("log", layout, *arguments, "--", *paths)
        rows = (line.split("\0", 5) for line in output.split("\n") if line)
        return [
            Commit(sha, tree, tuple(parents.split()), _author_date(date), printable(who), printable(subject))
            for sha, tree, parents, date, who, subject in rows
        ]

    def commit(self, sha: str) -> Commit:
        """One commit that is in the mirror."""
        return self.log("--max-count=1", sha)[0]


def _author_date(text: str) -> str:
    """An author date as git prints it; "" for one beyond the calendar (any 64-bit number can be in a commit)."""
    try:
        datetime.fromisoformat(text).astimezone(UTC)
    except (ValueError, OverflowError):
        return ""
    return text


def check_paths(paths: Sequence[str]) -> None:
    """Paths a history may be narrowed to: names of files or directories, from the top of the repository.

    Raises:
        OombisectError: one is empty, absolute, or leads out of the repository.
    """
    for path in paths:
        outside = path.startswith("/") or posixpath.normpath(path).split("/")[0] == ".."
        if not path or outside or "\0" in path:
            raise OombisectError(
                f"{path!r} is no path inside the repository",
                f"Name a file or a directory from the repository's top, such as {PACKAGE_DIR}/training.",
            )
