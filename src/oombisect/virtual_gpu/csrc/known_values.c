/* Small values the host wrote to the device and nothing can have changed since.
 *
 * A host copy from the device reads zeros, except for bytes that a host-to-device copy (or a memset) of at most
 * SMALL bytes put there and that no launch, library call, other copy or free can have touched in the meantime.
 * A launch gets opaque pointers, so it forgets everything. In this model each call completes when it is made, so
 * "in the meantime" is the order of the calls. Nothing stale is ever served; at worst a value reads zero. */
#include "vgpu.h"

#define SMALL 1024
#define SLOTS 256 /* the oldest is dropped beyond it: it then reads zero */

typedef struct {
    u64 address;
    unsigned bytes;
    unsigned char value[SMALL];
} Known;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static Known known[SLOTS];
static size_t count;

static void drop(size_t i)
{
    memmove(known + i, known + i + 1, (count - i - 1) * sizeof *known);
    count--;
}

static bool overlaps(const Known *entry, u64 address, u64 bytes)
{
    return entry->address < address + bytes && address < entry->address + entry->bytes;
}

static void forget(u64 address, u64 bytes)
{
    for (size_t i = count; i-- > 0;) {
        Known entry = known[i];
        if (!overlaps(&entry, address, bytes)) continue;
        drop(i);
    }
}

static void remember(u64 address, const void *value, u64 bytes)
{
    if (count == SLOTS) drop(0);
    known[count] = (Known){.address = address, .bytes = (unsigned)bytes};
    memcpy(known[count++].value, value, bytes);
}

void vgpu_known_write(u64 address, const void *host, u64 bytes)
{
    pthread_mutex_lock(&mutex);
    forget(address, bytes);
    if (host && bytes && bytes <= SMALL) remember(address, host, bytes);
    pthread_mutex_unlock(&mutex);
}

void vgpu_known_fill(u64 address, int byte, u64 bytes)
{
    unsigned char value[SMALL];
    memset(value, byte, sizeof value);
    vgpu_known_write(address, value, bytes);
}

/* Caller holds the mutex. Returns how many of the bytes are known; the others read zero. */
static u64 read_known(unsigned char *to, u64 address, u64 bytes)
{
    u64 found = 0;
    memset(to, 0, bytes);
    for (size_t i = 0; i < count; i++) {
        const Known *entry = &known[i];
        if (!overlaps(entry, address, bytes)) continue;
        u64 from = entry->address > address ? entry->address : address;
        u64 entry_end = entry->address + entry->bytes, end = address + bytes;
        u64 until = entry_end < end ? entry_end : end;
        memcpy(to + (from - address), entry->value + (from - entry->address), until - from);
        found += until - from;
    }
    return found;
}

void vgpu_known_copy(u64 to, u64 from, u64 bytes)
{
    unsigned char value[SMALL];
    pthread_mutex_lock(&mutex);
    bool whole = bytes && bytes <= SMALL && read_known(value, from, bytes) == bytes;
    forget(to, bytes);
    if (whole) remember(to, value, bytes);
    pthread_mutex_unlock(&mutex);
}

void vgpu_known_read(void *host, u64 address, u64 bytes)
{
    pthread_mutex_lock(&mutex);
    read_known(host, address, bytes);
    pthread_mutex_unlock(&mutex);
}

void vgpu_known_forget_all(void)
{
    if (!__atomic_load_n(&count, __ATOMIC_RELAXED)) return;
    pthread_mutex_lock(&mutex);
    count = 0;
    pthread_mutex_unlock(&mutex);
}
