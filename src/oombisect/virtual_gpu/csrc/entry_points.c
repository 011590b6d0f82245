/* Driver functions asked for by name: cudaGetDriverEntryPoint, cuGetProcAddress. A name that cuda.h declares leads to
 * our function or to a stub that ends the process by that name; any other name is "not found", as on a driver of
 * this CUDA version. The table is generated from cuda.h and cudaTypedefs.h (names, and the CUDA version each ABI
 * belongs to). */
#include "vgpu.h"

#include "driver_names.h"

static void *driver_function(const char *name, int version)
{
    for (const DriverName *row = vgpu_driver_names; row->name; row++)
        if (!strcmp(row->name, name) && row->since <= version) return (void *)row->function;
    return NULL;
}

cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned int version, unsigned long long flags,
                                             enum cudaDriverEntryPointQueryResult *result)
{
    (void)flags;
    *function = driver_function(name, (int)version);
    if (result) *result = *function ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
    return *function || result ? cudaSuccess : vgpu_fail(cudaErrorSymbolNotFound);
}

#if CUDART_VERSION < 13000
cudaError_t cudaGetDriverEntryPoint(const char *name, void **function, unsigned long long flags,
                                    enum cudaDriverEntryPointQueryResult *result)
{
    return cudaGetDriverEntryPointByVersion(name, function, CUDART_VERSION, flags, result);
}
#endif

CUresult cuGetProcAddress(const char *name, void **function, int version, cuuint64_t flags,
                          CUdriverProcAddressQueryResult *result)
{
    (void)flags;
    *function = driver_function(name, version);
    if (result) *result = *function ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    return *function ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}
