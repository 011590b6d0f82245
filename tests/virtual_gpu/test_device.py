"""What CUDA, the driver and NVML say about the device."""

from __future__ import annotations

import pytest

from oombisect.units import MIB
from oombisect.virtual_gpu.profiles import CAPABILITY_LIMITS, PROFILES

from .conftest import Run

pytestmark = pytest.mark.virtual_gpu

# CUdevice_attribute numbers of cuda.h.
SM_COUNT, MAJOR, MINOR, L2, BUS, CLOCK, MEMORY_CLOCK = 16, 75, 76, 38, 37, 13, 36
SHARED_PER_SM, SHARED_OPTIN, THREADS_PER_SM, BLOCKS_PER_SM = 81, 97, 39, 106

DRIVER = f"""
    def attribute(number):
        value = ctypes.c_int(-1)
        assert cuda.cuDeviceGetAttribute(ctypes.byref(value), number, 0) == 0
        return value.value
    total = ctypes.c_size_t()
    name = ctypes.create_string_buffer(256)
    assert cuda.cuInit(0) == 0
    assert cuda.cuDeviceTotalMem_v2(ctypes.byref(total), 0) == 0
    assert cuda.cuDeviceGetName(name, 256, 0) == 0
    report(total=total.value, name=name.value.decode(), context=figure("context"), used=figure("used"),
           attributes=[attribute(n) for n in {
    [SM_COUNT, MAJOR, MINOR, L2, BUS, CLOCK, MEMORY_CLOCK, SHARED_PER_SM, SHARED_OPTIN, THREADS_PER_SM, BLOCKS_PER_SM]
}])
"""


@pytest.mark.parametrize("name", sorted(PROFILES))
def test_the_driver_describes_each_profile(run: Run, name: str) -> None:
    profile = PROFILES[name]
    limits = CAPABILITY_LIMITS[profile.compute_capability]
    seen = run(DRIVER, gpu=f"virtual:{name}").report
    assert (seen["name"], seen["total"]) == (profile.marketing_name, profile.total_bytes)
    assert seen["attributes"] == [
        profile.sm_count, *profile.compute_capability, profile.l2_bytes, profile.memory_bus_bits, profile.clock_khz,
        profile.memory_clock_khz, limits.shared_per_sm_bytes, limits.shared_optin_bytes, limits.threads_per_sm,
        limits.blocks_per_sm,
    ]  # fmt: skip
    assert seen["context"] == seen["used"] == 0  # asking costs no memory


@pytest.mark.parametrize("gpu", ["virtual:a100-40gb", "virtual:60000MiB"])
def test_torch_sees_the_same(run: Run, gpu: str) -> None:
    seen = run(
        """
        import torch
        counted = torch.cuda.device_count()
        before = figure("used")
        p = torch.cuda.get_device_properties(0)
        free, total = torch.cuda.mem_get_info()
        report(counted=counted, before=before, name=p.name, total=p.total_memory, info=[free, total],
               sms=p.multi_processor_count, capability=list(torch.cuda.get_device_capability()),
               uuid=str(p.uuid), used=figure("used"), context=figure("context"), simulated=figure("limit"))
        """,
        gpu=gpu,
    ).report
    expected = PROFILES["a100-40gb"].total_bytes if "a100" in gpu else 60000 * MIB
    context = PROFILES["a100-40gb" if "a100" in gpu else "h100-80gb"].context_bytes
    assert (seen["counted"], seen["before"]) == (1, 0)
    assert seen["total"] == seen["info"][1] == expected
    assert seen["info"][1] - seen["info"][0] == seen["used"] == seen["context"] == context
    assert seen["sms"] == (108 if "a100" in gpu else 132)
    assert seen["capability"] == ([8, 0] if "a100" in gpu else [9, 0])


NVML = """
    import torch
    try:
        import pynvml as n
    except ImportError:
        report(missing=True)
    n.nvmlInit()
    count = n.nvmlDeviceGetCount()
    def look(i):
        h = n.nvmlDeviceGetHandleByIndex(i)
        v1, v2 = n.nvmlDeviceGetMemoryInfo(h), n.nvmlDeviceGetMemoryInfo(h, version=n.nvmlMemory_v2)
        return dict(name=n.nvmlDeviceGetName(h), uuid=n.nvmlDeviceGetUUID(h), index=n.nvmlDeviceGetIndex(h),
                    capability=list(n.nvmlDeviceGetCudaComputeCapability(h)), v1=[v1.total, v1.used, v1.free],
                    v2=[v2.total, v2.reserved, v2.used, v2.free], bus=n.nvmlDeviceGetPciInfo(h).busId,
                    processes=[[p.pid, p.usedGpuMemory] for p in n.nvmlDeviceGetComputeRunningProcesses(h)])
    before = look(count - 1)
    torch.cuda.set_device(count - 1)
    x = torch.empty(3 << 30, dtype=torch.uint8, device="cuda")
    free, total = torch.cuda.mem_get_info()
    by_uuid = n.nvmlDeviceGetIndex(n.nvmlDeviceGetHandleByUUID(before["uuid"]))
    by_bus = n.nvmlDeviceGetIndex(n.nvmlDeviceGetHandleByPciBusId(before["bus"]))
    try:
        n.nvmlDeviceGetHandleByIndex(count)
        beyond = "found"
    except n.NVMLError_InvalidArgument:
        beyond = "invalid"
    fabric = n.c_nvmlGpuFabricInfoV_t()
    n.nvmlDeviceGetGpuFabricInfoV(n.nvmlDeviceGetHandleByIndex(0), ctypes.byref(fabric))
    report(missing=False, pid=os.getpid(), count=count, before=before, after=look(count - 1), first=look(0),
           by_uuid=by_uuid, by_bus=by_bus, beyond=beyond, taken=total - free,
           torch_used=torch.cuda.device_memory_used(), cluster=list(fabric.clusterUuid),
           torch_uuid="GPU-" + str(torch.cuda.get_device_properties(count - 1).uuid))
"""


def test_nvml_agrees_with_cuda_on_every_device(run: Run) -> None:
    seen = run(NVML, devices=3).report
    if seen["missing"]:
        pytest.skip("nvidia-ml-py is not installed")
    h100 = PROFILES["h100-80gb"]
    driver = h100.nvml_total_bytes - h100.total_bytes
    before, after, first = seen["before"], seen["after"], seen["first"]
    assert seen["count"] == 3 and after["index"] == 2 and seen["beyond"] == "invalid"
    assert after["name"] == h100.marketing_name and after["capability"] == [9, 0]
    assert seen["torch_uuid"] == after["uuid"] != first["uuid"]
    assert seen["by_uuid"] == seen["by_bus"] == 2
    assert before["v2"][2] == 0 and before["processes"] == []
    used = h100.context_bytes + (3 << 30)
    assert seen["taken"] == used
    assert after["v2"] == [h100.nvml_total_bytes, driver, used, h100.total_bytes - used]
    assert (
        after["v1"] == [h100.nvml_total_bytes, used + driver, h100.total_bytes - used]
        and seen["torch_used"] == used + driver
    )
    assert after["processes"] == [[seen["pid"], used]]
    assert first["processes"] == [] and first["v2"][2] == 0  # the other devices are idle
    assert not any(seen["cluster"])  # one server


def test_an_address_tells_its_device(run: Run) -> None:
    seen = run(
        """
        import torch
        blocks = [torch.empty(n << 20, dtype=torch.uint8, device=f"cuda:{i}") for i in (0, 1) for n in (1, 100)]
        class Attributes(ctypes.Structure):
            _fields_ = [("type", ctypes.c_int), ("device", ctypes.c_int), ("rest", ctypes.c_long * 10)]
        def device(pointer):
            found = Attributes()
            assert cuda.cudaPointerGetAttributes(ctypes.byref(found), ctypes.c_void_p(pointer)) == 0
            return [found.type, found.device]
        used = []
        for i in (0, 1):
            torch.cuda.set_device(i)
            used.append(figure("used") - figure("context"))
        report(owners=[device(b.data_ptr() + 5) for b in blocks], used=used)
        """,
        devices=3,
        extra={"CUDA_VISIBLE_DEVICES": "2,1"},
    ).report
    assert seen["owners"] == [[2, 0], [2, 0], [2, 1], [2, 1]]
    assert seen["used"] == [102 * MIB, 102 * MIB]


def test_visible_devices(run: Run) -> None:
    script = """
        import torch
        torch.cuda.init() if torch.cuda.device_count() else None
        n = torch.cuda.device_count()
        report(n=n, uuids=[str(torch.cuda.get_device_properties(i).uuid)[-2:] for i in range(n)])
    """
    assert run(script, devices=4, extra={"CUDA_VISIBLE_DEVICES": "2,0"}).report == {"n": 2, "uuids": ["02", "00"]}
    assert run(script, devices=4, extra={"CUDA_VISIBLE_DEVICES": ""}).report == {"n": 0, "uuids": []}
