/* Monotonic time in nanoseconds. */
#ifndef ACOMM_CLOCK_H
#define ACOMM_CLOCK_H
#include <stdint.h>
#include <time.h>
static inline int64_t clock_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* Of a processor, in this thread. */
static inline int64_t clock_spent(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}
#endif
