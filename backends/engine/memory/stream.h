/* Copying between memory of ours and memory that another core writes or reads too.
 *
 * Ordinary stores first fetch each line from the core that read it last: 2 to 10 GB/s where the cores are far apart, 7 to 60
 * where they are close. Non-temporal stores bypass the caches and fetch no line from a core: 40 to 60 GB/s either way, and the
 * reader then finds it in memory. They are weakly ordered: stream_copy ends with a fence, so that a stamp stored afterwards is
 * seen after the data. Ordinary stores win where cores share a cache and the line was read long ago.
 * The cache distance changes while a program runs (virtual machines move cores), so a writer tries both now and then, and uses
 * ordinary stores unless they cost more than the others plus the reader's fetch from memory. No speed by itself shows the cache
 * distance: ordinary stores of what comes from memory are as slow as those between the far cores of another CPU.
 * Gains only between cross-die cores (docs/lab/mechanisms.md); ARRAYCOMM_WITHOUT=probe switches it off. */
#ifndef ACOMM_STREAM_H
#define ACOMM_STREAM_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define STREAM_MIN 4096 /* bytes; shorter blocks use non-temporal stores only at a very large cache distance */

/* By non-temporal stores. No overlap. Short copies, and those of CPUs without such stores, are ordinary ones. */
void stream_copy(void *to, const void *from, size_t bytes);
/* Through the caches, as memcpy; which, on some CPUs, uses string instructions that are slow on arrays of other alignments:
 * blocks of 4 to 128 KiB between neighbouring cores in up to a third less time. bytes may be 0, pointers NULL then. */
void stream_keep(void *to, const void *from, size_t bytes);

/* The same into an exchange buffer, whose lines this core has just read from another one. */
void stream_exchange(void *to, const void *from, size_t bytes);

/* A rank's measurements of the cores that read its data. Zeros at the beginning. */
struct stream_path {
    bool past;                   /* cross-die: non-temporal stores */
    float ordinary;              /* ns per byte of ordinary stores in a trial that has not tried the others yet; else 0 */
    uint64_t bytes;              /* written since the last trial */
};
/* By whichever stores are cheaper to memory that another core has read and will read next. */
void stream_fill(struct stream_path *way, void *to, const void *from, size_t bytes);

#define STREAM_LONG ((size_t)4 << 20) /* bytes; the next reader does not find longer arrays in a cache */

/* A part of a copy of `whole` bytes whose target no rank waits for. */
static inline void stream_long(void *to, const void *from, size_t bytes, size_t whole)
{
    if (whole >= STREAM_LONG)
        stream_copy(to, from, bytes);
    else
        stream_keep(to, from, bytes);
}
#endif
