/* Copies and fills. Host to host is real; nothing touches a device address; device to host gives zeros, or the few
 * bytes that are known (known_values.c). */
#include "vgpu.h"

#include <sys/mman.h>

#define LARGE (1 * MIB)

static u64 address_of(const void *pointer) { return (u64)(uintptr_t)pointer; }

/* Zeros in our own pinned pages: give the pages back instead of touching them, so that offloading gigabytes costs nothing. */
static void zero_host(void *to, u64 bytes)
{
    u64 base, block_bytes;
    bool registered;
    if (bytes >= LARGE && vgpu_host_block(to, &base, &block_bytes, &registered) && !registered) {
        u64 start = round_up(address_of(to), 4096), end = (address_of(to) + bytes) & ~4095ull;
        if (end > start && end <= base + block_bytes && !madvise((void *)(uintptr_t)start, end - start, MADV_DONTNEED)) {
            memset(to, 0, start - address_of(to));
            memset((void *)(uintptr_t)end, 0, address_of(to) + bytes - end);
            return;
        }
    }
    memset(to, 0, bytes);
}

static void copy(void *to, const void *from, u64 bytes)
{
    if (!bytes) return;
    bool to_device = vgpu_is_device_address(to), from_device = vgpu_is_device_address(from);
    if (to_device && from_device) vgpu_known_copy(address_of(to), address_of(from), bytes);
    else if (to_device) vgpu_known_write(address_of(to), from, bytes);
    else if (from_device && bytes > 4096) zero_host(to, bytes);
    else if (from_device) vgpu_known_read(to, address_of(from), bytes);
    else memmove(to, from, bytes);
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind)
{
    (void)kind;
    vgpu_use_context();
    copy(to, from, bytes);
    return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t stream)
{
    (void)kind;
    vgpu_use_context();
    if (!vgpu_stream_node(stream)) copy(to, from, bytes);
    else if (vgpu_is_device_address(to)) vgpu_known_write(address_of(to), NULL, bytes);
    return cudaSuccess;
}

cudaError_t cudaMemcpyPeerAsync(void *to, int to_device, const void *from, int from_device, size_t bytes, cudaStream_t stream)
{
    (void)to_device, (void)from_device;
    return cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream);
}

static void copy_rows(char *to, size_t to_pitch, const char *from, size_t from_pitch, size_t width, size_t height)
{
    if (vgpu_is_device_address(to) && height) {
        vgpu_known_write(address_of(to), NULL, (height - 1) * to_pitch + width);
        return;
    }
    for (size_t row = 0; row < height; row++) copy(to + row * to_pitch, from + row * from_pitch, width);
}

cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height,
                              enum cudaMemcpyKind kind, cudaStream_t stream)
{
    (void)kind;
    vgpu_use_context();
    if (!vgpu_stream_node(stream) || vgpu_is_device_address(to)) copy_rows(to, to_pitch, from, from_pitch, width, height);
    return cudaSuccess;
}

cudaError_t cudaMemcpy2D(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height,
                         enum cudaMemcpyKind kind)
{
    (void)kind;
    vgpu_use_context();
    copy_rows(to, to_pitch, from, from_pitch, width, height);
    return cudaSuccess;
}

cudaError_t cudaMemcpyToSymbol(const void *symbol, const void *from, size_t bytes, size_t offset, enum cudaMemcpyKind kind)
{
    (void)symbol, (void)from, (void)bytes, (void)offset, (void)kind; /* only kernels read symbols, and they do nothing */
    vgpu_use_context();
    return cudaSuccess;
}

cudaError_t cudaMemset(void *to, int value, size_t bytes)
{
    vgpu_use_context();
    if (!bytes) return cudaSuccess;
    if (vgpu_is_device_address(to)) vgpu_known_fill(address_of(to), value, bytes);
    else memset(to, value, bytes);
    return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream)
{
    if (!vgpu_stream_node(stream)) return cudaMemset(to, value, bytes);
    vgpu_known_write(address_of(to), NULL, bytes);
    return cudaSuccess;
}

CUresult cuMemcpyHtoD(CUdeviceptr to, const void *from, size_t bytes)
{
    return (CUresult)cudaMemcpy((void *)(uintptr_t)to, from, bytes, cudaMemcpyHostToDevice);
}

CUresult cuMemcpyDtoH(void *to, CUdeviceptr from, size_t bytes)
{
    return (CUresult)cudaMemcpy(to, (const void *)(uintptr_t)from, bytes, cudaMemcpyDeviceToHost);
}

CUresult cuMemsetD32Async(CUdeviceptr to, unsigned int value, size_t count, CUstream stream)
{
    (void)value;
    vgpu_use_context();
    vgpu_stream_node(stream);
    vgpu_known_write(to, NULL, count * 4);
    return CUDA_SUCCESS;
}
