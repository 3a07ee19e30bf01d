/* Monotonic time in nanoseconds, and one turn of polling. */
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

/* Tells the processor that this is a turn of polling. */
static inline void relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}
#endif
