/* engine: p2p/p2p.c p2p/match.c p2p/offer.c p2p/progress.c p2p/recv.c p2p/send.c p2p/share.c rma/serve.c memory/peer_memory.c group/shared/window.c group/shared/shared.c group/hosts.c memory/arena.c link/ base/doorbell.c memory/stream.c group/op.c group/wait.c base/process.c */
/* Signals that come in the moment in which a wait for them ends: they are taken by who waited, or stay for another. */
#include "rma/serve.h"
#include "p2p_world.h"

#include <sched.h>

bool reduce_supported(int dtype, int redop) { (void)dtype, (void)redop; return false; }
int acomm_reduce_local(uintptr_t out, const uintptr_t *in, int inputs, uint64_t count, int dtype, int redop, double factor)
{
    (void)out, (void)in, (void)inputs, (void)count, (void)dtype, (void)redop, (void)factor;
    return ACOMM_UNSUPPORTED;
}

static struct acomm_group *asking, *serving;
static _Thread_local int ends_with; /* 0: with its operation */
static _Atomic int waiting;
static acomm_served *behind; /* another thread begins to wait here, after the one that is about to end */
static pthread_t thread;

static void *wait_too(void *s);

/* A signal of rank 1 comes to rank 0. */
static void bring_signal(void)
{
    struct serve_request r = {.kind = SERVE_SIGNAL, .bytes = -1};
    struct acomm_op op = message(asking, ACOMM_SEND, &r, sizeof r / 8, ACOMM_INT64, 0, SERVE_REQUESTS);
    CHECK_EQUAL(p2p_post(asking->p2p, &op), 0);
    p2p_acquire(serving->p2p);
    p2p_progress_pass(serving->p2p, true);
    p2p_release(serving->p2p);
    CHECK(op_ended(&op));
}

/* In the place of p2p/wait.c: when it has given the lock up for good the signal comes. */
int p2p_wait_until(struct p2p *p, struct acomm_op *op, int64_t until)
{
    (void)p;
    if (ends_with) {
        if (behind)
            pthread_create(&thread, NULL, wait_too, behind);
        while (behind && !atomic_load(&waiting))
            sched_yield();
        bring_signal();
        CHECK(op_ended(op));
        return ends_with;
    }
    atomic_store(&waiting, 1);
    while (!op_ended(op) && clock_now() < until)
        sched_yield();
    return op_ended(op) ? op->status : 1;
}

static acomm_served *opened(struct world *w, double *data)
{
    acomm_served *s = NULL;
    serving = &w->groups[0];
    asking = &w->groups[1];
    CHECK_EQUAL(acomm_served_open(serving, (uintptr_t)data, 1, ACOMM_FLOAT64, &s), 0);
    return s;
}

static void closed(struct world *w, acomm_served *s)
{
    world_leave(w, 0);
    acomm_served_free(s);
}

static void a_signal_that_comes_when_the_time_is_over_is_taken(void)
{
    EVERY_KIND(2, {
        double data = 0;
        acomm_served *s = opened(w, &data);
        ends_with = 1;
        CHECK_EQUAL(acomm_served_wait(s, 1, SECOND), 0);
        CHECK_EQUAL(acomm_served_wait(s, 1, 0), 1); /* there was one */
        closed(w, s);
    })
}

static void a_signal_that_comes_with_an_interrupt_stays(void)
{
    EVERY_KIND(2, {
        double data = 0;
        acomm_served *s = opened(w, &data);
        ends_with = ACOMM_INTERRUPTED;
        CHECK_EQUAL(acomm_served_wait(s, 1, SECOND), ACOMM_INTERRUPTED);
        CHECK_EQUAL(acomm_served_wait(s, 1, 0), 0);
        closed(w, s);
    })
}

static void *wait_too(void *s)
{
    return (void *)(intptr_t)acomm_served_wait(s, 1, 20 * SECOND);
}

static void who_waits_behind_gets_what_an_interrupt_left(void)
{
    EVERY_KIND(2, {
        double data = 0;
        void *got = NULL;
        acomm_served *s = opened(w, &data);
        waiting = 0;
        behind = s;
        ends_with = ACOMM_INTERRUPTED;
        CHECK_EQUAL(acomm_served_wait(s, 1, SECOND), ACOMM_INTERRUPTED);
        behind = NULL;
        pthread_join(thread, &got);
        CHECK_EQUAL((intptr_t)got, 0);
        CHECK_EQUAL(acomm_served_wait(s, 1, 0), 1);
        closed(w, s);
    })
}

int main(void)
{
    TEST(a_signal_that_comes_when_the_time_is_over_is_taken);
    TEST(a_signal_that_comes_with_an_interrupt_stays);
    TEST(who_waits_behind_gets_what_an_interrupt_left);
    return CHECK_RESULT();
}
