/* Processes made by fork: a group knows by their number that it was made by a parent. */
#ifndef ACOMM_FORKS_H
#define ACOMM_FORKS_H
#include <stdatomic.h>

/* Counted in each child, from the first call of this on. */
void forks_watch(void);

extern _Atomic unsigned forks_made;

static inline unsigned forks_now(void)
{
    return atomic_load_explicit(&forks_made, memory_order_relaxed);
}
#endif
