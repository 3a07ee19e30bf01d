/* See cpu.h. */
#include "group/shared/cpu.h"

#include <sched.h>

#include "base/clock.h"
#include "group/shared/shared.h"

int32_t cpu_tell(struct shared *s)
{
    int32_t here = sched_getcpu() + 1;
    _Atomic int32_t *own = shared_cpu(s, s->rank);
    if (atomic_load_explicit(own, memory_order_relaxed) != here)
        atomic_store_explicit(own, here, memory_order_relaxed);
    return here;
}

bool cpu_shared(struct shared *s, int rank)
{
    return atomic_load_explicit(shared_cpu(s, rank), memory_order_relaxed) == cpu_tell(s);
}

void cpu_rest(const struct shared *s, int64_t now)
{
    atomic_store_explicit(&shared_turn(s, s->rank)->until, now, memory_order_relaxed);
}

int64_t cpu_resume(const struct shared *s, int64_t now)
{
    struct cpu_turn *turn = shared_turn(s, s->rank);
    atomic_store_explicit(&turn->since, now, memory_order_relaxed);
    return (int64_t)((uint64_t)now - (uint64_t)atomic_load_explicit(&turn->until, memory_order_relaxed)); /* it lies where all write */
}

/* Of each rank its last turn: a rank with several turns in one rest of ours works for others that wait, not for long. */
int64_t cpu_lent(struct shared *s, int64_t from, int64_t to)
{
    int32_t here = cpu_tell(s);
    int64_t lent = 0;
    for (int rank = 0; rank < s->ranks; rank++) {
        struct cpu_turn *turn = shared_turn(s, rank);
        int64_t since = atomic_load_explicit(&turn->since, memory_order_relaxed);
        int64_t until = atomic_load_explicit(&turn->until, memory_order_relaxed);
        bool beside = rank != s->rank && atomic_load_explicit(shared_cpu(s, rank), memory_order_relaxed) == here;
        until = until >= since && until < to ? until : to;
        since = since > from ? since : from;
        lent += beside && until > since ? until - since : 0;
    }
    return lent;
}
