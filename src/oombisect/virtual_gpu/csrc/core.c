/* The profile (read from the environment), the memory accounts, and the end of the process. */
#include "vgpu.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t profile_once = PTHREAD_ONCE_INIT;
static VgpuProfile profile;
static VgpuAccount accounts[VGPU_MAX_DEVICES];
static u64 launches, next_handle = 0x1000;

static void put_text(int fd, const char *text)
{
    size_t left = strlen(text);
    while (left) {
        ssize_t written = write(fd, text, left);
        if (written < 0 && errno != EINTR) return;
        if (written > 0) text += written, left -= (size_t)written;
    }
}

/* Fail closed: no number is better than one from a function nobody thought about. */
_Noreturn void oombisect_vgpu_unstubbed(const char *what)
{
    const char *path = getenv("OOMBISECT_VGPU_ABORT_FILE");
    if (path && *path) {
        int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
        if (fd >= 0) put_text(fd, what), put_text(fd, "\n"), close(fd);
    }
    char line[640];
    snprintf(line, sizeof line, "oombisect virtual GPU: %.500s is not stubbed\n", what);
    put_text(2, line);
    _exit(VGPU_EXIT_UNSTUBBED);
}

_Noreturn void vgpu_unstubbed_number(const char *function, const char *parameter, long long number)
{
    char what[256];
    snprintf(what, sizeof what, "%s(%s %lld)", function, parameter, number);
    oombisect_vgpu_unstubbed(what);
}

static _Noreturn void bad_environment(const char *variable)
{
    char line[256];
    snprintf(line, sizeof line, "oombisect virtual GPU: the environment variable OOMBISECT_VGPU_%s is missing or bad\n", variable);
    put_text(2, line);
    _exit(VGPU_EXIT_UNSTUBBED);
}

static u64 number_from_environment(const char *variable)
{
    char full[64];
    snprintf(full, sizeof full, "OOMBISECT_VGPU_%s", variable);
    const char *text = getenv(full);
    char *end = NULL;
    errno = 0;
    u64 number = text && *text ? strtoull(text, &end, 10) : 0;
    if (!text || !end || *end || errno) bad_environment(variable);
    return number;
}

static void read_profile(void)
{
    const char *name = getenv("OOMBISECT_VGPU_NAME");
    if (!name || strlen(name) >= sizeof profile.name) bad_environment("NAME");
    strcpy(profile.name, name);
    profile.total_bytes = number_from_environment("TOTAL_BYTES");
    profile.nvml_total_bytes = number_from_environment("NVML_TOTAL_BYTES");
    profile.context_bytes = number_from_environment("CONTEXT_BYTES");
    profile.limit_bytes = number_from_environment("LIMIT_BYTES");
    profile.l2_bytes = number_from_environment("L2_BYTES");
    profile.shared_per_sm_bytes = number_from_environment("SHARED_PER_SM_BYTES");
    profile.shared_optin_bytes = number_from_environment("SHARED_OPTIN_BYTES");
    profile.sm_count = (int)number_from_environment("SM_COUNT");
    profile.threads_per_sm = (int)number_from_environment("THREADS_PER_SM");
    profile.blocks_per_sm = (int)number_from_environment("BLOCKS_PER_SM");
    profile.major = (int)number_from_environment("MAJOR");
    profile.minor = (int)number_from_environment("MINOR");
    profile.memory_bus_bits = (int)number_from_environment("MEMORY_BUS_BITS");
    profile.clock_khz = (int)number_from_environment("CLOCK_KHZ");
    profile.memory_clock_khz = (int)number_from_environment("MEMORY_CLOCK_KHZ");
    profile.devices = (int)number_from_environment("DEVICES");
    if (profile.devices < 1 || profile.devices > VGPU_MAX_DEVICES) bad_environment("DEVICES");
}

const VgpuProfile *vgpu_profile(void)
{
    pthread_once(&profile_once, read_profile);
    return &profile;
}

void vgpu_lock(void) { pthread_mutex_lock(&mutex); }
void vgpu_unlock(void) { pthread_mutex_unlock(&mutex); }

static void raise_peak(VgpuAccount *account)
{
    u64 used = account->allocated + account->context;
    if (used > account->peak) account->peak = used;
}

bool vgpu_take(int device, u64 bytes)
{
    VgpuAccount *account = &accounts[device];
    u64 size = round_up(bytes, GRANULE), limit = vgpu_profile()->limit_bytes;
    u64 used = account->allocated + account->context;
    if (used > limit || size > limit - used) return false;
    account->allocated += size;
    raise_peak(account);
    return true;
}

void vgpu_give(int device, u64 bytes) { accounts[device].allocated -= round_up(bytes, GRANULE); }

VgpuAccount vgpu_account(int device)
{
    vgpu_lock();
    VgpuAccount copy = accounts[device];
    vgpu_unlock();
    return copy;
}

void vgpu_ensure_context(int device)
{
    const VgpuProfile *p = vgpu_profile();
    if (__atomic_load_n(&accounts[device].has_context, __ATOMIC_ACQUIRE)) return;
    vgpu_lock();
    accounts[device].context = p->context_bytes;
    raise_peak(&accounts[device]);
    __atomic_store_n(&accounts[device].has_context, true, __ATOMIC_RELEASE);
    vgpu_unlock();
}

u64 vgpu_next_handle(void) { return __atomic_add_fetch(&next_handle, 16, __ATOMIC_RELAXED); }
void vgpu_note_launch(void) { __atomic_add_fetch(&launches, 1, __ATOMIC_RELAXED); }

/* ---- for probes, through ctypes: figures of the calling thread's current device, in bytes ---- */

static VgpuAccount current_account(void) { return vgpu_account(vgpu_physical(vgpu_current_device())); }

u64 oombisect_vgpu_used(void)
{
    VgpuAccount account = current_account();
    return account.allocated + account.context;
}
u64 oombisect_vgpu_peak(void) { return current_account().peak; }
u64 oombisect_vgpu_context(void) { return current_account().context; }
u64 oombisect_vgpu_launches(void) { return __atomic_load_n(&launches, __ATOMIC_RELAXED); }
u64 oombisect_vgpu_limit(void) { return vgpu_profile()->limit_bytes; }

void oombisect_vgpu_set_limit(u64 bytes)
{
    vgpu_profile();
    vgpu_lock();
    profile.limit_bytes = bytes;
    vgpu_unlock();
}

void oombisect_vgpu_reset_peak(void)
{
    VgpuAccount *account = &accounts[vgpu_physical(vgpu_current_device())];
    vgpu_lock();
    account->peak = account->allocated + account->context;
    vgpu_unlock();
}
