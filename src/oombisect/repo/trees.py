"""What a probe can see of a commit, as object ids: read in bulk from root trees by one `git cat-file --batch`.

Trees are parsed here rather than asked for as `<sha>:path`: in a blobless clone that question downloads the blob of
`uv.lock` at every commit, and it has no answer for a gitlink.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from oombisect.repo.git import Git

SOURCE_DIR = "src"
PACKAGE_DIR = "src/megatron/bridge"
ENV_FILES = ("uv.lock", "pyproject.toml")
MEGATRON_DIR = "megatron"


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of a tree: `mode` as git writes it ("40000", "100644", "160000"), object id in hex."""

    mode: str
    sha: str

    @property
    def is_tree(self) -> bool:
        return self.mode == "40000"

    @property
    def is_gitlink(self) -> bool:
        return self.mode == "160000"


Tree = Mapping[str, Entry]


def batch(git: Git, names: Sequence[str]) -> Iterator[bytes | None]:
    """The content of each object named (any revision syntax), None where it does not exist; in order."""
    if not names:
        return
    stream = io.BytesIO(git.raw("cat-file", "--batch", "--buffer", stdin="".join(f"{n}\n" for n in names)))
    for _ in names:
        header = stream.readline().rsplit(b" ", 2)
        if len(header) != 3 or not header[2].strip().isdigit():
            yield None
            continue
        content = stream.read(int(header[2]))
        stream.read(1)
        yield content


def parse_tree(data: bytes, known: dict[bytes, tuple[str, Entry]] | None = None) -> dict[str, Entry]:
    """A tree object's entries by name (ids of 20 bytes).

    `known` holds entries by their bytes: root trees of a history repeat nearly all of theirs.
    """
    known = {} if known is None else known
    entries, at = {}, 0
    while at < len(data):
        nul = data.index(b"\0", at)
        raw = data[at : nul + 21]
        named = known.get(raw)
        if named is None:
            mode, _, name = data[at:nul].partition(b" ")
            named = name.decode("utf-8", "surrogateescape"), Entry(mode.decode(), raw[-20:].hex())
            known[raw] = named
        entries[named[0]] = named[1]
        at = nul + 21
    return entries


class TreeReader:
    """Reads trees of one repository, each object once."""

    def __init__(self, git: Git) -> None:
        self._git = git
        self._trees: dict[str, Tree] = {}
        self._known: dict[bytes, tuple[str, Entry]] = {}

    def load(self, names: Iterable[str]) -> None:
        """Have the trees ready, by tree id or `<commit>^{tree}`; a missing one reads as empty."""
        wanted = [n for n in dict.fromkeys(names) if n not in self._trees]
        for name, data in zip(wanted, batch(self._git, wanted)):
            self._trees[name] = parse_tree(data, self._known) if data is not None else {}

    def tree(self, name: str) -> Tree:
        self.load([name])
        return self._trees[name]

    def find(self, tree: str, path: str) -> Entry | None:
        """The entry at `path` below the tree, or None."""
        entry: Entry | None = None
        for part in path.split("/"):
            if entry is not None and not entry.is_tree:
                return None
            entry = self.tree(entry.sha if entry else tree).get(part)
            if entry is None:
                return None
        return entry

    def find_all(self, trees: Sequence[str], path: str) -> list[Entry | None]:
        """`find` for many root trees: one process per level, not per tree."""
        found: list[Entry | None] = [Entry("40000", tree) for tree in trees]
        for part in path.split("/"):
            self.load(entry.sha for entry in found if entry and entry.is_tree)
            found = [self._trees[e.sha].get(part) if e and e.is_tree else None for e in found]
        return found


@dataclass(frozen=True, slots=True)
class RelevantTrees:
    """Object ids of all a probe can see of a commit; "" where the commit has no such thing.

    bridge: the tree of `src`. gitlink: the pinned Megatron-LM commit. megatron: the tree of `megatron/` in it (or the
    gitlink itself where that commit is not at hand). env_lock: `uv.lock` and `pyproject.toml`, reported, and part of a
    signature only when the environment is built per lock.
    """

    bridge: str
    gitlink: str
    megatron: str
    env_lock: str

    @property
    def key(self) -> tuple[str, str]:
        """Points with equal keys are one point to a probe whose environment is held fixed."""
        return self.bridge, self.megatron

    def to_json(self) -> dict[str, str]:
        return {"bridge": self.bridge, "megatron-lm": self.megatron, "env-lock": self.env_lock}
