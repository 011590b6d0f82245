/* Kernels: registered, asked about, launched; they do nothing. */
#include "vgpu.h"

/* ---- what nvcc's generated code calls ---- */

static __thread struct {
    dim3 grid, block;
    size_t shared;
    void *stream;
} configuration;

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, struct CUstream_st *stream)
{
    configuration.grid = grid;
    configuration.block = block;
    configuration.shared = shared;
    configuration.stream = stream;
    return 0;
}

cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream)
{
    *grid = configuration.grid;
    *block = configuration.block;
    *shared = configuration.shared;
    *(void **)stream = configuration.stream;
    return cudaSuccess;
}

void **__cudaRegisterFatBinary(void *binary)
{
    static void *handle[1];
    (void)binary;
    return handle;
}
void __cudaRegisterFatBinaryEnd(void **handle) { (void)handle; }
void __cudaUnregisterFatBinary(void **handle) { (void)handle; }
char __cudaInitModule(void **handle)
{
    (void)handle;
    return 1;
}

void __cudaRegisterFunction(void **handle, const char *host, char *device, const char *name, int threads, void *thread_id,
                            void *block_id, void *block, void *grid, int *warp)
{
    (void)handle, (void)host, (void)device, (void)name, (void)threads, (void)thread_id, (void)block_id, (void)block;
    (void)grid, (void)warp;
}

void __cudaRegisterVar(void **handle, char *host, char *device, const char *name, int external, size_t size, int constant,
                       int global)
{
    (void)handle, (void)host, (void)device, (void)name, (void)external, (void)size, (void)constant, (void)global;
}

/* ---- launches ---- */

static cudaError_t launch(const void *stream)
{
    vgpu_use_context();
    vgpu_device_work(stream);
    return cudaSuccess;
}

cudaError_t __cudaGetKernel(cudaKernel_t *kernel, const void *function)
{
    *kernel = (cudaKernel_t)function;
    return cudaSuccess;
}

cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void **arguments, size_t shared, cudaStream_t stream)
{
    (void)kernel, (void)grid, (void)block, (void)arguments, (void)shared;
    return launch(stream);
}

cudaError_t cudaLaunchKernel(const void *function, dim3 grid, dim3 block, void **arguments, size_t shared, cudaStream_t stream)
{
    (void)function, (void)grid, (void)block, (void)arguments, (void)shared;
    return launch(stream);
}

cudaError_t cudaLaunchCooperativeKernel(const void *function, dim3 grid, dim3 block, void **arguments, size_t shared,
                                        cudaStream_t stream)
{
    (void)function, (void)grid, (void)block, (void)arguments, (void)shared;
    return launch(stream);
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *function, void **arguments)
{
    (void)function, (void)arguments;
    return launch(config->stream);
}

CUresult cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                        unsigned block_y, unsigned block_z, unsigned shared, CUstream stream, void **arguments, void **extra)
{
    (void)function, (void)grid_x, (void)grid_y, (void)grid_z, (void)block_x, (void)block_y, (void)block_z, (void)shared;
    (void)arguments, (void)extra;
    return (CUresult)launch(stream);
}

CUresult cuLaunchCooperativeKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                                   unsigned block_y, unsigned block_z, unsigned shared, CUstream stream, void **arguments)
{
    return cuLaunchKernel(function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared, stream, arguments, NULL);
}

CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **arguments, void **extra)
{
    (void)function, (void)arguments, (void)extra;
    return (CUresult)launch(config->hStream);
}

/* ---- questions about kernels ---- */

cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *attributes, const void *function)
{
    (void)function;
    vgpu_use_context();
    const VgpuProfile *profile = vgpu_profile();
    memset(attributes, 0, sizeof *attributes);
    attributes->maxThreadsPerBlock = 1024;
    attributes->numRegs = 32;
    attributes->ptxVersion = attributes->binaryVersion = profile->major * 10 + profile->minor;
    attributes->maxDynamicSharedSizeBytes = 48 << 10;
    return cudaSuccess;
}

cudaError_t cudaFuncSetAttribute(const void *function, enum cudaFuncAttribute attribute, int value)
{
    (void)function, (void)attribute, (void)value;
    return cudaSuccess;
}

CUresult cuFuncGetAttribute(int *value, CUfunction_attribute attribute, CUfunction function)
{
    (void)function;
    switch (attribute) {
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK: *value = 1024; break;
    case CU_FUNC_ATTRIBUTE_NUM_REGS: *value = 32; break;
    case CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES:
    case CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES:
    case CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES: *value = 0; break;
    case CU_FUNC_ATTRIBUTE_PTX_VERSION:
    case CU_FUNC_ATTRIBUTE_BINARY_VERSION: *value = vgpu_profile()->major * 10 + vgpu_profile()->minor; break;
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES: *value = 48 << 10; break;
    default: vgpu_unstubbed_number("cuFuncGetAttribute", "attribute", attribute);
    }
    return CUDA_SUCCESS;
}

CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value)
{
    (void)function, (void)attribute, (void)value;
    return CUDA_SUCCESS;
}

CUresult cuFuncSetCacheConfig(CUfunction function, CUfunc_cache config)
{
    (void)function, (void)config;
    return CUDA_SUCCESS;
}

/* Grids are sized from the occupancy and some scratch buffers from the grids: the most that blocks of this size allow. */
static int blocks_per_sm(int block_size)
{
    const VgpuProfile *profile = vgpu_profile();
    int by_threads = block_size > 0 ? profile->threads_per_sm / block_size : profile->blocks_per_sm;
    int by_registers = block_size > 0 ? 65536 / (32 * block_size) : profile->blocks_per_sm;
    int most = by_threads < by_registers ? by_threads : by_registers;
    return most < 1 ? 1 : most < profile->blocks_per_sm ? most : profile->blocks_per_sm;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *count, const void *function, int block_size,
                                                                   size_t shared, unsigned int flags)
{
    (void)function, (void)shared, (void)flags;
    *count = blocks_per_sm(block_size);
    return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *count, const void *function, int block_size, size_t shared)
{
    return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(count, function, block_size, shared, 0);
}

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *count, CUfunction function, int block_size, size_t shared)
{
    (void)function, (void)shared;
    *count = blocks_per_sm(block_size);
    return CUDA_SUCCESS;
}

CUresult cuOccupancyMaxActiveClusters(int *count, CUfunction function, const CUlaunchConfig *config)
{
    (void)function, (void)config;
    *count = vgpu_profile()->sm_count / 2;
    return CUDA_SUCCESS;
}

cudaError_t cudaOccupancyMaxActiveClusters(int *count, const void *function, const cudaLaunchConfig_t *config)
{
    (void)function, (void)config;
    *count = vgpu_profile()->sm_count / 2;
    return cudaSuccess;
}

/* ---- modules and libraries: their code is never looked at ---- */

cudaError_t cudaGetSymbolAddress(void **address, const void *symbol)
{
    static VgpuTable symbols; /* each symbol has a device address of its own; it is not counted as an allocation */
    vgpu_use_context();
    vgpu_lock();
    VgpuEntry *entry = vgpu_table_find(&symbols, (u64)(uintptr_t)symbol);
    u64 place = entry ? entry->value : vgpu_address_take(vgpu_physical(vgpu_current_device()), GRANULE, GRANULE);
    if (!entry && place) vgpu_table_put(&symbols, (u64)(uintptr_t)symbol, place, 0);
    vgpu_unlock();
    *address = (void *)(uintptr_t)place;
    return cudaSuccess;
}

static CUresult new_module(CUmodule *module)
{
    vgpu_use_context();
    *module = (CUmodule)(uintptr_t)vgpu_next_handle();
    return CUDA_SUCCESS;
}

CUresult cuModuleLoadData(CUmodule *module, const void *image)
{
    (void)image;
    return new_module(module);
}

CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned count, CUjit_option *options, void **values)
{
    (void)image, (void)count, (void)options, (void)values;
    return new_module(module);
}

CUresult cuModuleLoad(CUmodule *module, const char *path)
{
    (void)path;
    return new_module(module);
}

CUresult cuModuleUnload(CUmodule module)
{
    (void)module;
    return CUDA_SUCCESS;
}

CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name)
{
    (void)module, (void)name;
    *function = (CUfunction)(uintptr_t)vgpu_next_handle();
    return CUDA_SUCCESS;
}

cudaError_t cudaLibraryLoadData(cudaLibrary_t *library, const void *code, enum cudaJitOption *options, void **values,
                                unsigned int count, enum cudaLibraryOption *library_options, void **library_values,
                                unsigned int library_count)
{
    (void)code, (void)options, (void)values, (void)count, (void)library_options, (void)library_values, (void)library_count;
    vgpu_use_context();
    *library = (cudaLibrary_t)(uintptr_t)vgpu_next_handle();
    return cudaSuccess;
}

cudaError_t cudaLibraryUnload(cudaLibrary_t library)
{
    (void)library;
    return cudaSuccess;
}

cudaError_t cudaLibraryGetKernel(cudaKernel_t *kernel, cudaLibrary_t library, const char *name)
{
    (void)library, (void)name;
    *kernel = (cudaKernel_t)(uintptr_t)vgpu_next_handle();
    return cudaSuccess;
}

#if CUDART_VERSION >= 12080
cudaError_t cudaKernelSetAttributeForDevice(cudaKernel_t kernel, enum cudaFuncAttribute attribute, int value, int device)
{
    (void)kernel, (void)attribute, (void)value, (void)device;
    return cudaSuccess;
}
#endif

CUresult cuTensorMapEncodeTiled(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *address,
                                const cuuint64_t *dimensions, const cuuint64_t *strides, const cuuint32_t *box,
                                const cuuint32_t *element_strides, CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill)
{
    (void)type, (void)rank, (void)address, (void)dimensions, (void)strides, (void)box, (void)element_strides;
    (void)interleave, (void)swizzle, (void)promotion, (void)fill;
    memset(map, 0, sizeof *map); /* only kernels read it */
    return CUDA_SUCCESS;
}
