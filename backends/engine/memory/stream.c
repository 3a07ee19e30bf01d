/* Copies by ordinary and by streaming (non-temporal) stores. */
#include "memory/stream.h"

#include <stdatomic.h>
#include <string.h>

#include "base/clock.h"

#define SHORT 1024 /* bytes; below, memcpy has loops of its own, and a look at the clock takes as long */

#ifdef __x86_64__
#include <immintrin.h>

#define LINE 64
#define STRING ((size_t)16 << 10) /* bytes from which string instructions gain for a reader of another core's lines */
#define EXCHANGE ((size_t)7 << 9)    /* and to their writer */
#define PROBE ((size_t)8 << 10)
#define PROBE_TURNS 7 /* the first meets cold caches */

/* Whole lines only: a line written in parts goes to memory once for each part. */
__attribute__((target("avx"))) static void copy_lines(char *to, const char *from, size_t bytes)
{
    for (size_t at = 0; at < bytes; at += LINE) {
        __m256i low = _mm256_loadu_si256((const __m256i *)(const void *)(from + at));
        __m256i high = _mm256_loadu_si256((const __m256i *)(const void *)(from + at + 32));
        _mm256_stream_si256((__m256i *)(void *)(to + at), low);
        _mm256_stream_si256((__m256i *)(void *)(to + at + 32), high);
    }
    _mm_sfence();
}

void stream_copy(void *to, const void *from, size_t bytes)
{
    size_t head = -(uintptr_t)to % LINE;
    if (bytes < SHORT || !__builtin_cpu_supports("avx")) {
        memcpy(to, from, bytes);
        return;
    }
    size_t lines = (bytes - head) / LINE * LINE, tail = bytes - head - lines;
    memcpy(to, from, head);
    memcpy((char *)to + head + lines, (const char *)from + head + lines, tail);
    copy_lines((char *)to + head, (const char *)from + head, lines);
}

/* Aligned stores; the ends are copied by stores that overlap them. bytes >= SHORT. */
__attribute__((target("avx"))) static void keep_lines(void *target, const void *source, size_t bytes)
{
    char *to = target;
    const char *from = source;
    __m256i first = _mm256_loadu_si256((const __m256i *)(const void *)from);
    __m256i low = _mm256_loadu_si256((const __m256i *)(const void *)(from + bytes - 64));
    __m256i high = _mm256_loadu_si256((const __m256i *)(const void *)(from + bytes - 32));
    for (size_t at = -(uintptr_t)to % 32; at + 64 <= bytes; at += 64) {
        __m256i one = _mm256_loadu_si256((const __m256i *)(const void *)(from + at));
        __m256i two = _mm256_loadu_si256((const __m256i *)(const void *)(from + at + 32));
        _mm256_store_si256((__m256i *)(void *)(to + at), one);
        _mm256_store_si256((__m256i *)(void *)(to + at + 32), two);
    }
    _mm256_storeu_si256((__m256i *)(void *)to, first);
    _mm256_storeu_si256((__m256i *)(void *)(to + bytes - 64), low);
    _mm256_storeu_si256((__m256i *)(void *)(to + bytes - 32), high);
}

/* Orders its stores before later ones, as any store does. */
static void copy_string(void *to, const void *from, size_t bytes)
{
    __asm__ volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(bytes) : : "memory");
}

/* The shortest of some times for a block whose source lies `apart` bytes further on modulo 4096. */
static int64_t probe(void (*copy)(void *, const void *, size_t), char *memory, int apart)
{
    int64_t least = INT64_MAX;
    for (int turn = 0; turn < PROBE_TURNS; turn++) {
        int64_t before = clock_now();
        copy(memory, memory + PROBE + apart, PROBE - LINE);
        int64_t ns = clock_now() - before;
        least = ns < least ? ns : least;
    }
    return least;
}

static bool strings_pass(void)
{
    _Alignas(4096) char memory[2 * PROBE] = {0};
    bool pass = __builtin_cpu_supports("avx");
    for (int apart = -4; pass && apart <= 4; apart += 8)
        pass = probe(copy_string, memory, apart) <= 2 * probe(keep_lines, memory, apart);
    return pass;
}

/* String instructions take whole lines from another core without fetching what lies in them: between neighbouring cores 64 KiB in
 * 1.2 us instead of 1.6, between cross-die ones in 3.3 instead of 8.3. But some processors (a Zen 4) fall to 3.5 GB/s where
 * source and target lie a few bytes apart: a trial finds those, once in a process, in 15 us. */
static bool strings_serve(void)
{
    static _Atomic int known; /* 0: not tried yet. Threads that try at the same time find the same */
    int answer = atomic_load_explicit(&known, memory_order_relaxed);
    if (!answer) {
        answer = strings_pass() ? 1 : -1;
        atomic_store_explicit(&known, answer, memory_order_relaxed);
    }
    return answer > 0;
}

void stream_keep(void *to, const void *from, size_t bytes)
{
    if (bytes >= STRING && strings_serve())
        copy_string(to, from, bytes);
    else if (bytes >= SHORT && __builtin_cpu_supports("avx"))
        keep_lines(to, from, bytes);
    else if (bytes)
        memcpy(to, from, bytes);
}

void stream_exchange(void *to, const void *from, size_t bytes)
{
    if (bytes >= EXCHANGE && strings_serve())
        copy_string(to, from, bytes);
    else
        stream_keep(to, from, bytes);
}

#else

void stream_keep(void *to, const void *from, size_t bytes)
{
    if (bytes)
        memcpy(to, from, bytes);
}

void stream_exchange(void *to, const void *from, size_t bytes)
{
    stream_keep(to, from, bytes);
}

void stream_copy(void *to, const void *from, size_t bytes)
{
    memcpy(to, from, bytes);
}
#endif

#define AGAIN ((uint64_t)4 << 20)    /* bytes written between two trials, */
#define TRIAL ((size_t)16 << 10)     /* of so many by each kind of stores: 3 us at worst */
#define READER 25                    /* bytes/ns that the reader loses when they come from memory: 20 instead of 60 to 100 */
#define READER_SHORT 5               /* the same of short blocks, of which the first lines count for more */

/* ns per byte. */
static float timed(void (*copy)(void *, const void *, size_t), void *to, const void *from, size_t bytes)
{
    int64_t before = clock_now();
    copy(to, from, bytes);
    return (float)(clock_now() - before) / (float)bytes;
}

/* A part of a trial: ordinary stores, then non-temporal ones. */
static size_t try_step(struct stream_path *way, void *to, const void *from, size_t bytes)
{
    size_t part = bytes < TRIAL ? bytes : TRIAL;
    if (way->ordinary == 0) {
        way->ordinary = timed(stream_exchange, to, from, part);
    } else {
        way->past = way->ordinary > timed(stream_copy, to, from, part) + 1.0f / (bytes < STREAM_MIN ? READER_SHORT : READER);
        way->ordinary = 0;
        way->bytes = 0;
    }
    return part;
}

/* Writes some of the bytes: how many. */
static size_t fill_step(struct stream_path *way, void *to, const void *from, size_t bytes)
{
    if (way->bytes >= AGAIN && bytes >= SHORT)
        return try_step(way, to, from, bytes);
    size_t part = way->bytes < AGAIN && AGAIN - way->bytes < bytes ? (size_t)(AGAIN - way->bytes) : bytes;
    (way->past ? stream_copy : stream_exchange)(to, from, part);
    way->bytes += part;
    return part;
}

void stream_fill(struct stream_path *way, void *to, const void *from, size_t bytes)
{
    if (bytes < SHORT)
        stream_exchange(to, from, bytes);
    for (size_t at = 0; bytes >= SHORT && at < bytes;)
        at += fill_step(way, (char *)to + at, (const char *)from + at, bytes - at);
}
