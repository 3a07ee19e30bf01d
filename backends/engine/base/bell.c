#include "base/bell.h"

#include <limits.h>
#include <linux/futex.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

uint32_t bell_listen(struct bell *bell)
{
    atomic_fetch_add(&bell->listeners, 1);
    return atomic_load(&bell->rung);
}

void bell_sleep(struct bell *bell, uint32_t seen, int64_t ns)
{
    struct timespec t = {ns / 1000000000, ns % 1000000000};
    if (ns > 0)
        syscall(SYS_futex, &bell->rung, FUTEX_WAIT, seen, &t, NULL, 0);
}

void bell_leave(struct bell *bell)
{
    atomic_fetch_sub(&bell->listeners, 1);
}

void bell_ring(struct bell *bell)
{
    if (!bell)
        return;
    atomic_thread_fence(memory_order_seq_cst);
    if (!atomic_load_explicit(&bell->listeners, memory_order_relaxed))
        return;
    atomic_fetch_add(&bell->rung, 1);
    syscall(SYS_futex, &bell->rung, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}
