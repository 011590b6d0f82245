/* The virtual GPU: what its parts share.
 *
 * One process sees up to VGPU_MAX_DEVICES devices. Device memory is address space without backing: nothing ever
 * reads or writes a device address. Every allocation is accounted against a limit. Kernels do nothing.
 * All functions of the CUDA libraries that are answered on purpose are in this folder and in answers.txt; every
 * other one ends the process by name (vgpu_unstubbed).
 */
#ifndef OOMBISECT_VGPU_H
#define OOMBISECT_VGPU_H
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cuda.h>
#include <cuda_runtime_api.h>

#define LOCAL __attribute__((visibility("hidden")))
#define VGPU_MAX_DEVICES 16
#define VGPU_EXIT_UNSTUBBED 86
#define MIB (1ull << 20)
#define GRANULE (2 * MIB) /* cudaMalloc of a segment and cuMemCreate hand out memory in pages of 2 MiB */

typedef uint64_t u64;

/* ---- core.c: the profile, the accounts, the end of the process -------------------------------------------------- */

typedef struct {
    char name[256];
    u64 total_bytes;      /* what CUDA programs see: cudaDeviceProp.totalGlobalMem */
    u64 nvml_total_bytes; /* what nvidia-smi shows: the same plus what the driver keeps for itself */
    u64 context_bytes;
    u64 limit_bytes; /* enforced: context + allocations may not exceed it */
    u64 l2_bytes;
    u64 shared_per_sm_bytes;
    u64 shared_optin_bytes;
    int sm_count, threads_per_sm, blocks_per_sm, major, minor, memory_bus_bits, clock_khz, memory_clock_khz;
    int devices; /* physical devices of the machine that is simulated */
} VgpuProfile;

typedef struct {
    u64 allocated; /* bytes of device memory in use, without the context; a multiple of GRANULE */
    u64 peak;      /* highest allocated + context */
    u64 context;   /* 0 until the primary context exists */
    bool has_context;
} VgpuAccount;

LOCAL const VgpuProfile *vgpu_profile(void);
LOCAL void vgpu_lock(void);
LOCAL void vgpu_unlock(void);
LOCAL bool vgpu_take(int device, u64 bytes); /* caller holds the lock; false = out of memory */
LOCAL void vgpu_give(int device, u64 bytes);
LOCAL VgpuAccount vgpu_account(int device);
LOCAL void vgpu_ensure_context(int device);
LOCAL u64 vgpu_next_handle(void); /* opaque, never a real address, the same from run to run */
LOCAL void vgpu_note_launch(void);
_Noreturn void oombisect_vgpu_unstubbed(const char *what); /* exported: the generated stubs call it */
_Noreturn LOCAL void vgpu_unstubbed_number(const char *function, const char *parameter, long long number);

static inline u64 round_up(u64 n, u64 to) { return (n + to - 1) / to * to; }

/* ---- device.c --------------------------------------------------------------------------------------------------- */

LOCAL int vgpu_visible_count(void);
LOCAL int vgpu_physical(int ordinal); /* the machine's index of a visible device */
LOCAL int vgpu_ordinal(int physical); /* the other way round; -1 = not visible */
LOCAL int vgpu_current_device(void);  /* visible ordinal of this thread */
LOCAL void vgpu_use_context(void);    /* what every call does that needs a context: create it, make it current */
LOCAL void vgpu_uuid(int physical, unsigned char out[16]);

/* ---- errors.c --------------------------------------------------------------------------------------------------- */

LOCAL cudaError_t vgpu_fail(cudaError_t error); /* remembers it for cudaGetLastError */

/* ---- address_space.c -------------------------------------------------------------------------------------------- */

LOCAL u64 vgpu_address_take(int device, u64 bytes, u64 alignment); /* caller holds the lock; 0 = exhausted */
LOCAL int vgpu_device_of_address(u64 address); /* physical */
LOCAL void vgpu_address_give(u64 address, u64 bytes);
LOCAL bool vgpu_is_device_address(const void *pointer);

/* ---- table.c: address -> two values, open addressing ------------------------------------------------------------- */

typedef struct {
    u64 key, value, extra;
} VgpuEntry;
typedef struct {
    VgpuEntry *slots;
    size_t capacity, used, tombstones;
} VgpuTable;
LOCAL VgpuEntry *vgpu_table_find(VgpuTable *table, u64 key);
LOCAL void vgpu_table_put(VgpuTable *table, u64 key, u64 value, u64 extra);
LOCAL bool vgpu_table_remove(VgpuTable *table, u64 key, VgpuEntry *removed);

/* ---- known_values.c: small values the host wrote and nothing can have changed since ------------------------------- */

LOCAL void vgpu_known_write(u64 device_address, const void *host, u64 bytes); /* host NULL = unknown contents */
LOCAL void vgpu_known_fill(u64 device_address, int byte, u64 bytes);
LOCAL void vgpu_known_copy(u64 to, u64 from, u64 bytes);
LOCAL void vgpu_known_read(void *host, u64 device_address, u64 bytes); /* zeros where nothing is known */
LOCAL void vgpu_known_forget_all(void);

/* ---- host_memory.c ------------------------------------------------------------------------------------------------ */

LOCAL bool vgpu_host_block(const void *pointer, u64 *base, u64 *bytes, bool *registered);
LOCAL void *vgpu_host_alloc(u64 bytes);
LOCAL bool vgpu_host_free(void *pointer);
LOCAL bool vgpu_host_register(void *pointer, u64 bytes);
LOCAL bool vgpu_host_unregister(void *pointer);

/* ---- streams.c ---------------------------------------------------------------------------------------------------- */

/* A piece of work was put on a stream. True: the stream is being captured, so it is a node of a graph and not done now. */
LOCAL bool vgpu_stream_node(const void *stream);
LOCAL void vgpu_device_work(const void *stream); /* work that may write anywhere: a launch or a library call */

#endif
