"""Other well-known wordings; where a public text is known, it is named."""

from __future__ import annotations

import pytest

from oombisect.memory.oom_messages import LookAlike, OomRecord, Size, parse_message, read_messages

GIB = 1 << 30

DEVICE = [
    ("RuntimeError: cuda runtime error (2) : out of memory at /pytorch/aten/src/THC/generic/THCStorage.cu:58", "cuda"),
    ("RuntimeError: CUDA error: out of memory", "cuda"),
    ("RuntimeError: parallel_for failed: cudaErrorMemoryAllocation: out of memory", "cuda"),
    ("jaxlib.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 2147483648 bytes.",
     "xla"),
    ("failed to allocate 7.50G (8053063680 bytes) from device: CUDA_ERROR_OUT_OF_MEMORY: out of memory", "cuda"),
    ("RuntimeError: HIP error: out of memory", "hip"),
    ("hipErrorOutOfMemory", "hip"),
    ("RuntimeError: CUDA error: HIPBLAS_STATUS_ALLOC_FAILED when calling `hipblasCreate(handle)`", "cublas"),
    ("RuntimeError: cuDNN error: CUDNN_STATUS_ALLOC_FAILED", "cudnn"),
    ("RuntimeError: cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED", "cudnn"),
    ("RuntimeError: cusolver error: CUSOLVER_STATUS_ALLOC_FAILED, when calling `cusolverDnCreate(handle)`",
     "cuda-library"),
    ("RuntimeError: cuFFT error: CUFFT_ALLOC_FAILED", "cuda-library"),
    ("torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:1970, unhandled cuda error\n"
     "ncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\nCuda failure 2 'out of memory'", "nccl"),
    ("node1:77:91 [4] NCCL WARN Failed to CUDA calloc async 4194304 bytes", "nccl"),
    ("CUDA Error: out of memory at /workspace/csrc/cumem_allocator.cpp:62", "vllm"),
    ("ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing "
     "the engine.", "vllm"),
    ("ValueError: Free memory on device (10.12/79.11 GiB) on startup is less than desired GPU memory utilization (0.9, "
     "71.2 GiB). Decrease GPU memory utilization or reduce GPU memory used by other processes.", "vllm"),
    ("cupy.cuda.memory.OutOfMemoryError: Out of memory allocating 1,073,741,824 bytes (allocated so far: 0 bytes).",
     "cupy"),
    ("MemoryError: std::bad_alloc: out_of_memory: CUDA error at: /rmm/mr/device/cuda_memory_resource.hpp", "rmm"),
    ("RuntimeError: CUDA out of memory.", "pytorch-cuda"),
    ("CUDA out of memory", "pytorch-cuda"),
]  # fmt: skip
HOST = [
    ("[12345.678901] Out of memory: Killed process 4321 (python) total-vm:99999kB, anon-rss:88888kB, file-rss:0kB",
     "host-oom-killer"),
    ("Memory cgroup out of memory: Killed process 4321 (pt_main_thread) total-vm:9kB, anon-rss:8kB", "host-oom-killer"),
    ("Out of memory: Kill process 4321 (python) score 900 or sacrifice child", "host-oom-killer"),
    ("oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=a,mems_allowed=0-1,task=python,pid=4321,uid=0",
     "host-oom-killer"),
    ("python invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0", "host-oom-killer"),
    ("slurmstepd: error: Detected 1 oom-kill event(s) in StepId=123.0. Some of your processes may have been killed by "
     "the cgroup out-of-memory handler.", "slurm"),
    ("slurmstepd: error: Detected 2 oom_kill events in StepId=5.batch. Some of the step tasks have been OOM Killed.",
     "slurm"),
    ("srun: error: node7: task 3: Out Of Memory", "slurm"),
    ("slurmstepd: error: Job 77 exceeded memory limit (1024 > 512), being killed", "slurm"),
    ("    Reason:       OOMKilled", "kubernetes"),
    ("Container killed on request. Exit code is 137", "sigkill"),
    ("command terminated with exit code 137", "sigkill"),
    ("Process finished with exit status 137", "sigkill"),
    ("traceback : Signal 9 (SIGKILL) received by PID 4321", "sigkill"),
    ("subprocess.CalledProcessError: Command '['python']' died with <Signals.SIGKILL: 9>.", "sigkill"),
    ("mpirun noticed that process rank 1 with PID 0 on node n exited on signal 9 (Killed).", "sigkill"),
    ("/opt/run.sh: line 12:  4321 Killed                  python train.py", "sigkill"),
    ("Killed", "sigkill"),
    ("RuntimeError: DataLoader worker (pid 4321) is killed by signal: Killed. ", "dataloader"),
    ("ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory (shm).",
     "dataloader"),
    ("OSError: [Errno 12] Cannot allocate memory", "host-allocation"),
    ("numpy._core._exceptions._ArrayMemoryError: Unable to allocate 12.5 GiB for an array with shape (1, 2)",
     "host-allocation"),
    ("MemoryError", "host-allocation"),
    ("terminate called after throwing an instance of 'std::bad_alloc'", "host-allocation"),
    ("RuntimeError: [enforce fail at alloc_cpu.cpp:118] DefaultCPUAllocator: can't allocate memory: you tried "
     "to allocate 1099511627776 bytes. Error code 12 (Cannot allocate memory)", "host-allocation"),
    ("RuntimeError: [enforce fail at alloc_cpu.cpp:80] data. DefaultCPUAllocator: not enough memory: you tried to "
     "allocate 512 bytes.", "host-allocation"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "source"), DEVICE)
def test_device_memory(text: str, source: str) -> None:
    (found,) = read_messages([text.encode()])
    assert isinstance(found, OomRecord)
    assert (found.source, found.memory) == (source, "device")


@pytest.mark.parametrize(("text", "source"), HOST)
def test_host_memory(text: str, source: str) -> None:
    (found,) = read_messages([text.encode()])
    assert isinstance(found, OomRecord)
    assert (found.source, found.memory) == (source, "host")
    assert (found.process == 4321) is ("4321" in text)


@pytest.mark.parametrize(
    ("text", "requested"),
    [
        (DEVICE[3][0], 2 * GIB),
        (DEVICE[4][0], 8053063680),
        (DEVICE[13][0], 4194304),
        (DEVICE[17][0], GIB),
        (HOST[21][0], 12 * GIB + GIB // 2),
        (HOST[24][0], 1 << 40),
    ],
)
def test_the_size_asked_for(text: str, requested: int) -> None:
    found = parse_message(text)
    assert isinstance(found, OomRecord) and found.requested and found.requested.bytes == requested


@pytest.mark.parametrize(
    "text",
    [
        "triton.runtime.errors.OutOfResource: out of resource: shared memory, Required: 262144, Hardware limit: 1.",
        "RESOURCE_EXHAUSTED: Received message larger than max (5000000 vs. 4194304)",
        "NCCL WARN Call to ibv_reg_mr_iova2 failed with error Cannot allocate memory",
    ],
)
def test_what_only_sounds_like_it(text: str) -> None:
    (found,) = read_messages([text.encode()])
    assert isinstance(found, LookAlike) and found.why


@pytest.mark.parametrize(
    "text",
    [
        "If you run into CUDA out of memory errors, lower the micro batch size.",
        'if "CUDA out of memory" in str(error):',
        "Set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid out of memory errors.",
        "process exited with exit code 1",
        "exit code -91, exit code 1370, exit code 137.5",
        "exit code 1\n37 steps done",
        '"OOMKilled": false,',
        "Killed by the user's request, not by the kernel",
        "CUDA error: an illegal memory access was encountered",
        "RuntimeError: CUDA error: device-side assert triggered",
        "Cuda failure 1 'invalid argument'",
        # PyTorch 2.14 warns so of an allocation that it may still serve, after it has given back its cache.
        "[W1130 CUDACachingAllocator.cpp:3934] memory allocation failed with OOM on device 0 while trying to allocate "
        "536870912000 bytes (free: 84470398976, total: 85017755648).",
        "memory allocated 12.00 GiB, max memory allocated 15.00 GiB",
        "",
    ],
)
def test_what_is_none(text: str) -> None:
    assert parse_message(text) is None


ALLOCATOR = (
    "OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 5 has a total capacity of 79.11 GiB of "
    "which 512.00 MiB is free. Process 1234 has 75.00 GiB memory in use. Including non-PyTorch memory, this process "
    "has 3.50 GiB memory in use. 10.00 GiB allowed; Of the allocated memory 2.00 GiB is allocated by PyTorch, with "
    "256.00 MiB allocated in private pools (e.g., CUDA Graphs), and 1.00 GiB is reserved by PyTorch but unallocated."
)


def _all_of_it(found: object) -> OomRecord:
    assert isinstance(found, OomRecord)
    assert (found.device, found.source) == (5, "pytorch-cuda")
    sizes = {name: size.bytes / GIB for name, size in found.sizes()}
    assert {name: round(size, 2) for name, size in sizes.items()} == {
        "requested": 2, "capacity": 79.11, "free": 0.5, "in_use": 3.5, "allowed": 10, "allocated": 2,
        "private_pools": 0.25, "unallocated": 1, "reserved": 3, "non_pytorch": 0.5,
    }  # fmt: skip
    assert [(use.pid, use.in_use.bytes) for use in found.others] == [(1234, 75 * GIB)]
    return found


@pytest.mark.parametrize("width", [30, 61, 80, 200])
def test_a_wrapped_message(width: int) -> None:
    """Terminals and docstrings wrap anywhere, within words and numbers too."""
    wrapped = "\r\n".join(ALLOCATOR[start : start + width] for start in range(0, len(ALLOCATOR), width))
    (found,) = read_messages([f"before\n{wrapped}\nafter\n".encode()])
    _all_of_it(found)


@pytest.mark.parametrize(
    ("prefix", "rank"),
    [
        ("[rank3]: ", 3),
        ("[rank3]:[rank3]: ", 3),
        ("[default1]:[rank19]: ", 19),
        ("[trainer2]:", 2),
        ("12: ", 12),
        ("[1,6]<stderr>:", 6),
        ("(RayTrainWorker pid=77, ip=10.0.0.1) ", None),
        ("(VllmWorker rank=4 pid=77) ", 4),
        ("2025-01-31T12:00:00.123456Z stderr F [rank8]: ", 8),
        ("[2025-01-31 12:00:00,123] ", None),
        ("\x1b[31m[rank3]:\x1b[0m ", 3),
        ("", None),
    ],
)
def test_prefixes(prefix: str, rank: int | None) -> None:
    words = ALLOCATOR.split(" ")
    lines = [" ".join(words[start : start + 9]) for start in range(0, len(words), 9)]
    (found,) = read_messages(["".join(f"{prefix}{line}\n" for line in lines).encode()])
    assert _all_of_it(found).rank == rank


def test_ranks_that_take_turns_line_by_line() -> None:
    words = ALLOCATOR.split(" ")
    lines = [" ".join(words[start : start + 9]) for start in range(0, len(words), 9)]
    log = "".join(f"[rank{rank}]: {line}\n" for line in lines for rank in (2, 0, 1))
    found = [_all_of_it(record) for record in read_messages([log.encode()])]
    assert [record.rank for record in found] == [2, 0, 1], "in the order they begin"


def test_a_later_message_is_given_after_an_earlier_one_that_is_complete_later() -> None:
    log = f"[rank0]: {ALLOCATOR[:90]}\n[rank1]: RuntimeError: CUDA error: out of memory\n[rank0]: {ALLOCATOR[90:]}\n"
    found = list(read_messages([log.encode()]))
    assert _all_of_it(found[0]).line == 1
    assert isinstance(found[1], OomRecord) and (found[1].source, found[1].line) == ("cuda", 2)


@pytest.mark.parametrize(
    "encoded", [ALLOCATOR.encode("utf-16"), b"\x00\xff\xfe\x80" + ALLOCATOR.encode() + b"\xc3\x28"]
)
def test_bytes_that_are_no_text(encoded: bytes) -> None:
    (found,) = read_messages([encoded])
    _all_of_it(found)


def test_a_json_log_and_a_repr() -> None:
    for text in (f'{{"log": "x\\n{ALLOCATOR}\\n", "stream": "stderr"}}', f"OutOfMemoryError('{ALLOCATOR}')"):
        (found,) = read_messages([text.encode()])
        _all_of_it(found)


def test_the_text_shown_is_the_message_alone() -> None:
    (found,) = read_messages([f"{'x' * 20_000} {ALLOCATOR} {'y' * 20_000}\nmore\n".encode()])
    assert _all_of_it(found).text.startswith("xxx") and ALLOCATOR[:200] in found.text
    assert len(found.text) <= 1000 and "more" not in found.text


def test_memory_fractions_cudamallocasync_prints() -> None:
    """ComfyUI's issues hold many of these (PYTORCH_CUDA_ALLOC_CONF=backend:cudaMallocAsync)."""
    text = (
        "torch.OutOfMemoryError: Allocation on device 1 would exceed allowed memory. (out of memory)\n"
        "Currently allocated     : 10.00 GiB\nRequested               : 1.50 GiB\nDevice limit            : 12.00 GiB\n"
        "Free (according to CUDA): 20.00 MiB\nPyTorch limit (set by user-supplied memory fraction)\n"
        "                        : 17179869184.00 GiB\n"
    )
    (found,) = read_messages([text.encode()])
    assert isinstance(found, OomRecord) and found.device == 1 and found.allowed is None
    assert [round(s.bytes / GIB, 2) for s in (found.allocated, found.requested, found.capacity, found.free) if s] == [
        10, 1.5, 12, 0.02,
    ]  # fmt: skip


def test_cached_of_pytorch_1_4_is_all_that_is_reserved() -> None:
    text = (
        "CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 10.76 GiB total capacity; 9.71 GiB already allocated; "
        "5.88 MiB free; 9.90 GiB cached)"
    )
    found = parse_message(text)
    assert isinstance(found, OomRecord) and found.reserved == Size.parse("9.90 GiB")


def test_precision_is_that_of_the_printed_unit() -> None:
    assert Size.parse("1.12 GiB") == Size(1202590843, 5368710)
    assert Size.parse("0 bytes") == Size(0, 0)
    assert Size.parse("6.77 GB") == Size(7269232148, 5368710), "MPS prints GB and means GiB"
    assert Size.parse("1.0 XiB") is None
