/* Device addresses: one large PROT_NONE reservation, always at the same place, given out in an order that depends on
 * nothing but the calls. Lowest fitting free range first, as a driver's heap does; freed ranges are merged and reused. */
#include "vgpu.h"

#include <sys/mman.h>

#ifndef MAP_FIXED_NOREPLACE
#define MAP_FIXED_NOREPLACE 0x100000
#endif
#define WANTED_BASE 0x100000000000ull /* far from programs (0x55..), libraries and stacks (0x7f..) */
#define TIB (1ull << 40)

typedef struct {
    u64 start, end;
} Range;

static u64 space_start, space_end;
static int fallback; /* the reservation is not at the usual place: addresses differ from other runs */
static Range *ranges; /* free ranges, sorted, never adjacent */
static size_t range_count, range_capacity;

static void insert_range(size_t at, Range range)
{
    if (range_count == range_capacity) {
        range_capacity = range_capacity ? range_capacity * 2 : 256;
        ranges = realloc(ranges, range_capacity * sizeof *ranges);
        if (!ranges) abort();
    }
    memmove(ranges + at + 1, ranges + at, (range_count - at) * sizeof *ranges);
    ranges[at] = range;
    range_count++;
}

static void remove_range(size_t at)
{
    memmove(ranges + at, ranges + at + 1, (range_count - at - 1) * sizeof *ranges);
    range_count--;
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
    if (!space_start) oombisect_vgpu_unstubbed("address space: no large reservation is possible here (ulimit -v?), so the device");
    u64 start = round_up(space_start, GRANULE) + GRANULE;
    insert_range(0, (Range){start, space_end - GRANULE});
}

int oombisect_vgpu_address_fallback(void) { return fallback; }

bool vgpu_is_device_address(const void *pointer)
{
    u64 address = (u64)(uintptr_t)pointer;
    return space_start && address >= space_start && address < space_end;
}

u64 vgpu_address_take(u64 bytes, u64 alignment)
{
    if (!space_start) reserve();
    bytes = round_up(bytes, GRANULE);
    if (alignment < GRANULE) alignment = GRANULE;
    for (size_t i = 0; i < range_count; i++) {
        u64 start = round_up(ranges[i].start, alignment), end = start + bytes;
        if (end > ranges[i].end || end < start) continue;
        Range tail = {end, ranges[i].end};
        ranges[i].end = start;
        if (tail.start < tail.end) insert_range(i + 1, tail);
        if (ranges[i].start == ranges[i].end) remove_range(i);
        return start;
    }
    return 0;
}

void vgpu_address_give(u64 address, u64 bytes)
{
    Range range = {address, address + round_up(bytes, GRANULE)};
    size_t low = 0, high = range_count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (ranges[middle].start < range.start) low = middle + 1;
        else high = middle;
    }
    bool joins_left = low > 0 && ranges[low - 1].end == range.start;
    bool joins_right = low < range_count && ranges[low].start == range.end;
    if (joins_left && joins_right) {
        ranges[low - 1].end = ranges[low].end;
        remove_range(low);
    } else if (joins_left) {
        ranges[low - 1].end = range.end;
    } else if (joins_right) {
        ranges[low].start = range.start;
    } else {
        insert_range(low, range);
    }
}
