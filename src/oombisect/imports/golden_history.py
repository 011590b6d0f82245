"""The goldens in the first-parent history of a Megatron-LM clone, read from its objects: nothing is checked out."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from oombisect.errors import OombisectError
from oombisect.history.imported import ImportedReading
from oombisect.imports.content import Problem, Unreadable, run_of
from oombisect.imports.goldens import (
    MAX_GOLDEN,
    PATTERN,
    Change,
    Golden,
    Name,
    Series,
    config_path,
    name_of,
    parse_golden,
    series_of,
)
from oombisect.printable import printable
from oombisect.recipes.config_load import plain_yaml
from oombisect.repo.git import NULL_SHA, Git, GitError, Kind

REPO = "megatron-lm"
_BATCH_BYTES = 32 << 20
_MAX_CONFIG = 1 << 20
_SECTIONS = ("ENV_VARS", "MODEL_ARGS", "TEST_TYPE")


@dataclass(frozen=True, slots=True)
class Mined:
    """What the goldens of a history tell.

    Args:
        goldens: how many were read; `silent`: how many of them tell no memory.
        problems: those that could not be read.
    """

    head: str
    readings: tuple[ImportedReading, ...]
    goldens: int
    silent: int
    problems: tuple[Problem, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Commit:
    position: int
    committed: datetime | None
    subject: str


def mine(clone: Path, *, revision: str = "HEAD", since: datetime | None = None, known: Mapping[str, Name]) -> Mined:
    """All memory in the goldens of the history of `revision`.

    Args:
        since: only of commits committed then or later.
        known: by origin (`Golden.origin`), the series that goldens were imported into before; they stay in it.

    Raises:
        OombisectError: it is no clone of Megatron-LM with its history.
    """
    git = Git(clone, Kind.FOREIGN)
    head = _head(git, clone, revision)
    series = series_of(_changes(git, head))
    if not series:
        raise OombisectError(
            f"The history of {revision} in {str(clone)!r} has no goldens",
            "Name a clone of Megatron-LM with its history.",
        )
    commits = _commits(git, head, {golden.commit for one in series for golden in one.goldens})
    named = [(golden, _name(one, known)) for one in series for golden in one.goldens]
    wanted = [(g, n) for g, n in named if since is None or ((at := commits[g.commit].committed) and at >= since)]
    told, problems = _told(git, [golden for golden, _ in wanted])
    with_memory = [golden for golden, _ in wanted if told.get(golden.blob)]
    configs, more = _configs(git, with_memory)
    readings = tuple(
        _reading(golden, name, told[golden.blob], configs.get(golden.origin), commits[golden.commit])
        for golden, name in sorted(wanted, key=lambda pair: (commits[pair[0].commit].position, pair[0].path))
        if told.get(golden.blob)
    )
    shallow = git.run("rev-parse", "--is-shallow-repository").strip() == "true"
    notes = ("the clone is shallow: older goldens are not in it (git fetch --unshallow)",) if shallow else ()
    read = sum(golden.blob in told for golden, _ in wanted)
    return Mined(head, readings, read, read - len(readings), (*problems, *more), notes)


def _head(git: Git, clone: Path, revision: str) -> str:
    way_out = "Name a clone of Megatron-LM, and with --branch a branch or commit of it."
    if revision.startswith("-") or not clone.is_dir():
        raise OombisectError(f"{str(clone)!r} is no clone with a commit {revision!r}", way_out)
    try:
        return git.run("rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}").strip()
    except GitError as error:
        raise OombisectError(f"{str(clone)!r} is no clone with a commit {revision!r}", way_out) from error


def _changes(git: Git, head: str) -> Iterator[Change]:
    """What happened to goldens, oldest first; a merge counts as one change."""
    told = git.run(
        "log", "--first-parent", "-m", "--reverse", "--raw", "--no-abbrev", "-z", "--find-renames=100%",
        "--format=%H", head, "--", PATTERN,
    )  # fmt: skip
    words = iter(told.split("\0"))
    commit = ""
    for word in words:
        word = word.lstrip("\n")
        if not word.startswith(":"):
            commit = word or commit
            continue
        _, _, _, blob, status = word.split(" ")
        before = next(words)
        moved = status[0] in "RC"
        path = next(words) if moved else before
        yield Change(commit, path, "" if blob == NULL_SHA else blob, before if status[0] == "R" else "")


def _commits(git: Git, head: str, wanted: Collection[str]) -> dict[str, _Commit]:
    """Of each commit its place in the first-parent history, its date and its subject."""
    found = {}
    rows = git.run("log", "--first-parent", "--reverse", "--format=%H%x00%ct%x00%s", head).splitlines()
    for position, row in enumerate(rows):
        sha, seconds, subject = row.split("\0", 2)
        if sha in wanted:
            found[sha] = _Commit(position, _date(seconds), printable(subject))
    return found


def _date(seconds: str) -> datetime | None:
    """A commit's date; None for one beyond the calendar (any 64-bit number can be in a commit)."""
    try:
        return datetime.fromtimestamp(int(seconds), UTC)
    except (ValueError, OverflowError, OSError):
        return None


def _name(series: Series, known: Mapping[str, Name]) -> Name:
    """The name a series has had since it was first imported, whatever its files are called by now."""
    return next((known[g.origin] for g in series.goldens if g.origin in known), None) or name_of(series)


def _told(git: Git, goldens: Sequence[Golden]) -> tuple[dict[str, dict[str, dict[int, int]]], list[Problem]]:
    """The memory in each blob, and the goldens that could not be read."""
    told: dict[str, dict[str, dict[int, int]]] = {}
    wrong: dict[str, str] = {}
    for blob, data in _blobs(git, dict.fromkeys(golden.blob for golden in goldens), MAX_GOLDEN):
        try:
            if isinstance(data, str):
                raise Unreadable(data)
            told[blob] = parse_golden(data)
        except Unreadable as error:
            wrong[blob] = str(error)
    return told, [Problem(printable(g.origin), wrong[g.blob]) for g in goldens if g.blob in wrong]


def _configs(git: Git, goldens: Sequence[Golden]) -> tuple[dict[str, dict[str, Any]], list[Problem]]:
    """The configuration of each golden's test at its commit, by its origin, and those that could not be read."""
    places = {golden.origin: f"{golden.commit}:{config_path(golden.path)}" for golden in goldens}
    ids = dict(zip(places, _ids(git, list(places.values()))))
    read: dict[str, dict[str, Any]] = {}
    wrong: dict[str, str] = {}
    for blob, data in _blobs(git, dict.fromkeys(blob for blob in ids.values() if blob), _MAX_CONFIG):
        try:
            if isinstance(data, str):
                raise ValueError(data)
            config = plain_yaml(data.decode())
            if not isinstance(config, dict):
                raise ValueError("it holds no mapping")
            read[blob] = {key: config[key] for key in _SECTIONS if key in config}
        except (yaml.YAMLError, ValueError, RecursionError) as error:
            wrong[blob] = " ".join(str(error).split())[:200]
    problems = {blob: Problem(printable(places[origin]), wrong[blob]) for origin, blob in ids.items() if blob in wrong}
    return {origin: read[blob] for origin, blob in ids.items() if blob in read}, list(problems.values())


def _ids(git: Git, names: Sequence[str]) -> list[str]:
    """The blob that each name means; "" where there is none."""
    asked = "".join(f"{name}\n" for name in names if "\n" not in name)
    answers = iter(git.run("cat-file", "--batch-check=%(objectname) %(objecttype)", stdin=asked).splitlines())
    found = []
    for name in names:
        blob, _, kind = ("" if "\n" in name else next(answers)).partition(" ")
        found.append(blob if kind == "blob" else "")
    return found


def _blobs(git: Git, ids: Iterable[str], most: int) -> Iterator[tuple[str, bytes | str]]:
    """The content of each blob, in batches that fit in memory; in its place what is wrong with it."""
    asked = "".join(f"{blob}\n" for blob in ids)
    batch: list[str] = []
    room = _BATCH_BYTES
    for row in git.run("cat-file", "--batch-check=%(objectname) %(objectsize)", stdin=asked).splitlines():
        blob, _, size = row.partition(" ")
        if not size.isdecimal():
            yield blob, "the clone lacks it (git fetch --refetch)"
        elif int(size) > most:
            yield blob, f"it has {int(size):,} bytes"
        else:
            batch.append(blob)
            room -= int(size)
            if room < 0:
                yield from _contents(git, batch)
                batch, room = [], _BATCH_BYTES
    yield from _contents(git, batch)


def _contents(git: Git, blobs: Sequence[str]) -> Iterator[tuple[str, bytes]]:
    answer = (
        git.raw("cat-file", "--batch=%(objectsize)", stdin="".join(f"{blob}\n" for blob in blobs)) if blobs else b""
    )
    at = 0
    for blob in blobs:
        end = answer.index(b"\n", at)
        size = int(answer[at:end])
        yield blob, answer[end + 1 : end + 1 + size]
        at = end + size + 2


def _reading(
    golden: Golden, name: Name, values: Mapping[str, Mapping[int, int]], config: dict[str, Any] | None, commit: _Commit
) -> ImportedReading:
    run = run_of(values)
    return ImportedReading(
        recipe=name.test,
        device=name.hardware,
        settings=name.settings,
        repo=REPO,
        point=golden.commit,
        subject=commit.subject,
        committed=commit.committed,
        position=commit.position,
        origin=golden.origin,
        config=config,
        peak_allocated=run.peak_allocated,
        peak_reserved=run.peak_reserved,
        values=values,
    )
