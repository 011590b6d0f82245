"""Where the caching allocators of different PyTorch releases differ: one switch a difference, told apart here only.

Read from PyTorch's source (c10/cuda/CUDACachingAllocator.cpp, c10/core/AllocatorConfig.cpp), and held against what the
libraries of 2.9.1, 2.12.1, 2.13.0 and 2.14.1 do: 2.13 follows the rules of 2.14. Of equally large blocks 2.9 takes the
lowest, 2.12 the one made first (pytorch pull request 178362, of March 2026), 2.13 that of the oldest segment (183591).
`large_segment_size_mb`, and with it the reset of `max_non_split_rounding_mb`, is of January 2026 (172056). 2.10 and
2.11 were not tried: `rules_for` says so.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Rules:
    """What an allocator of one release does where releases differ.

    Args:
        name: the release it was read from.
        older_segments_first: of equally large free blocks the one of the segment that was created first is taken, then
            the one at the lowest address; otherwise the address alone decides.
        older_blocks_first: the one that was made first is taken: a piece cut off a block is a new one.
        large_segment_setting: there is a setting `large_segment_size_mb`.
        memory_fraction_setting: there is a setting `per_process_memory_fraction`.
        split_limit_may_equal_segment: `max_split_size_mb` and `max_non_split_rounding_mb` may be as small as a large
            segment; otherwise they must be larger.
        split_rounding_is_reset: setting something else resets `max_non_split_rounding_mb`.
        greater_overwrites_last: in a list of `roundup_power2_divisions`, `>` also replaces the last boundary's value.
        whole_device_is_a_limit: a memory fraction of 1 is a limit too, so that garbage collection is on.
        fraction_is_rounded: a memory fraction of the device is rounded to the nearest byte, otherwise down.
        private_pools_release: an allocation in a MemPool, outside of graph capture, may release cached memory.
        reason: why these rules were chosen, for people.
    """

    name: str
    older_segments_first: bool
    older_blocks_first: bool
    large_segment_setting: bool
    memory_fraction_setting: bool
    split_limit_may_equal_segment: bool
    split_rounding_is_reset: bool
    greater_overwrites_last: bool
    whole_device_is_a_limit: bool
    fraction_is_rounded: bool
    private_pools_release: bool
    reason: str = ""

    @property
    def age_decides(self) -> bool:
        """Which of equally large free blocks is taken depends on what was made first."""
        return self.older_segments_first or self.older_blocks_first


TORCH_2_9 = Rules(
    name="torch 2.9",
    older_segments_first=False,
    older_blocks_first=False,
    large_segment_setting=False,
    memory_fraction_setting=False,
    split_limit_may_equal_segment=False,
    split_rounding_is_reset=False,
    greater_overwrites_last=True,
    whole_device_is_a_limit=True,
    fraction_is_rounded=False,
    private_pools_release=False,
)
TORCH_2_14 = Rules(
    name="torch 2.14",
    older_segments_first=True,
    older_blocks_first=False,
    large_segment_setting=True,
    memory_fraction_setting=True,
    split_limit_may_equal_segment=True,
    split_rounding_is_reset=True,
    greater_overwrites_last=False,
    whole_device_is_a_limit=False,
    fraction_is_rounded=True,
    private_pools_release=True,
)
TORCH_2_12 = replace(
    TORCH_2_14,
    name="torch 2.12",
    older_segments_first=False,
    older_blocks_first=True,
    fraction_is_rounded=False,
    private_pools_release=False,
)
NEWEST = TORCH_2_14


def rules_for(torch_version: str | None) -> Rules:
    """The rules of a release, e.g. "2.9.1+cu128"; those of the newest one that is known if there is no such version."""
    match = re.match(r"(\d+)\.(\d+)", torch_version or "")
    if match is None:
        return replace(NEWEST, reason=f"the torch version is not known: taken for {NEWEST.name}")
    version = (int(match[1]), int(match[2]))
    if version <= (2, 9):
        note = "" if version == (2, 9) else ", the oldest release whose rules are known"
        return replace(TORCH_2_9, reason=f"torch {torch_version}{note}")
    if version < (2, 12):  # the tie of equally large blocks changed in 2.12; what else came when is not known
        reason = f"torch {torch_version}: rules changed between 2.9 and 2.12, those of 2.12 are taken but for ties"
        return replace(TORCH_2_12, older_blocks_first=False, reason=reason)
    if version == (2, 12):
        return replace(TORCH_2_12, reason=f"torch {torch_version}")
    note = "" if version <= (2, 14) else ", taken for 2.14, the newest release whose rules are known"
    return replace(TORCH_2_14, reason=f"torch {torch_version}{note}")


def guess_rules(settings: Mapping[str, object]) -> Rules:
    """The rules of the release that wrote a snapshot, inferred from its `allocator_settings`: no snapshot tells it."""
    if "max_round_threshold" in settings:
        return replace(TORCH_2_14, reason="its settings have max_round_threshold, as torch 2.14 writes them")
    if "large_segment_size_mb" in str(settings.get("PYTORCH_CUDA_ALLOC_CONF", "")):
        return replace(TORCH_2_14, reason="it was run with large_segment_size_mb, which torch 2.9 does not know")
    if not settings:
        return replace(TORCH_2_9, reason="it has no allocator settings: an old torch, taken for 2.9")
    return replace(TORCH_2_9, reason="its settings lack max_round_threshold, which torch 2.14 writes: taken for 2.9")
