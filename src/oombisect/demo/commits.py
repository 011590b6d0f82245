"""The commits of the demo, as files tell them: a subject and small edits each.

`files/base` is the first commit's tree. Every further commit is a TOML file whose name gives its place; what it may
say is the fields of `Commit` and of the edits below. Templates carry the suffix `.in`, so that no tool takes them for
modules or tests of this project.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, fields
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

TEMPLATE_SUFFIX = ".in"
_FILES = files("oombisect.demo") / "files"


@dataclass(frozen=True, slots=True)
class Edit:
    """Replaces the only occurrence of `old` in `file` by `new`; every occurrence if `all`."""

    file: str
    old: str
    new: str
    all: bool = False

    def apply(self, root: Path) -> None:
        """Edit the file below `root`.

        Raises:
            ValueError: `old` is not there once (with `all`: at least once).
        """
        path = root / self.file
        text = path.read_text(encoding="utf-8")
        found = text.count(self.old)
        if found != 1 and not (self.all and found):
            raise ValueError(f"{self.file}: {found} occurrences of {self.old!r}")
        _write(path, text.replace(self.old, self.new))


@dataclass(frozen=True, slots=True)
class Write:
    """Makes `file`, or adds to its end if `append`."""

    file: str
    text: str
    append: bool = False

    def apply(self, root: Path) -> None:
        """Write the file below `root`, and the folders it is in."""
        path = root / self.file
        before = path.read_text(encoding="utf-8") if self.append and path.exists() else ""
        _write(path, before + self.text)


@dataclass(frozen=True, slots=True)
class Move:
    """Renames `file` to `to`."""

    file: str
    to: str

    def apply(self, root: Path) -> None:
        """Move the file below `root`, and make the folder it goes to."""
        (root / self.to).parent.mkdir(parents=True, exist_ok=True)
        (root / self.file).rename(root / self.to)


@dataclass(frozen=True, slots=True)
class DropLines:
    """Removes every line that reads `line`, but for its indentation, from the Python files below `folder`."""

    folder: str
    line: str

    def apply(self, root: Path) -> None:
        """Rewrite those files below `root` that have the line."""
        for path in sorted((root / self.folder).rglob("*.py")):
            text = path.read_text(encoding="utf-8")
            if self.line in text:
                _write(path, "".join(x for x in text.splitlines(keepends=True) if x.strip() != self.line))


Change = Edit | Write | Move | DropLines
_KINDS: dict[str, type[Change]] = {"move": Move, "edit": Edit, "write": Write, "drop_lines": DropLines}


@dataclass(frozen=True, slots=True)
class Commit:
    """One commit.

    Args:
        slug: the name of its file, without the number.
        branch: the side branch it lies on; it starts at the main line's tip. Empty: the main line.
        merge: the side branch it merges; then there are no changes of its own.
        revert: the slug of an earlier commit whose changes it takes back.
        pin: the slug of the Megatron-LM commit it moves the submodule to.
        tag: the tag it gets.
    """

    slug: str
    subject: str
    author: str
    body: str = ""
    branch: str = ""
    merge: str = ""
    revert: str = ""
    pin: str = ""
    tag: str = ""
    changes: tuple[Change, ...] = ()


def bridge_commits() -> tuple[Commit, ...]:
    """The demo's Megatron Bridge, oldest first; the first has no changes but the base tree."""
    return _read("bridge")


def megatron_commits() -> tuple[Commit, ...]:
    """The demo's Megatron-LM, oldest first; the first has no changes but the installed megatron-core."""
    return _read("megatron_lm")


def write_base(root: Path) -> None:
    """Writes the base tree below `root`."""
    for name, template in _templates(_FILES / "base", ""):
        _write(root / name.removesuffix(TEMPLATE_SUFFIX), template.read_text(encoding="utf-8"))


def fingerprint() -> Iterator[bytes]:
    """Everything the generated history depends on in this package, for a digest."""
    for name, file in _templates(_FILES, ""):
        yield name.encode()
        yield file.read_bytes()


def _read(line: str) -> tuple[Commit, ...]:
    names = {f.name for f in fields(Commit)}
    found = []
    for name, file in _templates(_FILES / line, ""):
        data: dict[str, Any] = tomllib.loads(file.read_text(encoding="utf-8"))
        changes = [kind(**item) for key, kind in _KINDS.items() for item in data.pop(key, [])]
        if not data.keys() <= names:
            raise ValueError(f"{name}: unknown keys {sorted(data.keys() - names)}")
        slug = name.removesuffix(".toml").partition("-")[2]
        found.append(Commit(slug=slug, changes=tuple(changes), **data))
    return tuple(found)


def _templates(folder: Traversable, prefix: str) -> Iterator[tuple[str, Traversable]]:
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if entry.is_dir():
            yield from _templates(entry, f"{prefix}{entry.name}/")
        else:
            yield f"{prefix}{entry.name}", entry


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8", newline="\n")
