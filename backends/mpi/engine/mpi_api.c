/* Entry points: run here, or queue for the worker; wait. */
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "mpi_group.h"
#include "mpi_messages.h"
#include "reduce.h"
#include "wait.h"

#define BURST 16 /* turns in which a message looks at nothing but itself */

static int check(const struct mpi_op *op)
{
    const struct acomm_group *g = op->group;
    const acomm_call *c = &op->call;
    if (!acomm_dtype_bytes(c->dtype) || c->root < (op_is_rooted(c->kind) || c->kind == ACOMM_SEND ? 0 : -1) || c->root >= g->size)
        return ACOMM_ARGUMENT;
    if (mpi_reduces(op) && (op->on_device || !reduce_supported(c->dtype, c->redop)))
        return ACOMM_UNSUPPORTED;
    if (group_was_forked(g))
        return ACOMM_FORKED;
    return atomic_load_explicit(&g->poisoned, memory_order_relaxed);
}

/* ---- the end of operations ---- */

static void wake(struct acomm_group *g)
{
    pthread_mutex_lock(&g->lock);
    pthread_cond_broadcast(&g->changed);
    pthread_mutex_unlock(&g->lock);
}

void mpi_end_op(struct mpi_op *op, int status)
{
    struct acomm_group *g = op->group;
    bool owned = op->owned;
    op->status = status;
    if (status && status != ACOMM_TRUNCATED && !acomm_mpi_failure(g, &op->failure))
        op->failure.code = 0;
    if (status && status != ACOMM_TRUNCATED && op->failure.code && op_is_message(op->call.kind))
        mpi_name(op, &op->failure);
    if (!owned) { /* its caller is there */
        atomic_store_explicit(&op->state, MPI_ENDED, memory_order_release);
        return;
    }
    if (atomic_exchange(&op->state, MPI_ENDED) == MPI_ABANDONED)
        free(op);
    wake(g);
}

/* ---- collectives ---- */

static int run_collective(struct mpi_op *op)
{
    op->sequence = ++op->group->sequence;
    int rc = atomic_load_explicit(&op->group->poisoned, memory_order_relaxed);
    rc = rc ? rc : mpi_collective(op);
    if (!rc) {
        atomic_store_explicit(&op->group->finished, op->sequence, memory_order_release);
        return 0;
    }
    pthread_mutex_lock(&op->group->lock);
    mpi_name(op, &op->group->failure);
    pthread_mutex_unlock(&op->group->lock);
    return rc;
}

static void take_first(struct acomm_group *g)
{
    struct mpi_op *op = g->first;
    g->first = op->next;
    g->last = g->first ? g->last : NULL;
    pthread_mutex_unlock(&g->lock);
    pthread_mutex_lock(&g->turn);
    group_enter(g);
    int rc = run_collective(op);
    pthread_mutex_unlock(&g->turn);
    atomic_fetch_sub(&g->pending, 1);
    mpi_end_op(op, rc);
    pthread_mutex_lock(&g->lock);
}

static void *work(void *argument)
{
    struct acomm_group *g = argument;
    pthread_mutex_lock(&g->lock);
    while (!g->stops || g->first) {
        if (g->first)
            take_first(g);
        else
            pthread_cond_wait(&g->changed, &g->lock);
    }
    pthread_mutex_unlock(&g->lock);
    return NULL;
}

static int enqueue(struct mpi_op *op)
{
    struct acomm_group *g = op->group;
    pthread_mutex_lock(&g->lock);
    int rc = g->stops ? ACOMM_CLOSED : g->works ? 0 : pace_thread(&g->worker, work, g);
    if (!rc) {
        g->works = true;
        atomic_fetch_add(&g->pending, 1);
        op->next = NULL;
        *(g->last ? &g->last->next : &g->first) = op;
        g->last = op;
        pthread_cond_broadcast(&g->changed);
    }
    pthread_mutex_unlock(&g->lock);
    return rc;
}

/* ---- waiting ---- */

/* 0 once ended, 1 past `until`, ACOMM_INTERRUPTED: a handler raised. */
static int await_collective(struct mpi_op *op, int64_t until)
{
    struct acomm_group *g = op->group;
    for (unsigned turn = 0; !mpi_ended(op); turn++) {
        int64_t now = clock_now();
        if (now >= until)
            return 1;
        if (turn < 100) {
            sched_yield();
            continue;
        }
        struct timespec t;
        clock_gettime(CLOCK_REALTIME, &t);
        int64_t left = until - now < WAIT_LOOK_NS ? until - now : WAIT_LOOK_NS, ns = t.tv_nsec + left;
        t = (struct timespec){t.tv_sec + ns / 1000000000, ns % 1000000000};
        pthread_mutex_lock(&g->lock);
        if (!mpi_ended(op))
            pthread_cond_timedwait(&g->changed, &g->lock, &t);
        pthread_mutex_unlock(&g->lock);
        if (wait_interrupted())
            return ACOMM_INTERRUPTED;
    }
    return 0;
}

static int await_message(struct mpi_op *op, int64_t until)
{
    unsigned turns = 0;
    bool alone = op->group->seats || (op->group->crowded && op->group->mpi->yields); /* mpi_turn() looks too, now and then */
    bool all = until == 0 || !alone;
    int64_t look = op->synchronous || until == 0 ? 0 : clock_now() + WAIT_LOOK_NS;
    for (;;) {
        unsigned burst = op->group->crowded || until == 0 || turns >= MPI_SPINS ? 1 : BURST;
        int rc = messages_await(op, burst, all);
        if (mpi_ended(op))
            return 0;
        turns += burst - 1;
        if (!rc && until != 0)
            rc = mpi_turn(op, &turns, op->call.root);
        if (rc && !mpi_ended(op))
            messages_forget(op, rc);
        if (mpi_ended(op))
            return 0;
        if (until == 0 || (until != INT64_MAX && clock_now() >= until))
            return 1;
        if (!op->synchronous && turns % 1024 == 1023 && clock_now() >= look) {
            look = clock_now() + WAIT_LOOK_NS;
            if (wait_interrupted())
                return ACOMM_INTERRUPTED;
        }
    }
}

static int await(struct mpi_op *op, int64_t timeout)
{
    struct acomm_group *g = op->group;
    int64_t until = timeout < 0 ? INT64_MAX : timeout ? clock_now() + timeout : 0;
    if (mpi_ended(op))
        return op->status;
    if (group_was_forked(g))
        return ACOMM_FORKED;
    atomic_fetch_add(&g->inside, 1);
    int rc = !op_is_message(op->call.kind) ? await_collective(op, until) : await_message(op, until);
    atomic_fetch_sub(&g->inside, 1);
    return rc ? rc : op->status;
}

/* ---- calls ---- */

/* All but the failure, which is written before it is read: a short operation would spend a tenth of its time on zeros. */
static void describe(struct mpi_op *op, struct acomm_group *g, const acomm_call *call, const acomm_mpi_device *device)
{
    memset(op, 0, offsetof(struct mpi_op, failure));
    op->group = g;
    op->call = *call;
    op->on_device = device && device->enter;
    if (op->on_device) {
        atomic_store(&g->device, device->number);
        atomic_store(&g->enter, device->enter);
    }
    op->width = acomm_dtype_bytes(call->dtype);
    op->synchronous = true;
    op->failure.code = 0;
}

/* Behind others: as an asynchronous one. */
static int queue_and_wait(struct mpi_op *op)
{
    op->synchronous = false; /* the worker runs it */
    op->owned = true;
    int rc = enqueue(op);
    while (!rc && !mpi_ended(op)) {
        rc = await_collective(op, INT64_MAX);
        if (rc == ACOMM_INTERRUPTED)
            mpi_fail_op(op, rc, -1, NULL);
        rc = 0;
    }
    return rc ? rc : op->status;
}

static int run(struct mpi_op *op)
{
    struct acomm_group *g = op->group;
    int rc = check(op);
    if (rc)
        return rc;
    if (op_is_message(op->call.kind)) {
        rc = messages_post(op, g->crowded ? 0 : BURST);
        if (!rc && !mpi_ended(op))
            await_message(op, INT64_MAX);
        return rc ? rc : op->status;
    }
    if (atomic_load(&g->pending) || pthread_mutex_trylock(&g->turn))
        return queue_and_wait(op);
    if (atomic_load(&g->pending)) {
        pthread_mutex_unlock(&g->turn);
        return queue_and_wait(op);
    }
    rc = run_collective(op);
    pthread_mutex_unlock(&g->turn);
    return rc;
}

int acomm_mpi_run(struct acomm_group *g, acomm_call *call, const acomm_mpi_device *device)
{
    struct mpi_op op;
    describe(&op, g, call, device);
    atomic_fetch_add(&g->inside, 1);
    int rc = run(&op);
    atomic_fetch_sub(&g->inside, 1);
    if (op_is_message(call->kind)) {
        call->root = op.call.root;
        call->tag = op.call.tag;
    }
    if (rc && call->failure && op_is_message(op.call.kind) && op.failure.code == rc)
        *call->failure = op.failure;
    return rc;
}

int acomm_mpi_start(struct acomm_group *g, const acomm_call *call, const acomm_mpi_device *device, acomm_op **out)
{
    struct mpi_op *op = malloc(sizeof *op);
    if (!op)
        return ACOMM_RESOURCE;
    describe(op, g, call, device);
    op->synchronous = false;
    op->owned = true;
    int rc = check(op);
    if (!rc)
        rc = !op_is_message(call->kind) ? enqueue(op) : messages_post(op, 0);
    if (rc)
        free(op);
    else
        *out = (acomm_op *)op;
    return rc;
}

/* ---- what native callers are lent ---- */

static int run_plain(acomm_group *group, acomm_call *call)
{
    return acomm_mpi_run(group, call, NULL);
}

static int start_plain(acomm_group *group, const acomm_call *call, acomm_op **out)
{
    return acomm_mpi_start(group, call, NULL, out);
}

static int wait_for(acomm_op *op, int64_t timeout)
{
    return await((struct mpi_op *)op, timeout);
}

int acomm_mpi_probe(struct acomm_group *g, int source, int64_t tag, int64_t timeout, acomm_message *out)
{
    struct mpi_op op;
    acomm_call call = {.kind = ACOMM_RECV, .root = source, .tag = tag, .timeout = INT64_MAX / 4}; /* which fails no group */
    unsigned turns = 0;
    int64_t now = clock_now(), until = now + (timeout < 0 ? g->timeout : timeout), next_look = now + WAIT_LOOK_NS;
    describe(&op, g, &call, NULL);
    op.synchronous = false;
    atomic_fetch_add(&g->inside, 1);
    int rc = atomic_load(&g->poisoned);
    rc = rc ? rc : messages_find(g, &op, out);
    while (rc == 1 && now < until) {
        rc = mpi_turn(&op, &turns, -1);
        rc = rc ? rc : messages_find(g, &op, out);
        now = clock_now();
        if (rc == 1 && now >= next_look && wait_interrupted())
            rc = ACOMM_INTERRUPTED;
        next_look = now >= next_look ? now + WAIT_LOOK_NS : next_look;
    }
    atomic_fetch_sub(&g->inside, 1);
    return rc;
}

static int source(acomm_op *handle, int32_t *rank, int64_t *tag, uint64_t *bytes)
{
    const struct mpi_op *op = (const struct mpi_op *)handle;
    if (!mpi_ended(op))
        return ACOMM_ARGUMENT;
    *rank = op->call.root;
    *tag = op->call.tag;
    *bytes = op->bytes;
    return 0;
}

static int failure(acomm_op *handle, acomm_failure *out)
{
    const struct mpi_op *op = (const struct mpi_op *)handle;
    if (!mpi_ended(op) || !op->status)
        return 0;
    *out = op->failure;
    return 1;
}

static void abandon(acomm_op *handle)
{
    struct mpi_op *op = (struct mpi_op *)handle;
    int under_way = MPI_UNDER_WAY;
    if (!atomic_compare_exchange_strong(&op->state, &under_way, MPI_ABANDONED))
        free(op);
}

static int stuck(acomm_group *group, const acomm_op *op)
{
    return acomm_mpi_stuck(op ? ((const struct mpi_op *)op)->group : group);
}

const acomm_entries *acomm_mpi_lend(void)
{
    static const acomm_entries entries = {.run = run_plain, .start = start_plain, .wait = wait_for, .source = source,
                                          .failure = failure, .free = abandon, .stuck = stuck, .group_failure = acomm_mpi_failure};
    return &entries;
}
