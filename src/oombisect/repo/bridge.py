"""A Megatron Bridge history: open it, ask it, lay its commits out.

Nothing is written to the user's repository, its checkout is never touched: all work is done in a mirror in the cache.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from oombisect.errors import OombisectError
from oombisect.repo import changes
from oombisect.repo.git import Git, GitError, Kind
from oombisect.repo.mirror import Mirror, Say, clone, mirror_of, update
from oombisect.repo.revert import Reverted, revert
from oombisect.repo.slots import Slot, acquire, prune
from oombisect.repo.submodule import Pin, SubmoduleStore, git_directory, promisor_of
from oombisect.repo.trees import ENV_FILES, PACKAGE_DIR, SOURCE_DIR, Entry, RelevantTrees, TreeReader

BRIDGE_URL = "https://github.com/NVIDIA-NeMo/Megatron-Bridge.git"


@dataclass(frozen=True, slots=True)
class Commit:
    """One commit as a history lists it. `author_date` is ISO 8601, `parents` in git's order."""

    sha: str
    tree: str
    parents: tuple[str, ...]
    author_date: str
    author: str
    subject: str


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


@dataclass(slots=True)
class BridgeRepository:
    """A Bridge history seen through `mirror`; `checkout` is the user's repository, None for the cached clone."""

    mirror: Mirror
    cache: Path
    store: SubmoduleStore
    reader: TreeReader
    checkout: Path | None = None
    say: Say = lambda _: None
    _resolved: dict[str, str] = field(default_factory=dict)
    _updated: bool = False

    @property
    def name(self) -> str:
        """How to name the repository to a user."""
        return str(self.checkout) if self.checkout else f"the cached clone of {BRIDGE_URL}"

    # -- revisions

    def resolve(self, revision: str) -> str:
        """The commit a revision names (branch, tag, abbreviated id, `HEAD~3`, ...).

        Raises:
            OombisectError: there is no such commit; near names are listed.
        """
        found = self._resolved.get(revision) or self._ask(revision)
        if found is None and self.checkout is None and not self._updated:
            self.say(f"{revision} is not in the cached clone: updating it")
            update(self.mirror)
            self._updated = True
            found = self._ask(revision)
        if found is None:
            raise self._unknown(revision)
        self._resolved[revision] = found
        return found

    def _ask(self, revision: str) -> str | None:
        if not revision or revision.startswith("-"):
            return None
        git = Git(self.checkout, Kind.FOREIGN) if self.checkout else self.mirror.local
        try:
            code, output = git.call("rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}", ok=(0, 1, 128))
        except GitError:
            return None
        return output.decode().strip() if code == 0 else None

    def _unknown(self, revision: str) -> OombisectError:
        near = difflib.get_close_matches(revision, self.refs(), n=4, cutoff=0.6)
        near += [name for name in self.refs() if name.endswith(f"/{revision}") and name not in near]
        way_out = f"Did you mean {', '.join(near)}?" if near else "Name a branch, a tag or a commit id."
        if self.is_shallow:
            way_out += " The clone is shallow; `git fetch --unshallow` brings the rest of its history."
        return OombisectError(f"There is no revision {revision!r} in {self.name}", way_out)

    def refs(self) -> list[str]:
        """Branches and tags, as a user writes them."""
        import git as gitpython

        with gitpython.Repo(self.checkout or self.mirror.path, search_parent_directories=True) as repo:
            return [ref.name for ref in repo.references if not ref.path.startswith("refs/oombisect/")]

    @property
    def is_shallow(self) -> bool:
        return (self.mirror.path / "shallow").is_file()

    def is_ancestor(self, ancestor: str, descendant: str) -> bool:
        return self.mirror.local.succeeds("merge-base", "--is-ancestor", ancestor, descendant)

    def merge_base(self, one: str, other: str) -> str | None:
        code, output = self.mirror.local.call("merge-base", one, other, ok=(0, 1))
        return output.decode().strip() if code == 0 else None

    def log(self, *arguments: str, paths: Sequence[str] = ()) -> list[Commit]:
        """Commits as `git log ARGUMENTS -- PATHS` lists them."""
        layout = "--format=tformat:%H%x00%T%x00%P%x00%aI%x00%an%x00%s"
        output = self.mirror.local.run("log", layout, *arguments, "--", *paths)
        rows = (line.split("\0", 5) for line in output.split("\n") if line)
        return [Commit(sha, tree, tuple(p.split()), date, who, subject) for sha, tree, p, date, who, subject in rows]

    def commit(self, sha: str) -> Commit:
        return self.log("--max-count=1", sha)[0]

    def note_on_checkout(self) -> str | None:
        """Uncommitted changes are never probed: say so where there are any."""
        if self.checkout is None:
            return None
        arguments = ("status", "--porcelain", "--untracked-files=no", "--ignore-submodules=all")
        try:
            changed = Git(self.checkout, Kind.FOREIGN).run(*arguments)
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

    def relevant_trees(self, sha: str) -> RelevantTrees:
        """As `trees_of`, for one commit."""
        return self.trees_of([self.commit(sha)])[0]

    def has_package(self, commit: Commit) -> bool:
        """Whether the commit holds `src/megatron/bridge`."""
        return self.reader.find(commit.tree, PACKAGE_DIR) is not None

    def entry(self, sha: str, path: str) -> Entry | None:
        """The tree entry at `path` of a commit."""
        return self.reader.find(f"{sha}^{{tree}}", path)

    def pin(self, sha: str) -> Pin | None:
        """The Megatron-LM commit that a commit pins."""
        return self.store.pins([self.commit(sha).tree])[0]

    def changed(self, commits: Sequence[Commit]) -> list[changes.Changed]:
        """The probe-visible paths each commit changed against its first parent."""
        pins = sorted({pin.path for pin in self.store.pins([c.tree for c in commits]) if pin})
        return changes.changed_paths(self.mirror.local, [c.sha for c in commits], [SOURCE_DIR, *ENV_FILES, *pins])

    # -- commits on disk

    def acquire_slot(self) -> Slot:
        """A worktree slot for this process alone; release it (or use it in a `with`) when done."""
        return acquire(self._slots, self.mirror)

    @property
    def _slots(self) -> Path:
        return self.cache / "slots" / self.mirror.path.stem

    def prune_slots(self) -> int:
        """Remove slots that no living process holds; how many."""
        return prune(self._slots, self.mirror)

    def materialise(self, commit: str, slot: Slot, megatron: str | None = None) -> Materialised:
        """Lay a commit out in a slot, with the Megatron-LM commit it pins (or `megatron` in its stead).

        Raises:
            MissingCommit: the pinned commit is nowhere to be had.
            OombisectError: git could not do it.
        """
        sha = self.resolve(commit)
        pin = self.pin(sha)
        inner: tuple[Mirror, str] | None = None
        if pin is not None:
            wanted = Pin(pin.path, pin.url, megatron, pin.name) if megatron else pin
            inner = (self.store.ensure(wanted), wanted.sha)
        slot.put(sha, pin.path if pin else None, inner)
        megatron_root = slot.path / pin.path if pin else None
        roots = {"bridge": slot.path} | ({"megatron-lm": megatron_root} if megatron_root else {})
        paths = (slot.path / SOURCE_DIR, *((megatron_root,) if megatron_root else ()))
        return Materialised(slot.path, megatron_root, paths, roots, sha, inner[1] if inner else "")

    def reverted(self, tip: str, culprit: str) -> Reverted:
        """`tip` with the change of `culprit` undone, as a commit of the mirror; a merge is undone against its first parent.

        Raises:
            RevertConflict: it does not come out cleanly.
        """
        tip, culprit = self.resolve(tip), self.resolve(culprit)
        pins = {pin.path for pin in (self.pin(tip), self.pin(culprit)) if pin}
        done = revert(self.mirror, tip, culprit, lambda path: path.startswith(f"{SOURCE_DIR}/") or path in pins)
        self._resolved[done.commit] = done.commit
        return done

    def materialise_reverted(self, tip: str, culprit: str, slot: Slot) -> Materialised:
        """Lay out what `reverted` makes.

        Raises:
            RevertConflict: it does not come out cleanly.
        """
        done = self.reverted(tip, culprit)
        laid = self.materialise(done.commit, slot)
        ignored = ", ".join(done.ignored)
        notes = (f"conflicts outside the probed sources were settled as at the tip: {ignored}",) if ignored else ()
        return Materialised(
            laid.root, laid.megatron_root, laid.source_paths, laid.roots, laid.commit, laid.megatron_commit, done.changed, notes
        )


def open_repository(
    path: Path | None,
    cwd: Path,
    cache: Path,
    say: Say = lambda _: None,
    megatron: Path | None = None,
    url: str = BRIDGE_URL,
) -> BridgeRepository:
    """The history to bisect: the repository at `path`, else the Bridge checkout `cwd` lies in, else a cached clone.

    Args:
        cache: a directory of ours; mirrors and slots live in it.
        say: told, one sentence each, of what takes long (a clone, a fetch).
        megatron: a Megatron-LM clone to take pinned commits from.
        url: what to clone.

    Raises:
        OombisectError: no repository there, or no network.
    """
    git_root = cache / "git"
    if megatron is not None and git_directory(megatron) is None:
        raise OombisectError(f"{megatron} is no git repository", "Name a Megatron-LM clone with --megatron PATH.")
    checkout = _discover(path) if path is not None else _bridge_checkout(cwd)
    if checkout is None:
        mirror = clone(url, git_root / "Megatron-Bridge.git", say, "Megatron Bridge")
        git_dir, base_url = None, url
    else:
        git_dir = git_directory(checkout)
        if git_dir is None:
            raise _not_a_repository(checkout)
        mirror = mirror_of(git_root, "bridge", str(git_dir.resolve()), [git_dir], promisor_of(git_dir))
        base_url = _remote_url(checkout) or str(checkout)
    reader = TreeReader(mirror.local)
    store = SubmoduleStore(git_root, reader, mirror.local, base_url, git_dir, checkout, megatron, say)
    return BridgeRepository(mirror, cache, store, reader, checkout, say)


def _discover(path: Path) -> Path:
    """The top of the repository `path` lies in (the git directory of a bare one)."""
    import git as gitpython

    if not path.exists():
        raise OombisectError(f"{path} does not exist", "Name a Megatron Bridge clone with --repo PATH.")
    try:
        with gitpython.Repo(path, search_parent_directories=True) as repo:
            return Path(repo.working_tree_dir or repo.git_dir)
    except (gitpython.InvalidGitRepositoryError, gitpython.NoSuchPathError) as error:
        raise _not_a_repository(path) from error


def _not_a_repository(path: Path) -> OombisectError:
    return OombisectError(
        f"{path} is no git repository that git agrees to read",
        "Name a Megatron Bridge clone with --repo PATH (or leave it out to have one cloned). "
        "Where it belongs to another user, `git config --global --add safe.directory PATH` allows it.",
    )


def _bridge_checkout(cwd: Path) -> Path | None:
    try:
        top = _discover(cwd)
    except OombisectError:
        return None
    return top if (top / PACKAGE_DIR).is_dir() else None


def _remote_url(checkout: Path) -> str:
    code, output = Git(checkout, Kind.FOREIGN).call("config", "--get", "remote.origin.url", ok=(0, 1))
    return output.decode("utf-8", "replace").strip() if code == 0 else ""
