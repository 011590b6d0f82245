"""Messages of every wording, filled in by hand from the sources that print them; numbers, names and paths are made up.

PyTorch's are from c10/cuda/CUDACachingAllocator.cpp, c10/xpu/XPUCachingAllocator.cpp, aten/src/ATen/mps/MPSAllocator.mm
and c10/cuda/CUDAException.cpp of the releases named, and from the same files translated for HIP.
"""

from __future__ import annotations

from tests.memory.oom_messages.expected import Expected

_POSSIBLE, _LIKELY = {"certainty": "possible"}, {"certainty": "likely"}

_OLD_HINT = (
    " If reserved memory is >> allocated memory try setting max_split_size_mb to avoid fragmentation.  See"
    " documentation for Memory Management and PYTORCH_CUDA_ALLOC_CONF"
)
_HINT = (
    " If reserved but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to"
    " avoid fragmentation.  See documentation for Memory Management "
    " (https://pytorch.org/docs/stable/notes/cuda.html#environment-variables)"
)
_ASYNC = (
    "CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be"
    " incorrect.\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1\nCompile with `TORCH_USE_CUDA_DSA` to enable"
    " device-side assertions."
)
_BEGUN = {"requested": "2.25 GiB", "device": 1, "capacity": "31.74 GiB", "free": "1.19 GiB"}
_HELD = {"allocated": "27.50 GiB", "unallocated": "1.75 GiB"}
_USE = {**_BEGUN, **_HELD}

PYTORCH = {
    "1.0": Expected(
        "RuntimeError: CUDA out of memory. Tried to allocate 25.50 MiB (GPU 0; 7.93 GiB total capacity; 6.14 GiB"
        " already allocated; 21.56 MiB free; 634.00 KiB cached)",
        "pytorch-cuda",
        {"requested": "25.50 MiB", "device": 0, "capacity": "7.93 GiB", "allocated": "6.14 GiB", "free": "21.56 MiB",
         "unallocated": "634.00 KiB"},
    ),
    "1.4": Expected(
        "RuntimeError: CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 10.76 GiB total capacity; 9.71 GiB"
        " already allocated; 5.88 MiB free; 9.90 GiB cached)",
        "pytorch-cuda",
        {"requested": "20.00 MiB", "device": 0, "capacity": "10.76 GiB", "allocated": "9.71 GiB", "free": "5.88 MiB",
         "reserved": "9.90 GiB"},
    ),
    "1.5": Expected(
        "CUDA out of memory. Tried to allocate 10.84 GiB (GPU 2; 23.65 GiB total capacity; 1.06 GiB already allocated;"
        " 10.26 GiB free; 12.53 GiB reserved in total by PyTorch)",
        "pytorch-cuda",
        {"requested": "10.84 GiB", "device": 2, "capacity": "23.65 GiB", "allocated": "1.06 GiB", "free": "10.26 GiB",
         "reserved": "12.53 GiB"},
    ),
    "1.10, a memory fraction": Expected(
        "RuntimeError: CUDA out of memory. Tried to allocate 824.00 MiB (GPU 0; 7.93 GiB total capacity; 3.71 GiB"
        f" already allocated; 2.38 GiB free; 3.97 GiB allowed; 3.77 GiB reserved in total by PyTorch){_OLD_HINT}",
        "pytorch-cuda",
        {"requested": "824.00 MiB", "device": 0, "capacity": "7.93 GiB", "allocated": "3.71 GiB", "free": "2.38 GiB",
         "allowed": "3.97 GiB", "reserved": "3.77 GiB"},
    ),
    "2.0": Expected(
        "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 786.00 MiB (GPU 0; 31.74 GiB total"
        f" capacity; 28.82 GiB already allocated; 577.12 MiB free; 29.97 GiB reserved in total by PyTorch){_OLD_HINT}",
        "pytorch-cuda",
        {"requested": "786.00 MiB", "device": 0, "capacity": "31.74 GiB", "allocated": "28.82 GiB",
         "free": "577.12 MiB", "reserved": "29.97 GiB"},
    ),
    "2.1, misspelt": Expected(
        "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.25 GiB. GPU 1 has a total capacty of"
        " 31.74 GiB of which 1.19 GiB is free. Including non-PyTorch memory, this process has 30.50 GiB memory in use."
        " Of the allocated memory 27.50 GiB is allocated by PyTorch, and 1.75 GiB is reserved by PyTorch but"
        " unallocated. If reserved but unallocated memory is large try setting max_split_size_mb to avoid"
        " fragmentation.  See documentation for Memory Management and PYTORCH_CUDA_ALLOC_CONF",
        "pytorch-cuda",
        {**_USE, "in_use": "30.50 GiB"},
    ),
    "2.5": Expected(
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.25 GiB. GPU 1 has a total capacity of 31.74"
        " GiB of which 1.19 GiB is free. Including non-PyTorch memory, this process has 30.50 GiB memory in use. Of"
        " the allocated memory 27.50 GiB is allocated by PyTorch, and 1.75 GiB is reserved by PyTorch but unallocated."
        f"{_HINT}",
        "pytorch-cuda",
        {**_USE, "in_use": "30.50 GiB"},
    ),
    "2.5, in a container": Expected(
        "[rank11]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.25 GiB. GPU 1 has a total capacity"
        " of 31.74 GiB of which 1.19 GiB is free. Process 20398 has 30.50 GiB memory in use. Of the allocated memory"
        " 27.50 GiB is allocated by PyTorch, and 1.75 GiB is reserved by PyTorch but unallocated.",
        "pytorch-cuda",
        {**_USE, "in_use": "30.50 GiB", "process": 20398, "rank": 11},
    ),
    "2.5, beside another process": Expected(
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.25 GiB. GPU 1 has a total capacity of 31.74"
        " GiB of which 1.19 GiB is free. Process 5248 has 512.00 MiB memory in use. Including non-PyTorch memory, this"
        " process has 30.00 GiB memory in use. 40.00 GiB allowed; Of the allocated memory 27.50 GiB is allocated by"
        " PyTorch, with 572.00 MiB allocated in private pools (e.g., CUDA Graphs), and 1.75 GiB is reserved by PyTorch"
        f" but unallocated.{_HINT}",
        "pytorch-cuda",
        {**_USE, "in_use": "30.00 GiB", "other 5248": "512.00 MiB", "private_pools": "572.00 MiB"},
    ),
    "2.5, wrapped and cut": Expected(
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.25 GiB. GPU 1 has a total\n    capacity of"
        " 31.74 GiB of which 1.19 GiB is free. Process 301 has 30.50 GiB memory in use.",
        "pytorch-cuda",
        {**_BEGUN, "other 301": "30.50 GiB"},
    ),
    "2.5, a sentence a line": Expected(
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.25 GiB.\nGPU 1 has a total capacity of 31.74"
        " GiB of which 1.19 GiB is free.\nOf the allocated memory 27.50 GiB is allocated by PyTorch, and 1.75 GiB is"
        " reserved by PyTorch but unallocated.",
        "pytorch-cuda",
        _USE,
    ),
    "2.5, elided": Expected(
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.25 GiB.\n  GPU 1 ... 31.74 GiB of which 1.19"
        " GiB is free ... 27.50 GiB is allocated by PyTorch,\n  156.00 MiB allocated in private pools (CUDA Graphs),"
        " 1.75 GiB reserved but unallocated",
        "pytorch-cuda",
        {**_USE, "private_pools": "156.00 MiB"},
    ),
    "fragment: tried to allocate": Expected(
        "Tried to allocate 4.02 GiB (GPU 0; 12.00 GiB total capacity; 6.06 GiB already allocated; 2.27 GiB free; 7.45"
        " GiB reserved in total by PyTorch)",
        "pytorch-cuda",
        {"requested": "4.02 GiB", "device": 0, "capacity": "12.00 GiB", "allocated": "6.06 GiB", "free": "2.27 GiB",
         "reserved": "7.45 GiB"},
    ),
    "fragment: this process has": Expected(
        "Including non-PyTorch memory, this process has 30.50 GiB memory in use.\nOf the allocated memory 27.50 GiB is"
        " allocated by PyTorch,\nwith 572.00 MiB allocated in private pools (e.g., CUDA Graphs),\nand 1.75 GiB is"
        " reserved by PyTorch but unallocated.",
        "pytorch-cuda",
        {**_HELD, "in_use": "30.50 GiB", "private_pools": "572.00 MiB"},
    ),
    "fragment: of the allocated memory": Expected(
        "Of the allocated memory 27.50 GiB is allocated by PyTorch, and 1.75 GiB is reserved by PyTorch but"
        " unallocated.",
        "pytorch-cuda",
        _HELD,
    ),
    "cudaMallocAsync": Expected(
        "torch.OutOfMemoryError: Allocation on device 1 would exceed allowed memory. (out of memory)\n"
        "Currently allocated     : 10.00 GiB\nRequested               : 1.50 GiB\nDevice limit            : 12.00 GiB\n"
        "Free (according to CUDA): 20.00 MiB\nPyTorch limit (set by user-supplied memory fraction)\n"
        "                        : 11.00 GiB",
        "pytorch-cuda",
        {"requested": "1.50 GiB", "device": 1, "capacity": "12.00 GiB", "allocated": "10.00 GiB", "free": "20.00 MiB",
         "allowed": "11.00 GiB"},
    ),
    "HIP, a memory fraction": Expected(
        "torch.OutOfMemoryError: HIP out of memory. Tried to allocate 2.00 MiB. GPU 0 has a total capacity of 255.98"
        " GiB of which 244.65 GiB is free. 1.05 GiB allowed; Of the allocated memory 1017.01 MiB is allocated by"
        " PyTorch, with 17.00 MiB allocated in private pools (e.g., HIP Graphs), and 54.99 MiB is reserved by PyTorch"
        f" but unallocated.{_HINT.replace('CUDA', 'HIP')}",
        "pytorch-hip",
        {"requested": "2.00 MiB", "device": 0, "capacity": "255.98 GiB", "free": "244.65 GiB", "allowed": "1.05 GiB",
         "allocated": "1017.01 MiB", "private_pools": "17.00 MiB", "unallocated": "54.99 MiB"},
    ),
    "HIP, nothing allocated": Expected(
        "torch.OutOfMemoryError: HIP out of memory. Tried to allocate 16.00 GiB. GPU 0 has a total capacity of 15.24"
        " GiB of which 15.09 GiB is free. Of the allocated memory 0 bytes is allocated by PyTorch, and 0 bytes is"
        " reserved by PyTorch but unallocated.",
        "pytorch-hip",
        {"requested": "16.00 GiB", "device": 0, "capacity": "15.24 GiB", "free": "15.09 GiB", "allocated": "0 bytes",
         "unallocated": "0 bytes"},
    ),
    "XPU of the Intel extension": Expected(
        "RuntimeError: XPU out of memory. Tried to allocate 1.71 GiB (GPU 0; 15.56 GiB total capacity; 176.00 MiB"
        " already allocated; 180.00 MiB reserved in total by PyTorch)",
        "pytorch-xpu",
        {"requested": "1.71 GiB", "device": 0, "capacity": "15.56 GiB", "allocated": "176.00 MiB",
         "reserved": "180.00 MiB"},
    ),
    "XPU, a block of more than 4 GB": Expected(
        "RuntimeError: Current platform can NOT allocate memory block with size larger than 4GB! Tried to allocate"
        " 6.85 GiB (GPU  0; 15.56 GiB total capacity; 0 bytes already allocated; 0 bytes reserved in total by PyTorch)",
        "pytorch-xpu",
        {"requested": "6.85 GiB", "device": 0, "capacity": "15.56 GiB", "allocated": "0 bytes", "reserved": "0 bytes"},
    ),
    "XPU 2.5": Expected(
        "XPU out of memory. Tried to allocate 4.00 GiB. GPU 0 has a total capacity of 15.11 GiB.",
        "pytorch-xpu",
        {"requested": "4.00 GiB", "device": 0, "capacity": "15.11 GiB"},
    ),
    "XPU 2.12": Expected(
        "torch.OutOfMemoryError: XPU out of memory. Tried to allocate 4.66 GiB. GPU 0 has a total capacity of 5.65 GiB"
        " of which 5.60 GiB is free. Of the allocated memory 195.50 KiB is allocated by PyTorch, and 1.81 MiB is"
        " reserved by PyTorch but unallocated. Please use `empty_cache` to release all unoccupied cached memory.",
        "pytorch-xpu",
        {"requested": "4.66 GiB", "device": 0, "capacity": "5.65 GiB", "free": "5.60 GiB", "allocated": "195.50 KiB",
         "unallocated": "1.81 MiB"},
    ),
    "NPU": Expected(
        "RuntimeError: NPU out of memory. Tried to allocate 5.03 GiB (NPU 3; 60.96 GiB total capacity; 49.47 GiB"
        " already allocated; 49.47 GiB current active; 1.32 GiB free; 57.55 GiB reserved in total by PyTorch)",
        "pytorch-npu",
        {"requested": "5.03 GiB", "device": 3, "capacity": "60.96 GiB", "allocated": "49.47 GiB", "free": "1.32 GiB",
         "reserved": "57.55 GiB"},
    ),
    "MPS": Expected(
        "RuntimeError: MPS backend out of memory (MPS allocated: 6.04 GB, other allocations: 172.98 MB, max allowed:"
        " 6.77 GB). Tried to allocate 459.07 MB on private pool. Use PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0 to disable"
        " upper limit for memory allocations (may cause system failure).",
        "pytorch-mps",
        {"allocated": "6.04 GB", "non_pytorch": "172.98 MB", "allowed": "6.77 GB", "requested": "459.07 MB"},
    ),
    "outside PyTorch": Expected(
        "torch.AcceleratorError: CUDA ran out of memory outside PyTorch's allocator, in a cuDNN call", "cudnn"
    ),
}  # fmt: skip

DEVICE = {
    "runtime, 1.x": Expected(
        "RuntimeError: cuda runtime error (2) : out of memory at /pytorch/aten/src/THC/generic/THCStorage.cu:58", "cuda"
    ),
    "runtime": Expected(f"RuntimeError: CUDA error: out of memory\n{_ASYNC}", "cuda"),
    "runtime, 2.9 on one line": Expected(
        "CUDA error: out of memorySearch for `cudaErrorMemoryAllocation' in https://docs.nvidia.com/cuda/x.html for"
        f" more information.{_ASYNC}".replace("\n", ""),
        "cuda",
    ),
    "runtime, by name": Expected("thrust::system_error: cudaErrorMemoryAllocation", "cuda"),
    "driver": Expected("GpuArrayException: cuMemAlloc: CUDA_ERROR_OUT_OF_MEMORY: out of memory", "cuda"),
    "driver, with a size": Expected(
        "failed to allocate 7.50G (8053063680 bytes) from device: CUDA_ERROR_OUT_OF_MEMORY: out of memory",
        "cuda",
        {"requested": "8053063680"},
    ),
    "HIP runtime": Expected("RuntimeError: HIP error: out of memory", "hip"),
    "HIP runtime, by name": Expected("hipMalloc: hipErrorOutOfMemory", "hip"),
    "Triton": Expected("RuntimeError: Triton Error [CUDA]: out of memory", "triton"),
    "vLLM, sleep mode": Expected("CUDA Error: out of memory at /workspace/csrc/cumem_allocator.cpp:62", "vllm"),
    "vLLM, cache blocks": Expected("ValueError: No available memory for the cache blocks. Try increasing it.", "vllm"),
    "vLLM, start-up": Expected(
        "ValueError: Free memory on device (10.12/79.11 GiB) on startup is less than desired GPU memory utilization"
        " (0.9, 71.2 GiB).",
        "vllm",
    ),
    "NCCL 2.27": Expected(
        "[2026-09-24 16:15:28] node-0:2999605:3004403 [0] include/alloc.h:228 NCCL WARN Cuda failure 2 'out of memory'",
        "nccl",
        {"process": 2999605, "device": 0},
    ),
    "NCCL 2.18": Expected(
        "node-0:392:494 [2] enqueue.cc:43 NCCL WARN Cuda failure 'out of memory'", "nccl", {"process": 392, "device": 2}
    ),
    "NCCL, with a size": Expected(
        "node-0:306:606 [3] include/alloc.h:185 NCCL WARN Failed to CUDA calloc 6291456 bytes",
        "nccl",
        {"process": 306, "device": 3, "requested": "6291456"},
    ),
    "cuBLAS": Expected(
        "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", "cublas"
    ),
    "cuBLAS elsewhere": Expected("CUBLAS failure 3: CUBLAS_STATUS_ALLOC_FAILED ; GPU=5 ;", "cublas", {"device": 5}),
    "hipBLAS": Expected("RuntimeError: CUDA error: HIPBLAS_STATUS_ALLOC_FAILED when calling `x`", "cublas"),
    "cuBLAS of PyTorch 1": Expected("RuntimeError: cublas runtime error : resource allocation failed", "cublas"),
    "cuBLAS not initialized": Expected(
        "RuntimeError: CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`",
        "cublas",
        _POSSIBLE,
    ),
    "cuDNN": Expected("RuntimeError: cuDNN error: CUDNN_STATUS_ALLOC_FAILED", "cudnn"),
    "cuDNN elsewhere": Expected(
        "cuDNN failure 2: CUDNN_STATUS_ALLOC_FAILED ; GPU=4 ; expr=finder(algo)", "cudnn", {"device": 4}
    ),
    "cuDNN 9": Expected("CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED", "cudnn"),
    "cuSOLVER": Expected("cusolver error: CUSOLVER_STATUS_ALLOC_FAILED, when calling `x`", "cuda-library"),
    "cuFFT": Expected("RuntimeError: cuFFT error: CUFFT_ALLOC_FAILED", "cuda-library"),
    "cuRAND": Expected("CURAND_STATUS_ALLOCATION_FAILED", "cuda-library"),
    "NVSHMEM": Expected("src/host/mem/mem_heap.cpp:1509: non-zero status: 2 cuMemCreate failed", "nvshmem"),
    "TensorFlow": Expected(
        "Resource exhausted: OOM when allocating tensor with shape[4096] and type float on"
        " /job:localhost/replica:0/task:0/device:GPU:3 by allocator GPU_3_bfc",
        "tensorflow",
        {"device": 3},
    ),
    "XLA": Expected(
        "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 2147483648 bytes.",
        "xla",
        {"requested": "2147483648"},
    ),
    "XLA request": Expected(
        "Resource exhausted: Failed to allocate request for 32.00MiB (33554432B) on device ordinal 2",
        "xla",
        {"requested": "33554432", "device": 2},
    ),
    "CuPy": Expected(
        "cupy.cuda.memory.OutOfMemoryError: Out of memory allocating 1,073,741,824 bytes (allocated so far: 0 bytes).",
        "cupy",
        {"requested": "1073741824"},
    ),
    "RMM": Expected("MemoryError: std::bad_alloc: out_of_memory: CUDA error at: /rmm/mr/device/x.hpp", "rmm"),
}

HOST = {
    "kernel": Expected(
        "[12345.6] Out of memory: Killed process 43 (python) total-vm:9kB, anon-rss:8kB", "host-oom-killer",
        {"process": 43},
    ),
    "kernel, constraint": Expected(
        "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),task=python,pid=43,uid=0", "host-oom-killer",
        {"process": 43},
    ),
    "kernel, invoked": Expected("python invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0", "host-oom-killer"),
    "Slurm": Expected("slurmstepd: error: Detected 1 oom_kill event in StepId=5.batch.", "slurm"),
    "Slurm, a task": Expected("srun: error: node7: task 3: Out Of Memory", "slurm", {"rank": 3}),
    "Slurm, a limit": Expected("slurmstepd: error: Job 77 exceeded memory limit (1024 > 512), being killed", "slurm"),
    "Kubernetes": Expected("    Reason:       OOMKilled", "kubernetes"),
    "torchrun": Expected(
        "ERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: -9) local_rank: 0 (pid: 178) of binary:"
        " /opt/env/bin/python",
        "sigkill",
        {"process": 178, **_POSSIBLE},
    ),
    "exit code": Expected("Training failed with exit code -9", "sigkill", _POSSIBLE),
    "DeepSpeed": Expected(" exits with return code = -9", "sigkill", _POSSIBLE),
    "a container": Expected("command terminated with exit code 137", "sigkill", _POSSIBLE),
    "SIGKILL": Expected("traceback : Signal 9 (SIGKILL) received by PID 43", "sigkill", {"process": 43, **_POSSIBLE}),
    "signal 9": Expected("process rank 1 with PID 0 on node n exited on signal 9 (Killed).", "sigkill", _POSSIBLE),
    "shell": Expected("run.sh: line 12:  4321 Killed    python train.py", "sigkill", {"process": 4321, **_POSSIBLE}),
    "DataLoader": Expected(
        "RuntimeError: DataLoader worker (pid 43) is killed by signal: Killed. ", "dataloader",
        {"process": 43, **_LIKELY},
    ),
    "DataLoader, shared memory": Expected(
        "ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory (shm).",
        "dataloader", _LIKELY,
    ),
    "DataLoader, a bus error": Expected(
        "RuntimeError: DataLoader worker (pid 43) is killed by signal: Bus error.", "dataloader",
        {"process": 43, **_LIKELY},
    ),
    "NCCL, shared memory": Expected(
        "NCCL WARN Error: failed to extend /dev/shm/nccl-abc to 33030532 bytes", "nccl",
        {"requested": "33030532", **_LIKELY},
    ),
    "NCCL, pinned": Expected("NCCL WARN Failed to CUDA host alloc 4096 bytes", "nccl", {"requested": "4096"}),
    "Ray": Expected("OutOfMemoryError: Task was killed due to the node running low on memory.", "ray"),
    "PyTorch on the host": Expected(
        "[enforce fail at alloc_cpu.cpp:118] DefaultCPUAllocator: can't allocate memory: you tried to allocate 1048576"
        " bytes.",
        "host-allocation", {"requested": "1048576"},
    ),
    "Rust": Expected("memory allocation of 2097152 bytes failed", "host-allocation", {"requested": "2097152"}),
    "NumPy": Expected(
        "numpy._core._exceptions._ArrayMemoryError: Unable to allocate 12.5 GiB for an array with shape (1, 2)",
        "host-allocation", {"requested": "12.5 GiB"},
    ),
    "Python": Expected("MemoryError", "host-allocation"),
    "ENOMEM": Expected("OSError: [Errno 12] Cannot allocate memory", "host-allocation", _LIKELY),
    "C++": Expected(
        "terminate called after throwing an instance of 'std::bad_alloc'", "host-allocation", _LIKELY
    ),
}  # fmt: skip

_TEMPLATE = (
    "CUDA out of memory. Tried to allocate {alloc_size}. GPU {device} has a total capacity of {device_total} of which"
    " {device_free} is free. {proc_info}{allowed_info}Of the allocated memory {allocated} is allocated by PyTorch"
)
NONE = {
    "Triton, on-chip memory": (
        "triton.runtime.errors.OutOfResource: out of resource: shared memory, Required: 262144, Hardware limit: 1.",
        "on-chip",
    ),
    "NVSHMEM teams": (
        "team_internal.cpp:1821: error status: 2 (NVSHMEMX_ERROR_OUT_OF_MEMORY) No more teams available (max = 7), try"
        " setting NVSHMEM_MAX_TEAMS environment variable",
        "NVSHMEM_MAX_TEAMS",
    ),
    "gRPC": ("RESOURCE_EXHAUSTED: Received message larger than max (5000000 vs. 4194304)", "gRPC"),
    "locked memory": ("Call to ibv_reg_mr_iova2 failed with error Cannot allocate memory", "ulimit -l"),
    "garbage": (
        "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate more than 1EB memory", "1 EB",
    ),
    "template": (_TEMPLATE, "format string"),
    "template of 2.1": (_TEMPLATE.replace("capacity", "capacty"), "format string"),
    "advice": (
        "If out-of-memory error occurs during cudagraph capture, consider decreasing `gpu_memory_utilization`.", "",
    ),
    "another failure": (
        "[rank7]: ncclUnhandledCudaError: Call to CUDA function failed.\n[rank7]: Last error:\n[rank7]: Cuda failure 1"
        " 'invalid argument'",
        "",
    ),
}  # fmt: skip
