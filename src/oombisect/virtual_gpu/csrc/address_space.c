/* Device addresses: one large PROT_NONE reservation, always at the same place, given out in an order that depends on
 * nothing but the calls.
 *
 * The order follows what CUDA drivers were seen to do (segment addresses in published PyTorch snapshots): requests
 * under 32 MiB are packed upwards into chunks of 32 MiB and never cross from one into the next; larger ones begin at
 * a multiple of 32 MiB and go downwards, each below the last. Both first take the lowest range that was given back
 * and is large enough. */
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
static Arena small_arena, large_arena;

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
    small_arena.frontier = round_up(space_start, CHUNK) + CHUNK;
    large_arena.frontier = (space_end & ~(CHUNK - 1)) - CHUNK;
}

int oombisect_vgpu_address_fallback(void) { return fallback; }

bool vgpu_is_device_address(const void *pointer)
{
    u64 address = (u64)(uintptr_t)pointer;
    return space_start && address >= space_start && address < space_end;
}

static u64 take_small(u64 bytes)
{
    for (;;) {
        for (size_t i = 0; i < small_arena.count; i++) {
            u64 start = small_arena.ranges[i].start;
            if (start / CHUNK != (start + bytes - 1) / CHUNK) start = round_up(start, CHUNK);
            if (start + bytes > small_arena.ranges[i].end) continue;
            cut(&small_arena, i, start, start + bytes);
            return start;
        }
        if (small_arena.frontier + CHUNK > large_arena.frontier) return 0;
        give_back(&small_arena, (Range){small_arena.frontier, small_arena.frontier + CHUNK});
        small_arena.frontier += CHUNK;
    }
}

static u64 take_large(u64 bytes, u64 alignment)
{
    for (size_t i = 0; i < large_arena.count; i++) {
        u64 start = round_up(large_arena.ranges[i].start, alignment);
        if (start + bytes > large_arena.ranges[i].end || start + bytes < start) continue;
        cut(&large_arena, i, start, start + bytes);
        return start;
    }
    if (bytes + alignment > large_arena.frontier - small_arena.frontier) return 0;
    u64 start = (large_arena.frontier - bytes) & ~(alignment - 1), end = large_arena.frontier;
    large_arena.frontier = start;
    if (start + bytes < end) give_back(&large_arena, (Range){start + bytes, end});
    return start;
}

u64 vgpu_address_take(u64 bytes, u64 alignment)
{
    if (!space_start) reserve();
    bytes = round_up(bytes, GRANULE);
    if (bytes < CHUNK && alignment <= GRANULE) return take_small(bytes);
    return take_large(bytes, alignment > CHUNK ? alignment : CHUNK);
}

void vgpu_address_give(u64 address, u64 bytes)
{
    Arena *arena = address < small_arena.frontier ? &small_arena : &large_arena;
    give_back(arena, (Range){address, address + round_up(bytes, GRANULE)});
}
