/* Aligned host memory of results. Small blocks come from malloc; large ones are mapped, and a few of them are kept
 * when freed: touching fresh pages costs more than reducing into them (0.25 us per 4 KiB page).
 * What is kept is marked MADV_FREE, so the kernel takes it back as soon as memory is short. */
#include "native.h"
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define ALIGNMENT 64
#define MAPPED_BYTES (128u << 10) /* from here on blocks are mapped and kept */
#define HUGE_BYTES (2u << 20)     /* size and alignment of a huge page on x86-64 and AArch64 with 4 KiB pages */
#define KEPT_BLOCKS 16
#define KEPT_BYTES (512ul << 20)

static struct {
    pthread_mutex_t mutex;
    struct memory *blocks[KEPT_BLOCKS];
    int count;
    size_t bytes;
} kept = {.mutex = PTHREAD_MUTEX_INITIALIZER};

static size_t memory_round_up(size_t bytes, size_t step)
{
    return (bytes + step - 1) / step * step;
}

static struct memory *take_block(int index)
{
    struct memory *memory = kept.blocks[index];
    kept.count--;
    memmove(&kept.blocks[index], &kept.blocks[index + 1], (size_t)(kept.count - index) * sizeof memory);
    kept.bytes -= memory->bytes;
    return memory;
}

/* A kept block of at least `bytes`, at most a quarter larger. trylock: after a fork the lock may be held by nobody. */
static struct memory *reuse(size_t bytes)
{
    struct memory *found = NULL;
    if (pthread_mutex_trylock(&kept.mutex))
        return NULL;
    for (int i = kept.count - 1; i >= 0 && !found; i--)
        if (kept.blocks[i]->bytes >= bytes && kept.blocks[i]->bytes - bytes <= bytes / 4)
            found = take_block(i);
    pthread_mutex_unlock(&kept.mutex);
    return found;
}

static void unmap(struct memory *memory)
{
    munmap(memory->data, memory->bytes);
    free(memory);
}

/* Oldest blocks go first, so that a program that changes sizes does not keep the old ones. */
static void memory_keep(struct memory *memory)
{
    struct memory *evicted[KEPT_BLOCKS];
    int count = 0;
    if (memory->bytes > KEPT_BYTES || pthread_mutex_trylock(&kept.mutex)) {
        unmap(memory);
        return;
    }
    while (kept.count == KEPT_BLOCKS || kept.bytes + memory->bytes > KEPT_BYTES)
        evicted[count++] = take_block(0);
    kept.blocks[kept.count++] = memory;
    kept.bytes += memory->bytes;
    /* Below a huge page the walk over small pages costs more than the memory is worth. */
    if (memory->bytes >= HUGE_BYTES)
        madvise(memory->data, memory->bytes, MADV_FREE);
    pthread_mutex_unlock(&kept.mutex);
    while (count > 0)
        unmap(evicted[--count]);
}

/* From a huge page on aligned to one: maps more and cuts the ends off. */
static char *map_memory(size_t bytes)
{
    size_t whole = bytes >= HUGE_BYTES ? bytes + HUGE_BYTES : bytes;
    char *raw = mmap(NULL, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (raw == MAP_FAILED)
        return NULL;
    if (whole == bytes)
        return raw;
    char *data = (char *)memory_round_up((size_t)raw, HUGE_BYTES);
    if (data > raw)
        munmap(raw, (size_t)(data - raw));
    munmap(data + bytes, (size_t)(raw + whole - (data + bytes)));
    madvise(data, bytes, MADV_HUGEPAGE);
    return data;
}

static struct memory *map_block(size_t bytes)
{
    struct memory *memory = malloc(sizeof *memory);
    if (!memory)
        return NULL;
    *memory = (struct memory){.mapped = true, .bytes = memory_round_up(bytes, bytes >= HUGE_BYTES ? HUGE_BYTES : 4096)};
    memory->data = map_memory(memory->bytes);
    if (!memory->data) {
        free(memory);
        return NULL;
    }
    return memory;
}

/* The record lies in the cache line before its data. Aligned by hand: malloc keeps what is freed at hand for the next call,
 * aligned_alloc does not (glibc 2.36: 0.1 us more). */
static struct memory *small_block(size_t bytes)
{
    _Static_assert(sizeof(struct memory) <= ALIGNMENT, "the record fits its line");
    char *block = malloc(bytes + 2 * ALIGNMENT);
    if (!block)
        return NULL;
    char *line = (char *)memory_round_up((size_t)block, ALIGNMENT);
    struct memory *memory = (struct memory *)line;
    *memory = (struct memory){.data = line + ALIGNMENT, .bytes = bytes, .skipped = (unsigned char)(line - block)};
    return memory;
}

struct memory *memory_new(size_t bytes)
{
    struct memory *memory;
    if (bytes > SIZE_MAX / 2)
        return NULL;
    if (bytes < MAPPED_BYTES)
        memory = small_block(bytes);
    else if (!(memory = reuse(bytes)))
        memory = map_block(bytes);
    if (!memory)
        return NULL;
    atomic_init(&memory->references, 1);
    return memory;
}

struct memory *memory_adopt(char *data, size_t bytes, void (*release)(void *), void *context)
{
    struct memory *memory = malloc(sizeof *memory);
    if (!memory)
        return NULL;
    *memory = (struct memory){.data = data, .bytes = bytes, .release = release, .context = context};
    atomic_init(&memory->references, 1);
    return memory;
}

struct memory *memory_retain(struct memory *memory)
{
    if (memory)
        atomic_fetch_add_explicit(&memory->references, 1, memory_order_relaxed);
    return memory;
}

void memory_release(struct memory *memory)
{
    if (!memory || atomic_fetch_sub_explicit(&memory->references, 1, memory_order_acq_rel) != 1)
        return;
    if (memory->enter && later_release(memory))
        return;
    if (memory->release)
        memory->release(memory->context);
    if (memory->mapped)
        memory_keep(memory);
    else
        free((char *)memory - memory->skipped);
}
