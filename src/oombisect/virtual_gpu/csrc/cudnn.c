/* cuDNN: descriptors remember the sizes that the framework reads back; one engine for every graph, no knobs,
 * workspace 0 (so cuDNN's own plan workspaces are not in the figures). The classic calls are in answers.txt. */
#include "vgpu.h"

#include <cudnn.h>

typedef struct {
    cudaStream_t stream;
} Handle;

cudnnStatus_t cudnnCreate(cudnnHandle_t *handle)
{
    vgpu_use_context();
    *handle = (cudnnHandle_t)calloc(1, sizeof(Handle));
    return *handle ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_INTERNAL_ERROR;
}

cudnnStatus_t cudnnDestroy(cudnnHandle_t handle)
{
    free(handle);
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream)
{
    ((Handle *)handle)->stream = stream;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetStream(cudnnHandle_t handle, cudaStream_t *stream)
{
    *stream = ((Handle *)handle)->stream;
    return CUDNN_STATUS_SUCCESS;
}

size_t cudnnGetVersion(void) { return CUDNN_VERSION; }
size_t cudnnGetCudartVersion(void) { return CUDART_VERSION; }

cudnnStatus_t cudnnGetProperty(libraryPropertyType type, int *value)
{
    *value = type == MAJOR_VERSION ? CUDNN_MAJOR : type == MINOR_VERSION ? CUDNN_MINOR : CUDNN_PATCHLEVEL;
    return CUDNN_STATUS_SUCCESS;
}

const char *cudnnGetErrorString(cudnnStatus_t status)
{
    return status == CUDNN_STATUS_SUCCESS ? "CUDNN_STATUS_SUCCESS" : "an error of the virtual GPU";
}

void cudnnGetLastErrorString(char *text, size_t size)
{
    if (size) *text = 0;
}

/* ---- the graph API ---- */

cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type, cudnnBackendDescriptor_t *descriptor)
{
    (void)type;
    *descriptor = (cudnnBackendDescriptor_t)(uintptr_t)vgpu_next_handle();
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t const descriptor, cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t wanted, int64_t *found, void *elements)
{
    (void)descriptor, (void)type;
    int64_t count = 0;
    switch ((int)name) {
    case CUDNN_ATTR_ENGINEHEUR_RESULTS: /* the caller's own descriptors are "filled" */
    case CUDNN_ATTR_ENGINECFG_ENGINE:
    case CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG: count = 1; break;
    case CUDNN_ATTR_ENGINECFG_KNOB_CHOICES:
    case CUDNN_ATTR_ENGINE_KNOB_INFO:
    case CUDNN_ATTR_ENGINE_NUMERICAL_NOTE:
    case CUDNN_ATTR_ENGINE_BEHAVIOR_NOTE:
    case CUDNN_ATTR_ENGINE_LAYOUT_INFO: count = 0; break;
    case CUDNN_ATTR_ENGINE_GLOBAL_INDEX:
    case CUDNN_ATTR_ENGINECFG_WORKSPACE_SIZE:
    case CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE:
        count = 1;
        if (elements && wanted > 0) *(int64_t *)elements = 0;
        break;
    case CUDNN_ATTR_OPERATIONGRAPH_ENGINE_GLOBAL_COUNT:
        count = 1;
        if (elements && wanted > 0) *(int64_t *)elements = 1;
        break;
    case CUDNN_ATTR_ENGINECFG_SHARED_MEMORY_USED:
        count = 1;
        if (elements && wanted > 0) *(int32_t *)elements = 0;
        break;
    default: vgpu_unstubbed_number("cudnnBackendGetAttribute", "attribute", name);
    }
    if (found) *found = count;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan, cudnnBackendDescriptor_t pack)
{
    (void)plan, (void)pack;
    vgpu_use_context();
    vgpu_device_work(((Handle *)handle)->stream);
    return CUDNN_STATUS_SUCCESS;
}
