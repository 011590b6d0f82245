"""What goes wrong when a snapshot is read, and how to say so."""

from __future__ import annotations


class SnapshotError(ValueError):
    """The file is no snapshot that can be read; the message says why, and what to do."""


def kind_of(value: object) -> str:
    """What a value is, with its article: `an int`, `a dict`."""
    name = type(value).__name__
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"


def shown(text: str, most: int = 80) -> str:
    """A text from a file, fit for a terminal: cut, and without anything that does not print."""
    cut = text if len(text) <= most else text[:most] + "..."
    return "".join(character if character.isprintable() else "?" for character in cut)


def named(error: Exception) -> str:
    """An error in words, fit for a terminal."""
    return shown(f"{type(error).__name__}: {error}", 200)
