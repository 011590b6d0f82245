"""Accounting against facts that are not the virtual GPU's own: PyTorch's published allocator rules and its counters.

The rules (PyTorch, c10/cuda/CUDACachingAllocator): requests are rounded up to 512 B; a request of at most 1 MiB comes
from a 2 MiB segment, one under 10 MiB from a 20 MiB segment, a larger one is rounded up to 2 MiB; a large block is
split only if more than 1 MiB remains.
"""

from __future__ import annotations

import pytest

from oombisect.units import GIB, MIB
from oombisect.virtual_gpu.profiles import PROFILES

from .conftest import Run

pytestmark = pytest.mark.virtual_gpu
H100 = PROFILES["h100-80gb"]


def test_each_segment_of_the_allocator_takes_its_size_on_the_device(run: Run) -> None:
    seen = run("""
        import torch
        torch.cuda.init(); torch.cuda.current_stream().synchronize()
        rows, keep = [], []
        def step(size):
            keep.append(torch.cuda.caching_allocator_alloc(size))
            s = torch.cuda.memory_stats()
            rows.append([size, s["allocated_bytes.all.current"], s["reserved_bytes.all.current"],
                         figure("used") - figure("context"), s["num_device_alloc"]])
        for size in [1, 513, 1 << 20, (1 << 20) + 1, (10 << 20) - 512, 10 << 20, (10 << 20) + 1, (33 << 20) + 7]:
            step(size)
        for p in keep:
            torch.cuda.caching_allocator_delete(p)
        kept = figure("used") - figure("context")
        torch.cuda.empty_cache()
        report(rows=rows, kept=kept, after=figure("used") - figure("context"), peak=figure("peak") - figure("context"),
               driver_frees=torch.cuda.memory_stats()["num_device_free"])
    """).report
    rounded = [512, 1024, 1 << 20, (1 << 20) + 512, (10 << 20) - 512, 10 << 20, (10 << 20) + 512, 34 << 20]
    # One small segment serves the first three; a 20 MiB segment the fourth and fifth; the others have one of their own.
    segments = [2, 0, 0, 20, 0, 10, 12, 34]
    allocated = reserved = 0
    for row, size, segment in zip(seen["rows"], rounded, segments, strict=True):
        allocated, reserved = allocated + size, reserved + segment * MIB
        assert row[1:4] == [allocated, reserved, reserved], row
    assert seen["kept"] == seen["peak"] == sum(segments) * MIB
    assert seen["after"] == 0 and seen["driver_frees"] == seen["rows"][-1][4] == 5


def test_the_limit_is_exact_and_the_error_is_the_usual_one(run: Run) -> None:
    limit = 20 * GIB
    seen = run(
        """
        import torch
        context = torch.cuda.mem_get_info() and figure("context")
        limit = figure("limit")
        def fits(size):
            try:
                torch.cuda.caching_allocator_delete(torch.cuda.caching_allocator_alloc(size))
                torch.cuda.empty_cache()
                return True
            except torch.cuda.OutOfMemoryError as error:
                global text
                text = str(error)
                return False
        largest = (limit - context) // (2 << 20) * (2 << 20)
        yes, no = fits(largest), fits(largest + 1)
        s = torch.cuda.memory_stats()
        free, total = torch.cuda.mem_get_info()
        report(yes=yes, no=no, text=text, ooms=s["num_ooms"], retries=s["num_alloc_retries"], total=total, free=free,
               context=context, peak=figure("peak"))
        """,
        limit_bytes=limit,
    ).report
    assert seen["yes"] and not seen["no"]
    assert (seen["ooms"], seen["retries"]) == (1, 1)
    assert "GPU 0 has a total capacity of 79.18 GiB" in seen["text"]  # the card, not the limit
    assert "Tried to allocate 19.4" in seen["text"] and "this process has 522.00 MiB memory in use" in seen["text"]
    assert seen["total"] == H100.total_bytes and seen["free"] == H100.total_bytes - H100.context_bytes
    assert limit - 2 * MIB < seen["peak"] <= limit


def test_without_a_limit_the_peak_may_exceed_the_card(run: Run) -> None:
    seen = run("""
        import torch
        blocks = [torch.empty(10 << 30, dtype=torch.uint8, device="cuda") for _ in range(12)]
        report(info=torch.cuda.mem_get_info(), allocated=torch.cuda.memory_allocated(), used=figure("used"),
               ooms=torch.cuda.memory_stats()["num_ooms"])
    """).report
    assert seen["allocated"] == 120 * GIB and seen["ooms"] == 0
    assert seen["info"] == [0, H100.total_bytes]  # free never goes below zero
    assert seen["used"] == 120 * GIB + H100.context_bytes


def test_a_limit_can_be_set_from_within(run: Run) -> None:
    seen = run("""
        import torch
        keep = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
        cuda.oombisect_vgpu_set_limit(ctypes.c_uint64(figure("used") + (4 << 20)))
        def fits(size):
            try:
                torch.cuda.caching_allocator_delete(torch.cuda.caching_allocator_alloc(size))
                return True
            except torch.cuda.OutOfMemoryError:
                return False
        small = fits(1 << 20)
        large = fits(20 << 20)
        cuda.oombisect_vgpu_set_limit(ctypes.c_uint64(1 << 40))
        cuda.oombisect_vgpu_reset_peak()
        report(small=small, large=large, again=fits(20 << 20), peak=figure("peak"), used=figure("used"))
    """).report
    assert seen["small"] and not seen["large"] and seen["again"]
    assert seen["peak"] == seen["used"]


def test_expandable_segments_map_pages_and_give_them_back(run: Run) -> None:
    """Pages are 2 MiB for small requests and 20 MiB for large ones; the address range is 9/8 of the card."""
    seen = run(
        """
        import torch
        small = torch.empty(1000, dtype=torch.uint8, device="cuda")
        one = figure("used") - figure("context")
        large = torch.empty(50 << 20, dtype=torch.uint8, device="cuda")
        two = figure("used") - figure("context")
        segments = [[s["is_expandable"], s["total_size"]] for s in torch.cuda.memory_snapshot()]
        grown = torch.empty(8 << 20, dtype=torch.uint8, device="cuda")
        three = figure("used") - figure("context")
        reserved = torch.cuda.memory_reserved()
        del large
        torch.cuda.empty_cache()
        four = figure("used") - figure("context")
        report(used=[one, two, three, four], reserved=reserved, segments=segments, now=torch.cuda.memory_reserved())
        """,
        extra={"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True", "PYTORCH_ALLOC_CONF": "expandable_segments:True"},
    ).report
    assert sorted(seen["segments"]) == [[True, 2 * MIB], [True, 60 * MIB]]
    # 50 MiB need three pages of 20; the next 8 MiB fit in what is left; freeing the 50 frees the first two pages only.
    assert seen["used"] == [2 * MIB, 62 * MIB, 62 * MIB, 22 * MIB]
    assert seen["reserved"] == 62 * MIB and seen["now"] == 22 * MIB


@pytest.mark.parametrize(("gpu", "workspace"), [("virtual:h100-80gb", 32 * MIB), ("virtual:a100-80gb", 8519680)])
def test_torchs_own_cublas_workspace_appears(run: Run, gpu: str, workspace: int) -> None:
    """:4096:2:16:8 (KiB) and, on Hopper, :4096:8 are the documented defaults of PyTorch's cuBLAS workspace."""
    seen = run(
        """
        import torch
        a = torch.empty(256, 256, device="cuda")
        before = torch.cuda.memory_allocated()
        b = torch.empty(256, 256, device="cuda")
        torch.mm(a, a, out=b)
        report(grown=torch.cuda.memory_allocated() - before - b.numel() * 4, launches=figure("launches"))
        """,
        gpu=gpu,
    ).report
    assert seen["grown"] == workspace
    assert seen["launches"] >= 1


def test_pinned_memory_is_real_and_offloading_costs_no_host_memory(run: Run) -> None:
    seen = run("""
        import torch, resource
        x = torch.arange(1000, dtype=torch.int32).pin_memory()
        pinned, plain = x.is_pinned(), torch.arange(10).is_pinned()
        y = x.to("cuda", non_blocking=True)
        back = torch.full((1000,), 7, dtype=torch.int32).pin_memory()
        back.copy_(y, non_blocking=True)
        torch.cuda.synchronize()
        big = torch.empty(6 << 30, dtype=torch.uint8, device="cuda")
        host = torch.empty(6 << 30, dtype=torch.uint8, pin_memory=True)
        host[5] = 9
        host.copy_(big)
        touched = [int(host[i]) for i in (0, 5, (6 << 30) - 1)]
        rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
        report(pinned=pinned, plain=plain, first=int(x[999]), back=int(back.abs().sum()), touched=touched, rss=rss)
    """).report
    assert seen["pinned"] and not seen["plain"] and seen["first"] == 999
    assert seen["back"] == 0 and seen["touched"] == [0, 0, 0]  # 4000 bytes are too many to be remembered
    assert seen["rss"] < 2 * GIB


def test_device_memory_costs_no_host_memory(run: Run) -> None:
    seen = run("""
        import torch, resource
        base = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        x = [torch.zeros(8 << 30, dtype=torch.uint8, device="cuda") for _ in range(9)]
        y = [t.clone() for t in x]
        report(grown=(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - base) << 10, used=figure("used"))
    """).report
    assert seen["used"] > 144 * GIB and seen["grown"] < 256 * MIB


def test_graph_capture_uses_a_private_pool(run: Run) -> None:
    seen = run("""
        import torch
        a = torch.zeros(1024, 1024, device="cuda")
        outside = torch.cuda.memory_reserved()
        graph = torch.cuda.CUDAGraph()
        side = torch.cuda.Stream()
        with torch.cuda.graph(graph):
            capturing = torch.cuda.is_current_stream_capturing()
            b = a @ a
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                joined = torch.cuda.is_current_stream_capturing()
                c = b + 1
            torch.cuda.current_stream().wait_stream(side)
            try:
                torch.cuda.current_stream().synchronize()
                waited = "allowed"
            except RuntimeError as error:
                waited = str(error).splitlines()[0]
        before = figure("launches")
        for _ in range(3):
            graph.replay()
        pools = {tuple(s["segment_pool_id"]) for s in torch.cuda.memory_snapshot()}
        nodes = figure("launches") - before
        del b, c
        torch.cuda.empty_cache()
        held = torch.cuda.memory_reserved()
        graph.reset()
        torch.cuda.empty_cache()
        report(capturing=capturing, joined=joined, waited=waited, pools=sorted(pools), replays=nodes, held=held,
               given_back=torch.cuda.memory_reserved(), after=torch.cuda.is_current_stream_capturing())
    """).report
    assert seen["capturing"] and seen["joined"] and not seen["after"]
    assert "operation not permitted when stream is capturing" in seen["waited"]
    assert [0, 0] in seen["pools"] and len(seen["pools"]) == 2
    assert seen["replays"] == 3
    assert seen["given_back"] < seen["held"]


def test_what_the_host_wrote_is_read_back_and_never_stale(run: Run) -> None:
    seen = run("""
        import torch
        flags = torch.tensor([1, 0, 3], device="cuda")
        out = {"element": flags[2].item(), "list": flags.tolist(), "clone": flags.clone().tolist()}
        flags += 1
        out["after a kernel"] = flags.tolist()
        flags = torch.tensor([4, 5], device="cuda")
        other = torch.ones(10, device="cuda") * 2
        out["after another kernel"] = flags.tolist()
        flags = torch.tensor([6, 7], device="cuda")
        product = torch.zeros(4, 4, device="cuda") @ torch.zeros(4, 4, device="cuda")
        out["after a library call"] = flags.tolist()
        flags = torch.tensor([8, 9], device="cuda")
        address = flags.data_ptr()
        flags.copy_(torch.tensor([10, 11]))
        out["overwritten"] = flags.tolist()
        flags.zero_()
        out["zeroed"] = flags.tolist()
        large = torch.arange(1000, device="cpu").cuda()
        out["too large"] = int(large.cpu().sum())
        big = torch.full((300,), 1, dtype=torch.uint8).cuda()
        big[100:101].copy_(torch.tensor([5], dtype=torch.uint8))
        out["part overwritten"] = [int(big[99].item()), int(big[100].item()), int(big[101].item())]
        report(**out)
    """).report
    assert seen["element"] == 3 and seen["list"] == seen["clone"] == [1, 0, 3]
    for unknown in ("after a kernel", "after another kernel", "after a library call", "zeroed"):
        assert not any(seen[unknown]), unknown
    assert seen["overwritten"] == [10, 11]
    assert seen["too large"] == 0
    assert seen["part overwritten"] == [0, 5, 0]  # a larger value that was partly overwritten is forgotten whole
    assert seen["element"]


def test_freed_memory_is_forgotten(run: Run) -> None:
    seen = run("""
        runtime = cuda
        def alloc():
            p = ctypes.c_void_p()
            assert runtime.cudaMalloc(ctypes.byref(p), ctypes.c_size_t(4096)) == 0
            return p
        def read(p):
            value = ctypes.c_int(99)
            assert runtime.cudaMemcpy(ctypes.byref(value), p, ctypes.c_size_t(4), 2) == 0
            return value.value
        a = alloc()
        runtime.cudaMemcpy(a, ctypes.byref(ctypes.c_int(5)), ctypes.c_size_t(4), 1)
        first = read(a)
        runtime.cudaFree(a)
        b = alloc()
        report(same=a.value == b.value, first=first, second=read(b), twice=runtime.cudaFree(a) or runtime.cudaFree(a))
    """).report
    assert seen == {"same": True, "first": 5, "second": 0, "twice": 1}


def test_addresses_do_not_depend_on_the_run_and_follow_the_drivers_order(run: Run) -> None:
    script = """
        runtime = cuda
        def alloc(mib):
            p = ctypes.c_void_p()
            assert runtime.cudaMalloc(ctypes.byref(p), ctypes.c_size_t(mib << 20)) == 0
            return p.value
        small = [alloc(n) for n in (2, 20, 20, 2)]
        large = [alloc(n) for n in (512, 40, 128)]
        runtime.cudaFree(ctypes.c_void_p(large[0])); runtime.cudaFree(ctypes.c_void_p(small[1]))
        again = [alloc(256), alloc(4)]
        report(small=small, large=large, again=again, fallback=runtime.oombisect_vgpu_address_fallback())
    """
    one, two = run(script).report, run(script).report
    assert one == two and one["fallback"] == 0
    small, large = one["small"], one["large"]
    # 2 + 20 MiB share a chunk of 32 MiB, the next 20 MiB do not fit there, the last 2 MiB fill the hole.
    assert small[1] - small[0] == 2 * MIB and small[2] - small[0] == 32 * MIB and small[3] - small[0] == 22 * MIB
    assert all(address % (32 * MIB) == 0 for address in large)
    assert large == sorted(large, reverse=True) and large[0] - large[1] == 64 * MIB
    assert one["again"] == [large[0], small[1]]  # what was given back is used first


def test_an_occupied_address_is_flagged(run: Run) -> None:
    seen = run("""
        libc = ctypes.CDLL("libc.so.6")
        libc.mmap.restype = ctypes.c_void_p
        libc.mmap(ctypes.c_void_p(0x100000001000), ctypes.c_size_t(4096), 0, 0x32, -1, 0)
        p = ctypes.c_void_p()
        code = cuda.cudaMalloc(ctypes.byref(p), ctypes.c_size_t(1 << 20))
        report(code=code, fallback=cuda.oombisect_vgpu_address_fallback(), placed=bool(p.value))
    """).report
    assert seen == {"code": 0, "fallback": 1, "placed": True}


def test_no_address_space_ends_the_process_with_the_reason(run: Run) -> None:
    child = run("""
        import resource
        resource.setrlimit(resource.RLIMIT_AS, (1 << 36, 1 << 36))
        p = ctypes.c_void_p()
        cuda.cudaMalloc(ctypes.byref(p), ctypes.c_size_t(1 << 20))
        report()
    """)
    assert child.code == 86 and "ulimit -v" in child.err
