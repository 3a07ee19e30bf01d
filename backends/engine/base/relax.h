/* One turn of polling: tells the processor that this is one. */
#ifndef ACOMM_RELAX_H
#define ACOMM_RELAX_H
static inline void relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}
#endif
