/* Futex waits on a word or on a doorbell in shared memory, and waking the sleepers. */
#include "base/doorbell.h"

#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

void futex_sleep(void *word, uint32_t value, int64_t ns, bool shared)
{
    struct timespec t = {ns / 1000000000, ns % 1000000000};
    syscall(SYS_futex, word, shared ? FUTEX_WAIT : FUTEX_WAIT_PRIVATE, value, &t, NULL, 0);
}

void futex_wake(void *word, int sleepers, bool shared)
{
    syscall(SYS_futex, word, shared ? FUTEX_WAKE : FUTEX_WAKE_PRIVATE, sleepers, NULL, NULL, 0);
}

uint32_t doorbell_listen(struct doorbell *doorbell)
{
    atomic_fetch_add(&doorbell->listeners, 1);
    return atomic_load(&doorbell->rung);
}

void doorbell_sleep(struct doorbell *doorbell, uint32_t seen, int64_t ns)
{
    if (ns > 0)
        futex_sleep(&doorbell->rung, seen, ns, true);
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
    futex_wake(&doorbell->rung, INT_MAX, true);
}
