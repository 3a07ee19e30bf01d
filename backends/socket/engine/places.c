#include "places.h"

#include <sched.h>

#include "clock.h"
#include "shared.h"

#define TURNS 64            /* between two looks at the clock: so many yields fit into any wait that yields at all */
#define SPAN_MIN 4000000    /* ns; */
#define SPAN_MAX 1000000000 /* doubled up to here with every move soon after another: who fights with the kernel soon gives in */

int32_t places_say(struct shared *s)
{
    int32_t here = sched_getcpu() + 1;
    _Atomic int32_t *own = shared_place(s, s->rank);
    if (atomic_load_explicit(own, memory_order_relaxed) != here)
        atomic_store_explicit(own, here, memory_order_relaxed);
    return here;
}

/* The permitted processor with fewest ranks, if that is better than `here` and it is our turn to move; else -1. Of the ranks
 * on a processor the last one moves. */
static int better(const struct shared *s, int here, const cpu_set_t *allowed)
{
    uint16_t ranks[CPU_SETSIZE] = {0};
    int last = -1, best = here;
    for (int rank = 0; rank < s->ranks; rank++) {
        int at = atomic_load_explicit(shared_place(s, rank), memory_order_relaxed) - 1;
        if (at < 0 || at >= CPU_SETSIZE)
            return -1;
        ranks[at]++;
        last = at == here ? rank : last;
    }
    for (int i = 1; i < CPU_SETSIZE; i++) { /* the next ones first: they are mostly nearer */
        int cpu = (here + i) % CPU_SETSIZE;
        if (CPU_ISSET(cpu, allowed) && ranks[cpu] < ranks[best])
            best = cpu;
    }
    return ranks[here] >= ranks[best] + 2 && last == s->rank ? best : -1;
}

static void move(int cpu, const cpu_set_t *allowed)
{
    cpu_set_t only;
    CPU_ZERO(&only);
    CPU_SET(cpu, &only);
    if (!sched_setaffinity(0, sizeof only, &only))
        sched_setaffinity(0, sizeof *allowed, allowed); /* it stays there until the kernel has a reason */
}

bool places_spread(struct places *p, struct shared *s)
{
    cpu_set_t allowed;
    int here = places_say(s) - 1;
    if (++p->turns % TURNS)
        return false;
    int64_t now = clock_now();
    if (now < p->next || sched_getaffinity(0, sizeof allowed, &allowed))
        return false;
    int to = here < CPU_SETSIZE ? better(s, here, &allowed) : -1;
    p->span = now - p->next > p->span ? 0 : to >= 0 ? 2 * p->span : p->span / 2;
    p->span = p->span < SPAN_MIN ? SPAN_MIN : p->span < SPAN_MAX ? p->span : SPAN_MAX;
    p->next = now + p->span;
    if (to < 0)
        return false;
    move(to, &allowed);
    places_say(s);
    return true;
}
