/* Pages of a memory file. */
#ifndef ACOMM_PAGES_H
#define ACOMM_PAGES_H
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>

#define PAGES_PART (UINT64_C(2) << 20)

/* Gives the range its pages now: writing to it can then never raise SIGBUS. 0, or errno as it was left. In parts: in older kernels a signal ends a
 * call and undoes what it has taken, and a profiler's come again and again. */
static inline int pages_reserve(int fd, uint64_t offset, uint64_t bytes)
{
    for (uint64_t at = 0; at < bytes;) {
        uint64_t part = bytes - at < PAGES_PART ? bytes - at : PAGES_PART;
        if (!fallocate(fd, FALLOC_FL_KEEP_SIZE, (off_t)(offset + at), (off_t)part))
            at += part;
        else if (errno != EINTR)
            return errno;
    }
    return 0;
}
#endif
