/* A small hash table from a 64-bit key (never 0) to two values: allocations, mappings, reservations. */
#include "vgpu.h"

#define TOMBSTONE UINT64_MAX

static size_t slot_of(u64 key, size_t capacity) { return (size_t)((key * 0x9E3779B97F4A7C15ull) >> 20) & (capacity - 1); }

VgpuEntry *vgpu_table_find(VgpuTable *table, u64 key)
{
    if (!table->capacity) return NULL;
    for (size_t i = slot_of(key, table->capacity);; i = (i + 1) & (table->capacity - 1)) {
        if (table->slots[i].key == key) return &table->slots[i];
        if (!table->slots[i].key) return NULL;
    }
}

static void insert(VgpuTable *table, VgpuEntry entry)
{
    size_t i = slot_of(entry.key, table->capacity);
    while (table->slots[i].key) i = (i + 1) & (table->capacity - 1);
    table->slots[i] = entry;
}

static void grow(VgpuTable *table)
{
    VgpuTable old = *table;
    bool crowded = old.used * 2 > old.capacity; /* else it is full of tombstones: the same size will do */
    table->capacity = !old.capacity ? 512 : crowded ? old.capacity * 2 : old.capacity;
    table->tombstones = 0;
    table->slots = calloc(table->capacity, sizeof *table->slots);
    if (!table->slots) abort();
    for (size_t i = 0; i < old.capacity; i++)
        if (old.slots[i].key && old.slots[i].key != TOMBSTONE) insert(table, old.slots[i]);
    free(old.slots);
}

void vgpu_table_put(VgpuTable *table, u64 key, u64 value, u64 extra)
{
    if ((table->used + table->tombstones + 1) * 4 > table->capacity * 3) grow(table);
    insert(table, (VgpuEntry){key, value, extra});
    table->used++;
}

bool vgpu_table_remove(VgpuTable *table, u64 key, VgpuEntry *removed)
{
    VgpuEntry *entry = vgpu_table_find(table, key);
    if (!entry) return false;
    if (removed) *removed = *entry;
    entry->key = TOMBSTONE;
    table->used--;
    table->tombstones++;
    return true;
}
