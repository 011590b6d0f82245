/* NCCL: communicators exist, collectives complete at once and move nothing. Its buffers are not modelled. */
#include "vgpu.h"

#define __CUDA_RUNTIME_H__ /* nccl.h asks for C++ headers; the C one is enough */
#define __CUDA_FP8_H__
#include <nccl.h>

typedef struct {
    int rank, ranks, device;
} Communicator;

static ncclResult_t new_communicator(ncclComm_t *made, int ranks, int rank)
{
    vgpu_use_context();
    Communicator *communicator = calloc(1, sizeof *communicator);
    if (!communicator) return ncclSystemError;
    *communicator = (Communicator){rank, ranks, vgpu_current_device()};
    *made = (ncclComm_t)communicator;
    return ncclSuccess;
}

ncclResult_t ncclGetVersion(int *version)
{
    *version = NCCL_VERSION_CODE;
    return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
    memset(id, 1, sizeof *id);
    return ncclSuccess;
}

const char *ncclGetErrorString(ncclResult_t result)
{
    return result == ncclSuccess ? "no error" : "an error of the virtual GPU";
}

const char *ncclGetLastError(ncclComm_t communicator)
{
    (void)communicator;
    return "";
}

ncclResult_t ncclCommInitRank(ncclComm_t *communicator, int ranks, ncclUniqueId id, int rank)
{
    (void)id;
    return new_communicator(communicator, ranks, rank);
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *communicator, int ranks, ncclUniqueId id, int rank, ncclConfig_t *config)
{
    (void)id, (void)config;
    return new_communicator(communicator, ranks, rank);
}

ncclResult_t ncclCommInitRankScalable(ncclComm_t *communicator, int ranks, int rank, int id_count, ncclUniqueId *ids,
                                      ncclConfig_t *config)
{
    (void)id_count, (void)ids, (void)config;
    return new_communicator(communicator, ranks, rank);
}

ncclResult_t ncclCommDestroy(ncclComm_t communicator)
{
    free(communicator);
    return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t communicator) { return ncclCommDestroy(communicator); }

ncclResult_t ncclCommFinalize(ncclComm_t communicator)
{
    (void)communicator;
    return ncclSuccess;
}

ncclResult_t ncclCommCount(const ncclComm_t communicator, int *count)
{
    *count = ((Communicator *)communicator)->ranks;
    return ncclSuccess;
}

ncclResult_t ncclCommUserRank(const ncclComm_t communicator, int *rank)
{
    *rank = ((Communicator *)communicator)->rank;
    return ncclSuccess;
}

ncclResult_t ncclCommCuDevice(const ncclComm_t communicator, int *device)
{
    *device = ((Communicator *)communicator)->device;
    return ncclSuccess;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t communicator, ncclResult_t *error)
{
    (void)communicator;
    *error = ncclSuccess;
    return ncclSuccess;
}
