/* Collectives run in the order of their calls, one at a time, by the thread that has the turn:
 *
 * - a synchronous call on an idle group by its caller;
 * - an asynchronous one, if it is short, is begun by its caller: our data is published, and if the peers' data is there too the
 *   operation has ended. Otherwise it is queued;
 * - a waiter runs the queue up to its operation (helping waiter). Waking a thread costs more than a short operation;
 * - the worker runs operations without a waiter: long operations at once, short ones that stay in the queue after LOOK_NS.
 *
 * A caller that runs a queued operation must be able to leave it, at its timeout or for Ctrl-C. That is possible in the first
 * round over shared memory (see op.h), and after it all ranks are in the operation, so it ends soon. Longer operations, and those
 * over links, are for the worker alone. */
#include <sched.h>

#include "base/clock.h"
#include "group/group.h"
#include "membership/node.h"

#define BEGIN_BYTES (64u << 10) /* begun by the call: copying so much takes less than waking the worker */
#define HELP_BYTES (8u << 20)   /* run by a waiter: some milliseconds without an answer to Ctrl-C */
#define LOOK_NS 200000          /* how often the worker polls the queue, while there were operations for it */
#define LINGER_NS 10000000      /* in the last so many ns; then it sleeps until there is one */

/* ---- the turn ---- */

static bool queue_take_turn(struct acomm_group *g)
{
    int idle = 0;
    return atomic_compare_exchange_strong(&g->busy, &idle, 1);
}

static void end_turn(struct acomm_group *g)
{
    atomic_store(&g->busy, 0);
    if (atomic_load(&g->claims)) {
        pthread_mutex_lock(&g->lock);
        pthread_cond_broadcast(&g->work);
        pthread_mutex_unlock(&g->lock);
    }
}

/* With the lock, which is released meanwhile. The worker returns without the turn when the group stops. */
static bool claim_turn(struct acomm_group *g, bool worker)
{
    bool taken;
    atomic_fetch_add(&g->claims, 1);
    while (!(taken = queue_take_turn(g)) && !(worker && g->stopping))
        pthread_cond_wait(&g->work, &g->lock);
    atomic_fetch_sub(&g->claims, 1);
    return taken;
}

/* ---- one operation ---- */

/* The caller has the turn. */
static void number(struct acomm_op *op)
{
    struct acomm_group *g = op->group;
    if (op->sequence)
        return;
    op->sequence = atomic_load_explicit(&g->sequence, memory_order_relaxed) + 1;
    atomic_store_explicit(&g->sequence, op->sequence, memory_order_relaxed); /* a lock prefix would cost more than all else here */
}

/* The caller has the turn. */
static int queue_run(struct acomm_op *op)
{
    struct acomm_group *g = op->group;
    int poisoned = atomic_load_explicit(&g->poisoned, memory_order_relaxed);
    if (poisoned)
        return poisoned;
    number(op);
    op->team = &g->hosts.all;
    int rc = select_run(op);
    g->direct.symmetric |= !rc && op->shares;
    return rc;
}

/* The same in a thread that may leave at `until` (op.h): WAIT_LEAVE then. */
static int run_as_guest(struct acomm_op *op, int64_t until)
{
    op->guest = true;
    op->leave_at = until;
    int rc = queue_run(op);
    op->guest = false;
    return rc;
}

static uint64_t queue_bytes_of(const struct acomm_op *op)
{
    int ranks = op->group->size;
    bool whole = op_array(op) == ACOMM_WHOLE;
    if (!op->send_counts && !op->recv_counts)
        return op->count * op->width * (whole ? 1 : (uint64_t)ranks);
    return (op->send_counts ? op_total(op->send_counts, 0, ranks, op->width) : 0)
         + (op->recv_counts ? op_total(op->recv_counts, 0, ranks, op->width) : 0);
}

/* Whether a helping waiter may run it; with the turn. */
static bool takes_guests(struct acomm_op *op, uint64_t most)
{
    struct acomm_group *g = op->group;
    op->team = &g->hosts.all;
    if (g->size == 1 || queue_bytes_of(op) > most)
        return queue_bytes_of(op) <= most;
    return select_in_memory(select_algorithm(g, op));
}

static void queue_finish(struct acomm_op *op, int status)
{
    op->status = status;
    if (status < 0) {
        pthread_mutex_lock(&op->group->lock);
        op->failure = op->group->failure;
        pthread_mutex_unlock(&op->group->lock);
    }
    op_complete(op);
}

/* Ends an operation that was pending, and the turn in which it ran. */
static void retire(struct acomm_op *op, int status)
{
    struct acomm_group *g = op->group;
    atomic_fetch_sub(&g->pending, 1);
    end_turn(g);
    queue_finish(op, status);
}

/* ---- the queue; with the lock ---- */

static void queue_put(struct acomm_op *op, bool first)
{
    struct acomm_group *g = op->group;
    struct acomm_op **place = first || !g->head ? &g->head : &g->tail->next;
    op->next = first ? g->head : NULL;
    *place = op;
    if (!op->next)
        g->tail = op;
    g->posts++;
}

/* The caller has the turn. */
static struct acomm_op *queue_pop(struct acomm_group *g)
{
    struct acomm_op *op = g->head;
    if (op) {
        g->head = op->next;
        if (!g->head)
            g->tail = NULL;
        g->pops++;
        number(op);
    }
    return op;
}

/* Wakes the worker if needed; otherwise the worker polls once more before it sleeps without a timeout. */
static void tell_worker(struct acomm_group *g, bool now)
{
    if (now || g->deep)
        pthread_cond_broadcast(&g->work);
    g->hurry |= now;
}

/* ---- the worker ---- */

struct rest { uint64_t posts, pops; int64_t since; };

/* Until there may be an operation for the worker. */
static void queue_rest(struct acomm_group *g, struct rest *r)
{
    int64_t now = clock_now();
    if (r->posts != g->posts)
        r->since = now;
    r->posts = g->posts;
    r->pops = g->pops;
    if (g->head || now - r->since < LINGER_NS) {
        condition_await(&g->work, &g->lock, now + LOOK_NS);
        return;
    }
    g->deep = true;
    pthread_cond_wait(&g->work, &g->lock);
    g->deep = false;
    r->since = clock_now();
}

/* The next operation, with the turn to run it; NULL: the group stops. */
static struct acomm_op *next_op(struct acomm_group *g, struct rest *r)
{
    struct acomm_op *op = NULL;
    pthread_mutex_lock(&g->lock);
    while (!op && !g->stopping) {
        bool left = g->head && r->pops == g->pops; /* nobody has run any for a while */
        g->hurry = g->head && (g->hurry || left);
        if (!g->hurry)
            queue_rest(g, r);
        else if (claim_turn(g, true) && !(op = queue_pop(g)))
            atomic_store(&g->busy, 0); /* only the worker acquires turns until the group stops */
    }
    pthread_mutex_unlock(&g->lock);
    return op;
}

static void *queue_work(void *argument)
{
    struct acomm_group *g = argument;
    struct acomm_op *op;
    struct rest r = {.since = clock_now(), .pops = UINT64_MAX};
    while ((op = next_op(g, &r)))
        retire(op, queue_run(op));
    return NULL;
}

/* With the lock: without a worker no thread would complete begun operations. */
static int need_worker(struct acomm_group *g)
{
    if (g->stopping)
        return ACOMM_CLOSED;
    int rc = g->worker_started ? 0 : thread_start(&g->worker, 0, queue_work, g);
    g->worker_started = rc == 0;
    return rc;
}

/* ---- callers ---- */

static int enqueue(struct acomm_op *op, bool urgent)
{
    struct acomm_group *g = op->group;
    pthread_mutex_lock(&g->lock);
    int rc = need_worker(g);
    if (!rc) {
        queue_put(op, false);
        atomic_fetch_add(&g->pending, 1);
        tell_worker(g, urgent);
    }
    pthread_mutex_unlock(&g->lock);
    return rc;
}

/* A helping waiter leaves the operation, which is pending and becomes the next again. Ends the turn. */
static void put_back(struct acomm_op *op)
{
    struct acomm_group *g = op->group;
    pthread_mutex_lock(&g->lock);
    bool stopping = g->stopping;
    if (!stopping) {
        queue_put(op, true);
        tell_worker(g, false);
    }
    pthread_mutex_unlock(&g->lock);
    if (stopping)
        retire(op, ACOMM_CLOSED);
    else
        end_turn(g);
}

/* Whether it was begun, and perhaps ended. */
static bool queue_begin(struct acomm_op *op)
{
    struct acomm_group *g = op->group;
    if (atomic_load(&g->pending) || !queue_take_turn(g))
        return false;
    if (!takes_guests(op, BEGIN_BYTES)) {
        end_turn(g);
        return false;
    }
    atomic_fetch_add(&g->pending, 1);
    int rc = run_as_guest(op, 0);
    if (rc == WAIT_LEAVE)
        put_back(op);
    else
        retire(op, rc);
    return true;
}

int group_enqueue(struct acomm_op *op)
{
    struct acomm_group *g = op->group;
    bool anywhere = g->size > 1 && g->hosts.all.place != TEAM_HOST;
    atomic_fetch_add(&g->inside, 1);
    pthread_mutex_lock(&g->lock);
    int rc = need_worker(g);
    pthread_mutex_unlock(&g->lock);
    if (!rc && !queue_begin(op))
        rc = enqueue(op, anywhere || queue_bytes_of(op) > BEGIN_BYTES);
    atomic_fetch_sub(&g->inside, 1);
    return rc;
}

enum { RAN, NOT_OURS = 2 }; /* WAIT_LEAVE and codes beside them */

/* Runs the first operation of the queue if a helping waiter may run it. */
static int help(struct acomm_group *g, int64_t until)
{
    if (!queue_take_turn(g))
        return NOT_OURS;
    pthread_mutex_lock(&g->lock);
    bool ours = g->head && takes_guests(g->head, until ? HELP_BYTES : BEGIN_BYTES);
    struct acomm_op *op = ours ? queue_pop(g) : NULL;
    pthread_mutex_unlock(&g->lock);
    if (!op) {
        end_turn(g);
        return NOT_OURS;
    }
    int rc = run_as_guest(op, until);
    if (rc != WAIT_LEAVE) {
        retire(op, rc);
        return RAN;
    }
    bool interrupted = op->interrupted;
    op->interrupted = false;
    put_back(op);
    return interrupted ? ACOMM_INTERRUPTED : WAIT_LEAVE;
}

/* The worker runs the rest of the queue, and the caller waits. */
static int wait_for_worker(struct acomm_op *op, int64_t until)
{
    struct acomm_group *g = op->group;
    pthread_mutex_lock(&g->lock);
    if (g->head && until)
        tell_worker(g, true);
    pthread_mutex_unlock(&g->lock);
    int64_t left = until == INT64_MAX ? -1 : until ? until - clock_now() : 0;
    return op_wait(op, until != INT64_MAX && left < 0 ? 0 : left);
}

int group_wait(struct acomm_op *op, int64_t timeout)
{
    int64_t until = timeout < 0 ? INT64_MAX : timeout ? clock_now() + timeout : 0;
    while (!op_ended(op)) {
        int rc = help(op->group, until);
        if (rc == NOT_OURS)
            return wait_for_worker(op, until);
        if (rc)
            return rc;
    }
    return op->status;
}

int group_run(struct acomm_op *op)
{
    struct acomm_group *g = op->group;
    if (!atomic_load(&g->pending) && queue_take_turn(g)) {
        op->synchronous = true;
        int rc = queue_run(op);
        end_turn(g);
        return rc;
    }
    op_release_lock(op);
    atomic_fetch_add(&g->inside, 1);
    int rc = enqueue(op, false);
    if (!rc)
        while ((rc = group_wait(op, -1)) == ACOMM_INTERRUPTED && !op_ended(op))
            group_fail_op(op, ACOMM_INTERRUPTED, g->rank, 0, NULL); /* ends the operations ahead of it too */
    atomic_fetch_sub(&g->inside, 1);
    return rc;
}

int acomm_group_left(struct acomm_group *g, int rank)
{
    return node_left(g->node, g, rank, UINT64_MAX) >= 0;
}

uint64_t acomm_group_calls(struct acomm_group *g)
{
    pthread_mutex_lock(&g->lock);
    uint64_t calls = atomic_load(&g->sequence);
    for (const struct acomm_op *op = g->head; op; op = op->next)
        calls += !op->sequence;
    pthread_mutex_unlock(&g->lock);
    return calls;
}

/* ---- the end ---- */

/* Takes the queue away from the worker and ends what is in it. */
static void drain_queue(struct acomm_group *g)
{
    pthread_mutex_lock(&g->lock);
    g->stopping = true;
    struct acomm_op *queued = g->head;
    g->head = g->tail = NULL;
    pthread_cond_broadcast(&g->work);
    pthread_mutex_unlock(&g->lock);
    while (queued) {
        struct acomm_op *op = queued;
        queued = op->next;
        queue_finish(op, ACOMM_CLOSED);
    }
}

/* In an orderly close only: settles operations that this rank left before its peers arrived. A lost rank may have arrived. */
static int queue_settle(struct acomm_group *g)
{
    int failed = atomic_load(&g->poisoned);
    if ((failed && failed != ACOMM_LOST) || atomic_load(&g->pending) || !queue_take_turn(g))
        return 0;
    int rc = g->above->settle(g);
    end_turn(g);
    return rc;
}

int acomm_group_stop(acomm_group *g, const char *why)
{
    if (group_forked(g))
        return ACOMM_FORKED;
    int rc = why && *why ? 0 : queue_settle(g);
    bool busy = atomic_load(&g->busy) || atomic_load(&g->pending);
    acomm_failure closed = {.code = ACOMM_CLOSED, .culprit = -1, .origin = g->rank, .sequence = g->sequence};
    acomm_failure lost = {.code = ACOMM_LOST, .culprit = g->rank, .origin = g->rank};
    bool troubled = why && *why;
    strncpy(lost.text, troubled ? why : "closed the group with an operation under way", sizeof lost.text - 1);
    bool first = !atomic_load(&g->poisoned);
    group_fail(g, &closed, false);
    if ((busy || troubled) && first && g->node)
        node_tell(g->node, g, &lost);
    drain_queue(g);
    if (g->worker_started)
        pthread_join(g->worker, NULL);
    g->worker_started = false;
    pthread_mutex_lock(&g->lock);
    claim_turn(g, false); /* the running thread has been notified, and polls for that at least every WAIT_SLEEP_NS */
    pthread_mutex_unlock(&g->lock);
    while (atomic_load(&g->inside))
        sched_yield(); /* their operations have ended: these threads are returning */
    return rc;
}
