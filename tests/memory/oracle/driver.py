"""Runs in an interpreter with torch, on the virtual GPU: what does the real allocator do with these programs?

Reads programs (`program.py`), one JSON object a line, from standard input; writes one answer a line. Each program
runs in a child forked from this process, which has imported torch and not touched CUDA, so that nothing of one
program is left for the next. Knows nothing of oombisect.

The first line says which torch this is, and the names of the counters. An answer: `streams` (the cudaStream_t of each),
`before` (how many blocks of 8 bytes torch itself took on stream 0 before the program began), `events`, `segments`, and
`device` (what was asked of the device, in order: [action, address, size]). The
first event is the state before the program, then there is one per operation: [address or 0 (out of memory) or -1
(nothing was asked for), index of a counter, its new value, index, its new value, ...]. If frees may wait, `completed`
has the blocks in the order in which their memory became free. `error`: the program ended early, because PyTorch met an
internal error, crashed, or ran for a minute (then no events are told).
"""

import ctypes
import json
import os
import resource
import sys
import warnings

import torch

ALL_ONLY = ("allocation", "allocated_bytes", "active", "active_bytes", "requested_bytes", "inactive_split",
            "inactive_split_bytes")  # fmt: skip
FIELDS = ("current", "peak", "allocated", "freed")
PLAIN = ("num_alloc_retries", "num_ooms", "num_sync_all_streams", "num_device_alloc", "num_device_free")
NAMES = [
    *PLAIN,
    *(f"{name}.all.{field}" for name in ALL_ONLY for field in FIELDS),
    *(f"{name}.{pool}.{field}" for name in ("segment", "reserved_bytes")
      for pool in ("all", "small_pool", "large_pool") for field in FIELDS),
    *(f"{name}.{field}" for name in ("oversize_allocations", "oversize_segments") for field in FIELDS),
]  # fmt: skip


def counters():
    stats = torch._C._cuda_memoryStats(0)
    values = [stats[name] for name in PLAIN]
    for name in ALL_ONLY:
        values += stats[name]["all"].values()
    for name in ("segment", "reserved_bytes"):
        for pool in ("all", "small_pool", "large_pool"):
            values += stats[name][pool].values()
    for name in ("oversize_allocations", "oversize_segments"):
        values += stats[name].values()
    return values


class Runner:
    """Runs one program; a method for each operation."""

    def __init__(self, program):
        self.blocks, self.pools, self.graphs = {}, {}, {}
        self.capturing = None
        self.stream = 0
        gpu = ctypes.CDLL(None)
        self.hold_events, self.finish_events = gpu.oombisect_vgpu_hold_events, gpu.oombisect_vgpu_finish_events
        set_settings(program["settings"])
        torch.cuda.init()
        self.streams = [torch.cuda.current_stream(), *(torch.cuda.Stream() for _ in range(program["streams"] - 1))]
        used = {operation[0] for operation in program["operations"]}
        if "capture" in used:
            # In older releases captures make two small tensors, unless another graph is there that keeps them.
            self.keeper = torch.cuda.CUDAGraph()
            self.keeper.register_generator_state(torch.cuda.default_generators[0])
        self.history = "record" in used or program["seed"] % 3 == 0
        if self.history:
            torch.cuda.memory._record_memory_history("all", context=None, stacks="python", max_entries=1 << 30)

    def use_stream(self, index):
        if index != self.stream:
            stream = self.streams[index]
            torch._C._cuda_setStream(stream.stream_id, stream.device_index, stream.device_type)
            self.stream = index

    def alloc(self, block, size, stream, pool):
        self.use_stream(stream)
        try:
            tensor = torch.empty(size, dtype=torch.uint8, device="cuda")
        except torch.OutOfMemoryError:
            return 0
        self.blocks[block] = tensor
        return tensor.data_ptr()

    def free(self, block):
        self.blocks.pop(block, None)  # nothing is there if it was out of memory

    def record(self, block, stream):
        if block in self.blocks:
            self.blocks[block].record_stream(self.streams[stream])

    def hold(self):
        self.hold_events(1)

    def finish(self):
        self.finish_events()

    def empty(self):
        torch.cuda.empty_cache()

    def settings(self, text):
        set_settings(text)

    def fraction(self, value):
        torch._C._cuda_setMemoryFraction(value, 0)

    def pool(self, number, split):
        self.pools[number] = torch.cuda.MemPool() if split else torch.cuda.MemPool(no_split=True)

    def enter(self, number):
        torch._C._cuda_beginAllocateCurrentThreadToPool(0, self.pools[number].id)

    def leave(self, number):
        torch._C._cuda_endAllocateToPool(0, self.pools[number].id)
        torch._C._cuda_releasePool(0, self.pools[number].id)

    def drop(self, number):
        if number in self.graphs:
            for graph in self.graphs.pop(number):
                graph.reset()
        else:
            del self.pools[number]

    def capture(self, number, stream):
        self.use_stream(stream)
        if number not in self.pools:
            self.pools[number] = torch.cuda.graph_pool_handle()
        self.capturing = torch.cuda.CUDAGraph()
        self.graphs.setdefault(number, []).append(self.capturing)
        self.capturing.capture_begin(pool=self.pools[number], capture_error_mode="relaxed")

    def captured(self, number, stream):
        self.use_stream(stream)
        self.capturing.capture_end()
        self.capturing = None


def set_settings(text):
    if hasattr(torch._C, "_accelerator_setAllocatorSettings"):
        torch._C._accelerator_setAllocatorSettings(text)
    else:
        torch._C._cuda_cudaCachingAllocator_set_allocator_settings(text)


def segments():
    """The segments with their blocks: [address, size, stream, small, expandable, [address, size, state] ...]."""
    return [
        [
            segment["address"], segment["total_size"], segment["stream"], segment["segment_type"] == "small",
            segment["is_expandable"],
            [[block["address"], block["size"], block["state"]] for block in segment["blocks"]],
        ]
        for segment in sorted(torch._C._cuda_memorySnapshot(None)["segments"], key=lambda each: each["address"])
    ]  # fmt: skip


def traced(asked):
    """The blocks in the order in which their memory became free; what was asked of the device."""
    live, waiting, completed, device = {}, {}, [], []
    numbers = iter(asked)
    for entry in torch._C._cuda_memorySnapshot(None)["device_traces"][0]:
        action, address = entry["action"], entry.get("addr")
        if action == "alloc":
            live[address] = next(numbers)
        elif action == "oom":
            next(numbers)
        elif action == "free_requested":
            waiting[address] = live.pop(address)
        elif action == "free_completed":
            completed.append(waiting.pop(address))
        elif action.startswith("segment_"):
            device.append([action[8:], address, entry["size"]])
    return completed, device


kept = []  # a child ends without taking its blocks and pools down


def answer(program):
    os.environ["OOMBISECT_VGPU_TOTAL_BYTES"] = str(program["total"])
    os.environ["OOMBISECT_VGPU_LIMIT_BYTES"] = str(program["capacity"])
    os.environ["OOMBISECT_VGPU_CONTEXT_BYTES"] = "0"
    runner = Runner(program)
    kept.append(runner)
    values = counters()
    first = [-1] + [each for pair in enumerate(values) if pair[1] for each in pair]
    events, asked = [first], []
    result = {"streams": [stream.cuda_stream for stream in runner.streams], "events": events}
    result["before"] = values[NAMES.index("allocation.all.current")]
    for name, *arguments in program["operations"]:
        try:
            address = getattr(runner, name)(*arguments)
        except RuntimeError as error:
            if "INTERNAL ASSERT" not in str(error) and "CUDA error" not in str(error):
                raise
            result["error"] = str(error).splitlines()[0]
            break
        if name == "alloc":
            asked.append(arguments[0])
        event = [-1 if address is None else address]
        before, values = values, counters()
        if values != before:
            for index, value in enumerate(values):
                if value != before[index]:
                    event += (index, value)
        events.append(event)
    if runner.history:
        result["completed"], result["device"] = traced(asked)
    if "error" not in result:
        result["segments"] = segments()
    return result


def main():
    warnings.simplefilter("ignore")
    print(json.dumps({"torch": torch.__version__, "names": NAMES}), flush=True)
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            resource.setrlimit(resource.RLIMIT_CPU, (60, 60))
            text = json.dumps(answer(json.loads(line)), separators=(",", ":"))
            sys.stdout.write(text + "\n")
            sys.stdout.flush()
            os._exit(0)
        status = os.waitpid(child, 0)[1]
        if os.WIFSIGNALED(status):  # PyTorch itself crashed
            print(json.dumps({"error": f"signal {os.WTERMSIG(status)}", "streams": [], "events": []}), flush=True)
        elif status != 0:
            sys.exit(f"the program of seed {json.loads(line)['seed']} failed")


main()
