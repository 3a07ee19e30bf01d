#include "places.h"

#include <sched.h>
#include <stdlib.h>

#include "clock.h"
#include "processors.h"
#include "shared.h"

#define TURNS 64            /* between two looks at the clock: so many yields fit into any wait that yields at all */
#define SPAN_MIN 4000000    /* ns; */
#define SPAN_MAX 1000000000 /* doubled up to here with every move soon after another: who fights with the kernel soon gives in */
#define LATELY 20000000     /* ns; who has waited for others since has work to do */

int32_t places_say(struct shared *s)
{
    int32_t here = sched_getcpu() + 1;
    _Atomic int32_t *own = shared_place(s, s->rank);
    if (atomic_load_explicit(own, memory_order_relaxed) != here)
        atomic_store_explicit(own, here, memory_order_relaxed);
    return here;
}

/* -1: not known. */
static int place_of(const struct shared *s, int rank)
{
    int32_t place = atomic_load_explicit(shared_place(s, rank), memory_order_relaxed);
    return place > 0 ? place - 1 : -1;
}

bool places_before(const struct shared *s, int other)
{
    return sched_getcpu() < place_of(s, other);
}

void places_rest(const struct shared *s, int64_t now)
{
    atomic_store_explicit(&shared_turn(s, s->rank)->until, now, memory_order_relaxed);
}

int64_t places_resume(const struct shared *s, int64_t now)
{
    struct core_turn *turn = shared_turn(s, s->rank);
    atomic_store_explicit(&turn->since, now, memory_order_relaxed);
    return (int64_t)((uint64_t)now - (uint64_t)atomic_load_explicit(&turn->until, memory_order_relaxed)); /* it lies where all write */
}

/* Of each rank its last turn: who has several in one rest of ours works for others that wait, not for long. */
int64_t places_lent(struct shared *s, int64_t from, int64_t to)
{
    int32_t here = places_say(s);
    int64_t lent = 0;
    for (int rank = 0; rank < s->ranks; rank++) {
        struct core_turn *turn = shared_turn(s, rank);
        int64_t since = atomic_load_explicit(&turn->since, memory_order_relaxed);
        int64_t until = atomic_load_explicit(&turn->until, memory_order_relaxed);
        bool beside = rank != s->rank && atomic_load_explicit(shared_place(s, rank), memory_order_relaxed) == here;
        until = until >= since && until < to ? until : to;
        since = since > from ? since : from;
        lent += beside && until > since ? until - since : 0;
    }
    return lent;
}

/* The permitted processor with fewest ranks, ours where it has no more; `other`: of the others. -1: not known. ranks: zeros, for each
 * processor. last: of the ranks on ours. */
static int fewest(const struct shared *s, int here, const struct processors *allowed, bool other, uint16_t *ranks, int *last)
{
    int best = other ? -1 : here;
    for (int rank = 0; rank < s->ranks; rank++) {
        int at = place_of(s, rank);
        if (at < 0 || at >= allowed->count)
            return -1;
        ranks[at]++;
        *last = at == here ? rank : *last;
    }
    for (int i = 1; i < allowed->count; i++) { /* the next ones first: they are mostly nearer */
        int cpu = (here + i) % allowed->count;
        if (CPU_ISSET_S(cpu, allowed->bytes, allowed->set) && (best < 0 || ranks[cpu] < ranks[best]))
            best = cpu;
    }
    return best;
}

/* A processor that has two ranks less than ours at least, or `other` than ours, whatever that has; else -1. */
static int find_better(const struct shared *s, int here, const struct processors *allowed, bool other, int *last)
{
    *last = -1;
    uint16_t *ranks = here < allowed->count ? calloc((size_t)allowed->count, sizeof *ranks) : NULL;
    int to = ranks ? fewest(s, here, allowed, other, ranks, last) : -1;
    bool better = other || (to >= 0 && ranks[here] >= ranks[to] + 2);
    free(ranks);
    return better ? to : -1;
}

static bool move(int cpu, const struct processors *allowed)
{
    struct processors only;
    if (!processors_empty(&only, allowed->count))
        return false;
    CPU_SET_S(cpu, only.bytes, only.set);
    bool moved = !sched_setaffinity(0, only.bytes, only.set); /* a container may refuse it */
    if (moved)
        sched_setaffinity(0, allowed->bytes, allowed->set); /* it stays there until the kernel has a reason */
    processors_free(&only);
    return moved;
}

/* After a look: when to take the next one. */
static void put_off(struct places *p, int64_t now, bool moves)
{
    p->span = now - p->next > p->span ? 0 : moves ? 2 * p->span : p->span / 2;
    p->span = p->span < SPAN_MIN ? SPAN_MIN : p->span < SPAN_MAX ? p->span : SPAN_MAX;
    p->next = now + p->span;
}

bool places_spread(struct places *p, struct shared *s)
{
    struct processors allowed;
    int here = places_say(s) - 1;
    if (++p->turns % TURNS)
        return false;
    int64_t now = clock_now();
    if (now < p->next || !processors_open(&allowed))
        return false;
    int last, to = find_better(s, here, &allowed, false, &last);
    to = last == s->rank ? to : -1; /* all look, so that one has to be who moves */
    put_off(p, now, to >= 0);
    bool moved = to >= 0 && move(to, &allowed);
    processors_free(&allowed);
    if (moved)
        places_say(s);
    return moved;
}

/* Says so before it moves: who has run on our processor until now looks after that, and stays; and who would follow us sees it. */
static bool go(struct shared *s, int to, const struct processors *allowed)
{
    atomic_store_explicit(shared_place(s, s->rank), to + 1, memory_order_relaxed);
    bool moved = move(to, allowed);
    if (!moved)
        places_say(s);
    return moved;
}

bool places_part(struct shared *s)
{
    struct processors allowed;
    int here = places_say(s) - 1;
    if (!processors_open(&allowed))
        return false;
    int last, to = find_better(s, here, &allowed, false, &last);
    bool moved = to >= 0 && go(s, to, &allowed);
    processors_free(&allowed);
    return moved;
}

static bool busy(const struct shared *s, int rank, int64_t now)
{
    const struct core_turn *turn = shared_turn(s, rank);
    uint64_t since = (uint64_t)atomic_load_explicit(&turn->since, memory_order_relaxed);
    uint64_t until = (uint64_t)atomic_load_explicit(&turn->until, memory_order_relaxed);
    return (int64_t)((uint64_t)now - since) < LATELY || (int64_t)((uint64_t)now - until) < LATELY;
}

/* Whether our processor would go on working without us, and the other one have two busy ranks more than ours at most: one of those
 * whose partner is here comes the other way then, by the same rule. */
static bool may_leave(const struct shared *s, int here, int there, int other, int64_t now)
{
    int ours = 0, theirs = 0;
    for (int rank = 0; rank < s->ranks; rank++) {
        int at = place_of(s, rank);
        bool counts = (at == here || at == there) && (rank == s->rank || rank == other || busy(s, rank, now));
        ours += counts && at == here;
        theirs += counts && at == there;
    }
    return ours > 1 && theirs <= ours;
}

bool places_join(struct places *p, struct shared *s, int other)
{
    int here = places_say(s) - 1, there = place_of(s, other);
    int64_t now = there == here ? 0 : clock_now();
    struct processors allowed;
    if (there < 0 || there == here || now < p->next || !may_leave(s, here, there, other, now) || !processors_open(&allowed))
        return false;
    put_off(p, now, true);
    bool moved = there < allowed.count && CPU_ISSET_S(there, allowed.bytes, allowed.set) && go(s, there, &allowed);
    processors_free(&allowed);
    return moved;
}

bool places_leave(struct places *p, struct shared *s, int other)
{
    struct processors allowed;
    int here = places_say(s) - 1, last;
    int64_t now = clock_now();
    if (place_of(s, other) != here || other > s->rank || now < p->next || !processors_open(&allowed))
        return false;
    int to = find_better(s, here, &allowed, true, &last);
    put_off(p, now, to >= 0);
    bool moved = to >= 0 && may_leave(s, here, to, other, now) && go(s, to, &allowed);
    processors_free(&allowed);
    return moved;
}
