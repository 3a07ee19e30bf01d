/* Waiting inside an operation: how long to spin, yield and sleep, and when to stop. */
#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>

#include "base/clock.h"
#include "group/group.h"
#include "membership/node.h"
#include "group/wait.h"

#define SPINS 100           /* turns of about 20-40 ns; after them a yield costs little if no other thread wants the core */
#define SPINS_OVERSUBSCRIBED 60    /* 1.5 us, a yield's time: the awaited rank runs on another CPU, or its CPU is unknown */
#define YIELD_NS 200000     /* how long to yield before sleeping, with a core for every rank */
#define SHORT_NS 4000000    /* a sleep as short as this was not worth it: we yield for twice as long next time, up to this */
#define YIELD_TURN_NS 125000 /* for each rank, if oversubscribed: a sleeping rank costs a wake-up per step, but a rank that yields
                              * makes its core look busy, and so the ranks that work are not spread over all cores */
#define YIELD_OVERSUBSCRIBED_NS 2000000 /* at most */
#define NEWS_NS 500000000   /* how long a closed link waits for the reason, which travels another way; the promise is 1 s where ranks are few */
#define NEWS_LOOK_NS 1000000
#define SPINS_LINKS 1       /* a turn looks at all links, by system calls if they are sockets; the peer may need this core, also
                             * beside other processes: the scheduler puts ranks that wake each other on one core */
#define YIELD_FABRIC_NS 20000000 /* a fabric wakes nobody: sleeps are naps, and its traffic moves by looking */
#define TELL_AGAIN 6        /* times the patience until an operation that waits says so again */
#define PREEMPTED_NS 500000    /* a yield as long as this ran a thread that is not waiting for anything */
#define PREEMPTED_RARELY 300   /* yields in between: their 3 ms or so cost less than as many sleeps and wake-ups */
#define PREEMPTED_MIN_NS 1000000 /* how long to sleep at once then, */
#define PREEMPTED_MAX_NS 64000000 /* doubled up to here while every trial is preempted again */

/* ---- processors ---- */

int32_t cpu_tell(struct shared *s)
{
    int32_t here = sched_getcpu() + 1;
    _Atomic int32_t *own = &region_of(s, s->rank)->cpu;
    if (atomic_load_explicit(own, memory_order_relaxed) != here)
        atomic_store_explicit(own, here, memory_order_relaxed);
    return here;
}

bool cpu_shared(struct shared *s, int rank)
{
    return atomic_load_explicit(&region_of(s, rank)->cpu, memory_order_relaxed) == cpu_tell(s);
}

void cpu_rest(const struct shared *s, int64_t now)
{
    atomic_store_explicit(&region_of(s, s->rank)->turn.until, now, memory_order_relaxed);
}

int64_t cpu_resume(const struct shared *s, int64_t now)
{
    struct cpu_turn *turn = &region_of(s, s->rank)->turn;
    atomic_store_explicit(&turn->since, now, memory_order_relaxed);
    return (int64_t)((uint64_t)now - (uint64_t)atomic_load_explicit(&turn->until, memory_order_relaxed)); /* it lies where all write */
}

/* Of each rank its last turn: a rank with several turns in one rest of ours works for others that wait, not for long. */
int64_t cpu_lent(struct shared *s, int64_t from, int64_t to)
{
    int32_t here = cpu_tell(s);
    int64_t lent = 0;
    for (int rank = 0; rank < s->ranks; rank++) {
        struct cpu_turn *turn = &region_of(s, rank)->turn;
        int64_t since = atomic_load_explicit(&turn->since, memory_order_relaxed);
        int64_t until = atomic_load_explicit(&turn->until, memory_order_relaxed);
        bool beside = rank != s->rank && atomic_load_explicit(&region_of(s, rank)->cpu, memory_order_relaxed) == here;
        until = until >= since && until < to ? until : to;
        since = since > from ? since : from;
        lent += beside && until > since ? until - since : 0;
    }
    return lent;
}

/* ---- reasons to stop ---- */

bool wait_news(const struct acomm_group *g, int rank)
{
    int64_t end = clock_now() + node_patience(g->node, NEWS_NS);
    for (int64_t now = clock_now(); now < end && !atomic_load(&g->poisoned); now = clock_now()) {
        if (g->node && node_left(g->node, g, rank, UINT64_MAX) >= 0)
            return true; /* the peer would have reported a failure before */
        struct pollfd wake = {.fd = g->wake_fd, .events = POLLIN};
        struct timespec t = {0, end - now < NEWS_LOOK_NS ? end - now : NEWS_LOOK_NS};
        ppoll(&wake, 1, &t, NULL);
    }
    return false;
}

const char *wait_closed(const struct acomm_group *g, int rank)
{
    static _Thread_local char text[96];
    int status = g->node ? node_exit_status(g->node, g, rank) : -1;
    if (status < 0)
        return "it has closed the group";
    snprintf(text, sizeof text, "its process ended with exit status %d while others waited, before it closed the group", status);
    return text;
}

int wait_unreached(struct acomm_op *op, int rank, int errnum)
{
    if (errnum != ESRCH && errnum != ECANCELED)
        return group_fail_op(op, ACOMM_SYSTEM, rank, errnum, "its array could not be reached");
    bool closed = wait_news(op->group, rank); /* the peer has exited, or failed: its reason is under way */
    return group_fail_op(op, ACOMM_LOST, rank, 0, closed ? wait_closed(op->group, rank) : "its process has ended");
}

static bool may_leave(const struct acomm_op *op)
{
    return op->guest && !op->compared;
}

struct wait wait_start(struct acomm_op *op)
{
    bool oversubscribed = op->group->oversubscribed, leaves = may_leave(op) && !op->leave_at;
    int64_t turns = (int64_t)op->group->size * YIELD_TURN_NS;
    int64_t patience = atomic_load_explicit(&op->group->preempted.patience, memory_order_relaxed);
    return (struct wait){.op = op, .spins = leaves ? 0 : oversubscribed ? SPINS_OVERSUBSCRIBED : SPINS,
                         .yield_ns = !oversubscribed ? (patience ? patience : YIELD_NS) : turns < YIELD_OVERSUBSCRIBED_NS ? turns : YIELD_OVERSUBSCRIBED_NS};
}

static bool preempted(const struct acomm_group *g, int64_t now)
{
    return now < atomic_load_explicit(&g->preempted.until, memory_order_relaxed);
}

struct wait wait_start_links(struct acomm_op *op)
{
    struct wait w = wait_start(op);
    bool memory = op->group->hosts.all.place == TEAM_HOST;
    if (op->group->oversubscribed || (!memory && preempted(op->group, clock_now())))
        w.spins = SPINS_LINKS;
    if (!memory && !op->group->oversubscribed && op->group->fabric && op->synchronous)
        w.yield_ns = YIELD_FABRIC_NS;
    return w;
}

void wait_reset(struct wait *w)
{
    w->turns = 0;
    w->sleep_at = 0;
    w->sleepy = false;
    w->op->waits.tell_at = 0;
}

/* A rank that this operation needs and that will never come: it has closed the group or left the world. -1: none. */
static int absent(const struct acomm_op *op)
{
    const struct acomm_group *g = op->group;
    if (!g->node)
        return -1;
    if (!op_is_message(op->kind))
        return node_left(g->node, g, -1, op->sequence);
    return op->peer < 0 || op->apart ? -1 : node_left(g->node, g, op->peer, UINT64_MAX); /* any source: see p2p_match_end_alone() */
}

/* Whether a thread of the program does nothing else meanwhile. */
static bool wait_blocks(const struct acomm_op *op)
{
    while (op->whole)
        op = op->whole;
    return op->synchronous || op->guest || op_is_message(op->kind) || atomic_load_explicit(&op->done, memory_order_relaxed) == OP_AWAITED;
}

/* A rank that has waited for long asks the others for their progress, and reports it once they have answered. */
static void wait_tell(struct acomm_op *op, int64_t now)
{
    struct acomm_group *g = op->group;
    if (!op->waits.tell_at || !wait_blocks(op)) {
        op->waits.since = now;
        op->waits.tell_at = now + g->patience;
        op->waits.asked = false;
        return;
    }
    if (now < op->waits.tell_at)
        return;
    op->waits.asked = !op->waits.asked;
    if (op->waits.asked) {
        node_ask_members(g->node, g);
        op->waits.tell_at = now + NODE_ANSWER_NS;
        return;
    }
    acomm_late late = {.group = g->id, .waited = now - op->waits.since, .peer = op->peer, .all = !op_is_message(op->kind)};
    op_header(op, &late.mine);
    node_waits(g->node, g, &late);
    op->waits.tell_at = now + g->patience * TELL_AGAIN;
}

/* Every 50 ms of an operation, which may consist of many short waits. */
static int look_around(struct acomm_op *op, int64_t now)
{
    if (!op->waits.next_look)
        op->waits.next_look = now + WAIT_LOOK_NS;
    if (now < op->waits.next_look)
        return 0;
    op->waits.next_look = now + WAIT_LOOK_NS;
    if (op->group->patience && op->group->node)
        wait_tell(op, now);
    if ((op->synchronous || may_leave(op)) && interrupt_pending()) {
        op->interrupted = true;
        return op->synchronous ? ACOMM_INTERRUPTED : WAIT_LEAVE;
    }
    int rank = absent(op);
    return rank < 0 ? 0 : group_fail_op(op, ACOMM_LOST, rank, 0, wait_closed(op->group, rank));
}

int wait_look(struct acomm_op *op)
{
    int rc = atomic_load_explicit(&op->group->poisoned, memory_order_relaxed);
    rc = rc ? rc : look_around(op, clock_now());
    return rc ? group_fail_op(op, rc, -1, 0, NULL) : 0;
}

/* This rank runs again: after how long. */
static int64_t resume(struct acomm_group *g, int64_t now)
{
    return g->shared.base ? cpu_resume(&g->shared, now) : 0;
}

void wait_woke(const struct wait *w)
{
    struct acomm_group *g = w->op->group;
    int64_t now = clock_now(), rest = resume(g, now), known = atomic_load_explicit(&g->preempted.patience, memory_order_relaxed);
    int64_t twice = 2 * (known ? known : YIELD_NS);
    if (!rest || g->oversubscribed || preempted(g, now)) /* it slept at once, for others */
        return;
    atomic_store_explicit(&g->preempted.patience, rest >= SHORT_NS ? 0 : twice < SHORT_NS ? twice : SHORT_NS, memory_order_relaxed);
}

/* Whether somebody else had our core that long: other ranks may copy long arrays there. */
static bool took(struct acomm_group *g, int64_t from, int64_t to)
{
    return to - from > PREEMPTED_NS && (!g->shared.base || to - from - cpu_lent(&g->shared, from, to) > PREEMPTED_NS);
}

/* Several threads may count at once: a count that is lost does no harm. */
static void yield(const struct wait *w, int64_t now)
{
    struct wait_preempted *preempted = &w->op->group->preempted;
    sched_yield();
    int64_t after = clock_now();
    bool taken = took(w->op->group, now, after);
    resume(w->op->group, after);
    uint32_t yields = atomic_load_explicit(&preempted->yields, memory_order_relaxed);
    atomic_store_explicit(&preempted->yields, taken ? 0 : yields + (yields < PREEMPTED_RARELY), memory_order_relaxed);
    if (!taken)
        return;
    int64_t span = 2 * atomic_load_explicit(&preempted->span, memory_order_relaxed);
    span = yields == PREEMPTED_RARELY ? 0 : span < PREEMPTED_MIN_NS ? PREEMPTED_MIN_NS : span < PREEMPTED_MAX_NS ? span : PREEMPTED_MAX_NS;
    atomic_store_explicit(&preempted->span, span, memory_order_relaxed);
    atomic_store_explicit(&preempted->until, after + span, memory_order_relaxed);
}

/* The slow half: yields, and looks at clock, signals and peers that have left. */
static int wait_look_again(struct wait *w)
{
    struct acomm_op *op = w->op;
    op_release_lock(op);
    op_begin(op);
    int64_t now = clock_now();
    if (now >= op->deadline)
        return ACOMM_TIMEOUT;
    if (may_leave(op) && now >= op->leave_at)
        return WAIT_LEAVE;
    if (!w->sleep_at)
        w->sleep_at = now + w->yield_ns;
    int rc = look_around(op, now);
    if (rc)
        return rc;
    if (op->group->shared.base)
        cpu_rest(&op->group->shared, now);
    w->sleepy = now >= w->sleep_at || preempted(op->group, now);
    if (!w->sleepy)
        yield(w, now);
    return 0;
}

int wait_step(struct wait *w)
{
    int poisoned = atomic_load_explicit(&w->op->group->poisoned, memory_order_relaxed);
    if (poisoned)
        return poisoned;
    if (w->where != WAIT_HERE && !w->sleepy && w->turns++ < w->spins) {
        relax();
        return 0;
    }
    if (w->where == WAIT_APART)
        w->turns = 0;
    return wait_look_again(w);
}
