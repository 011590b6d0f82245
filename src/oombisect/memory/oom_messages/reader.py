"""Finds out-of-memory messages in text and in whole logs: one pass, bounded memory, any bytes.

Every stream of a log (a rank, a process) is read for itself, without blanks, so that neither wrapped lines nor lines of
other ranks in between break a message. An allocator's message stays open until its numbers are complete.
"""

from __future__ import annotations

import heapq
import re
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from oombisect.memory.oom_messages.fields import Numbers, read_numbers
from oombisect.memory.oom_messages.lines import Line, read_lines
from oombisect.memory.oom_messages.records import Found, LookAlike, OomRecord, Source
from oombisect.memory.oom_messages.sizes import SIZE, Size
from oombisect.memory.oom_messages.wordings import BOGUS, ON_ONE_LINE, TEMPLATE, WRAPPED, Wording

_TAIL = 240  # characters without blanks in which the beginning of a wrapped wording is looked for
_LONGEST_MESSAGE = 4000
_MESSAGE_LINES = 24
_PATIENCE = 400  # lines of the whole log after which a message whose rank fell silent is closed
_PART_WITHIN = 24  # lines of the stream within which a wording may be a part of the message before
_STREAMS = 4096
_SHOWN = 1000
_BEFORE = 48  # characters without blanks before a message that tell whether it was raised

_ALLOCATED = re.compile(rf"\.?[Tt]riedtoallocate{SIZE}|\.?Allocationwas|\(MPSallocated", re.ASCII)
_UNREADABLE = re.compile(r"\.?[Tt]riedtoallocate[-+]?(?:\d|nan|inf)", re.ASCII)  # a number, whatever it is
_FILLED_IN_LATER = re.compile(r"\.?[Tt]riedtoallocate(?:\{|<|%|[XxNn]{1,4}(?:\.[XxNn]{1,2})?(?:[KMGT]i?B|bytes))")
_GARBAGE = re.compile(r"\.?Triedtoallocatemorethan1EB")
_RAISED = re.compile(r"(?:[Ee]rror|Exception|EXCEPTION|ERROR|terminated)[:(]['\"]?$")
_SOURCE_LINE = re.compile(r"raise[\w.]{1,64}\(['\"]$")  # a traceback shows it, and the message follows
_NCCL_WHERE = re.compile(r":(\d{1,10}):\d{1,10} \[(\d{1,4})\]", re.ASCII)


@dataclass(slots=True)
class _Open:
    """A message being read; `body` is its text without blanks, `ends` where in it each line of `lines` ends."""

    wording: Wording
    match: re.Match[str]
    before: str
    body: str
    start: int
    number: int
    rank: int | None
    whole_line: bool
    lines: list[tuple[str, int]] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)

    def add(self, compact: str, text: str, position: int = 0) -> None:
        """A line; `position`: how many characters without blanks of it come before the message."""
        self.body += compact[:_LONGEST_MESSAGE]
        self.lines.append((text, position))
        self.ends.append(len(self.body))

    def cut(self, length: int) -> None:
        self.body = self.body[:length]

    @property
    def full(self) -> bool:
        return len(self.lines) > _MESSAGE_LINES or len(self.body) > _LONGEST_MESSAGE


@dataclass(slots=True)
class _Stream:
    """What is remembered of a stream: the end of its text without blanks, its last line, its open message."""

    tail: str = ""
    offset: int = 0
    taken: int = 0
    lines: int = 0
    last_text: str = ""
    last_number: int = 0
    begun: tuple[int, str] | None = None
    open: _Open | None = None


def read_messages(chunks: Iterable[bytes]) -> Iterator[Found]:
    """Every message of a log, in the order of the lines they begin on.

    Args:
        chunks: the log, cut anywhere.
    """
    reader = _Reader()
    for line in read_lines(chunks):
        yield from reader.read(line)
    yield from reader.close()


def parse_message(text: str) -> OomRecord | LookAlike | None:
    """The first out-of-memory error in a text; failing that, the first look-alike; None: nothing of the kind."""
    look_alike: LookAlike | None = None
    for found in read_messages([text.encode(errors="replace")]):
        if isinstance(found, OomRecord):
            return found
        look_alike = look_alike or found
    return look_alike


class _Reader:
    def __init__(self) -> None:
        self._streams: OrderedDict[str, _Stream] = OrderedDict()
        self._open: OrderedDict[str, _Stream] = OrderedDict()  # by the line they begin on
        self._done: list[tuple[int, int, Found]] = []
        self._count = 0
        self._previous = ""

    def read(self, line: Line) -> Iterator[Found]:
        compact = "".join(line.text.replace("\\n", " ").split())
        if compact:
            stream = self._stream(line.stream)
            self._read_wrapped(stream, line, compact)
            self._read_one_line(stream, line)
            stream.last_text, stream.last_number = line.text, line.number
            if not line.stream and self._previous:
                self._continue(self._previous, line, compact)
            elif line.stream:
                self._previous = line.stream
        while self._open:
            key, oldest = next(iter(self._open.items()))
            if oldest.open is None or line.number - oldest.open.number <= _PATIENCE:
                break
            self._close(key)
        yield from self._ready()

    def close(self) -> Iterator[Found]:
        for key in list(self._open):
            self._close(key)
        yield from self._ready()

    def _ready(self) -> Iterator[Found]:
        """Closed messages before which none is open."""
        first = min((s.open.number for s in self._open.values() if s.open), default=None) if self._done else None
        while self._done and (first is None or self._done[0][0] < first):
            yield heapq.heappop(self._done)[2]

    def _stream(self, key: str) -> _Stream:
        stream = self._streams.get(key)
        if stream is None:
            stream = self._streams[key] = _Stream()
            if len(self._streams) > _STREAMS:
                oldest = next(iter(self._streams))
                self._close(oldest)
                del self._streams[oldest]
        else:
            self._streams.move_to_end(key)
        return stream

    def _read_wrapped(self, stream: _Stream, line: Line, compact: str) -> None:
        stream.lines += 1
        window = stream.tail + compact
        base = stream.offset - len(stream.tail)
        if stream.open:
            stream.open.add(compact, line.text)
        for wording, match in _matches(WRAPPED, window, len(stream.tail)):
            start = base + match.start()
            if start < stream.taken:
                continue
            stream.taken = base + match.end()
            if wording.part and self._is_part(stream, line):
                continue
            if stream.open:
                stream.open.cut(start - stream.open.start)
                self._close(line.stream)
            self._begin(stream, wording, match, start, window, line, compact)
        if stream.open and stream.open.full:
            self._close(line.stream)
        stream.offset += len(compact)
        stream.tail = window[-_TAIL:]

    def _begin(
        self, stream: _Stream, wording: Wording, match: re.Match[str], start: int, window: str, line: Line, compact: str
    ) -> None:
        position = start - stream.offset
        earlier = position < 0  # it began on the line before
        number = stream.last_number if earlier else line.number
        whole = not earlier and position == 0 and compact[match.end() - match.start() :] in ("", ".", "!")
        begun = _Open(
            wording, match, window[max(0, match.start() - _BEFORE) : match.start()], "", start, number, line.rank, whole
        )
        if earlier:
            begun.add(window[match.start() : len(window) - len(compact)], stream.last_text)
            begun.add(compact, line.text)
        else:
            begun.add(window[match.start() : match.start() + _LONGEST_MESSAGE], line.text, position)
        stream.begun = (stream.lines, wording.memory)
        if wording.has_numbers:
            stream.open = begun
            self._open[line.stream] = stream
        else:
            begun.cut(match.end() - match.start())
            self._put(begun)

    def _read_one_line(self, stream: _Stream, line: Line) -> None:
        text = line.text.strip()
        end = 0
        for wording, match in _matches(ON_ONE_LINE, text, 0):
            if match.start() < end:
                continue
            end = match.end()
            if wording.part and self._is_part(stream, line):
                continue
            stream.begun = (stream.lines, wording.memory)
            begun = _Open(wording, match, "", match[0], 0, line.number, line.rank, False)
            begun.lines, begun.ends = [(text, sum(map(len, text[: match.start()].split())))], [len(match[0])]
            self._put(begun)

    def _is_part(self, stream: _Stream, line: Line) -> bool:
        if not line.stream and self._previous in self._open:
            return True
        return stream.open is not None or (stream.begun is not None and stream.lines - stream.begun[0] < _PART_WITHIN)

    def _continue(self, key: str, line: Line, compact: str) -> None:
        """A line without prefix may belong to the message of the prefixed line before it."""
        stream = self._streams.get(key)
        own = self._streams.get("")
        if stream and stream.open and not (own and own.open) and not stream.open.full:
            stream.open.add(compact, line.text)

    def _close(self, key: str) -> None:
        stream = self._open.pop(key, None)
        if stream and stream.open:
            begun, stream.open = stream.open, None
            self._put(begun)

    def _put(self, begun: _Open) -> None:
        found = _finish(begun)
        if found is not None:
            self._count += 1
            heapq.heappush(self._done, (found.line, self._count, found))


def _matches(
    wordings: Sequence[tuple[str, list[Wording]]], text: str, known: int
) -> list[tuple[Wording, re.Match[str]]]:
    """What begins in `text` and ends after its first `known` characters; the longest of those that begin together."""
    found = [
        (wording, match)
        for needle, several in wordings
        if needle in text
        for wording in several
        for match in wording.pattern.finditer(text)
        if match.end() > known
    ]
    if len(found) > 1:
        found.sort(key=lambda hit: (hit[1].start(), -hit[1].end()))
        first = found
        found, end = [], 0
        for hit in first:
            if hit[1].start() >= end:
                found.append(hit)
                end = hit[1].end()
    return found


def _from(text: str, position: int) -> str:
    """A line to show; of a long one, what is around the character with `position` others before it."""
    if len(text) <= _SHOWN:
        return text
    places = _places(text)
    start = max(0, places[position] - 100) if position < len(places) else 0
    return text[start : start + _SHOWN]


@lru_cache(maxsize=1)
def _places(text: str) -> list[int]:
    """Where the characters that are no blanks are."""
    return [index for index, character in enumerate(text) if not character.isspace()]


def _finish(begun: _Open) -> Found | None:
    """The record of a message that was read to its end; None where the words are only talked about."""
    wording, match = begun.wording, begun.match
    numbers = read_numbers(begun.body) if wording.has_numbers else None
    after = begun.body[match.end() - match.start() :]
    why = wording.why
    if wording.has_numbers and not wording.part and wording.name.endswith("out of memory"):
        if _GARBAGE.match(after):
            why = BOGUS
        elif _FILLED_IN_LATER.match(after):
            why = TEMPLATE
        elif not (_printed(after, numbers) or begun.whole_line or _was_raised(begun.before)):
            return None
    text = _shown(begun, max(match.end() - match.start(), numbers.end if numbers else 0))
    if why or wording.source is None:
        return LookAlike(why, wording.name, text, begun.number, begun.rank)
    groups = match.groupdict()
    sizes = dict(numbers.sizes) if numbers else {}
    sizes |= {name: size for name in ("requested", "host_used") if (size := Size.parse(groups.get(name) or ""))}
    device = numbers.device if numbers else None
    process = numbers.process if numbers else None
    source = wording.source
    if source is Source.NCCL and (where := _NCCL_WHERE.search(begun.lines[0][0])):
        process, device = int(where[1]), int(where[2])
    if source is Source.PYTORCH_CUDA and "HIPGraphs" in begun.body:
        source = Source.PYTORCH_HIP
    return OomRecord(
        source=source,
        memory=wording.memory,
        certainty=wording.certainty,
        wording=wording.name,
        text=text,
        line=begun.number,
        rank=int(groups["rank"]) if groups.get("rank") else begun.rank,
        device=int(groups["device"]) if groups.get("device") else device,
        process=int(groups["process"]) if groups.get("process") else process,
        others=numbers.others if numbers else (),
        **sizes,
    )


def _printed(after: str, numbers: Numbers | None) -> bool:
    """Whether an allocator's numbers follow its words; the size asked for may be one that no device knows."""
    if _ALLOCATED.match(after) or _UNREADABLE.match(after):
        return True
    return numbers is not None and {"capacity", "allocated"} <= numbers.sizes.keys()


def _shown(begun: _Open, end: int) -> str:
    """The lines of the message up to `end` in its body, on one."""
    shown = []
    for (text, position), line_end in zip(begun.lines, begun.ends, strict=True):
        shown.append(_from(text, position))
        if line_end >= end:
            break
    return " ".join(" ".join(shown).split())[:_SHOWN]


def _was_raised(before: str) -> bool:
    """Whether what stands before a message is the name of an exception, as it is printed."""
    return _RAISED.search(before) is not None and _SOURCE_LINE.search(before) is None
