"""A Megatron Bridge history: open it, ask it, lay its commits out.

Nothing is written to the user's repository, its checkout is never touched: all work is done in a mirror in the cache.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from oombisect.errors import ExitCode, OombisectError
from oombisect.repo import changes
from oombisect.repo.commits import Commit, CommitGraph
from oombisect.repo.dates import Dated, dated
from oombisect.repo.git import Git, GitError, Kind, commit_named
from oombisect.repo.hotfix import Hotfix, check, patch_of_commit, patch_of_file, with_hotfixes
from oombisect.repo.merge import remade
from oombisect.repo.mirror import Mirror, Say, clone, mirror_of, update
from oombisect.repo.revert import Reverted, revert
from oombisect.repo.slots import Slot, acquire, is_probed, prune
from oombisect.repo.submodule import Pin, SubmoduleStore, git_directory, promisor_of
from oombisect.repo.trees import ENV_FILES, PACKAGE_DIR, SOURCE_DIR, Entry, RelevantTrees, TreeReader

_FULL_ID = re.compile(r"[0-9a-f]{40}")
_SHORT_ID = re.compile(r"[0-9a-f]{4,39}")
BRIDGE_URL = "https://github.com/NVIDIA-NeMo/Megatron-Bridge.git"


@dataclass(frozen=True, slots=True)
class Materialised:
    """A commit on disk: what the probe's job file wants to know of it.

    Attributes:
        root: the Bridge worktree.
        megatron_root: the Megatron-LM worktree in it; None where the commit has no such submodule.
        source_paths: directories for the front of `sys.path`, in order.
        roots: worktree by name of project, to tell project files among the imported ones.
        commit, megatron_commit: what lies there ("" where there is none); `commit` of a reverted tip is synthetic.
        changed: False for a reverted tip that already lacked the change.
        notes: what the user should know (conflicts outside the probed sources that were ignored).
    """

    root: Path
    megatron_root: Path | None
    source_paths: tuple[Path, ...]
    roots: dict[str, Path]
    commit: str
    megatron_commit: str = ""
    changed: bool = True
    notes: tuple[str, ...] = ()


def _now() -> datetime:
    return datetime.now(UTC)


@dataclass(slots=True)
class BridgeRepository:
    """A Bridge history seen through `mirror`; `checkout` is the user's repository, None for the cached clone.

    `clock` is what relative dates count from.
    """

    mirror: Mirror
    cache: Path
    store: SubmoduleStore
    reader: TreeReader
    checkout: Path | None = None
    say: Say = lambda _: None
    clock: Callable[[], datetime] = _now
    _resolved: dict[str, str] = field(default_factory=dict)
    _updated: bool = False

    @property
    def name(self) -> str:
        """How to name the repository to a user."""
        return str(self.checkout) if self.checkout else f"the cached clone of {BRIDGE_URL}"

    @property
    def project(self) -> str:
        """What its files are called where several projects are told apart."""
        return "bridge"

    # -- revisions

    def resolve(self, revision: str) -> str:
        """The commit a revision names (branch, tag, abbreviated id, `HEAD~3`, `main@{2 weeks ago}`, ...).

        A date means the newest commit of the branch's first-parent line that is not after it.

        Raises:
            OombisectError: there is no such commit; near names are listed.
        """
        known = self._resolved.get(revision) or remade(self.mirror, revision)
        found = known or self._dated(revision) or self._ask(revision)
        if found is None and self.checkout is None and not self._updated:
            self.say(f"{revision} is not in the cached clone: updating it")
            update(self.mirror)
            self._updated = True
            found = self._ask(revision)
        if found is None:
            raise self._unknown(revision)
        self._resolved[revision] = self._resolved[found] = found
        return found

    def _ask(self, revision: str) -> str | None:
        if _FULL_ID.fullmatch(revision) and self.mirror.has_commit(revision):
            return revision  # it may be one of ours, a tip with a change reverted, that the user's repository lacks
        return commit_named(self._asked, revision)

    def _dated(self, revision: str) -> str | None:
        """The commit of a revision by date; None where it names no date."""
        asked = dated(revision, self.clock())
        if asked is None:
            return None
        tip = self.resolve(asked.branch)
        if self.checkout is None and not self._updated and self._not_after(tip, asked) == tip:
            self.say(f"the cached clone may lack commits up to {asked.date:%Y-%m-%d}: updating it")
            update(self.mirror)
            self._updated = True
            self._resolved.pop(asked.branch)
            tip = self.resolve(asked.branch)
        found = self._not_after(tip, asked)
        if found is None:
            shallow = " The clone is shallow; `git fetch --unshallow` brings the rest of its history."
            raise OombisectError(
                f"{asked.branch} has no commit from {asked.date:%Y-%m-%d %H:%M %Z} or before",
                f"Name a later date.{shallow if self.is_shallow else ''}",
            )
        found = self.resolve(f"{found}{asked.rest}") if asked.rest else found
        self.say(f"{revision} is {found[:12]}, of {self.commits.committed(found):%Y-%m-%d %H:%M} UTC")
        return found

    def _not_after(self, tip: str, asked: Dated) -> str | None:
        """By the clock of who committed it, as a history is ordered; authors may have written it long before."""
        seconds = int(asked.date.timestamp())
        if seconds < 0:  # git knows no such time
            return None
        limits = ("--first-parent", "--max-count=1", f"--min-age={seconds}")
        return self.mirror.local.run("rev-list", *limits, tip).strip() or None

    @property
    def _asked(self) -> Git:
        """Git where the names of revisions are known."""
        return Git(self.checkout, Kind.FOREIGN) if self.checkout else self.mirror.local

    def _unknown(self, revision: str) -> OombisectError:
        if _SHORT_ID.fullmatch(revision):
            ids = self._asked.call("rev-parse", f"--disambiguate={revision}", ok=(0, 1, 128))[1].split()
            if len(ids) > 1:
                return OombisectError(f"{revision} is the beginning of {len(ids)} object ids", "Write more of it.")
        names = self.refs()
        near = difflib.get_close_matches(revision, names, n=4, cutoff=0.6)
        near += [name for name in names if name.endswith(f"/{revision}") and name not in near]
        way_out = f"Did you mean {', '.join(near)}?" if near else "Name a branch, a tag or a commit id."
        if self.is_shallow:
            way_out += " The clone is shallow; `git fetch --unshallow` brings the rest of its history."
        return OombisectError(f"There is no revision {revision!r} in {self.name}", way_out)

    def refs(self) -> list[str]:
        """Branches and tags, as a user writes them; none where they cannot be listed (they only serve suggestions)."""
        import git as gitpython

        try:
            with gitpython.Repo(self.checkout or self.mirror.path) as repo:
                return [ref.name for ref in repo.references if not ref.path.startswith("refs/oombisect/")]
        except (gitpython.GitError, OSError, ValueError):
            return []

    @property
    def commits(self) -> CommitGraph:
        """The history itself, by full commit ids."""
        return CommitGraph(self.mirror)

    @property
    def is_shallow(self) -> bool:
        return self.commits.is_shallow

    def is_ancestor(self, ancestor: str, descendant: str) -> bool:
        return self.commits.is_ancestor(ancestor, descendant)

    def merge_base(self, one: str, other: str) -> str | None:
        return self.commits.merge_base(one, other)

    def log(self, *arguments: str, paths: Sequence[str] = ()) -> list[Commit]:
        """See `CommitGraph.log`."""
        return self.commits.log(*arguments, paths=paths)

    def commit(self, revision: str) -> Commit:
        return self.log("--max-count=1", self.resolve(revision))[0]

    def note_on_checkout(self) -> str | None:
        """Uncommitted changes are never probed: say so where there are any."""
        if self.checkout is None:
            return None
        git = Git(self.checkout, Kind.FOREIGN, _without_filters(self.checkout))
        try:
            changed = git.run("status", "--porcelain", "--untracked-files=no", "--ignore-submodules=all")
        except GitError:  # a bare repository has no work tree to be dirty
            return None
        count = len(changed.splitlines())
        told = f"{count} uncommitted change(s) in {self.checkout} are not part of any commit and are not probed"
        return told if count else None

    # -- what a probe can see

    def trees_of(self, commits: Sequence[Commit]) -> list[RelevantTrees]:
        """What a probe can see of each commit; one pass over all root trees."""
        roots = [commit.tree for commit in commits]
        pins = self.store.pins(roots)
        packages = self.store.package_trees(pins)
        found = []
        for root, pin, package in zip(roots, pins, packages):
            tree = self.reader.tree(root)
            locks = [tree[name].sha if name in tree else "" for name in ENV_FILES]
            source = tree.get(SOURCE_DIR)
            bridge = source.sha if source else ""
            found.append(RelevantTrees(bridge, pin.sha if pin else "", package, ":".join(locks) if any(locks) else ""))
        return found

    def relevant_trees(self, revision: str, megatron: str | None = None) -> RelevantTrees:
        """As `trees_of`, for one commit; with the Megatron-LM commit `megatron` in the place of the one it pins."""
        commit = self.commit(revision)
        found = self.trees_of([commit])[0]
        pin = self.pin(commit.sha)
        if megatron is None or pin is None:
            return found
        package = self.store.package_trees([replace(pin, sha=megatron)])[0]
        return replace(found, gitlink=megatron, megatron=package)

    def has_package(self, commit: Commit) -> bool:
        """Whether the commit holds `src/megatron/bridge`."""
        return self.reader.find(commit.tree, PACKAGE_DIR) is not None

    def require_bridge(self, revision: str) -> None:
        """Refuse a commit without `src/megatron/bridge`: there is nothing to probe in it.

        Raises:
            OombisectError: it has none (a usage error), or there is no such commit.
        """
        commit = self.commit(revision)
        if not self.has_package(commit):
            raise OombisectError(
                f"{self.name} is not a Megatron Bridge repository: {commit.sha[:12]} holds no {PACKAGE_DIR}",
                "Name a Megatron Bridge clone with --repo PATH.",
            )

    def entry(self, revision: str, path: str) -> Entry | None:
        """The tree entry at `path` of a commit."""
        return self.reader.find(f"{self.resolve(revision)}^{{tree}}", path)

    def pin(self, revision: str) -> Pin | None:
        """The Megatron-LM commit that a commit pins; None before it became a submodule (October 2025)."""
        return self.store.pins([self.commit(revision).tree])[0]

    def resolve_megatron(self, revision: str, name: str) -> str:
        """The Megatron-LM commit that `name` means, where `revision` pins another: any id, or a revision of a clone.

        Raises:
            MissingCommit: it is nowhere to be had.
            OombisectError: `revision` pins no Megatron-LM, or there is no such commit.
        """
        pin = self.pin(revision)
        if pin is None:
            raise OombisectError(
                f"{revision} has no Megatron-LM submodule to put another commit into", "Leave --megatron-commit out."
            )
        if _FULL_ID.fullmatch(name):
            self.store.ensure(replace(pin, sha=name))
            return name
        found = self.store.named_commit(pin, name)
        if found is None:
            self.store.ensure(pin)  # fetched with its history, in which it may be
            found = self.store.named_commit(pin, name)
        if found is None:
            raise OombisectError(
                f"There is no Megatron-LM revision {name!r} in the clones at hand",
                "Write its whole id, or name a Megatron-LM clone that has it with --megatron PATH.",
            )
        self.store.ensure(replace(pin, sha=found))
        return found

    def changed(self, commits: Sequence[Commit]) -> list[changes.Changed]:
        """The probe-visible paths each commit changed against its first parent."""
        pins = sorted({pin.path for pin in self.store.pins([c.tree for c in commits]) if pin})
        pairs = [(commit.sha, next(iter(commit.parents), "")) for commit in commits]
        return changes.changed_paths(self.mirror.local, pairs, [SOURCE_DIR, *ENV_FILES, *pins])

    def weigh(self, changed: changes.Changed, imported: Set[str] | None, rolls: Mapping[tuple[str, str], int]) -> float:
        """How much a change counts when an interval is split (`changes.weigh`)."""
        return changes.weigh(changed, imported, rolls)

    # -- commits on disk

    def acquire_slot(self) -> Slot:
        """A worktree slot for this process alone; release it (or use it in a `with`) when done."""
        return acquire(self.slots_folder, self.mirror)

    @property
    def slots_folder(self) -> Path:
        """Where its slots lie: those of one folder hold the same files of a commit."""
        return _real(self.cache / "slots") / self.mirror.path.stem

    def prune_slots(self) -> int:
        """Remove slots that no living process holds; how many."""
        return prune(self.slots_folder, self.mirror)

    def materialise(self, revision: str, slot: Slot, megatron: str | None = None) -> Materialised:
        """Lay a commit out in a slot, with the Megatron-LM commit it pins (or `megatron` in its stead).

        Raises:
            MissingCommit: the pinned commit is nowhere to be had.
            OombisectError: git could not do it.
        """
        sha = self.resolve(revision)
        pin = self.pin(sha)
        inner: tuple[Mirror, str] | None = None
        if pin is not None:
            wanted = replace(pin, sha=megatron) if megatron else pin
            inner = (self.store.ensure(wanted), wanted.sha)
        slot.put(sha, pin.path if pin else None, inner)
        megatron_root = slot.path / pin.path if pin else None
        roots = {"bridge": slot.path} | ({"megatron-lm": megatron_root} if megatron_root else {})
        paths = (slot.path / SOURCE_DIR, *((megatron_root,) if megatron_root else ()))
        return Materialised(slot.path, megatron_root, paths, roots, sha, inner[1] if inner else "")

    def hotfix(self, name: str) -> Hotfix:
        """The hotfix that `name` means: the patch in that file, else what that commit changed.

        Raises:
            OombisectError: it is neither, or changes nothing.
        """
        path = Path(name)
        if path.is_file():
            return check(self.mirror, patch_of_file(path))
        try:
            commit = self.resolve(name)
        except OombisectError as error:
            raise OombisectError(
                f"--hotfix {name} is no file, and no commit: {error.cause}", "Name a patch, or a commit that has it."
            ) from error
        return check(self.mirror, patch_of_commit(self.mirror, commit))

    def hotfixed(self, commit: str, hotfixes: Sequence[Hotfix]) -> str:
        """`commit` with the hotfixes on top, as a commit of the mirror; itself where that changes nothing.

        Raises:
            HotfixConflict: one neither applies nor is there.
        """
        done = with_hotfixes(self.mirror, self.resolve(commit), hotfixes)
        self._resolved[done] = done
        return done

    def reverted(self, tip: str, culprit: str) -> Reverted:
        """`tip` with the change of `culprit` undone, as a commit of the mirror; a merge loses all it brought in.

        Raises:
            RevertConflict: it does not come out cleanly.
        """
        tip, culprit = self.resolve(tip), self.resolve(culprit)
        pins = {pin.path for pin in (self.pin(tip), self.pin(culprit)) if pin}
        done = revert(self.mirror, tip, culprit, lambda path: path.startswith(f"{SOURCE_DIR}/") or path in pins)
        self._resolved[done.commit] = done.commit
        return done

    def reverted_megatron(self, revision: str, tip: str, culprit: str) -> Reverted:
        """As `reverted`, in the Megatron-LM that `revision` pins: commit `tip` of it without the change of `culprit`.

        Raises:
            RevertConflict: it does not come out cleanly.
            MissingCommit: `tip` is nowhere to be had.
        """
        pin = self.pin(revision)
        assert pin is not None
        return revert(self.store.ensure(replace(pin, sha=tip)), tip, culprit, is_probed)

    def materialise_reverted(self, tip: str, culprit: str, slot: Slot) -> Materialised:
        """Lay out what `reverted` makes.

        Raises:
            RevertConflict: it does not come out cleanly.
        """
        done = self.reverted(tip, culprit)
        laid = self.materialise(done.commit, slot)
        ignored = ", ".join(done.ignored)
        notes = (f"conflicts outside the probed sources were settled as at the tip: {ignored}",) if ignored else ()
        return replace(laid, changed=done.changed, notes=notes)


def _real(path: Path) -> Path:
    """Absolute, without symbolic links: git writes such paths into worktrees, and they are compared with ours."""
    return Path(os.path.realpath(path))


def open_repository(
    path: Path | None,
    cwd: Path,
    cache: Path,
    say: Say = lambda _: None,
    megatron: Path | None = None,
    url: str = BRIDGE_URL,
) -> BridgeRepository:
    """The history to bisect: the repository at `path`, else the Bridge checkout `cwd` lies in.

    Where there is no path, and `cwd` lies in no git repository, it is a clone in the cache.

    Args:
        cache: a directory of ours; mirrors and slots live in it.
        say: told, one sentence each, of what takes long (a clone, a fetch).
        megatron: a Megatron-LM clone to take pinned commits from.
        url: what to clone.

    Raises:
        OombisectError: no repository there, `cwd` lies in another one than Bridge, or no network.
    """
    git_root = _real(cache / "git")
    if megatron is not None and git_directory(megatron) is None:
        raise OombisectError(f"{megatron} is no git repository", "Name a Megatron-LM clone with --megatron PATH.")
    try:
        checkout = _discover(path) if path is not None else _bridge_checkout(cwd)
        if checkout is None:
            mirror = clone(url, git_root / "Megatron-Bridge.git", say, "Megatron Bridge")
            git_dir, base_url = None, url
        else:
            git_dir = _git_directory(checkout)
            mirror = mirror_of(git_root, "bridge", str(git_dir.resolve()), [git_dir], promisor_of(git_dir))
            base_url = _remote_url(checkout) or str(checkout)
    except OSError as error:
        raise OombisectError(
            f"The cache directory {cache} cannot be used: {error.strerror or error}",
            "Free some space there, or choose another cache directory.",
            ExitCode.INFRASTRUCTURE,
        ) from error
    reader = TreeReader(mirror.local)
    store = SubmoduleStore(git_root, reader, mirror, base_url, git_dir, checkout, megatron, say)
    return BridgeRepository(mirror, cache, store, reader, checkout, say)


def _discover(path: Path) -> Path:
    """The top of the repository `path` lies in (the git directory of a bare one)."""
    if not path.exists():
        raise OombisectError(f"{path} does not exist", "Name a Megatron Bridge clone with --repo PATH.")
    directory = path if path.is_dir() else path.parent
    git = Git(directory.resolve(), Kind.FOREIGN)
    try:
        bare = git.run("rev-parse", "--is-bare-repository", "--is-inside-git-dir").split()
        what = "--absolute-git-dir" if "true" in bare else "--show-toplevel"
        return Path(git.run("rev-parse", what).removesuffix("\n"))
    except GitError as error:
        raise OombisectError(
            f"{path} is no git repository that git will read: {error.reason}",
            "Name a Megatron Bridge clone with --repo PATH, or leave it out to have one cloned. "
            "If it belongs to another user, `git config --global --add safe.directory PATH` allows it.",
        ) from error


def _git_directory(checkout: Path) -> Path:
    """The common git directory of the user's repository.

    Raises:
        OombisectError: it names its objects by SHA-256.
    """
    git_dir = git_directory(checkout)
    assert git_dir is not None
    if Git(checkout, Kind.FOREIGN).run("rev-parse", "--show-object-format").strip() != "sha1":
        raise OombisectError(
            f"{checkout} is a SHA-256 repository", "Use a clone of Megatron Bridge: its ids are SHA-1."
        )
    return git_dir


def _bridge_checkout(cwd: Path) -> Path | None:
    """The Bridge checkout `cwd` lies in, also from inside its submodule; None where it lies in no git repository.

    Raises:
        OombisectError: it lies in another one: what is meant there, nobody said.
    """
    try:
        found = top = _discover(cwd)
    except OombisectError as error:
        if "not a git repository" in error.cause:
            return None
        raise
    if not (top / PACKAGE_DIR).is_dir() and not (top / "HEAD").is_file():  # a bare repository is in no other one
        outer = Git(top, Kind.FOREIGN).run("rev-parse", "--show-superproject-working-tree").removesuffix("\n")
        top = Path(outer) if outer else top
    if not (top / PACKAGE_DIR).is_dir():
        raise OombisectError(
            f"The current folder lies in the git repository {found}, which is no checkout of Megatron Bridge",
            "Name a clone of Bridge with --repo PATH, or go to one, or to a folder that is in no git repository: there "
            "Bridge is cloned into the cache once.",
        )
    return top


def _remote_url(checkout: Path) -> str:
    code, output = Git(checkout, Kind.FOREIGN).call("config", "--get", "remote.origin.url", ok=(0, 1))
    return output.decode("utf-8", "replace").strip() if code == 0 else ""


def _without_filters(checkout: Path) -> tuple[str, ...]:
    """Settings that switch off every content filter a repository's configuration defines: `git status` may run them."""
    question = ("config", "--name-only", "--null", "--get-regexp", r"^filter\.")
    keys = Git(checkout, Kind.FOREIGN).call(*question, ok=(0, 1))[1]
    names = {key.rpartition(".")[0] for key in keys.decode("utf-8", "replace").split("\0") if key}
    off = {"clean": "", "smudge": "", "process": "", "required": "false"}
    return tuple(f"{name}.{key}={value}" for name in sorted(names) for key, value in off.items())
