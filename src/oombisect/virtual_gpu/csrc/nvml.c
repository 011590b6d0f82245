/* NVML: the same device, as nvidia-smi sees it. It knows this process only.
 * The CUDA wheels bring no nvml.h, so the few structures are declared here (layouts: NVML API reference). */
#include "vgpu.h"

#include <stdio.h>
#include <unistd.h>

typedef enum { NVML_SUCCESS = 0, NVML_INVALID_ARGUMENT = 2, NVML_NOT_SUPPORTED = 3, NVML_NOT_FOUND = 6, NVML_INSUFFICIENT_SIZE = 7 } Result;
typedef void *Device; /* 1 + index */

typedef struct {
    unsigned long long total, free, used;
} Memory;
typedef struct {
    unsigned version;
    unsigned long long total, reserved, free, used;
} MemoryV2;
typedef struct {
    unsigned pid;
    unsigned long long used;
} ProcessV1;
typedef struct {
    unsigned pid;
    unsigned long long used;
    unsigned gpu_instance, compute_instance;
} ProcessV2;
typedef struct {
    char bus_id_legacy[16];
    unsigned domain, bus, device, pci_device_id, pci_subsystem_id;
    char bus_id[32];
} Pci;
typedef struct {
    unsigned gpu, memory;
} Utilization;

typedef struct {
    unsigned char cluster_uuid[16];
    int status;
    unsigned clique_id;
    unsigned char state;
} Fabric;
typedef struct {
    unsigned version;
    Fabric fabric; /* version 2 and 3 put a health mask behind it: none of it is known */
} FabricV;

static int index_of(Device device) { return (int)(uintptr_t)device - 1; }
static bool exists(Device device) { return index_of(device) >= 0 && index_of(device) < vgpu_profile()->devices; }
#define CHECK(device) if (!exists(device)) return NVML_INVALID_ARGUMENT

static u64 used_bytes(Device device)
{
    VgpuAccount account = vgpu_account(index_of(device));
    return account.allocated + account.context;
}

static u64 above_zero(u64 total, u64 taken) { return taken < total ? total - taken : 0; }

Result nvmlInit(void) { return NVML_SUCCESS; }
Result nvmlInit_v2(void) { return NVML_SUCCESS; }
Result nvmlInitWithFlags(unsigned flags)
{
    (void)flags;
    return NVML_SUCCESS;
}
Result nvmlShutdown(void) { return NVML_SUCCESS; }

const char *nvmlErrorString(Result result)
{
    switch (result) {
    case NVML_SUCCESS: return "Success";
    case NVML_INVALID_ARGUMENT: return "Invalid Argument";
    case NVML_NOT_SUPPORTED: return "Not Supported";
    case NVML_NOT_FOUND: return "Not Found";
    case NVML_INSUFFICIENT_SIZE: return "Insufficient Size";
    }
    return "Unknown Error";
}

Result nvmlSystemGetDriverVersion(char *text, unsigned length)
{
    snprintf(text, length, CUDA_VERSION >= 13000 ? "580.65.06" : "570.26"); /* the first drivers of CUDA 13.0 and 12.8 */
    return NVML_SUCCESS;
}

Result nvmlSystemGetNVMLVersion(char *text, unsigned length)
{
    snprintf(text, length, "%d.%s", CUDA_VERSION / 1000, CUDA_VERSION >= 13000 ? "580.65.06" : "570.26");
    return NVML_SUCCESS;
}

Result nvmlSystemGetCudaDriverVersion(int *version)
{
    *version = CUDA_VERSION;
    return NVML_SUCCESS;
}
Result nvmlSystemGetCudaDriverVersion_v2(int *version) { return nvmlSystemGetCudaDriverVersion(version); }

/* ---- finding devices ---- */

Result nvmlDeviceGetCount_v2(unsigned *count)
{
    *count = (unsigned)vgpu_profile()->devices;
    return NVML_SUCCESS;
}

Result nvmlDeviceGetHandleByIndex_v2(unsigned index, Device *device)
{
    if (index >= (unsigned)vgpu_profile()->devices) return NVML_INVALID_ARGUMENT;
    *device = (Device)(uintptr_t)(index + 1);
    return NVML_SUCCESS;
}

static void uuid_text(int index, char *text, size_t length)
{
    unsigned char u[16];
    vgpu_uuid(index, u);
    snprintf(text, length, "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", u[0], u[1], u[2], u[3],
             u[4], u[5], u[6], u[7], u[8], u[9], u[10], u[11], u[12], u[13], u[14], u[15]);
}

static void pci_of(int index, Pci *pci)
{
    memset(pci, 0, sizeof *pci);
    pci->bus = (unsigned)index + 1;
    snprintf(pci->bus_id_legacy, sizeof pci->bus_id_legacy, "0000:%02X:00.0", pci->bus);
    snprintf(pci->bus_id, sizeof pci->bus_id, "00000000:%02X:00.0", pci->bus);
}

Result nvmlDeviceGetHandleByUUID(const char *uuid, Device *device)
{
    char text[64];
    for (int i = 0; i < vgpu_profile()->devices; i++) {
        uuid_text(i, text, sizeof text);
        if (!strcmp(text, uuid)) return nvmlDeviceGetHandleByIndex_v2((unsigned)i, device);
    }
    return NVML_NOT_FOUND;
}

Result nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, Device *device)
{
    unsigned domain, bus, slot;
    if (sscanf(bus_id, "%x:%x:%x", &domain, &bus, &slot) != 3) return NVML_INVALID_ARGUMENT;
    if (domain || slot || !bus || bus > (unsigned)vgpu_profile()->devices) return NVML_NOT_FOUND;
    return nvmlDeviceGetHandleByIndex_v2(bus - 1, device);
}

Result nvmlDeviceGetPciInfo_v3(Device device, Pci *pci)
{
    CHECK(device);
    pci_of(index_of(device), pci);
    return NVML_SUCCESS;
}

Result nvmlDeviceGetIndex(Device device, unsigned *index)
{
    CHECK(device);
    *index = (unsigned)index_of(device);
    return NVML_SUCCESS;
}

Result nvmlDeviceGetMinorNumber(Device device, unsigned *number) { return nvmlDeviceGetIndex(device, number); }

Result nvmlDeviceGetName(Device device, char *text, unsigned length)
{
    CHECK(device);
    snprintf(text, length, "%s", vgpu_profile()->name);
    return NVML_SUCCESS;
}

Result nvmlDeviceGetUUID(Device device, char *text, unsigned length)
{
    CHECK(device);
    uuid_text(index_of(device), text, length);
    return NVML_SUCCESS;
}

Result nvmlDeviceGetCudaComputeCapability(Device device, int *major, int *minor)
{
    CHECK(device);
    *major = vgpu_profile()->major;
    *minor = vgpu_profile()->minor;
    return NVML_SUCCESS;
}

/* ---- memory ---- */

/* Since driver 510 version 1 counts what the driver keeps for itself as used; version 2 gives it apart. */
Result nvmlDeviceGetMemoryInfo(Device device, Memory *memory)
{
    CHECK(device);
    const VgpuProfile *p = vgpu_profile();
    u64 reserved = p->nvml_total_bytes - p->total_bytes;
    memory->total = p->nvml_total_bytes;
    memory->used = used_bytes(device) + reserved;
    memory->free = above_zero(memory->total, memory->used);
    return NVML_SUCCESS;
}

Result nvmlDeviceGetMemoryInfo_v2(Device device, MemoryV2 *memory)
{
    CHECK(device);
    const VgpuProfile *p = vgpu_profile();
    memory->total = p->nvml_total_bytes;
    memory->reserved = p->nvml_total_bytes - p->total_bytes;
    memory->used = used_bytes(device);
    memory->free = above_zero(memory->total, memory->used + memory->reserved);
    return NVML_SUCCESS;
}

/* One process, this one, once it has a context. */
Result nvmlDeviceGetComputeRunningProcesses(Device device, unsigned *count, ProcessV1 *processes)
{
    CHECK(device);
    unsigned found = vgpu_account(index_of(device)).has_context, room = *count;
    *count = found;
    if (room < found) return NVML_INSUFFICIENT_SIZE;
    if (found) processes[0] = (ProcessV1){(unsigned)getpid(), used_bytes(device)};
    return NVML_SUCCESS;
}

Result nvmlDeviceGetComputeRunningProcesses_v3(Device device, unsigned *count, ProcessV2 *processes)
{
    CHECK(device);
    unsigned found = vgpu_account(index_of(device)).has_context, room = *count;
    *count = found;
    if (room < found) return NVML_INSUFFICIENT_SIZE;
    if (found) processes[0] = (ProcessV2){(unsigned)getpid(), used_bytes(device), ~0u, ~0u}; /* no MIG instance */
    return NVML_SUCCESS;
}
Result nvmlDeviceGetComputeRunningProcesses_v2(Device device, unsigned *count, ProcessV2 *processes)
{
    return nvmlDeviceGetComputeRunningProcesses_v3(device, count, processes);
}

Result nvmlDeviceGetGraphicsRunningProcesses_v3(Device device, unsigned *count, ProcessV2 *processes)
{
    CHECK(device);
    (void)processes;
    *count = 0;
    return NVML_SUCCESS;
}

/* ---- activity, links and fabric: a lone, idle device ---- */

Result nvmlDeviceGetUtilizationRates(Device device, Utilization *utilization)
{
    CHECK(device);
    *utilization = (Utilization){0, 0};
    return NVML_SUCCESS;
}

#define NOT_SUPPORTED(name, ...)                                                                                       \
    Result name(Device device, __VA_ARGS__);                                                                           \
    Result name(Device device, __VA_ARGS__)                                                                            \
    {                                                                                                                  \
        CHECK(device);                                                                                                 \
        return NVML_NOT_SUPPORTED;                                                                                     \
    }
#pragma GCC diagnostic ignored "-Wunused-parameter"
NOT_SUPPORTED(nvmlDeviceGetTemperature, int sensor, unsigned *degrees)
NOT_SUPPORTED(nvmlDeviceGetPowerUsage, unsigned *milliwatts)
NOT_SUPPORTED(nvmlDeviceGetClockInfo, int type, unsigned *megahertz)
NOT_SUPPORTED(nvmlDeviceGetNvLinkState, unsigned link, int *active)
NOT_SUPPORTED(nvmlDeviceGetNvLinkCapability, unsigned link, int capability, unsigned *result)
NOT_SUPPORTED(nvmlDeviceGetNvLinkRemoteDeviceType, unsigned link, int *type)
NOT_SUPPORTED(nvmlDeviceGetNvLinkRemotePciInfo_v2, unsigned link, Pci *pci)
NOT_SUPPORTED(nvmlDeviceGetMigMode, unsigned *current, unsigned *pending)

Result nvmlDeviceGetP2PStatus(Device device, Device peer, int capability, int *status)
{
    CHECK(device);
    CHECK(peer);
    (void)capability;
    *status = 0; /* NVML_P2P_STATUS_OK */
    return NVML_SUCCESS;
}

/* As on a single server with NVSwitch: the fabric is up, and there is no cluster of servers (UUID 0). */
Result nvmlDeviceGetGpuFabricInfo(Device device, Fabric *info)
{
    CHECK(device);
    memset(info, 0, sizeof *info);
    info->state = 3; /* NVML_GPU_FABRIC_STATE_COMPLETED */
    return NVML_SUCCESS;
}

Result nvmlDeviceGetGpuFabricInfoV(Device device, FabricV *info) { return nvmlDeviceGetGpuFabricInfo(device, &info->fabric); }
