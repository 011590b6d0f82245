"""The settings of the caching allocator, from PYTORCH_CUDA_ALLOC_CONF or from a snapshot; sizes are bytes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, Self

from oombisect.memory.allocator.rules import Rules
from oombisect.printable import quoted

MIB: Final = 1 << 20
UNLIMITED: Final = (1 << 64) - 1
"""max_split_size where none is set: every block may be split."""
DEFAULT_LARGE_SEGMENT: Final = 20 * MIB
LEAST_LARGE_SEGMENT: Final = 10 * MIB
INTERVALS: Final = 16
"""roundup_power2_divisions are set per power of two of MiB: 1, 2, 4 ... 32768 MiB and above."""

IGNORED: Final = frozenset({
    "release_lock_on_cudamalloc", "release_lock_on_hipmalloc", "pinned_use_cuda_host_register",
    "pinned_use_hip_host_register", "pinned_num_register_threads", "pinned_use_background_threads",
    "pinned_reserve_segment_size_mb", "pinned_free_catch_all", "pinned_max_round_threshold_mb",
    "pinned_max_cached_size_mb", "graph_capture_record_stream_reuse", "throw_on_cudamalloc_oom",
})  # fmt: skip
"""Settings that do not change where device memory comes from, and are not read."""


_MOST_DIGITS: Final = 9  # PyTorch reads numbers of 32 bits


class SettingsError(ValueError):
    """The text is no allocator setting that PyTorch (of these rules) accepts."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What the allocator is told, bytes.

    Args:
        expandable_segments: segments grow instead of being made for each request.
        max_split_size: blocks of this size and above are never split; `UNLIMITED` if not set.
        max_non_split_rounding: an oversize block may be larger than its request by less than this; None: as
            much as a large segment.
        large_segment_size: the segment made for a request of 1 to 10 MiB, and the page of a large expandable segment.
        garbage_collection_threshold: the share of the allowed memory above which cached blocks are collected; 0: never.
        roundup: divisions per power of two, by interval from 1 MiB; empty: none is set.
        memory_fraction: `per_process_memory_fraction`, None if not set.
        text: as the user wrote them.
    """

    expandable_segments: bool = False
    max_split_size: int = UNLIMITED
    max_non_split_rounding: int | None = None
    large_segment_size: int = DEFAULT_LARGE_SEGMENT
    garbage_collection_threshold: float = 0.0
    roundup: tuple[int, ...] = ()
    memory_fraction: float | None = None
    text: str = ""

    @property
    def non_split_rounding(self) -> int:
        """How much larger than its request an oversize block must not be, bytes."""
        return self.large_segment_size if self.max_non_split_rounding is None else self.max_non_split_rounding

    @classmethod
    def parse(cls, text: str, rules: Rules, before: Settings | None = None) -> Self:
        """Read the text of PYTORCH_CUDA_ALLOC_CONF, e.g. "expandable_segments:True,max_split_size_mb:256".

        Args:
            before: the settings in force until now. Setting new ones resets max_split_size, roundup_power2_divisions
                and garbage_collection_threshold, in newer releases max_non_split_rounding too; what else the text does
                not mention stays as it was.

        Raises:
            SettingsError: a key is unknown to this release, or a value is not allowed.
        """
        old = before or cls()
        settings = cls(
            expandable_segments=old.expandable_segments,
            max_non_split_rounding=None if rules.split_rounding_is_reset else old.max_non_split_rounding,
            large_segment_size=old.large_segment_size,
            memory_fraction=old.memory_fraction,
            text=text,
        )
        for key, value in _pairs(text):
            settings = settings._with(key, value, rules)
        return settings

    def _with(self, key: str, value: str, rules: Rules) -> Self:
        if key == "expandable_segments":
            if value not in ("True", "False"):
                raise SettingsError(f"expandable_segments is True or False, not {quoted(value)}")
            return replace(self, expandable_segments=value == "True")
        if key == "max_split_size_mb":
            return replace(self, max_split_size=self._split_limit(key, value, rules))
        if key == "max_non_split_rounding_mb":
            return replace(self, max_non_split_rounding=self._split_limit(key, value, rules))
        if key == "large_segment_size_mb" and rules.large_segment_setting:
            size = _integer(key, value) * MIB
            if size <= LEAST_LARGE_SEGMENT:
                raise SettingsError(
                    f"large_segment_size_mb must be more than {LEAST_LARGE_SEGMENT // MIB}, not {quoted(value)}"
                )
            return replace(self, large_segment_size=size)
        if key == "garbage_collection_threshold":
            return replace(self, garbage_collection_threshold=_fraction(key, value, inclusive=False))
        if key == "per_process_memory_fraction" and rules.memory_fraction_setting:
            return replace(self, memory_fraction=_fraction(key, value, inclusive=True))
        if key == "roundup_power2_divisions":
            return replace(self, roundup=_divisions(value, rules))
        if key == "backend":
            if value != "native":
                raise SettingsError(f"only the native allocator can be replayed, not the backend {quoted(value)}")
            return self
        if key in IGNORED:
            return self
        raise SettingsError(f"{quoted(key)} is no allocator setting of {rules.name}")

    def _split_limit(self, key: str, value: str, rules: Rules) -> int:
        size, least = _integer(key, value) * MIB, self.large_segment_size
        if size < least or (size == least and not rules.split_limit_may_equal_segment):
            relation = "at least" if rules.split_limit_may_equal_segment else "more than"
            raise SettingsError(f"{key} must be {relation} {least // MIB}, not {quoted(value)}")
        return min(size, UNLIMITED // MIB * MIB)

    @classmethod
    def of_snapshot(cls, settings: Mapping[str, object], rules: Rules) -> Self:
        """The settings that a snapshot says were in force; the defaults where it says nothing.

        Args:
            settings: the snapshot's `allocator_settings`.

        Raises:
            SettingsError: they are none.
        """
        text = str(settings.get("PYTORCH_CUDA_ALLOC_CONF") or "")
        found = cls.parse(text, rules)
        found = replace(
            found,
            expandable_segments=bool(settings.get("expandable_segments", found.expandable_segments)),
            garbage_collection_threshold=_threshold(settings, found.garbage_collection_threshold),
        )
        split = settings.get("max_split_size", -1)
        if not isinstance(split, int):
            raise SettingsError(f"max_split_size must be a number, not {quoted(split)}")
        if "max_split_size" in settings:
            found = replace(found, max_split_size=split if split > 0 else UNLIMITED)
        divisions = settings.get("roundup_power2_divisions")
        if isinstance(divisions, Mapping):
            values = [divisions.get(str(1 << power), 0) for power in range(INTERVALS)]
            wrong = next((value for value in values if value != 0 and not _is_division(value)), None)
            if wrong is not None:
                raise SettingsError(f"roundup_power2_divisions must be powers of 2 or 0, not {quoted(wrong)}")
            found = replace(found, roundup=tuple(values) if any(values) else ())
        return found


def _threshold(settings: Mapping[str, object], default: float) -> float:
    value = settings.get("garbage_collection_threshold", default)
    if not isinstance(value, (int, float)) or not 0 <= value < 1:
        raise SettingsError(f"garbage_collection_threshold is {quoted(value)}")
    return float(value)


def _pairs(text: str) -> list[tuple[str, str]]:
    """`a:1,b:[2:3,4:5]` as [("a", "1"), ("b", "[2:3,4:5]")]; white space is left out."""
    squeezed = re.sub(r"\s", "", text)
    pairs = []
    while squeezed:
        match = re.match(r"([^:,\[\]]+):(\[[^\[\]]*\]|[^:,\[\]]+)(?:,|$)", squeezed)
        if match is None:
            raise SettingsError(
                f"{quoted(squeezed)} is no list of settings like expandable_segments:True,max_split_size_mb:256"
            )
        pairs.append((match[1], match[2]))
        squeezed = squeezed[match.end() :]
    return pairs


def _integer(key: str, value: str) -> int:
    if not re.fullmatch(r"[0-9]+", value):
        raise SettingsError(f"{key} must be a number, not {quoted(value)}")
    if len(value) > _MOST_DIGITS:
        raise SettingsError(f"{key} is {quoted(value)}, which is too large: leave it out for no limit")
    return int(value)


def _fraction(key: str, value: str, *, inclusive: bool) -> float:
    try:
        number = float(value)
    except ValueError:
        raise SettingsError(f"{key} must be a number, not {quoted(value)}") from None
    if not (0 <= number <= 1 if inclusive else 0 < number < 1):
        raise SettingsError(f"{key} must be between 0 and 1, not {quoted(value)}")
    return number


def _divisions(value: str, rules: Rules) -> tuple[int, ...]:
    """One number for all sizes, or [boundary in MiB:divisions, ..., >:divisions]."""
    key = "roundup_power2_divisions"
    if not value.startswith("["):
        number = _integer(key, value)
        if not _is_power_of_two(number):
            raise SettingsError(f"{key} must be a power of 2, not {quoted(value)}")
        return (number,) * INTERVALS
    result, last = [0] * INTERVALS, None
    for item in value[1:-1].split(","):
        boundary, _, text = item.partition(":")
        number = _integer(key, text)
        if number and not _is_power_of_two(number):
            raise SettingsError(f"{key} must be powers of 2 or 0, not {quoted(text)}")
        if boundary == ">":
            start = (last or 0) + (0 if rules.greater_overwrites_last else 1)
            result[start:] = [number] * (INTERVALS - start)
            continue
        if not _is_power_of_two(_integer(key, boundary)):
            raise SettingsError(f"the boundaries of {key} must be powers of 2, not {quoted(boundary)}")
        index = min(int(boundary).bit_length() - 1, INTERVALS - 1)
        if last is None:
            result[:index] = [number] * index
        result[index] = number
        last = index
    return tuple(result)


def _is_power_of_two(number: int) -> bool:
    return number > 0 and number & (number - 1) == 0


def _is_division(value: object) -> bool:
    return type(value) is int and _is_power_of_two(value)
