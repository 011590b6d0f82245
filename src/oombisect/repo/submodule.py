"""Which Megatron-LM commit a Bridge commit pins, and one mirror in the cache that holds such commits.

Objects are looked for where they may already lie (a clone the user names, the checkout's own submodule, a local URL in
`.gitmodules`) and downloaded, blobless, only when they are nowhere.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlparse

from oombisect.errors import ExitCode, OombisectError
from oombisect.repo.git import Git, GitError, Kind, commit_named
from oombisect.repo.mirror import Mirror, Promisor, Say, mirror_of, unreachable
from oombisect.repo.trees import MEGATRON_DIR, TreeReader

DEFAULT_PATH = "3rdparty/Megatron-LM"
DEFAULT_URL = "https://github.com/NVIDIA/Megatron-LM.git"


# How git tells that a server was reached and will not give a commit: it lacks it, the repository, or our leave to read.
# Whatever else stops a fetch is between us and the server, and may be over the next time.
_ANSWERED = re.compile(
    r"not our ref|find remote ref|unadvertised object|repository .*not found|not appear to be a git repository"
    r"|could not read Username|Authentication failed|Permission denied|returned error: 4(?!07|08|29)[0-9]{2}",
    re.IGNORECASE,
)


class MissingCommit(OombisectError):
    """A pinned submodule commit is nowhere to be had: the point cannot be laid out (it is unresolved)."""

    def __init__(self, sha: str, url: str, why: str) -> None:
        super().__init__(
            f"Megatron-LM commit {sha[:12]} is in no clone at hand, and {url} did not give it: {why}",
            "Name a Megatron-LM clone that has it with --megatron PATH.",
            ExitCode.INFRASTRUCTURE,
        )
        self.sha = sha


@dataclass(frozen=True, slots=True)
class Declared:
    """A submodule as `.gitmodules` declares it."""

    name: str
    path: str
    url: str


@dataclass(frozen=True, slots=True)
class Pin:
    """The submodule commit a Bridge commit pins: `path` in the tree, where it comes from, its id."""

    path: str
    url: str
    sha: str
    name: str = ""


def parse_gitmodules(data: bytes, git: Git) -> tuple[Declared, ...]:
    """The submodules a `.gitmodules` blob declares, in order; entries with an unsafe path are left out."""
    try:
        listing = git.raw("config", "--file", "-", "--no-includes", "--null", "--list", stdin=data)
    except GitError:
        return ()
    found: dict[str, dict[str, str]] = {}
    for item in listing.decode("utf-8", "replace").split("\0"):
        key, _, value = item.partition("\n")
        section, _, rest = key.partition(".")
        name, _, variable = rest.rpartition(".")
        if section == "submodule" and name:
            found.setdefault(name, {})[variable] = value
    declared = (Declared(name, values.get("path", ""), values.get("url", "")) for name, values in found.items())
    return tuple(d for d in declared if d.path and not _escapes(d.path))


def _escapes(path: str) -> bool:
    parts = path.lower().split("/")
    return not path.isprintable() or path.startswith("/") or ".." in parts or ".git" in parts


def megatron_of(declared: Sequence[Declared]) -> Declared | None:
    """The submodule that is Megatron: by name, path or URL; else the only one there is."""
    named = [d for d in declared if "megatron" in f"{d.name} {d.path} {posixpath.basename(d.url)}".lower()]
    candidates = named or list(declared)
    exact = [d for d in candidates if d.path == DEFAULT_PATH]
    if exact:
        return exact[0]
    return candidates[0] if len(candidates) == 1 or named else None


def local_directory(url: str, base: str) -> Path | None:
    """The directory a submodule URL means, None for one over the network.

    A relative URL starts from `base`: the superproject's own remote, or its directory where it has none.
    """
    if url.startswith(("./", "../")):
        if not base.startswith("file://") and ":" in base.split("/")[0]:
            return None
        return Path(posixpath.normpath(posixpath.join(_plain(base), url)))
    if url.startswith("/"):
        return Path(url)
    return Path(_plain(url)) if urlparse(url).scheme == "file" else None


def _plain(url: str) -> str:
    return unquote(urlparse(url).path) if urlparse(url).scheme == "file" else url


def network_url(url: str, base: str) -> str:
    """The URL to fetch a submodule from.

    `./` and `../` are worked out against the superproject's; GitHub's ssh addresses, which want a key, become public
    ones (Bridge's first commits with the submodule name it that way), so that one clone serves both.
    """
    if not url.startswith(("./", "../")) or not base:
        return re.sub(r"^(ssh://)?git@github\.com[:/]", "https://github.com/", url)
    parts = base.rstrip("/").split("/")
    for step in url.split("/"):
        if step == "..":
            parts.pop()
        elif step not in (".", ""):
            parts.append(step)
    return network_url("/".join(parts), "")


def git_directory(path: Path) -> Path | None:
    """The common git directory of the repository whose top (or git directory) is `path`; None if it is none."""
    if not path.is_dir() or not any((path / name).exists() for name in (".git", "HEAD")):
        return None
    try:
        told = Git(path, Kind.FOREIGN).run("rev-parse", "--path-format=absolute", "--git-common-dir").strip()
    except GitError:
        return None
    return Path(told)


@dataclass(slots=True)
class SubmoduleStore:
    """Finds pins and keeps the mirror that holds the pinned commits.

    Args:
        cache: where mirrors live.
        reader, bridge: the Bridge mirror and its trees.
        base_url: the superproject's remote URL or directory, for relative submodule URLs.
        checkout_git_dir, checkout: the user's repository, whose own submodule is looked at first.
        named: a clone the user named; it comes first.
    """

    cache: Path
    reader: TreeReader
    bridge: Mirror
    base_url: str
    checkout_git_dir: Path | None = None
    checkout: Path | None = None
    named: Path | None = None
    say: Say = lambda _: None
    _declared: dict[str, Declared | None] = field(default_factory=dict)
    _pins: dict[str, Pin | None] = field(default_factory=dict)
    _mirrors: dict[str, Mirror] = field(default_factory=dict)
    _missing: dict[str, str] = field(default_factory=dict)
    _readers: dict[Path, TreeReader] = field(default_factory=dict)

    def pins(self, trees: Sequence[str]) -> list[Pin | None]:
        """The pin of each root tree; None where Megatron-LM is no submodule."""
        fresh = [tree for tree in dict.fromkeys(trees) if tree not in self._pins]
        self._pins.update(zip(fresh, self._read_pins(fresh)))
        return [self._pins[tree] for tree in trees]

    def _read_pins(self, trees: Sequence[str]) -> list[Pin | None]:
        self.reader.load(trees)
        blobs = [entry.sha if (entry := self.reader.tree(t).get(".gitmodules")) else "" for t in trees]
        unknown = [b for b in dict.fromkeys(blobs) if b and b not in self._declared]
        for blob, data in zip(unknown, self.bridge.contents(unknown)):
            self._declared[blob] = megatron_of(parse_gitmodules(data, self.bridge.local))
        chosen = [self._declared.get(b) for b in blobs]
        pins: list[Pin | None] = [None] * len(trees)
        for declared in dict.fromkeys(d for d in chosen if d):
            at = [i for i, d in enumerate(chosen) if d == declared]
            for i, entry in zip(at, self.reader.find_all([trees[i] for i in at], declared.path)):
                if entry and entry.is_gitlink:
                    pins[i] = Pin(declared.path, declared.url, entry.sha, declared.name)
        return pins

    def mirror(self, pin: Pin) -> Mirror:
        """The mirror for a pin's URL; nothing is downloaded yet."""
        found = self._mirrors.get(pin.url)
        if found is None:
            found = self._mirrors[pin.url] = self._open(pin)
        return found

    def _open(self, pin: Pin) -> Mirror:
        sources = [source for place in self._places(pin) if (source := git_directory(place))]
        local = local_directory(pin.url, self.base_url)
        promisor = next((p for s in sources if (p := promisor_of(s))), None)
        if local is None:
            url = network_url(pin.url, self.base_url)
            return mirror_of(self.cache, "Megatron-LM", url, sources, promisor or Promisor(url))
        return mirror_of(self.cache, "Megatron-LM", str(local), sources, promisor)

    def named_commit(self, pin: Pin, revision: str) -> str | None:
        """The commit that a revision names in the first clone at hand that knows it, or in the mirror by its id."""
        clones = (source for place in self._places(pin) if (source := git_directory(place)))
        asked = (*(Git(source, Kind.FOREIGN) for source in clones), self.mirror(pin).local)
        return next((found for git in asked if (found := commit_named(git, revision))), None)

    def _places(self, pin: Pin) -> Iterable[Path]:
        if self.named:
            yield self.named
        if self.checkout:
            yield self.checkout / pin.path
        if self.checkout_git_dir:
            yield self.checkout_git_dir / "modules" / (pin.name or pin.path)
        if local := local_directory(pin.url, self.base_url):
            yield local
            yield local.with_name(local.name + ".git")

    def ensure(self, pin: Pin) -> Mirror:
        """The mirror, with the pinned commit and its history in it.

        Raises:
            MissingCommit: nobody has it.
            OombisectError: the server was not reached, which tells nothing of the commit.
        """
        mirror = self.mirror(pin)
        if mirror.has_commit(pin.sha):
            return mirror
        if pin.sha in self._missing:
            raise MissingCommit(pin.sha, pin.url, self._missing[pin.sha])
        try:
            if mirror.promisor is None:
                raise GitError(["fetch"], 128, "no such commit there")
            self.say(f"Fetching Megatron-LM {pin.sha[:12]} into the cache, without contents: {mirror.promisor.url}")
            mirror.fetch(f"{pin.sha}:refs/oombisect/{pin.sha}")
        except GitError as error:
            if mirror.promisor is not None and not _ANSWERED.search(error.stderr):
                deed = f"fetch Megatron-LM commit {pin.sha[:12]}"
                raise unreachable(mirror.promisor.url, error, deed, "--megatron") from error
            self._missing[pin.sha] = error.reason
            raise MissingCommit(pin.sha, pin.url, error.reason) from error
        return mirror

    def package_trees(self, pins: Sequence[Pin | None]) -> list[str]:
        """The tree of `megatron/` at each pin; `gitlink:<sha>` where the commit is not at hand, "" without a pin."""
        found: dict[Pin, str] = {}
        by_url: dict[str, list[Pin]] = {}
        for pin in dict.fromkeys(p for p in pins if p):
            by_url.setdefault(pin.url, []).append(pin)
        for group in by_url.values():
            mirror = self.mirror(group[0])
            reader = self._readers.setdefault(mirror.path, TreeReader(mirror.local))
            entries = reader.find_all([f"{pin.sha}^{{tree}}" for pin in group], MEGATRON_DIR)
            for pin, entry in zip(group, entries):
                found[pin] = entry.sha if entry else f"gitlink:{pin.sha}"
        return [found[p] if p else "" for p in pins]


def promisor_of(git_dir: Path) -> Promisor | None:
    """The promisor remote of a partial clone, None for a complete one."""
    settings = Git(git_dir, Kind.FOREIGN).call("config", "--null", "--get-regexp", r"^remote\..*", ok=(0, 1))[1]
    lines = settings.decode("utf-8", "replace").split("\0")
    values = {key: value for key, _, value in (line.partition("\n") for line in lines)}
    for key, value in values.items():
        if key.endswith(".promisor") and value.lower() in ("", "true", "yes", "on", "1"):
            name = key[: -len(".promisor")]
            if url := values.get(f"{name}.url"):
                return Promisor(url, values.get(f"{name}.partialclonefilter", "blob:none"))
    return None
