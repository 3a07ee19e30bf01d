/* Copying into memory that another core reads next.
 *
 * Ordinary stores first fetch each line from the core that read it last: 2 GB/s where the cores are far apart, 7 to 9 where
 * they are close. Non-temporal stores write past the caches and take the line from nobody: 40 to 50 GB/s either way, and the
 * reader then finds it in memory. They are weakly ordered: stream_copy ends with a fence, so that a stamp stored
 * afterwards is seen after the data. */
#ifndef ACOMM_STREAM_H
#define ACOMM_STREAM_H
#include <stddef.h>
#include <string.h>

#define STREAM_MIN 4096 /* bytes; below, a reader that waits gets the data sooner out of our cache */

/* No overlap. Short copies, and those of CPUs without such stores, are ordinary ones. */
void stream_copy(void *to, const void *from, size_t bytes);

#define STREAM_LONG ((size_t)4 << 20) /* bytes; what is longer is not found in a cache by who reads it next */

/* A part of a copy of `whole` bytes to where nobody waits for it. */
static inline void stream_long(void *to, const void *from, size_t bytes, size_t whole)
{
    if (whole >= STREAM_LONG)
        stream_copy(to, from, bytes);
    else if (bytes)
        memcpy(to, from, bytes);
}
#endif
