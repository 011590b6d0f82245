/* Devices, contexts, properties and attributes. */
#include "vgpu.h"

#include <stdio.h>

static pthread_once_t visible_once = PTHREAD_ONCE_INIT;
static int visible[VGPU_MAX_DEVICES], visible_count;
static __thread int current_device;
static __thread CUcontext current_context;

/* CUDA_VISIBLE_DEVICES: ordinals up to the first one that does not exist; UUIDs are not understood. */
static void read_visible(void)
{
    const char *text = getenv("CUDA_VISIBLE_DEVICES");
    int devices = vgpu_profile()->devices;
    if (!text) {
        for (visible_count = 0; visible_count < devices; visible_count++) visible[visible_count] = visible_count;
        return;
    }
    while (*text && visible_count < devices) {
        char *end;
        long ordinal = strtol(text, &end, 10);
        if (end == text || ordinal < 0 || ordinal >= devices) return;
        visible[visible_count++] = (int)ordinal;
        text = *end == ',' ? end + 1 : end;
        if (*end && *end != ',') return;
    }
}

int vgpu_visible_count(void)
{
    pthread_once(&visible_once, read_visible);
    return visible_count;
}

int vgpu_physical(int ordinal) { return ordinal < vgpu_visible_count() ? visible[ordinal] : 0; }
int vgpu_current_device(void) { return current_device; }

int vgpu_ordinal(int physical)
{
    for (int ordinal = 0; ordinal < vgpu_visible_count(); ordinal++)
        if (visible[ordinal] == physical) return ordinal;
    return -1;
}


void vgpu_uuid(int physical, unsigned char out[16])
{
    memset(out, 0, 16);
    memcpy(out, "oombisect-vgpu", 14);
    out[15] = (unsigned char)physical;
}

/* The primary context of a device: a handle nobody looks into. */
static CUcontext context_of(int ordinal) { return (CUcontext)(uintptr_t)(0x100 + 16 * (u64)ordinal); }
static int ordinal_of(CUcontext context) { return (int)(((u64)(uintptr_t)context - 0x100) / 16); }

void vgpu_use_context(void)
{
    vgpu_ensure_context(vgpu_physical(current_device));
    if (!current_context) current_context = context_of(current_device);
}

/* ---- the runtime's device management ---- */

cudaError_t cudaGetDeviceCount(int *count)
{
    *count = vgpu_visible_count();
    return *count ? cudaSuccess : vgpu_fail(cudaErrorNoDevice);
}

cudaError_t cudaGetDevice(int *device)
{
    if (!vgpu_visible_count()) return vgpu_fail(cudaErrorNoDevice);
    *device = current_device;
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int device)
{
    if (device < 0 || device >= vgpu_visible_count()) return vgpu_fail(cudaErrorInvalidDevice);
    current_device = device;
    current_context = context_of(device);
    vgpu_use_context(); /* since CUDA 12 setting the device creates its context */
    return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int *version)
{
    *version = CUDA_VERSION;
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *version)
{
    *version = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize(void)
{
    vgpu_use_context();
    return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char *text, int length, int device)
{
    if (device < 0 || device >= vgpu_visible_count()) return vgpu_fail(cudaErrorInvalidDevice);
    snprintf(text, (size_t)length, "0000:%02X:00.0", 1 + vgpu_physical(device));
    return cudaSuccess;
}

cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer)
{
    *can = device != peer;
    return cudaSuccess;
}

cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned int flags)
{
    (void)peer, (void)flags;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    if (least) *least = 0;
    if (greatest) *greatest = -5;
    return cudaSuccess;
}

/* ---- attributes ---- */

static bool attribute_value(int attribute, int ordinal, int *value)
{
    const VgpuProfile *p = vgpu_profile();
    int hopper = p->major >= 9, ampere = p->major >= 8;
    switch (attribute) {
    case cudaDevAttrMaxThreadsPerBlock: *value = 1024; break;
    case cudaDevAttrMaxBlockDimX: *value = 1024; break;
    case cudaDevAttrMaxBlockDimY: *value = 1024; break;
    case cudaDevAttrMaxBlockDimZ: *value = 64; break;
    case cudaDevAttrMaxGridDimX: *value = 2147483647; break;
    case cudaDevAttrMaxGridDimY: *value = 65535; break;
    case cudaDevAttrMaxGridDimZ: *value = 65535; break;
    case cudaDevAttrMaxSharedMemoryPerBlock: *value = 48 << 10; break;
    case cudaDevAttrTotalConstantMemory: *value = 64 << 10; break;
    case cudaDevAttrWarpSize: *value = 32; break;
    case cudaDevAttrMaxPitch: *value = 2147483647; break;
    case cudaDevAttrMaxRegistersPerBlock: *value = 65536; break;
    case cudaDevAttrClockRate: *value = p->clock_khz; break;
    case cudaDevAttrTextureAlignment: *value = 512; break;
    case cudaDevAttrGpuOverlap: *value = 1; break;
    case cudaDevAttrMultiProcessorCount: *value = p->sm_count; break;
    case cudaDevAttrKernelExecTimeout: *value = 0; break;
    case cudaDevAttrIntegrated: *value = 0; break;
    case cudaDevAttrCanMapHostMemory: *value = 1; break;
    case cudaDevAttrComputeMode: *value = cudaComputeModeDefault; break;
    case cudaDevAttrSurfaceAlignment: *value = 512; break;
    case cudaDevAttrConcurrentKernels: *value = 1; break;
    case cudaDevAttrEccEnabled: *value = 1; break;
    case cudaDevAttrPciBusId: *value = 1 + vgpu_physical(ordinal); break;
    case cudaDevAttrPciDeviceId: *value = 0; break;
    case cudaDevAttrPciDomainId: *value = 0; break;
    case cudaDevAttrTccDriver: *value = 0; break;
    case cudaDevAttrMemoryClockRate: *value = p->memory_clock_khz; break;
    case cudaDevAttrGlobalMemoryBusWidth: *value = p->memory_bus_bits; break;
    case cudaDevAttrL2CacheSize: *value = (int)p->l2_bytes; break;
    case cudaDevAttrMaxThreadsPerMultiProcessor: *value = p->threads_per_sm; break;
    case cudaDevAttrAsyncEngineCount: *value = 3; break;
    case cudaDevAttrUnifiedAddressing: *value = 1; break;
    case cudaDevAttrTexturePitchAlignment: *value = 32; break;
    case cudaDevAttrComputeCapabilityMajor: *value = p->major; break;
    case cudaDevAttrComputeCapabilityMinor: *value = p->minor; break;
    case cudaDevAttrStreamPrioritiesSupported: *value = 1; break;
    case cudaDevAttrGlobalL1CacheSupported: *value = 1; break;
    case cudaDevAttrLocalL1CacheSupported: *value = 1; break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor: *value = (int)p->shared_per_sm_bytes; break;
    case cudaDevAttrMaxRegistersPerMultiprocessor: *value = 65536; break;
    case cudaDevAttrManagedMemory: *value = 1; break;
    case cudaDevAttrIsMultiGpuBoard: *value = 0; break;
    case cudaDevAttrMultiGpuBoardGroupID: *value = ordinal; break;
    case cudaDevAttrHostNativeAtomicSupported: *value = 0; break;
    case cudaDevAttrSingleToDoublePrecisionPerfRatio: *value = 2; break;
    case cudaDevAttrPageableMemoryAccess: *value = 0; break;
    case cudaDevAttrConcurrentManagedAccess: *value = 1; break;
    case cudaDevAttrComputePreemptionSupported: *value = 1; break;
    case cudaDevAttrCanUseHostPointerForRegisteredMem: *value = 1; break;
    case cudaDevAttrCooperativeLaunch: *value = 1; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = (int)p->shared_optin_bytes; break;
    case cudaDevAttrCanFlushRemoteWrites: *value = 0; break;
    case cudaDevAttrHostRegisterSupported: *value = 1; break;
    case cudaDevAttrPageableMemoryAccessUsesHostPageTables: *value = 0; break;
    case cudaDevAttrDirectManagedMemAccessFromHost: *value = 0; break;
    case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED: *value = 1; break;
    case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED: *value = 1; break;
    case cudaDevAttrMaxBlocksPerMultiprocessor: *value = p->blocks_per_sm; break;
    case cudaDevAttrReservedSharedMemoryPerBlock: *value = ampere ? 1 << 10 : 0; break;
    case cudaDevAttrSparseCudaArraySupported: *value = 1; break;
    case cudaDevAttrMemoryPoolsSupported: *value = 1; break;
    case cudaDevAttrGPUDirectRDMASupported: *value = 0; break;
    case CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED: *value = 0; break;
    case cudaDevAttrClusterLaunch: *value = hopper; break;
    case cudaDevAttrIpcEventSupport: *value = 1; break;
    case CU_DEVICE_ATTRIBUTE_TENSOR_MAP_ACCESS_SUPPORTED: *value = hopper; break;
    case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED: *value = 0; break;
    case CU_DEVICE_ATTRIBUTE_UNIFIED_FUNCTION_POINTERS: *value = 0; break;
    case CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED: *value = 0; break;
    case CU_DEVICE_ATTRIBUTE_MPS_ENABLED: *value = 0; break;
    case CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID: *value = 0; break;
    default: return false;
    }
    return true;
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device)
{
    if (device < 0 || device >= vgpu_visible_count()) return vgpu_fail(cudaErrorInvalidDevice);
    if (!attribute_value((int)attribute, device, value))
        vgpu_unstubbed_number("cudaDeviceGetAttribute", "attribute", attribute);
    return cudaSuccess;
}

static int attribute(enum cudaDeviceAttr which, int device)
{
    int value = 0;
    cudaDeviceGetAttribute(&value, which, device);
    return value;
}

/* In CUDA 12 the header renames this function to cudaGetDeviceProperties_v2. */
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int device)
{
    if (device < 0 || device >= vgpu_visible_count()) return vgpu_fail(cudaErrorInvalidDevice);
    const VgpuProfile *profile = vgpu_profile();
    memset(p, 0, sizeof *p);
    strcpy(p->name, profile->name);
    vgpu_uuid(vgpu_physical(device), (unsigned char *)p->uuid.bytes);
    p->totalGlobalMem = profile->total_bytes;
    p->sharedMemPerBlock = (size_t)attribute(cudaDevAttrMaxSharedMemoryPerBlock, device);
    p->regsPerBlock = attribute(cudaDevAttrMaxRegistersPerBlock, device);
    p->warpSize = attribute(cudaDevAttrWarpSize, device);
    p->memPitch = (size_t)attribute(cudaDevAttrMaxPitch, device);
    p->maxThreadsPerBlock = attribute(cudaDevAttrMaxThreadsPerBlock, device);
    p->maxThreadsDim[0] = attribute(cudaDevAttrMaxBlockDimX, device);
    p->maxThreadsDim[1] = attribute(cudaDevAttrMaxBlockDimY, device);
    p->maxThreadsDim[2] = attribute(cudaDevAttrMaxBlockDimZ, device);
    p->maxGridSize[0] = attribute(cudaDevAttrMaxGridDimX, device);
    p->maxGridSize[1] = attribute(cudaDevAttrMaxGridDimY, device);
    p->maxGridSize[2] = attribute(cudaDevAttrMaxGridDimZ, device);
    p->totalConstMem = (size_t)attribute(cudaDevAttrTotalConstantMemory, device);
    p->major = profile->major;
    p->minor = profile->minor;
    p->textureAlignment = (size_t)attribute(cudaDevAttrTextureAlignment, device);
    p->texturePitchAlignment = (size_t)attribute(cudaDevAttrTexturePitchAlignment, device);
    p->multiProcessorCount = profile->sm_count;
    p->canMapHostMemory = 1;
    p->surfaceAlignment = (size_t)attribute(cudaDevAttrSurfaceAlignment, device);
    p->concurrentKernels = 1;
    p->ECCEnabled = attribute(cudaDevAttrEccEnabled, device);
    p->pciBusID = attribute(cudaDevAttrPciBusId, device);
    p->asyncEngineCount = attribute(cudaDevAttrAsyncEngineCount, device);
    p->unifiedAddressing = 1;
    p->memoryBusWidth = profile->memory_bus_bits;
    p->l2CacheSize = (int)profile->l2_bytes;
    p->maxThreadsPerMultiProcessor = profile->threads_per_sm;
    p->streamPrioritiesSupported = 1;
    p->globalL1CacheSupported = 1;
    p->localL1CacheSupported = 1;
    p->sharedMemPerMultiprocessor = profile->shared_per_sm_bytes;
    p->regsPerMultiprocessor = attribute(cudaDevAttrMaxRegistersPerMultiprocessor, device);
    p->managedMemory = 1;
    p->multiGpuBoardGroupID = device;
    p->concurrentManagedAccess = 1;
    p->computePreemptionSupported = 1;
    p->canUseHostPointerForRegisteredMem = 1;
    p->cooperativeLaunch = 1;
    p->sharedMemPerBlockOptin = profile->shared_optin_bytes;
    p->maxBlocksPerMultiProcessor = profile->blocks_per_sm;
    p->reservedSharedMemPerBlock = (size_t)attribute(cudaDevAttrReservedSharedMemoryPerBlock, device);
    p->hostRegisterSupported = 1;
    p->memoryPoolsSupported = 1;
    p->ipcEventSupported = 1;
    p->clusterLaunch = attribute(cudaDevAttrClusterLaunch, device);
#if CUDART_VERSION < 13000
    p->clockRate = profile->clock_khz;
    p->memoryClockRate = profile->memory_clock_khz;
    p->deviceOverlap = 1;
    p->singleToDoublePrecisionPerfRatio = attribute(cudaDevAttrSingleToDoublePrecisionPerfRatio, device);
#endif
    return cudaSuccess;
}

/* ---- the driver's view of the same ---- */

CUresult cuInit(unsigned int flags)
{
    (void)flags;
    return vgpu_visible_count() ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE;
}

CUresult cuDriverGetVersion(int *version)
{
    *version = CUDA_VERSION;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int *count)
{
    *count = vgpu_visible_count();
    return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
    if (ordinal < 0 || ordinal >= vgpu_visible_count()) return CUDA_ERROR_INVALID_DEVICE;
    *device = ordinal;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute which, CUdevice device)
{
    if (device < 0 || device >= vgpu_visible_count()) return CUDA_ERROR_INVALID_DEVICE;
    if (!attribute_value((int)which, device, value)) vgpu_unstubbed_number("cuDeviceGetAttribute", "attribute", which);
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetName(char *text, int length, CUdevice device)
{
    if (device < 0 || device >= vgpu_visible_count()) return CUDA_ERROR_INVALID_DEVICE;
    snprintf(text, (size_t)length, "%s", vgpu_profile()->name);
    return CUDA_SUCCESS;
}

CUresult cuDeviceTotalMem(size_t *bytes, CUdevice device)
{
    if (device < 0 || device >= vgpu_visible_count()) return CUDA_ERROR_INVALID_DEVICE;
    *bytes = vgpu_profile()->total_bytes;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice device)
{
    if (device < 0 || device >= vgpu_visible_count()) return CUDA_ERROR_INVALID_DEVICE;
    vgpu_uuid(vgpu_physical(device), (unsigned char *)uuid->bytes);
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetPCIBusId(char *text, int length, CUdevice device)
{
    return (CUresult)cudaDeviceGetPCIBusId(text, length, device);
}

CUresult cuDeviceCanAccessPeer(int *can, CUdevice device, CUdevice peer)
{
    return (CUresult)cudaDeviceCanAccessPeer(can, device, peer);
}

CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned int *flags, int *active)
{
    if (device < 0 || device >= vgpu_visible_count()) return CUDA_ERROR_INVALID_DEVICE;
    *flags = 0;
    *active = vgpu_account(vgpu_physical(device)).has_context;
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
    if (device < 0 || device >= vgpu_visible_count()) return CUDA_ERROR_INVALID_DEVICE;
    vgpu_ensure_context(vgpu_physical(device));
    *context = context_of(device);
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRelease(CUdevice device)
{
    (void)device; /* the context stays, as it does while the runtime uses it */
    return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext *context)
{
    *context = current_context;
    return CUDA_SUCCESS;
}

CUresult cuCtxSetCurrent(CUcontext context)
{
    current_context = context;
    if (context) current_device = ordinal_of(context);
    return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice(CUdevice *device)
{
    if (!current_context) return CUDA_ERROR_INVALID_CONTEXT;
    *device = ordinal_of(current_context);
    return CUDA_SUCCESS;
}

CUresult cuCtxSynchronize(void) { return CUDA_SUCCESS; }

static __thread CUcontext pushed[16];
static __thread unsigned pushed_count;

CUresult cuCtxPushCurrent(CUcontext context)
{
    if (pushed_count == sizeof pushed / sizeof *pushed) return CUDA_ERROR_INVALID_CONTEXT;
    pushed[pushed_count++] = current_context;
    return cuCtxSetCurrent(context);
}

CUresult cuCtxPopCurrent(CUcontext *context)
{
    if (context) *context = current_context;
    return cuCtxSetCurrent(pushed_count ? pushed[--pushed_count] : NULL);
}

CUresult cuCtxGetLimit(size_t *bytes, CUlimit limit)
{
    switch (limit) {
    case CU_LIMIT_STACK_SIZE: *bytes = 1024; break;
    case CU_LIMIT_PRINTF_FIFO_SIZE: *bytes = 7 * MIB; break;
    case CU_LIMIT_MALLOC_HEAP_SIZE: *bytes = 8 * MIB; break;
    default: vgpu_unstubbed_number("cuCtxGetLimit", "limit", limit);
    }
    return CUDA_SUCCESS;
}
