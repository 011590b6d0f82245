/* Device addresses: one large PROT_NONE reservation, always at the same place, given out in an order that depends on
 * nothing but the calls.
 *
 * The order follows what CUDA drivers were seen to do (segment addresses in published PyTorch snapshots): requests
 * under 32 MiB are packed upwards into chunks of 32 MiB and never cross from one into the next; larger ones begin at
 * a multiple of 32 MiB and go downwards, each below the last. Both first take the lowest range that was given back
 * and is large enough. Each device has an equal share of the space, so an address tells whose it is. */
#include "vgpu.h"

#include <sys/mman.h>

#ifndef MAP_FIXED_NOREPLACE
#define MAP_FIXED_NOREPLACE 0x100000
#endif
#define WANTED_BASE 0x100000000000ull /* far from programs (0x55..), libraries and stacks (0x7f..) */
#define TIB (1ull << 40)
#define CHUNK (32 * MIB)

typedef struct {
    u64 start, end;
} Range;

typedef struct {
    Range *ranges; /* given back: sorted, never adjacent */
    size_t count, capacity;
    u64 frontier; /* everything beyond it was never given out */
} Arena;

static u64 space_start, space_end;
static int fallback; /* the reservation is not at the usual place: addresses differ from other runs */
static u64 share; /* bytes of address space of each device */

typedef struct {
    Arena small, large;
} Space;
static Space spaces[VGPU_MAX_DEVICES];

static void insert_range(Arena *arena, size_t at, Range range)
{
    if (arena->count == arena->capacity) {
        arena->capacity = arena->capacity ? arena->capacity * 2 : 256;
        arena->ranges = realloc(arena->ranges, arena->capacity * sizeof *arena->ranges);
        if (!arena->ranges) abort();
    }
    memmove(arena->ranges + at + 1, arena->ranges + at, (arena->count - at) * sizeof *arena->ranges);
    arena->ranges[at] = range;
    arena->count++;
}

static void remove_range(Arena *arena, size_t at)
{
    memmove(arena->ranges + at, arena->ranges + at + 1, (arena->count - at - 1) * sizeof *arena->ranges);
    arena->count--;
}

/* Puts a range back and joins it with its neighbours. */
static void give_back(Arena *arena, Range range)
{
    size_t low = 0, high = arena->count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (arena->ranges[middle].start < range.start) low = middle + 1;
        else high = middle;
    }
    Range *at = arena->ranges + low;
    bool joins_left = low > 0 && at[-1].end == range.start;
    bool joins_right = low < arena->count && at->start == range.end;
    if (joins_left && joins_right) {
        at[-1].end = at->end;
        remove_range(arena, low);
    } else if (joins_left) {
        at[-1].end = range.end;
    } else if (joins_right) {
        at->start = range.start;
    } else {
        insert_range(arena, low, range);
    }
}

/* Cuts [start, end) out of range `at`, which holds it. */
static void cut(Arena *arena, size_t at, u64 start, u64 end)
{
    Range whole = arena->ranges[at];
    remove_range(arena, at);
    if (end < whole.end) insert_range(arena, at, (Range){end, whole.end});
    if (whole.start < start) insert_range(arena, at, (Range){whole.start, start});
}

static void reserve(void)
{
    static const u64 sizes[] = {64 * TIB, 16 * TIB, 4 * TIB, TIB};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes && !space_start; i++) {
        int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
        void *place = mmap((void *)WANTED_BASE, sizes[i], PROT_NONE, flags | MAP_FIXED_NOREPLACE, -1, 0);
        if (place == MAP_FAILED) place = mmap(NULL, sizes[i], PROT_NONE, flags, -1, 0);
        if (place == MAP_FAILED) continue;
        space_start = (u64)(uintptr_t)place;
        space_end = space_start + sizes[i];
        fallback = space_start != WANTED_BASE || i > 0;
    }
    if (!space_start) oombisect_vgpu_unstubbed("a reservation of address space (ulimit -v must be unlimited)");
    share = (space_end - space_start) / (u64)vgpu_profile()->devices & ~(CHUNK - 1);
    for (int device = 0; device < vgpu_profile()->devices; device++) {
        u64 start = space_start + (u64)device * share;
        spaces[device].small.frontier = round_up(start, CHUNK) + CHUNK;
        spaces[device].large.frontier = ((start + share) & ~(CHUNK - 1)) - CHUNK;
    }
}

int oombisect_vgpu_address_fallback(void) { return fallback; }

bool vgpu_is_device_address(const void *pointer)
{
    u64 address = (u64)(uintptr_t)pointer;
    return space_start && address >= space_start && address < space_end;
}

int vgpu_device_of_address(u64 address)
{
    int device = (int)((address - space_start) / share), last = vgpu_profile()->devices - 1;
    return device < last ? device : last;
}

static u64 take_small(Space *space, u64 bytes)
{
    Arena *arena = &space->small;
    for (;;) {
        for (size_t i = 0; i < arena->count; i++) {
            u64 start = arena->ranges[i].start;
            if (start / CHUNK != (start + bytes - 1) / CHUNK) start = round_up(start, CHUNK);
            if (start + bytes > arena->ranges[i].end) continue;
            cut(arena, i, start, start + bytes);
            return start;
        }
        if (arena->frontier + CHUNK > space->large.frontier) return 0;
        give_back(arena, (Range){arena->frontier, arena->frontier + CHUNK});
        arena->frontier += CHUNK;
    }
}

static u64 take_large(Space *space, u64 bytes, u64 alignment)
{
    Arena *arena = &space->large;
    for (size_t i = 0; i < arena->count; i++) {
        u64 start = round_up(arena->ranges[i].start, alignment);
        if (start + bytes > arena->ranges[i].end || start + bytes < start) continue;
        cut(arena, i, start, start + bytes);
        return start;
    }
    u64 free_bytes = arena->frontier - space->small.frontier;
    if (bytes > free_bytes || alignment > free_bytes - bytes) return 0;
    u64 end = arena->frontier, start = (end - bytes) & ~(alignment - 1);
    arena->frontier = start;
    if (start + bytes < end) give_back(arena, (Range){start + bytes, end});
    return start;
}

u64 vgpu_address_take(int device, u64 bytes, u64 alignment)
{
    if (!space_start) reserve();
    bytes = round_up(bytes, GRANULE);
    if (bytes < CHUNK && alignment <= GRANULE) return take_small(&spaces[device], bytes);
    return take_large(&spaces[device], bytes, alignment > CHUNK ? alignment : CHUNK);
}

void vgpu_address_give(u64 address, u64 bytes)
{
    Space *space = &spaces[vgpu_device_of_address(address)];
    Arena *arena = address < space->small.frontier ? &space->small : &space->large;
    give_back(arena, (Range){address, address + round_up(bytes, GRANULE)});
}
