"""What the numbers of an out-of-memory message prove, make possible or leave open.

A message is one instant of one process. It proves a lack of capacity where the request exceeds everything an allocator
could have given it; it never proves fragmentation, because it does not say how the free memory is cut up.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from oombisect.memory.oom_messages.records import Certainty, Memory, OomRecord, Source
from oombisect.memory.oom_messages.sizes import Size
from oombisect.units import GIB, format_bytes

Verdict = Literal["capacity", "fragmentation-possible", "outside", "limit", "host", "contradictory", "unknown"]
_USUAL_OUTSIDE = 2 * GIB  # a CUDA context, NCCL's buffers and library workspaces seldom take more


@dataclass(frozen=True, slots=True)
class Assessment:
    """What a message says about the cause.

    Args:
        verdict: `capacity`: no allocator could have served the request. `outside`: nor this one, and memory outside
            PyTorch's allocator is large enough to be the reason. `limit`: a limit below the device's capacity.
            `fragmentation-possible`: enough memory was there, in pieces or in the cache. `host`: host memory.
            `contradictory`: the numbers cannot all be true.
        proven: the numbers leave no other explanation, rounding included.
        says: sentences.
    """

    verdict: Verdict
    proven: bool
    says: tuple[str, ...]


def assess(record: OomRecord) -> Assessment:
    """Judge one message by its own numbers."""
    if record.memory is Memory.HOST:
        return _host(record)
    if contradictions := _contradictions(record):
        return Assessment("contradictory", False, contradictions)
    if record.source is Source.PYTORCH_MPS:
        return _mps(record)
    if record.requested is None or record.capacity is None:
        return Assessment("unknown", False, _without_numbers(record))
    if record.wording == "XPU block larger than 4 GB":
        return Assessment("limit", True, ("This platform allocates no single block larger than 4 GB.",))
    if record.requested.low > record.capacity.high:
        return Assessment("capacity", True, ("The request alone is larger than the device: no setting can help.",))
    if record.free is None or record.live is None or record.reserved is None:
        return Assessment("unknown", False, ("The message lacks the numbers that would tell.",))
    return _of_allocator(record, record.requested, record.capacity, record.free, record.live, record.reserved)


def _contradictions(record: OomRecord) -> tuple[str, ...]:
    """What of the numbers cannot be true together, whatever their rounding; a part is larger than its whole."""
    parts = [
        ("free memory", record.free, "the device has", record.capacity),
        ("what this process uses", record.in_use, "the device has", record.capacity),
        ("reserved memory", record.reserved, "the device has", record.capacity),
        ("allocated memory", record.live, "is reserved", record.reserved),
        ("memory in private pools", record.private_pools, "is allocated", record.allocated),
    ]
    found = [
        f"{what[0].upper()}{what[1:]} ({format_bytes(part.bytes)}) is more than {than} ({format_bytes(whole.bytes)})."
        for what, part, than, whole in parts
        if part and whole and part.low > whole.high
    ]
    found += [
        f"A process that is listed uses more ({format_bytes(use.in_use.bytes)}) than the device has."
        for use in record.others
        if record.capacity and use.in_use.low > record.capacity.high
    ]
    if found or not (record.capacity and record.free):
        return tuple(found)
    own = max(size.low for size in (record.in_use, record.reserved, Size(0)) if size)
    total = record.free.low + own + sum(use.in_use.low for use in record.others)
    if total <= record.capacity.high:
        return ()
    return (
        f"Free memory and what processes use sum up to {format_bytes(total)}, more than the device has"
        f" ({format_bytes(record.capacity.bytes)}).",
    )


def _of_allocator(
    record: OomRecord, requested: Size, capacity: Size, free: Size, live: Size, reserved: Size
) -> Assessment:
    idle = reserved - live
    obtainable = free + idle
    if record.allowed and requested.low > record.allowed.high - live.low:
        allowed = f"the {format_bytes(record.allowed.bytes)} this process may use (set_per_process_memory_fraction)"
        if requested.low <= obtainable.high:
            return Assessment("limit", True, (f"The request and what is allocated exceed {allowed}, not the device.",))
    if requested.low > obtainable.high:
        return _short(record, requested, capacity, obtainable, live)
    if requested.high <= free.low and not record.allowed:
        return Assessment(
            "unknown", False,
            ("The driver reports more free memory than the request, and still refused it: another process may have "
             "held it for a moment, or the driver's own limits apply.",),
        )  # fmt: skip
    within = f" within the {format_bytes(record.allowed.bytes)} allowed" if record.allowed else ""
    if idle.low == 0 and requested.high > free.low:
        return Assessment(
            "unknown", False,
            (f"The numbers are too coarse: the request and the free memory{within} differ by no more than rounding.",),
        )  # fmt: skip
    says = [
        f"In bytes there was room{within}: {format_bytes(free.bytes)} free on the device and"
        f" {format_bytes(idle.bytes)} reserved but unallocated. So fragmentation is possible.",
        "It is not proven: what is reserved but unallocated is mostly cache in a healthy run as well. The proof is a"
        " replay of the allocation history.",
    ]
    outside = _other_processes(record, max(_USUAL_OUTSIDE, requested.high))
    outside = f"{outside}." if outside else _unusual_outside(record, capacity, requested.high)
    if outside:
        return Assessment("outside", False, (outside, *says, *_pools(record)))
    return Assessment("fragmentation-possible", False, (*says, *_pools(record)))


def _short(record: OomRecord, requested: Size, capacity: Size, obtainable: Size, live: Size) -> Assessment:
    """No allocator could have served it. Whose the memory is that it lacked decides."""
    missing = requested - obtainable
    says = [
        f"Even with all that is free or reserved but unallocated ({format_bytes(obtainable.bytes)}) the request is"
        f" {format_bytes(missing.bytes)} short: no allocator setting would have served it."
    ]
    others = _other_processes(record, missing.high)
    if others:
        return Assessment("outside", True, (*says, f"{others}: without that the request would have fit."))
    outside = _unusual_outside(record, capacity, missing.high)
    if outside:
        return Assessment("outside", False, (*says, outside))
    says.append(f"{format_bytes(live.bytes)} were in use by tensors: at this point the run needs more than there is.")
    return Assessment("capacity", True, (*says, *_pools(record)))


def _other_processes(record: OomRecord, enough: int) -> str:
    """What the processes listed beside this one use, if it is at least `enough`."""
    used, count = sum(use.in_use.low for use in record.others), len(record.others)
    if not count or used < enough:
        return ""
    who = "Another process uses" if count == 1 else f"{count} other processes use"
    return f"{who} {format_bytes(used)} of this device"


def _unusual_outside(record: OomRecord, capacity: Size, enough: int) -> str:
    """More memory outside this process's allocator than is usual, if it is at least `enough`."""
    enough = max(enough, _USUAL_OUTSIDE, capacity.bytes // 20)
    own = record.non_pytorch
    if own and own.low >= enough:
        return (
            f"This process uses {format_bytes(own.bytes)} outside PyTorch's allocator (CUDA context, NCCL, CUDA graphs,"
            " library workspaces), more than usual."
        )
    outside = record.outside
    unlisted = outside.low - sum(use.in_use.low for use in record.others) - (own.high if own else 0) if outside else 0
    if unlisted < enough:
        return ""
    return (
        f"About {format_bytes(unlisted)} of the device are neither free nor in this process's allocator, more than a"
        " CUDA context and NCCL usually take: another process, or libraries of this one."
    )


def _pools(record: OomRecord) -> tuple[str, ...]:
    if record.private_pools is None:
        return ()
    return (
        f"Of what PyTorch prints as allocated, {format_bytes(record.private_pools.bytes)} are free blocks of private"
        " pools (of graphs), which other allocations cannot use.",
    )


def _mps(record: OomRecord) -> Assessment:
    if not (record.requested and record.allocated and record.allowed and record.non_pytorch):
        return Assessment("unknown", False, ("The message lacks the numbers that would tell.",))
    limit = "the limit of PyTorch's MPS allocator (PYTORCH_MPS_HIGH_WATERMARK_RATIO)"
    if record.allocated.high + record.requested.high <= record.allowed.low:
        other = format_bytes(record.non_pytorch.bytes)
        return Assessment("outside", True, (f"Without the {other} of other allocations it would fit {limit}.",))
    if record.allocated.low + record.requested.low + record.non_pytorch.low <= record.allowed.high:
        return Assessment("unknown", False, (f"The sum meets {limit} to within rounding.",))
    return Assessment("limit", True, (f"What is allocated and the request exceed {limit}.",))


def _without_numbers(record: OomRecord) -> tuple[str, ...]:
    if record.source.is_pytorch:
        return ("The message lacks the numbers that would tell.",)
    says = ["The message has no numbers of the device, so it cannot say whose memory filled it."]
    if record.certainty is Certainty.POSSIBLE:
        says.append("Other faults end in the same words (a driver error, an earlier assertion in a kernel).")
    if record.source is Source.CUDA:
        says.append("Pinned host memory that cannot be had fails in the same words.")
    if record.source not in (Source.TENSORFLOW, Source.XLA, Source.CUPY, Source.RMM):
        says.append(
            "The memory was asked for past PyTorch's allocator, and what PyTorch keeps reserved is not free for others:"
            " its cache alone can fill the device."
        )
    return tuple(says)


def _host(record: OomRecord) -> Assessment:
    if record.source is Source.SIGKILL:
        says = ("SIGKILL comes from the host's out-of-memory killer, from a scheduler or from a person: the log of the"
                " kernel or scheduler tells.",)  # fmt: skip
    elif record.wording.endswith(" shm"):
        says = ("The host's shared memory (/dev/shm) is full or too small; device memory has no part in it.",)
    else:
        says = ("Host memory ran out; device memory has no part in it.",)
    return Assessment("host", False, says)
