/* Names and texts of errors, and the last error of the thread. */
#include "vgpu.h"

static __thread cudaError_t last_error;

cudaError_t vgpu_fail(cudaError_t error) { return last_error = error; }

cudaError_t cudaGetLastError(void)
{
    cudaError_t error = last_error;
    last_error = cudaSuccess;
    return error;
}
cudaError_t cudaPeekAtLastError(void) { return last_error; }

/* The runtime's numbers and the driver's are the same for every error this device can give. */
#define ERRORS(X)                                                                                                      \
    X(cudaSuccess, "CUDA_SUCCESS", "no error")                                                                         \
    X(cudaErrorInvalidValue, "CUDA_ERROR_INVALID_VALUE", "invalid argument")                                           \
    X(cudaErrorMemoryAllocation, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory")                                          \
    X(cudaErrorInitializationError, "CUDA_ERROR_NOT_INITIALIZED", "initialization error")                              \
    X(cudaErrorNoDevice, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected")                                 \
    X(cudaErrorInvalidDevice, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal")                                   \
    X(cudaErrorDeviceUninitialized, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context")                            \
    X(cudaErrorInvalidResourceHandle, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle")                          \
    X(cudaErrorSymbolNotFound, "CUDA_ERROR_NOT_FOUND", "named symbol not found")                                       \
    X(cudaErrorNotReady, "CUDA_ERROR_NOT_READY", "device not ready")                                                   \
    X(cudaErrorPeerAccessAlreadyEnabled, "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED", "peer access is already enabled")   \
    X(cudaErrorPeerAccessUnsupported, "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED",                                            \
      "peer access is not supported between these two devices")                                                        \
    X(cudaErrorHostMemoryAlreadyRegistered, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED",                               \
      "part or all of the requested memory range is already mapped")                                                   \
    X(cudaErrorHostMemoryNotRegistered, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED",                                       \
      "pointer does not correspond to a registered memory region")                                                     \
    X(cudaErrorNotSupported, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported")                                    \
    X(cudaErrorStreamCaptureUnsupported, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",                                      \
      "operation not permitted when stream is capturing")                                                              \
    X(cudaErrorStreamCaptureInvalidated, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED",                                      \
      "operation failed due to a previous error during capture")                                                       \
    X(cudaErrorIllegalState, "CUDA_ERROR_ILLEGAL_STATE", "the operation cannot be performed in the present state")

const char *cudaGetErrorName(cudaError_t error)
{
    switch ((int)error) {
#define RUNTIME_NAME(code, driver, text) case code: return #code;
        ERRORS(RUNTIME_NAME)
    default: return "unrecognized error code";
    }
}

const char *cudaGetErrorString(cudaError_t error)
{
    switch ((int)error) {
#define TEXT(code, driver, text) case code: return text;
        ERRORS(TEXT)
    default: return "unrecognized error code";
    }
}

CUresult cuGetErrorString(CUresult error, const char **text)
{
    *text = cudaGetErrorString((cudaError_t)error);
    return CUDA_SUCCESS;
}

CUresult cuGetErrorName(CUresult error, const char **text)
{
    switch ((int)error) {
#define DRIVER_NAME(code, driver, words) case code: *text = driver; return CUDA_SUCCESS;
        ERRORS(DRIVER_NAME)
    default: *text = NULL; return CUDA_ERROR_INVALID_VALUE;
    }
}
