"""`oombisect explain`: the out-of-memory errors of a log, in words and as JSON."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from oombisect.memory.oom_messages import Certainty, OomRecord, Size, Source
from oombisect.memory.oom_messages.assess import Assessment, Verdict, assess
from oombisect.memory.oom_messages.groups import Distinct, Summary
from oombisect.printable import printable
from oombisect.units import GIB, format_bytes

_IN_FULL = 8
_WHO = {
    Source.PYTORCH_CUDA: "PyTorch's CUDA allocator",
    Source.PYTORCH_HIP: "PyTorch's HIP allocator",
    Source.PYTORCH_XPU: "PyTorch's XPU allocator",
    Source.PYTORCH_MPS: "PyTorch's MPS allocator",
    Source.PYTORCH_NPU: "PyTorch's NPU allocator",
    Source.CUDA: "the CUDA runtime",
    Source.HIP: "the HIP runtime",
    Source.NCCL: "NCCL",
    Source.CUBLAS: "cuBLAS",
    Source.CUDNN: "cuDNN",
    Source.CUDA_LIBRARY: "a CUDA library",
    Source.TRITON: "Triton",
    Source.NVSHMEM: "NVSHMEM",
    Source.VLLM: "vLLM",
    Source.TENSORFLOW: "TensorFlow",
    Source.XLA: "XLA",
    Source.CUPY: "CuPy",
    Source.RMM: "RMM",
}
_HOST = {
    Source.OOM_KILLER: "the kernel's out-of-memory killer ended a process of the host",
    Source.SLURM: "Slurm saw a process of the job killed for host memory",
    Source.KUBERNETES: "Kubernetes reports a container killed for host memory",
    Source.RAY: "Ray ended a worker because the host's memory ran low",
    Source.SIGKILL: "a process was killed from outside (SIGKILL), perhaps for host memory",
    Source.DATALOADER: "a DataLoader worker died of the host's memory",
    Source.HOST_ALLOCATION: "an allocation of host memory failed",
    Source.NCCL: "NCCL could not get host memory (pinned, or shared in /dev/shm)",
}
_NUMBERS = {
    "requested": "requested",
    "capacity": "capacity of the device",
    "allowed": "allowed to this process",
    "free": "free on the device",
    "allocated": "allocated by PyTorch",
    "private_pools": "in private pools",
    "unallocated": "reserved but unallocated",
    "reserved": "reserved in total",
    "in_use": "this process in all",
    "non_pytorch": "this process outside PyTorch",
    "host_used": "host memory of the process",
}
_LABELS: dict[Verdict, str] = {
    "capacity": "capacity: more is needed than there is",
    "fragmentation-possible": "fragmentation is possible, not proven",
    "outside": "points outside PyTorch's allocator",
    "limit": "a limit below the device's capacity",
    "host": "host memory, not the device's",
    "contradictory": "the numbers contradict each other: nothing is proven",
    "unknown": "the message does not tell",
}
_REPLAY = (
    "Record the history (torch.cuda.memory._record_memory_history() at the start, _dump_snapshot(PATH) at the error)"
    " and run `oombisect replay PATH`: it tells what is needed and what is stranded."
)
_BISECT = "If an earlier version fit, `oombisect run` finds the change that made it grow."
_PROCESSES = "`nvidia-smi --query-compute-apps=pid,used_memory --format=csv` lists who uses the device."
_NEXT: dict[Verdict, tuple[str, ...]] = {
    "capacity": ("Lower what is alive: micro batch, sequence length, recomputation, sharding.", _BISECT),
    "fragmentation-possible": (_REPLAY, "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True is the quick thing to try."),
    "outside": (_PROCESSES, "End what does not belong there, or leave room for it (set_per_process_memory_fraction)."),
    "limit": ("Raise that limit, or lower what is alive.",),
    "host": ("`dmesg -T | grep -i -e oom -e 'killed process'` and the scheduler's accounting name the process.",
             "Look at DataLoader workers, pinned memory, CPU offload and checkpoint loading."),
    "contradictory": ("See whether the log was mixed up or cut; look for another printing of the error.", _REPLAY),
    "unknown": (_PROCESSES, _REPLAY),
}  # fmt: skip


def what_happened(record: OomRecord) -> str:
    """One sentence, without rank and line."""
    asked = format_bytes(record.requested.bytes) if record.requested else ""
    process = f" (process {record.process})" if record.process is not None else ""
    if record.memory == "host":
        size = f": {asked} asked for" if asked else ""
        return f"{_HOST[record.source]}{process}{size}"
    device = f" on GPU {record.device}" if record.device is not None else ""
    maybe = "perhaps " if record.certainty is Certainty.POSSIBLE else ""
    size = f", asking for {asked}" if asked else ""
    return f"{maybe}{_WHO[record.source]} ran out of device memory{device}{process}{size}"


def explain_json(summary: Summary, exit_code: int) -> dict[str, Any]:
    """The document of `explain --json`: the first certain error's fields, then all of them."""
    first = summary.first
    records = [_record_json(error) for error in summary.errors]
    return {
        "schema": 1,
        "is_oom": first is not None,
        **(_record_json(first) if first else {"source": None, "requested_bytes": None}),
        "first_rank": first.record.rank if first else None,
        "records": records,
        "omitted": summary.omitted,
        "look_alikes": [look_alike.to_json() for look_alike in summary.look_alikes],
        "exit": exit_code,
    }


def _record_json(error: Distinct) -> dict[str, Any]:
    judged = assess(error.record)
    return {
        **error.record.to_json(),
        "printed": error.printed,
        "last_line": error.last_line,
        "verdict": judged.verdict,
        "proven": judged.proven,
        "says": list(judged.says),
        "next": list(_NEXT[judged.verdict]),
    }


def render_explanation(summary: Summary, name: str, console: Console) -> None:
    """Print what a log says: which rank was first, then every error by rank."""

    def line(text: str, style: str = "") -> None:
        console.print(Text(text, style=style), soft_wrap=True)

    first = summary.first
    if first is None:
        line(f"{printable(name)}: no out-of-memory error")
    else:
        count = len(summary.errors)
        line(
            f"{printable(name)}: {count} out-of-memory error{'s' * (count != 1)}; the first in the log:"
            f" {_where(first.record)}",
            "bold",
        )
    shown, advised = 0, set[Verdict]()
    ranks = summary.by_rank()
    for rank, errors in ranks.items():
        if shown < _IN_FULL and (len(ranks) > 1 or rank is not None):
            line(f"\nrank {rank}" if rank is not None else "\nno rank named", "bold")
        for error in errors:
            judged = assess(error.record)
            if shown < _IN_FULL:
                _in_full(error, judged, console, advise=judged.verdict not in advised)
                advised.add(judged.verdict)
            else:
                line(f"{_where(error.record)}: {what_happened(error.record)}: {_LABELS[judged.verdict]}")
            shown += 1
    if summary.omitted:
        line(f"{summary.omitted:,} more are not shown", "dim")
    for look_alike in summary.look_alikes:
        line(f"line {look_alike.line}: no out-of-memory error: {look_alike.why}", "dim")
        line(f"  {printable(look_alike.text)[:200]}", "dim")


def _where(record: OomRecord) -> str:
    return f"line {record.line}" if record.rank is None else f"rank {record.rank}, line {record.line}"


def _in_full(error: Distinct, judged: Assessment, console: Console, *, advise: bool) -> None:
    def line(text: str, style: str = "") -> None:
        console.print(Text(text, style=style), soft_wrap=True)

    record = error.record
    again = f", printed {error.printed} times" if error.printed > 1 else ""
    line(f"line {record.line}{again}: {what_happened(record)}")
    table = _table(record)
    if table.row_count:
        console.print(table)
    else:
        line(f"  {printable(record.text)[:200]}", "dim")
    line(f"  {_LABELS[judged.verdict]}{' (proven by these numbers)' if judged.proven else ''}", "bold")
    for sentence in judged.says:
        line(f"  {sentence}")
    for sentence in _NEXT[judged.verdict] if advise else ():
        line(f"  next: {sentence}", "dim")


def _table(record: OomRecord) -> Table:
    table = Table(box=None, show_header=False, show_edge=False, pad_edge=False)
    table.add_column(justify="left", no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(justify="left", style="dim", no_wrap=True)
    for name, words in _NUMBERS.items():
        size: Size | None = getattr(record, name)
        if size:
            table.add_row(f"  {words}", *_gib(size))
    for use in record.others:
        table.add_row(f"  process {use.pid}", *_gib(use.in_use))
    return table


def _gib(size: Size) -> tuple[str, str]:
    """GiB, and how far the message's rounding may be off where that shows."""
    off = size.precision / GIB
    return f"{size.bytes / GIB:.3f} GiB", f"± {off:.3f}" if off >= 0.0005 else ""
