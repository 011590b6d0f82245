/* cuBLAS and cuBLASLt: handles remember what they are told; a product of matrices is one launch.
 * One heuristic result, workspace 0: PyTorch's and Transformer Engine's own workspaces are allocated by their real
 * code; what cuBLAS would allocate by itself is not modelled. The calls themselves (gemm, ...) are in answers.txt. */
#include "vgpu.h"

#define __CUDA_FP8_H__ /* C++ in disguise; no prototype of the C interface needs it */
#include <cublasLt.h>
#include <cublas_v2.h>

/* ---- cuBLAS ---- */

typedef struct {
    cudaStream_t stream;
    cublasMath_t math_mode;
    cublasPointerMode_t pointer_mode;
    cublasAtomicsMode_t atomics_mode;
    int sm_target;
} Handle;

static Handle *state_of(cublasHandle_t handle) { return (Handle *)handle; }

cublasStatus_t cublasCreate_v2(cublasHandle_t *handle)
{
    vgpu_use_context();
    *handle = (cublasHandle_t)calloc(1, sizeof(Handle));
    return *handle ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_ALLOC_FAILED;
}

cublasStatus_t cublasDestroy_v2(cublasHandle_t handle)
{
    free(handle);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasGetVersion_v2(cublasHandle_t handle, int *version)
{
    (void)handle;
    *version = CUBLAS_VERSION;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasGetProperty(libraryPropertyType type, int *value)
{
    *value = type == MAJOR_VERSION ? CUBLAS_VER_MAJOR : type == MINOR_VERSION ? CUBLAS_VER_MINOR : CUBLAS_VER_PATCH;
    return CUBLAS_STATUS_SUCCESS;
}

size_t cublasGetCudartVersion(void) { return CUDART_VERSION; }

#define REMEMBERED(Name, Type, field)                                                                                  \
    cublasStatus_t cublasSet##Name(cublasHandle_t handle, Type value)                                                  \
    {                                                                                                                  \
        state_of(handle)->field = value;                                                                               \
        return CUBLAS_STATUS_SUCCESS;                                                                                  \
    }                                                                                                                  \
    cublasStatus_t cublasGet##Name(cublasHandle_t handle, Type *value)                                                 \
    {                                                                                                                  \
        *value = state_of(handle)->field;                                                                              \
        return CUBLAS_STATUS_SUCCESS;                                                                                  \
    }

REMEMBERED(Stream_v2, cudaStream_t, stream)
REMEMBERED(MathMode, cublasMath_t, math_mode)
REMEMBERED(PointerMode_v2, cublasPointerMode_t, pointer_mode)
REMEMBERED(AtomicsMode, cublasAtomicsMode_t, atomics_mode)
REMEMBERED(SmCountTarget, int, sm_target)

const char *cublasGetStatusName(cublasStatus_t status)
{
    return status == CUBLAS_STATUS_SUCCESS ? "CUBLAS_STATUS_SUCCESS" : "an error of the virtual GPU";
}
const char *cublasGetStatusString(cublasStatus_t status) { return cublasGetStatusName(status); }

/* ---- cuBLASLt ---- */

size_t cublasLtGetVersion(void) { return CUBLAS_VERSION; }
size_t cublasLtGetCudartVersion(void) { return CUDART_VERSION; }
const char *cublasLtGetStatusName(cublasStatus_t status) { return cublasGetStatusName(status); }
const char *cublasLtGetStatusString(cublasStatus_t status) { return cublasGetStatusName(status); }

static cublasLtMatmulHeuristicResult_t only_result(void)
{
    cublasLtMatmulHeuristicResult_t result;
    memset(&result, 0, sizeof result);
    result.state = CUBLAS_STATUS_SUCCESS;
    result.wavesCount = 1.0f;
    return result;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t operation, cublasLtMatrixLayout_t a,
                                              cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int wanted,
                                              cublasLtMatmulHeuristicResult_t results[], int *found)
{
    (void)handle, (void)operation, (void)a, (void)b, (void)c, (void)d, (void)preference;
    *found = wanted > 0;
    if (*found) results[0] = only_result();
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t handle, cublasLtMatmulDesc_t operation, cublasLtMatrixLayout_t a,
                                       cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                       const cublasLtMatmulAlgo_t *algorithm, cublasLtMatmulHeuristicResult_t *result)
{
    (void)handle, (void)operation, (void)a, (void)b, (void)c, (void)d, (void)algorithm;
    *result = only_result();
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t operation, const void *alpha, const void *a,
                              cublasLtMatrixLayout_t a_layout, const void *b, cublasLtMatrixLayout_t b_layout,
                              const void *beta, const void *c, cublasLtMatrixLayout_t c_layout, void *d,
                              cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t *algorithm, void *workspace,
                              size_t workspace_bytes, cudaStream_t stream)
{
    (void)handle, (void)operation, (void)alpha, (void)a, (void)a_layout, (void)b, (void)b_layout, (void)beta, (void)c;
    (void)c_layout, (void)d, (void)d_layout, (void)algorithm, (void)workspace, (void)workspace_bytes;
    vgpu_use_context();
    vgpu_device_work(stream);
    return CUBLAS_STATUS_SUCCESS;
}
