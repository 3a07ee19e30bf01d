/* Sleeping on a doorbell in shared memory, and waking who sleeps there: futexes. */
#include "base/doorbell.h"

#include <limits.h>
#include <linux/futex.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

uint32_t doorbell_listen(struct doorbell *doorbell)
{
    atomic_fetch_add(&doorbell->listeners, 1);
    return atomic_load(&doorbell->rung);
}

void doorbell_sleep(struct doorbell *doorbell, uint32_t seen, int64_t ns)
{
    struct timespec t = {ns / 1000000000, ns % 1000000000};
    if (ns > 0)
        syscall(SYS_futex, &doorbell->rung, FUTEX_WAIT, seen, &t, NULL, 0);
}

void doorbell_leave(struct doorbell *doorbell)
{
    atomic_fetch_sub(&doorbell->listeners, 1);
}

void doorbell_ring(struct doorbell *doorbell)
{
    if (!doorbell)
        return;
    atomic_thread_fence(memory_order_seq_cst);
    if (!atomic_load_explicit(&doorbell->listeners, memory_order_relaxed))
        return;
    atomic_fetch_add(&doorbell->rung, 1);
    syscall(SYS_futex, &doorbell->rung, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}
