"""Fail closed, same twice, forked children, torch.compile, libraries opened by path."""

from __future__ import annotations

from pathlib import Path

import pytest

from oombisect.units import MIB
from oombisect.virtual_gpu.build import VirtualGpu

from .conftest import Run

pytestmark = pytest.mark.virtual_gpu


@pytest.mark.parametrize(
    ("call", "name"),
    [
        ("cuda.cudaMallocManaged(ctypes.byref(ctypes.c_void_p()), 4096, 1)", "cudaMallocManaged"),
        ("first('libcusolver.so.12', 'libcusolver.so.11').cusolverSpCreate(None)", "cusolverSpCreate"),
        ("ctypes.CDLL('libnvidia-ml.so.1').nvmlDeviceSetFanSpeed_v2(None, 0, 1)", "nvmlDeviceSetFanSpeed_v2"),
        ("ctypes.CDLL('libcuda.so.1').cuMemAdvise_v2(0, 0, 0, 0)", "cuMemAdvise_v2"),
        ("cuda.cuDeviceGetAttribute(ctypes.byref(ctypes.c_int()), 9999, 0)", "cuDeviceGetAttribute(attribute 9999)"),
        ("cuda.cudaDeviceGetAttribute(ctypes.byref(ctypes.c_int()), 92, 0)", "cudaDeviceGetAttribute(attribute 92)"),
        ("entry('cuMulticastCreate')(None, None)", "cuMulticastCreate"),
    ],
)  # fmt: skip
def test_what_nobody_stubbed_ends_the_process_by_name(run: Run, tmp_path: Path, call: str, name: str) -> None:
    child = run(
        f"""
        def first(*names):
            for name in names:
                try:
                    return ctypes.CDLL(name)
                except OSError:
                    continue
        def entry(wanted):
            pointer = ctypes.c_void_p()
            code = cuda.cuGetProcAddress_v2(wanted.encode(), ctypes.byref(pointer), 12080, ctypes.c_uint64(0), None)
            assert code == 0
            return ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)(pointer.value)
        {call}
        report()
        """,
        extra={"OOMBISECT_VGPU_ABORT_FILE": str(tmp_path / "abort")},
    )
    assert child.code == 86
    assert f"oombisect virtual GPU: {name} is not stubbed" in child.err
    assert (tmp_path / "abort").read_text() == f"{name}\n"


def test_torch_itself_is_ended_too(run: Run) -> None:
    """A real call from real PyTorch: sharing memory between processes is not simulated."""
    child = run("import torch\ntorch.ones(10, device='cuda').untyped_storage()._share_cuda_()\nreport()")
    assert child.code == 86 and "cudaIpcGetMemHandle is not stubbed" in child.err


def test_driver_functions_by_name(run: Run) -> None:
    """A name no driver of this version has is "not found"; a name with several ABIs leads to the one asked for."""
    seen = run("""
        def ask(name, version):
            pointer, result, flags = ctypes.c_void_p(), ctypes.c_int(-1), ctypes.c_uint64(0)
            code = cuda.cuGetProcAddress_v2(name, ctypes.byref(pointer), version, flags, ctypes.byref(result))
            return [code, result.value, pointer.value]
        at = lambda name: ctypes.cast(getattr(cuda, name), ctypes.c_void_p).value
        report(unknown=ask(b"cuInventedLater", 13000), old=ask(b"cuMemCreate", 9000),
               malloc=ask(b"cuMemAlloc", 12000)[2], malloc_is=at("cuMemAlloc_v2"),
               create=ask(b"cuMemCreate", 12000)[2], create_is=at("cuMemCreate"),
               capture=[ask(b"cuStreamGetCaptureInfo", v)[2] for v in (10010, 11030, 12030)],
               capture_is=[at(n) for n in ("cuStreamGetCaptureInfo", "cuStreamGetCaptureInfo_v2")])
    """).report
    assert seen["unknown"] == [500, 1, None] and seen["old"] == [500, 1, None]
    assert seen["malloc"] == seen["malloc_is"] and seen["create"] == seen["create_is"]
    assert seen["capture"][:2] == seen["capture_is"] and len(set(seen["capture"])) == 3


TRAINING = """
    import hashlib, torch
    torch.manual_seed(1)
    torch.cuda.memory._record_memory_history()
    model = torch.nn.Sequential(*[torch.nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True) for _ in range(3)])
    model = model.cuda().bfloat16()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    for _ in range(3):
        loss = model(torch.randn(4, 128, 256, device="cuda", dtype=torch.bfloat16)).float().pow(2).mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    snapshot = torch.cuda.memory._snapshot()
    events = [(e["action"], e["addr"], e["size"], e["stream"]) for e in snapshot["device_traces"][0]]
    stats = {k: v for k, v in torch.cuda.memory_stats().items()}
    report(events=len(events), digest=hashlib.sha256(repr(events).encode()).hexdigest(), stats=stats, loss=loss.item(),
           launches=figure("launches"), used=figure("used"), peak=figure("peak"))
"""


def test_two_runs_are_identical_to_the_last_address(run: Run) -> None:
    one, two = run(TRAINING).report, run(TRAINING).report
    assert one == two
    assert one["events"] > 500 and one["launches"] > 500 and one["loss"] == 0
    weights = 3 * (4 * 256 * 256 + 2 * 256 * 1024) * 2  # bytes of the matrices alone, bf16
    assert one["stats"]["allocated_bytes.all.peak"] > 4 * weights  # with gradients and two moments


def test_children_of_a_parent_that_only_imported_torch(run: Run) -> None:
    seen = run("""
        import torch
        counted = torch.cuda.device_count()
        results = []
        for size in (1, 2):
            read, write = os.pipe()
            if os.fork() == 0:
                x = torch.empty(size << 30, dtype=torch.uint8, device="cuda")
                y = torch.randn(64, 64, device="cuda", requires_grad=True)
                (y @ y).sum().backward()
                seen = [figure("used") - figure("context"), torch.cuda.memory_allocated()]
                os.write(write, json.dumps(seen).encode())
                os._exit(0)
            assert os.wait()[1] == 0
            results.append(json.loads(os.read(read, 1000)))
        report(counted=counted, results=results, parent=figure("used"))
    """).report
    assert seen["counted"] == 1 and seen["parent"] == 0
    (used_1, allocated_1), (used_2, allocated_2) = seen["results"]
    assert used_2 - used_1 == allocated_2 - allocated_1 == 1024 * MIB


def test_torch_compile_really_compiles(run: Run, tmp_path: Path) -> None:
    seen = run(
        """
        import torch
        from torch._dynamo.utils import counters
        @torch.compile
        def f(x, w):
            return torch.nn.functional.gelu(x @ w).sum(-1)
        x = torch.randn(128, 64, device="cuda", requires_grad=True)
        w = torch.randn(64, 64, device="cuda", requires_grad=True)
        f(x, w).sum().backward()
        report(graphs=counters["stats"]["unique_graphs"], launches=figure("launches"), grad=list(x.grad.shape))
        """,
        extra={"TRITON_CACHE_DIR": str(tmp_path / "triton"), "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "inductor")},
    ).report
    assert seen["graphs"] == 1 and seen["grad"] == [128, 64] and seen["launches"] > 3
    assert list((tmp_path / "triton").rglob("*.cubin")), "Triton compiled nothing"


def test_no_real_cuda_library_is_mapped(run: Run, virtual_gpu: VirtualGpu) -> None:
    """torch opens its CUDA libraries by path; each of these requests must end at the stand-in."""
    seen = run("""
        import torch
        import pathlib
        torch.zeros(1, device="cuda")
        real = pathlib.Path(torch.__file__).parent.parent / "nvidia"
        opened = [ctypes.CDLL(str(p))._name for p in sorted(real.rglob("libcudart.so.1?"))]
        maps = {line.split()[-1] for line in open("/proc/self/maps") if ".so" in line}
        report(opened=len(opened), real=sorted(m for m in maps if m.startswith(str(real))),
               ours=sum("oombisect" in m or "virtual-gpu" in m for m in maps))
    """).report
    assert seen["opened"] >= 1 and seen["real"] == []
    assert seen["ours"] > 10
    assert (virtual_gpu.directory / "libcuda.so.1").is_file()
