"""The driver's virtual memory management and plain allocations, called directly, against a model in Python."""

from __future__ import annotations

import pytest

from oombisect.units import MIB

from .conftest import Run

pytestmark = pytest.mark.virtual_gpu

DRIVER = """
    import random, threading
    MIB, OK, INVALID, NO_MEMORY = 1 << 20, 0, 1, 2
    u64 = ctypes.c_uint64

    class Property(ctypes.Structure):
        _fields_ = [("type", ctypes.c_int), ("handle_types", ctypes.c_int), ("location_type", ctypes.c_int),
                    ("device", ctypes.c_int), ("rest", ctypes.c_char * 64)]

    def reserve(size, alignment=0):
        address = u64()
        return cuda.cuMemAddressReserve(ctypes.byref(address), u64(size), u64(alignment), u64(0), u64(0)), address.value

    def create(size):
        handle = u64()
        wanted = Property(type=1, location_type=1, device=0)
        return cuda.cuMemCreate(ctypes.byref(handle), u64(size), ctypes.byref(wanted), u64(0)), handle.value

    def map_(address, size, handle, offset=0):
        return cuda.cuMemMap(u64(address), u64(size), u64(offset), u64(handle), u64(0))

    unmap = lambda address, size: cuda.cuMemUnmap(u64(address), u64(size))
    release = lambda handle: cuda.cuMemRelease(u64(handle))
    taken = lambda: figure("used") - figure("context")

    def malloc(size):
        pointer = ctypes.c_void_p()
        return cuda.cudaMalloc(ctypes.byref(pointer), ctypes.c_size_t(size)), pointer.value or 0

    free = lambda address: cuda.cudaFree(ctypes.c_void_p(address))
"""


def test_physical_memory_lives_as_long_as_its_handle_or_a_mapping(run: Run) -> None:
    seen = run(
        DRIVER
        + """
    size = 20 * MIB
    _, range_ = reserve(5 * size)
    _, handle = create(size)
    steps = [taken()]
    codes = {"map": map_(range_, size, handle), "twice": map_(range_, size, handle),
             "outside": map_(4096, size, handle), "bad handle": map_(range_ + size, size, 12345)}
    codes["release"] = release(handle); steps.append(taken())
    retained = u64()
    codes["retain"] = cuda.cuMemRetainAllocationHandle(ctypes.byref(retained), ctypes.c_void_p(range_))
    codes["unmap"] = unmap(range_, size); steps.append(taken())
    codes["release again"] = release(retained.value); steps.append(taken())
    codes["release once more"] = release(retained.value)
    _, a = create(size); _, b = create(size)
    map_(range_, size, a); map_(range_ + size, size, b); release(a); release(b)
    steps.append(taken())
    codes["unmap both"] = unmap(range_, 2 * size); steps.append(taken())
    codes["unmap nothing"] = unmap(range_, size)
    codes["free wrong size"] = cuda.cuMemAddressFree(u64(range_), u64(size))
    codes["free"] = cuda.cuMemAddressFree(u64(range_), u64(5 * size))
    codes["odd size"] = create(size + 1)[0]
    report(steps=steps, codes=codes, same=retained.value == handle)
    """
    ).report
    size = 20 * MIB
    assert seen["steps"] == [size, size, size, 0, 2 * size, 0] and seen["same"]
    refused = {"twice", "outside", "bad handle", "release once more", "unmap nothing", "free wrong size", "odd size"}
    assert {name for name, code in seen["codes"].items() if code == 1} == refused
    assert all(code == 0 for name, code in seen["codes"].items() if name not in refused)


def test_a_context_is_charged_once_and_when_it_is_made(run: Run) -> None:
    seen = run(
        DRIVER
        + """
    steps = [figure("used")]
    flags, active = ctypes.c_uint(), ctypes.c_int(-1)
    cuda.cuDevicePrimaryCtxGetState(0, ctypes.byref(flags), ctypes.byref(active))
    cuda.cuInit(0); reserve(2 * MIB); steps.append(figure("used"))
    context = ctypes.c_void_p()
    cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0); steps.append(figure("used"))
    cuda.cuCtxSetCurrent(context); malloc(0); free(0); cuda.cudaDeviceSynchronize(); steps.append(figure("used"))
    before = active.value
    cuda.cuDevicePrimaryCtxGetState(0, ctypes.byref(flags), ctypes.byref(active))
    report(steps=steps, active=[before, active.value], context=figure("context"))
    """
    ).report
    assert seen["steps"] == [0, 0, 522 * MIB, 522 * MIB] and seen["active"] == [0, 1]


def test_random_allocations_never_overlap_and_are_counted_exactly(run: Run) -> None:
    seen = run(
        DRIVER
        + """
    rng = random.Random(7)
    limit = 4 << 30
    cuda.oombisect_vgpu_set_limit(u64(limit))
    malloc(1); live, model, peak, refused, problems = {}, 0, 0, 0, []
    live[0] = None; live.clear(); cuda.cudaDeviceSynchronize()
    first = taken()
    up = lambda n: (n + 2 * MIB - 1) // (2 * MIB) * 2 * MIB
    for step in range(6000):
        if live and rng.random() < 0.47:
            address = rng.choice(sorted(live))
            model -= up(live.pop(address))
            if free(address) != OK: problems.append(("free", step))
        else:
            size = int(2 ** rng.uniform(0, 30))
            code, address = malloc(size)
            fits = first + model + up(size) + figure("context") <= limit
            if (code == OK) != fits: problems.append(("fit", step, code, size))
            if code == OK:
                model += up(size); live[address] = size
                if address % (2 * MIB) or (size >= 32 * MIB and address % (32 * MIB)): problems.append(("align", step))
                for other, length in live.items():
                    if other != address and other < address + up(size) and address < other + up(length):
                        problems.append(("overlap", step))
            else:
                refused += 1
        if taken() != first + model: problems.append(("count", step))
        if problems: break
    for address in list(live): free(address)
    report(problems=problems, refused=refused, left=taken() - first)
    """
    ).report
    assert seen["problems"] == [] and seen["left"] == 0
    assert seen["refused"] > 50, "the limit was never felt"


def test_many_threads(run: Run) -> None:
    seen = run(
        DRIVER
        + """
    malloc(0); errors = []
    def work(seed):
        rng = random.Random(seed)
        mine = []
        value = ctypes.c_int()
        for step in range(1500):
            code, address = malloc(rng.randint(1, 50 * MIB))
            if code != OK: errors.append(code)
            mine.append(address)
            stamp = ctypes.c_int(seed * 10000 + step)
            cuda.cudaMemcpy(ctypes.c_void_p(address), ctypes.byref(stamp), ctypes.c_size_t(4), 1)
            cuda.cudaMemcpy(ctypes.byref(value), ctypes.c_void_p(address), ctypes.c_size_t(4), 2)
            if value.value not in (stamp.value, 0): errors.append((stamp.value, value.value))
            if len(mine) > 20: errors.extend(filter(None, [free(mine.pop(rng.randrange(20)))]))
        errors.extend(filter(None, [free(a) for a in mine]))
    threads = [threading.Thread(target=work, args=(n,)) for n in range(1, 5)]
    for t in threads: t.start()
    for t in threads: t.join()
    report(errors=errors[:5], left=taken())
    """
    ).report
    assert seen == {"errors": [], "left": 0}
