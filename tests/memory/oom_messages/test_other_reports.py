"""Texts of public reports beyond the collection: other devices and frameworks, launchers, the host; and source code."""

from __future__ import annotations

import pytest

from oombisect.memory.oom_messages import LookAlike, Memory, OomRecord, Source, parse_message, read_messages

GIB, MIB = 1 << 30, 1 << 20


def one(text: str) -> OomRecord:
    (found,) = read_messages([text.encode()])
    assert isinstance(found, OomRecord)
    return found


def test_npu() -> None:  # xingchensong/TouchNet#100
    found = one(
        "RuntimeError: NPU out of memory. Tried to allocate 5.03 GiB (NPU 3; 60.96 GiB total capacity; 49.47 GiB"
        " already allocated; 49.47 GiB current active; 1.32 GiB free; 57.55 GiB reserved in total by PyTorch) If"
        " reserved memory is >> allocated memory try setting max_split_size_mb to avoid fragmentation."
    )
    assert (found.source, found.memory, found.device) == (Source.PYTORCH_NPU, Memory.DEVICE, 3)
    sizes = {name: round(size.bytes / GIB, 2) for name, size in found.sizes()}
    assert sizes == {
        "requested": 5.03, "capacity": 60.96, "free": 1.32, "allocated": 49.47, "reserved": 57.55, "unallocated": 8.08,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "requested", "device"),
    [
        # kingoflolz/mesh-transformer-jax#66, ecmwf-lab/ai-models-graphcast#18,
        # jax-ml/jax#788, google-deepmind/alphafold#1023
        ("Resource exhausted: Failed to allocate request for 32.00MiB (33554432B) on device ordinal 0", 33554432, 0),
        ("RESOURCE_EXHAUSTED: Failed to allocate request for 2.99GiB (3206250496B) on device ordinal 0", 3206250496, 0),
        ("Resource exhausted: Out \nof memory while trying to allocate 5520758552 bytes.", 5520758552, None),
        ("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 7406166528 bytes.", 7406166528, None),
    ],
)  # fmt: skip
def test_xla(text: str, requested: int, device: int | None) -> None:
    found = one(text)
    assert found.source is Source.XLA and found.requested is not None
    assert (found.requested.bytes, found.requested.precision, found.device) == (requested, 0, device)


def test_a_windows_device_may_allocate_more_than_it_has() -> None:  # YingqianWang/iPASSR#9
    found = one(
        "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 10.73 GiB (GPU 0; 8.00 GiB total capacity;"
        " 17.20 GiB already allocated; 0 bytes free; 19.15 GiB reserved in total by PyTorch)"
    )
    assert found.allocated and found.capacity and found.allocated.bytes > found.capacity.bytes == 8 * GIB
    assert found.outside is not None and found.outside.bytes == 0


@pytest.mark.parametrize(
    ("text", "source", "process"),
    [
        # pytorch/pytorch#108861
        ("RuntimeError: DataLoader worker (pid 11011) is killed by signal: Bus error. It is possible that dataloader's"
         " workers are out of shared memory. Please try to raise your shared memory limit", Source.DATALOADER, 11011),
        # ray-project/ray#28776
        ("ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.", Source.RAY, None),
        ("srun: error: node-0: tasks 0-3,5: Out Of Memory", Source.SLURM, None),
        ("  exitcode  : -9 (pid: 1234)", Source.SIGKILL, 1234),  # torchrun's report of the root cause
        ("slurm_script: line 44: 2345 Killed                  python train.py", Source.SIGKILL, 2345),
    ],
)  # fmt: skip
def test_host(text: str, source: Source, process: int | None) -> None:
    found = one(text)
    assert (found.source, found.memory, found.process) == (source, Memory.HOST, process)


def test_shared_memory_of_nccl() -> None:  # pytorch/ci-infra#490
    found = one(
        "[2026-04-22 21:34:20] node-0:202016:202235 [0] misc/shmutils.cc:88 NCCL WARN Error: failed to extend"
        " /dev/shm/nccl-WU88OE to 9637892 bytes, error: No space left on device (28)"
    )
    assert (found.source, found.memory, found.process) == (Source.NCCL, Memory.HOST, 202016)
    assert found.requested is not None and found.requested.bytes == 9637892


def test_torchruns_report_names_one_process() -> None:
    text = """ERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: -9) local_rank: 3 (pid: 1234) of binary: python
train.py FAILED
Root Cause (first observed failure):
[0]:
  time      : 2024-01-01_00:00:00
  rank      : 3 (local_rank: 3)
  exitcode  : -9 (pid: 1234)
  error_file: <N/A>
  traceback : Signal 9 (SIGKILL) received by PID 1234
"""  # noqa: E501
    found = list(read_messages([text.encode()]))
    assert [item.line for item in found] == [1, 7, 9]
    assert all(isinstance(item, OomRecord) and item.process == 1234 for item in found)


def test_a_line_of_source_in_a_traceback_is_not_the_error() -> None:
    text = (
        'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\n'
        '    raise RuntimeError("CUDA out of memory")\nRuntimeError: CUDA out of memory\n'
    )
    assert one(text).line == 4
    assert isinstance(
        parse_message("RuntimeError: CUDA out of memory. Tried to allocate X MiB (GPU Y; Z free)"), LookAlike
    )
    assert isinstance(parse_message("CUDA out of memory. Tried to allocate XX.XX GiB."), LookAlike)


@pytest.mark.parametrize(
    "text",
    [
        "| CUDA OOMs: 0 | cudaMalloc retries: 0 |",
        "oom_score_adj=500 num_ooms: 3 handle_oom: true except torch.OutOfMemoryError as e:",
        "Parameters: should_reduce_batch_size looks for \"CUDA out of memory.\" and \"CUDNN_STATUS_NOT_SUPPORTED.\"",
        "exit code: 1370, killed 3 stale jobs, return code 91",
        "NCCL WARN Error while attaching to shared memory segment /dev/shm/nccl- (size 192814336), error: No such file",
        "RuntimeError: DataLoader worker (pid(s) 12, 13) exited unexpectedly",
    ],
)  # fmt: skip
def test_look_alikes(text: str) -> None:
    assert parse_message(text) is None
