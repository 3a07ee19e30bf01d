/* Waits for one message, and progresses all others meanwhile. */
#include <sched.h>

#include "base/clock.h"
#include "p2p/peer.h"

#define PEEKS 50          /* of 20 to 40 ns: no longer than a context switch takes */

struct waiter {
    struct wait wait;
    int64_t nap, until, next_look;
};

/* With the lock. The operation cannot go on; it has ended when this returns, or another thread is just ending it. */
static void waiter_give_up(struct p2p *p, struct acomm_op *op, int code)
{
    bool poisoned = atomic_load(&p->group->poisoned);
    if (!poisoned && !op_ended(op))
        p2p_trouble(p, op, code, code == ACOMM_TIMEOUT ? op->peer : p->group->rank,
                    code == ACOMM_TIMEOUT ? p2p_late(op) : NULL);
    p2p_release(p);
    if (poisoned)
        p2p_fail(p);
    p2p_acquire(p);
}

/* An asynchronous operation's waiter is a thread of the caller too, but Ctrl-C leaves the operation alone. */
static bool waiter_interrupted(struct waiter *w)
{
    int64_t now = clock_now();
    if (now < w->next_look)
        return false;
    w->next_look = now + WAIT_LOOK_NS;
    return interrupt_pending();
}

/* Whether the awaited rank was last seen on our processor, where the kernel may put it though another one is idle. */
static bool awaits_here(const struct p2p *p, const struct acomm_op *op)
{
    const struct p2p_peer *peer = op->peer < 0 ? NULL : p->peers[op->peer];
    return p->group->shared.base && peer && peer->from && peer->from->theirs
        && cpu_shared(&p->group->shared, p->group->hosts.local_rank[op->peer]);
}

/* With the lock, which is released meanwhile: the group's lock, the GIL and other threads' posts must not wait for it. */
static int waiter_step(struct p2p *p, struct acomm_op *op, struct waiter *w, bool moved)
{
    bool look = moved ? p->due : w->wait.sleepy;
    w->wait.where = awaits_here(p, op) ? WAIT_HERE : WAIT_ANYWHERE;
    p2p_release(p);
    if (moved) {
        wait_reset(&w->wait);
        w->nap = 0;
        if (look)
            w->wait.turns = w->wait.spins; /* though there is progress */
    }
    int rc = wait_step(&w->wait);
    bool stop = !op->synchronous && (look || w->wait.sleepy) && waiter_interrupted(w);
    while (atomic_load_explicit(&p->wanted, memory_order_relaxed))
        sched_yield();
    p2p_acquire(p);
    /* A signal handler's exception is raised in any case, even if the operation has just ended. */
    if (stop || (rc == ACOMM_INTERRUPTED && op_ended(op)))
        return ACOMM_INTERRUPTED;
    if (rc)
        waiter_give_up(p, op, rc);
    return w->until != INT64_MAX && clock_now() >= w->until;
}

static bool leads(struct p2p *p, const struct waiter *w)
{
    if (!p->leader || p->leader == &p->thread)
        p->leader = w;
    return p->leader == w;
}

static void doze(struct p2p *p, struct waiter *w)
{
    if (p->leader == w) {
        p2p_progress_sleep(p, &w->nap, w->until);
        return;
    }
    int64_t longest = clock_now() + WAIT_SLEEP_NS;
    p->followers++;
    condition_await(&p->turn, &p->lock, w->until < longest ? w->until : longest);
    p->followers--;
}

/* With the lock held: releasing and acquiring it costs more than several polls of a link in shared memory, and the awaited
 * message has often been sent already. Whether there is something to read. */
static bool peek(struct p2p *p, const struct acomm_op *op)
{
    const struct acomm_group *g = p->group;
    const struct p2p_peer *peer = op->peer < 0 ? NULL : p->peers[op->peer];
    const struct link *from = peer ? peer->from : NULL;
    bool able = from && from->ops->waiting && !g->oversubscribed;
    for (int turn = 0; able && turn < PEEKS; turn++) {
        if (from->ops->waiting(from))
            return true;
        able = !atomic_load_explicit(&p->wanted, memory_order_relaxed) && !atomic_load_explicit(&g->poisoned, memory_order_relaxed);
        relax();
    }
    return false;
}

/* With the lock, until the operation has ended or its waiter must stop: returns the reason. */
static int waiter_carry_on(struct p2p *p, struct acomm_op *op, struct waiter *w)
{
    bool seen = false;
    for (;;) {
        bool moved = leads(p, w) && p2p_progress_pass(p, w->wait.sleepy);
        if (op->peer < 0 && (p->due || w->wait.sleepy))
            p2p_match_end_alone(p, op);
        if (op_ended(op))
            return 0;
        seen = (moved || !seen) && p->leader == w && peek(p, op); /* the data may be for another operation, */
        moved |= seen;
        if (seen && !p->due && !atomic_load_explicit(&p->wanted, memory_order_relaxed))
            continue; /* and more may always arrive */
        op_release_lock(op);
        op_begin(op);
        int rc = waiter_step(p, op, w, moved);
        if (rc)
            return rc;
        if (w->wait.sleepy && !op_ended(op)) {
            doze(p, w);
            wait_woke(&w->wait);
        }
    }
}

int p2p_wait_until(struct p2p *p, struct acomm_op *op, int64_t until)
{
    struct waiter w = {.wait = wait_start_links(op), .until = until};
    if (op_ended(op))
        return op->status;
    op->waits.tell_at = 0; /* from this wait on */
    p2p_acquire_for(p, op);
    int rc = waiter_carry_on(p, op, &w);
    if (p->leader == &w)
        p2p_progress_hand_over(p);
    p2p_release_for(p, op);
    return op_ended(op) && rc != ACOMM_INTERRUPTED ? op->status : rc;
}

int p2p_wait(struct p2p *p, struct acomm_op *op)
{
    return p2p_wait_until(p, op, INT64_MAX);
}
