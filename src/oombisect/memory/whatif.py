"""What a run would have needed under other allocator settings: one replay, or a few, for each of them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from oombisect.memory.allocator.rules import Rules
from oombisect.memory.allocator.settings import Settings, SettingsError
from oombisect.memory.replay import Replay, needed, replay
from oombisect.memory.requests import Requests

STANDARD = (
    "",
    "expandable_segments:True",
    "max_split_size_mb:128",
    "max_split_size_mb:256",
    "max_split_size_mb:512",
    "max_split_size_mb:1024",
    "garbage_collection_threshold:0.8",
    "roundup_power2_divisions:4",
    "roundup_power2_divisions:16",
)
"""The settings worth a try before the code is changed; the first are PyTorch's defaults."""


NOT_MONOTONIC = "under one of the settings the run survives a smaller limit than the one it fails under"


@dataclass(frozen=True, slots=True)
class WhatIf:
    """What one setting would have done; sizes are bytes of the allocator alone.

    Args:
        alloc_conf: the setting, as in PYTORCH_CUDA_ALLOC_CONF; empty: PyTorch's defaults.
        unlimited: the replay with as much memory as it asks for; None: PyTorch refuses the setting.
        limited: the replay under the limit; None: there is none.
        needed: the smallest limit it survives; None: a memory fraction forbids it under any.
        refused: why PyTorch refuses the setting; empty if it does not.
    """

    alloc_conf: str
    unlimited: Replay | None = None
    limited: Replay | None = None
    needed: int | None = None
    refused: str = ""

    @property
    def fits(self) -> bool | None:
        """It survives under the limit, and a memory fraction; None: there is neither, or the setting is refused."""
        if self.unlimited is not None and not self.unlimited.survived:
            return False
        return None if self.limited is None else self.limited.survived


def what_if(
    requests: Requests,
    alloc_confs: Iterable[str],
    recorded: Settings,
    rules: Rules,
    *,
    device_bytes: int,
    limit: int | None = None,
    fraction: float | None = None,
) -> Iterator[WhatIf]:
    """Replay `requests` under each of `alloc_confs`, in order.

    Args:
        recorded: the settings of the recorded run.
        device_bytes: the device's memory as CUDA reports it.
        limit: what the allocator may take of it.
        fraction: torch.cuda.set_per_process_memory_fraction of the run; None: it was not called.
    """
    for alloc_conf in alloc_confs:
        try:
            settings = Settings.parse(alloc_conf, rules)
        except SettingsError as error:
            yield WhatIf(alloc_conf, refused=str(error))
        else:
            yield under(requests, settings, recorded, rules, device_bytes=device_bytes, limit=limit, fraction=fraction)


def under(
    requests: Requests,
    settings: Settings,
    recorded: Settings,
    rules: Rules,
    *,
    device_bytes: int,
    limit: int | None = None,
    fraction: float | None = None,
) -> WhatIf:
    """Replay `requests` under one setting; arguments as for `what_if`.

    PyTorch's garbage collector acts only where a memory fraction is set. Where none is, it is set to the limit here,
    to the known one and to each that is tried, so that the row says what both together do.
    """
    as_recorded = replace(settings, text="") == replace(recorded, text="")

    def run(limit: int | None, fraction: float | None) -> Replay:
        return replay(
            requests,
            settings,
            rules,
            device_bytes=device_bytes,
            limit=limit,
            fraction=fraction,
            as_recorded=as_recorded,
        )

    unlimited = run(None, fraction)
    limited = least = None
    collects = settings.garbage_collection_threshold > 0 and settings.memory_fraction is None and fraction is None
    if limit is not None:
        limited = run(limit, min(1.0, limit / device_bytes) if collects else fraction)
    if unlimited.survived:
        least = needed(
            requests,
            settings,
            rules,
            device_bytes=device_bytes,
            fraction=fraction,
            limit_is_fraction=collects,
            as_recorded=as_recorded,
            unlimited=unlimited,
        )
    if limit is not None and limited is not None and least is not None:
        if limited.survived:
            least = min(least, limit)
        elif least <= limit:
            unlimited = replace(unlimited, notes=(*unlimited.notes, NOT_MONOTONIC))
    return WhatIf(settings.text, unlimited, limited, least)
