"""What changed between two commits of a project, line by line, and the sources of both."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from oombisect.errors import OombisectError
from oombisect.memory.line_map import CodeDiff, parse_diff
from oombisect.repo.bridge import BridgeRepository
from oombisect.repo.mirror import Mirror
from oombisect.repo.trees import MEGATRON_DIR, SOURCE_DIR, TreeReader

_DIFF = (
    "diff",
    "--no-color",
    "--no-ext-diff",
    "--no-textconv",
    "--find-renames",
    "--ignore-submodules=all",
    "--src-prefix=a/",
    "--dst-prefix=b/",
    "--diff-algorithm=histogram",
)
_FOLDER = {"bridge": SOURCE_DIR, "megatron-lm": MEGATRON_DIR}
_REVERTED = "-"  # a tip with a change reverted is the point `tip-culprit`


@dataclass
class ProjectAt:
    """One commit of one project, to read its sources from."""

    mirror: Mirror
    commit: str
    _reader: TreeReader = field(init=False)
    _texts: dict[str, str | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._reader = TreeReader(self.mirror.local)

    def load(self, paths: Iterable[str]) -> None:
        """Have the files ready, all at once: a partial clone downloads those it lacks."""
        wanted = [path for path in dict.fromkeys(paths) if path not in self._texts]
        if not wanted:
            return
        entries = {path: self._reader.find(f"{self.commit}^{{tree}}", path) for path in wanted}
        blobs = {path: entry.sha for path, entry in entries.items() if entry and entry.mode.startswith("100")}
        contents = dict(zip(blobs, self.mirror.contents(list(blobs.values()))))
        for path in wanted:
            data = contents.get(path)
            self._texts[path] = None if data is None else data.decode("utf-8", "replace")

    def text(self, path: str) -> str | None:
        """The contents of a file; None if the commit has no such file."""
        self.load([path])
        return self._texts[path]


def projects_at(repository: BridgeRepository, point: str) -> dict[str, ProjectAt]:
    """The projects of a point by the names the probe uses: Bridge, and the Megatron-LM commit it pins if it is at hand.

    Args:
        point: a commit, or `tip-culprit`: the tip with that change reverted. `+` and another commit of Megatron-LM (or
            tip and culprit of it) may follow, which lies in the place of the pinned one.

    Raises:
        OombisectError: there is no such commit.
    """
    outer, inner = bridge_of(point), megatron_of(point)
    tip, reverted, culprit = outer.partition(_REVERTED)
    commit = repository.reverted(tip, culprit).commit if reverted else repository.resolve(outer)
    found = {repository.project: ProjectAt(repository.mirror, commit)}
    pin = repository.pin(commit)
    if pin is not None:
        with contextlib.suppress(OombisectError):  # its lines are then matched by order, as those of any package
            tip, reverted, culprit = inner.partition(_REVERTED)
            wanted = repository.reverted_megatron(commit, tip, culprit).commit if reverted else inner or pin.sha
            found["megatron-lm"] = ProjectAt(repository.store.ensure(replace(pin, sha=wanted)), wanted)
    return found


def bridge_of(point: str) -> str:
    """The commit of Bridge that the key of a point names: all of it, or what stands before `+`, or `@` and a config."""
    return point.partition("+")[0].partition("@")[0]


def megatron_of(point: str) -> str:
    """The commit of Megatron-LM in the key of a point, `bridge+megatron`; "" where it is the pinned one."""
    return point.partition("+")[2].partition("@")[0]


def code_diffs(
    first: Mapping[str, ProjectAt],
    second: Mapping[str, ProjectAt],
    paths: Mapping[str, Iterable[str]],
    *,
    ignore_space: bool = False,
) -> dict[str, CodeDiff]:
    """How each project that both points have changed from the first to the second.

    Args:
        paths: the files of interest by project, of either commit; others may be left out of the diffs.
        ignore_space: lines that differ in white space alone did not change.
    """
    return {
        name: code_diff(first[name], second[name], paths.get(name, ()), _FOLDER.get(name, "."), ignore_space)
        for name in first.keys() & second.keys()
        if second[name].mirror.has_commit(first[name].commit)
    }


def code_diff(
    first: ProjectAt, second: ProjectAt, paths: Iterable[str], folder: str, ignore_space: bool = False
) -> CodeDiff:
    """As `code_diffs`, for one project; renames are looked for below `folder`."""
    if first.commit == second.commit:
        return CodeDiff()
    # Rename detection and patches read contents, which a partial mirror may have to download.
    git = replace(second.mirror.git, variables={"GIT_LITERAL_PATHSPECS": "1"})
    ends = (first.commit, second.commit)
    listed = git.run(*_DIFF, "--name-status", "-z", *ends, "--", folder).split("\0")
    wanted: set[str] = set()
    interesting = set(paths)
    fields = iter(listed)
    for status in fields:
        if not status:
            continue
        names = [next(fields) for _ in range(2 if status[0] in "RC" else 1)]
        if interesting & set(names):
            wanted.update(names)
    if not wanted:
        return CodeDiff()
    options = ("--unified=3", *(("--ignore-all-space",) if ignore_space else ()))
    patch = git.run("-c", "core.quotePath=false", *_DIFF, *options, *ends, "--", *sorted(wanted))
    return CodeDiff(parse_diff(patch))
