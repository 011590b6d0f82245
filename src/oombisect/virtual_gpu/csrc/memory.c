/* Device memory: the runtime's allocations, the driver's virtual memory management, and questions about pointers. */
#include "vgpu.h"

#include <stdio.h>

static VgpuTable allocations; /* address -> bytes, device */
static VgpuTable reservations; /* address -> bytes */
static VgpuTable mappings;    /* address -> bytes, physical handle */
static VgpuTable physicals;   /* handle -> bytes, device << 32 | references */

static u64 address_of(const void *pointer) { return (u64)(uintptr_t)pointer; }
static int current_physical(void) { return vgpu_physical(vgpu_current_device()); }

/* ---- plain allocations: the runtime's and the driver's ---- */

static bool allocate(u64 bytes, u64 *address)
{
    int device = current_physical();
    vgpu_lock();
    bool taken = vgpu_take(device, bytes);
    *address = taken ? vgpu_address_take(device, bytes, GRANULE) : 0;
    if (taken && !*address) vgpu_give(device, bytes);
    if (*address) vgpu_table_put(&allocations, *address, bytes, (u64)device);
    vgpu_unlock();
    return *address != 0;
}

static bool release(u64 address)
{
    VgpuEntry entry;
    vgpu_lock();
    bool found = vgpu_table_remove(&allocations, address, &entry);
    if (found) {
        vgpu_give((int)entry.extra, entry.value);
        vgpu_address_give(address, entry.value);
    }
    vgpu_unlock();
    if (found) vgpu_known_write(address, NULL, entry.value);
    return found;
}

cudaError_t cudaMalloc(void **pointer, size_t bytes)
{
    vgpu_use_context();
    u64 address = 0;
    *pointer = NULL;
    if (bytes && !allocate(bytes, &address)) return vgpu_fail(cudaErrorMemoryAllocation);
    *pointer = (void *)(uintptr_t)address;
    return cudaSuccess;
}

cudaError_t cudaFree(void *pointer)
{
    vgpu_use_context();
    return !pointer || release(address_of(pointer)) ? cudaSuccess : vgpu_fail(cudaErrorInvalidValue);
}

cudaError_t cudaMallocAsync(void **pointer, size_t bytes, cudaStream_t stream)
{
    vgpu_stream_node(stream);
    return cudaMalloc(pointer, bytes);
}

cudaError_t cudaFreeAsync(void *pointer, cudaStream_t stream)
{
    vgpu_stream_node(stream);
    return cudaFree(pointer);
}

CUresult cuMemAlloc(CUdeviceptr *pointer, size_t bytes)
{
    if (!bytes) return CUDA_ERROR_INVALID_VALUE;
    vgpu_use_context();
    u64 address = 0;
    if (!allocate(bytes, &address)) return CUDA_ERROR_OUT_OF_MEMORY;
    *pointer = address;
    return CUDA_SUCCESS;
}

CUresult cuMemFree(CUdeviceptr pointer)
{
    return !pointer || release(pointer) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static void memory_info(size_t *free_bytes, size_t *total)
{
    vgpu_use_context();
    VgpuAccount account = vgpu_account(current_physical());
    u64 used = account.allocated + account.context, all = vgpu_profile()->total_bytes;
    *free_bytes = used < all ? all - used : 0;
    *total = all;
}

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total)
{
    memory_info(free_bytes, total);
    return cudaSuccess;
}

CUresult cuMemGetInfo(size_t *free_bytes, size_t *total)
{
    memory_info(free_bytes, total);
    return CUDA_SUCCESS;
}

/* ---- virtual memory management: what expandable segments are made of ---- */

CUresult cuMemGetAllocationGranularity(size_t *granularity, const CUmemAllocationProp *prop,
                                       CUmemAllocationGranularity_flags option)
{
    (void)prop, (void)option;
    *granularity = GRANULE;
    return CUDA_SUCCESS;
}

CUresult cuMemAddressReserve(CUdeviceptr *pointer, size_t bytes, size_t alignment, CUdeviceptr wanted, unsigned long long flags)
{
    (void)wanted, (void)flags; /* the wanted address is a hint only */
    if (!bytes || bytes % GRANULE) return CUDA_ERROR_INVALID_VALUE;
    vgpu_lock();
    u64 address = vgpu_address_take(current_physical(), bytes, alignment);
    if (address) vgpu_table_put(&reservations, address, bytes, 0);
    vgpu_unlock();
    *pointer = address;
    return address ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuMemAddressFree(CUdeviceptr pointer, size_t bytes)
{
    VgpuEntry entry;
    vgpu_lock();
    VgpuEntry *found = vgpu_table_find(&reservations, pointer);
    bool right = found && found->value == bytes && vgpu_table_remove(&reservations, pointer, &entry);
    if (right) vgpu_address_give(pointer, bytes);
    vgpu_unlock();
    return right ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t bytes, const CUmemAllocationProp *prop, unsigned long long flags)
{
    (void)flags;
    if (prop->type != CU_MEM_ALLOCATION_TYPE_PINNED)
        vgpu_unstubbed_number("cuMemCreate", "allocation type", prop->type);
    if (prop->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
        vgpu_unstubbed_number("cuMemCreate", "location type", prop->location.type);
    if (!bytes || bytes % GRANULE) return CUDA_ERROR_INVALID_VALUE;
    if ((int)prop->requestedHandleTypes & CU_MEM_HANDLE_TYPE_FABRIC) return CUDA_ERROR_NOT_PERMITTED; /* no IMEX channel */
    if (prop->location.id < 0 || prop->location.id >= vgpu_visible_count()) return CUDA_ERROR_INVALID_DEVICE;
    int device = vgpu_physical(prop->location.id);
    vgpu_ensure_context(device);
    vgpu_lock();
    bool taken = vgpu_take(device, bytes);
    if (taken) {
        *handle = vgpu_next_handle();
        vgpu_table_put(&physicals, *handle, bytes, (u64)device << 32 | 1);
    }
    vgpu_unlock();
    return taken ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* Caller holds the lock. Physical memory lives as long as its handle or any mapping of it. */
static bool drop_reference(u64 handle)
{
    VgpuEntry *entry = vgpu_table_find(&physicals, handle);
    if (!entry) return false;
    if ((--entry->extra & 0xffffffff) == 0) {
        vgpu_give((int)(entry->extra >> 32), entry->value);
        vgpu_table_remove(&physicals, handle, NULL);
    }
    return true;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
    vgpu_lock();
    bool found = drop_reference(handle);
    vgpu_unlock();
    return found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemMap(CUdeviceptr pointer, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle, unsigned long long flags)
{
    (void)flags;
    vgpu_lock();
    VgpuEntry *physical = vgpu_table_find(&physicals, handle);
    bool right = physical && !offset && bytes && bytes <= physical->value && !vgpu_table_find(&mappings, pointer) &&
                 vgpu_is_device_address((void *)(uintptr_t)pointer);
    if (right) {
        physical->extra++;
        vgpu_table_put(&mappings, pointer, bytes, handle);
    }
    vgpu_unlock();
    return right ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemUnmap(CUdeviceptr pointer, size_t bytes)
{
    u64 cursor = pointer, end = pointer + bytes;
    vgpu_lock();
    while (cursor < end) {
        VgpuEntry entry;
        if (!vgpu_table_remove(&mappings, cursor, &entry)) break;
        drop_reference(entry.extra);
        cursor += entry.value;
    }
    vgpu_unlock();
    vgpu_known_write(pointer, NULL, bytes);
    return cursor == end ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemSetAccess(CUdeviceptr pointer, size_t bytes, const CUmemAccessDesc *access, size_t count)
{
    (void)pointer, (void)bytes, (void)access, (void)count;
    return CUDA_SUCCESS;
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *pointer)
{
    vgpu_lock();
    VgpuEntry *mapping = vgpu_table_find(&mappings, address_of(pointer));
    VgpuEntry *physical = mapping ? vgpu_table_find(&physicals, mapping->extra) : NULL;
    if (physical) physical->extra++, *handle = physical->key;
    vgpu_unlock();
    return physical ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* ---- pinned host memory ---- */

cudaError_t cudaHostAlloc(void **pointer, size_t bytes, unsigned int flags)
{
    (void)flags;
    vgpu_use_context();
    *pointer = bytes ? vgpu_host_alloc(bytes) : NULL;
    return *pointer || !bytes ? cudaSuccess : vgpu_fail(cudaErrorMemoryAllocation);
}

cudaError_t cudaMallocHost(void **pointer, size_t bytes) { return cudaHostAlloc(pointer, bytes, 0); }

cudaError_t cudaFreeHost(void *pointer)
{
    return !pointer || vgpu_host_free(pointer) ? cudaSuccess : vgpu_fail(cudaErrorInvalidValue);
}

cudaError_t cudaHostRegister(void *pointer, size_t bytes, unsigned int flags)
{
    (void)flags;
    vgpu_use_context();
    if (!pointer || !bytes) return vgpu_fail(cudaErrorInvalidValue);
    return vgpu_host_register(pointer, bytes) ? cudaSuccess : vgpu_fail(cudaErrorHostMemoryAlreadyRegistered);
}

cudaError_t cudaHostUnregister(void *pointer)
{
    return vgpu_host_unregister(pointer) ? cudaSuccess : vgpu_fail(cudaErrorHostMemoryNotRegistered);
}

cudaError_t cudaHostGetDevicePointer(void **device, void *host, unsigned int flags)
{
    (void)flags;
    *device = host;
    return vgpu_host_block(host, NULL, NULL, NULL) ? cudaSuccess : vgpu_fail(cudaErrorInvalidValue);
}

/* ---- whose memory is it ---- */

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *attributes, const void *pointer)
{
    memset(attributes, 0, sizeof *attributes);
    bool host = vgpu_host_block(pointer, NULL, NULL, NULL);
    if (vgpu_is_device_address(pointer)) {
        attributes->type = cudaMemoryTypeDevice;
        attributes->device = vgpu_ordinal(vgpu_device_of_address(address_of(pointer)));
        attributes->devicePointer = (void *)pointer;
    } else {
        attributes->type = host ? cudaMemoryTypeHost : cudaMemoryTypeUnregistered;
        attributes->device = host ? vgpu_current_device() : -2; /* cudaInvalidDeviceId */
        attributes->hostPointer = host ? (void *)pointer : NULL;
        attributes->devicePointer = host ? (void *)pointer : NULL;
    }
    return cudaSuccess;
}

CUresult cuPointerGetAttribute(void *value, CUpointer_attribute attribute, CUdeviceptr pointer)
{
    const void *address = (const void *)(uintptr_t)pointer;
    bool host = vgpu_host_block(address, NULL, NULL, NULL);
    if (!vgpu_is_device_address(address) && !host) return CUDA_ERROR_INVALID_VALUE;
    switch (attribute) {
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE: *(unsigned *)value = host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE; break;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER: *(CUdeviceptr *)value = pointer; break;
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
        if (!host) return CUDA_ERROR_INVALID_VALUE;
        *(const void **)value = address;
        break;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: 
        *(int *)value = host ? vgpu_current_device() : vgpu_ordinal(vgpu_device_of_address(pointer));
        break;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED: *(unsigned char *)value = 0; break;
    case CU_POINTER_ATTRIBUTE_CONTEXT: return cuCtxGetCurrent((CUcontext *)value);
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS: *(unsigned *)value = 0; break;
    default: vgpu_unstubbed_number("cuPointerGetAttribute", "attribute", attribute);
    }
    return CUDA_SUCCESS;
}
