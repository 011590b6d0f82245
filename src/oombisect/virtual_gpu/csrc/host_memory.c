/* Pinned host memory is real memory; pages that nobody touches cost nothing. */
#include "vgpu.h"

#include <sys/mman.h>

typedef struct {
    u64 start, bytes;
    bool registered; /* the program's own memory, pinned by cudaHostRegister */
} Block;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static Block *blocks; /* sorted by start */
static size_t block_count, block_capacity;

static size_t first_after(u64 address)
{
    size_t low = 0, high = block_count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (blocks[middle].start <= address) low = middle + 1;
        else high = middle;
    }
    return low;
}

static bool add(u64 start, u64 bytes, bool registered)
{
    pthread_mutex_lock(&mutex);
    size_t at = first_after(start);
    bool taken = at > 0 && blocks[at - 1].start + blocks[at - 1].bytes > start;
    if (!taken) {
        if (block_count == block_capacity) {
            block_capacity = block_capacity ? block_capacity * 2 : 256;
            blocks = realloc(blocks, block_capacity * sizeof *blocks);
            if (!blocks) abort();
        }
        memmove(blocks + at + 1, blocks + at, (block_count - at) * sizeof *blocks);
        blocks[at] = (Block){start, bytes, registered};
        block_count++;
    }
    pthread_mutex_unlock(&mutex);
    return !taken;
}

static bool take_out(u64 start, bool registered, u64 *bytes)
{
    pthread_mutex_lock(&mutex);
    size_t at = first_after(start);
    bool found = at > 0 && blocks[at - 1].start == start && blocks[at - 1].registered == registered;
    if (found) {
        *bytes = blocks[at - 1].bytes;
        memmove(blocks + at - 1, blocks + at, (block_count - at) * sizeof *blocks);
        block_count--;
    }
    pthread_mutex_unlock(&mutex);
    return found;
}

bool vgpu_host_block(const void *pointer, u64 *base, u64 *bytes, bool *registered)
{
    u64 address = (u64)(uintptr_t)pointer;
    pthread_mutex_lock(&mutex);
    size_t at = first_after(address);
    bool inside = at > 0 && address < blocks[at - 1].start + blocks[at - 1].bytes;
    if (inside) {
        if (base) *base = blocks[at - 1].start;
        if (bytes) *bytes = blocks[at - 1].bytes;
        if (registered) *registered = blocks[at - 1].registered;
    }
    pthread_mutex_unlock(&mutex);
    return inside;
}

void *vgpu_host_alloc(u64 bytes)
{
    u64 size = round_up(bytes ? bytes : 1, 4096);
    void *place = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (place == MAP_FAILED) return NULL;
    if (!add((u64)(uintptr_t)place, size, false)) return NULL;
    return place;
}

bool vgpu_host_free(void *pointer)
{
    u64 bytes = 0;
    if (!take_out((u64)(uintptr_t)pointer, false, &bytes)) return false;
    munmap(pointer, bytes);
    return true;
}

bool vgpu_host_register(void *pointer, u64 bytes) { return add((u64)(uintptr_t)pointer, bytes, true); }

bool vgpu_host_unregister(void *pointer)
{
    u64 bytes = 0;
    return take_out((u64)(uintptr_t)pointer, true, &bytes);
}
