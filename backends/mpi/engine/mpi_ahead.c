/* Short broadcasts of two ranks: the root's record, its contents with it, is all that is sent, and the root goes on at once. The
 * other rank compares it with its own call. So that ranks still learn of every difference, and none runs away:
 * - after MPI_AHEAD of them without a meeting, one is done as other short operations are (mpi_exchange.c), and ranks meet there;
 * - who has waited for its root for a while sends its own record: two that both take the other for the root would wait for good;
 * - records are taken in order. One that is older than the operation tells of a broadcast which its sender waited for, or believed
 *   to be the root of: what this rank gave then is remembered, and compared;
 * - a root that closes the group waits until the other has come so far, and takes what that has sent: left there, it would come
 *   to the next group whose communicator gets this one's number. */
#include <sched.h>
#include <string.h>

#include "clock.h"
#include "mpi_group.h"
#include "mpi_messages.h"
#include "op.h"
#include "wait.h"

#define AHEAD_BYTES 4096 /* longer ones: that many could fill the library's memory */
#define PATIENT_TURNS 2048

bool ahead_fits(const struct mpi_op *op)
{
    const struct acomm_group *g = op->group;
    return op->call.kind == ACOMM_BROADCAST && op->is_short && g->size == 2 && g->ahead < MPI_AHEAD
        && op->call.count * op->width <= AHEAD_BYTES;
}

static void count_sent(struct acomm_group *g)
{
    int sent = atomic_load_explicit(&g->sent, memory_order_relaxed); /* written under `turn` alone */
    atomic_store_explicit(&g->sent, sent + 1, memory_order_relaxed);
}

static int give(struct mpi_op *op)
{
    struct acomm_group *g = op->group;
    const acomm_call *c = &op->call;
    uint64_t bytes = mpi_write_record(op, g->records);
    int rc = mpi_give(op, g->records, bytes, !g->rank), waited = mpi_wait(op);
    if (rc || waited)
        return rc ? rc : waited;
    count_sent(g);
    g->gave[op->sequence % MPI_AHEAD] = ((struct mpi_record *)g->records)->header;
    atomic_store_explicit(&g->given, op->sequence, memory_order_relaxed);
    if (c->in != c->out)
        memcpy((void *)c->out, (const void *)c->in, c->count * op->width);
    return 0;
}

static int take(struct mpi_op *op)
{
    struct acomm_group *g = op->group;
    const acomm_call *c = &op->call;
    struct mpi_record *mine = (struct mpi_record *)g->records, *theirs = (struct mpi_record *)(g->records + g->record_bytes);
    int over = 0, rc = mpi_take(op, theirs, g->record_bytes, !g->rank);
    uint64_t bytes = mpi_write_record(op, g->records);
    if (!rc)
        rc = mpi_wait_briefly(op, PATIENT_TURNS, &over);
    if (!rc && !over && g->check) {
        rc = mpi_give(op, mine, bytes, !g->rank);
        count_sent(g);
    }
    int waited = mpi_wait(op);
    g->took++;
    if (!rc && !waited)
        rc = ahead_skip(op, theirs);
    if (rc || waited)
        return rc ? rc : waited;
    if (g->check && !op_agrees(&mine->header, &theirs->header))
        return mpi_differ(g, &mine->header, &theirs->header, !g->rank);
    memcpy((void *)c->out, theirs + 1, c->count * op->width);
    return 0;
}

int ahead_broadcast(struct mpi_op *op)
{
    struct acomm_group *g = op->group;
    if (!mpi_room_for_records(op))
        return ACOMM_RESOURCE;
    g->ahead++;
    return op->call.root == g->rank ? give(op) : take(op);
}

int ahead_skip(struct mpi_op *op, struct mpi_record *theirs)
{
    struct acomm_group *g = op->group;
    int rc = 0;
    while (!rc && g->check && theirs->header.sequence < op->sequence) {
        const acomm_header *mine = &g->gave[theirs->header.sequence % MPI_AHEAD];
        if (!op_agrees(mine, &theirs->header))
            return mpi_differ(g, mine, &theirs->header, !g->rank);
        rc = mpi_take(op, theirs, g->record_bytes, !g->rank);
        int waited = mpi_wait(op);
        rc = rc ? rc : waited;
        g->took++;
    }
    return rc;
}

/* Records of broadcasts that this rank gave, after the last that it took anything in: the peer waited, or gave too. */
static int take_rest(struct acomm_group *g)
{
    struct mpi_op op = {.group = g, .sequence = g->given, .call = {.kind = ACOMM_BROADCAST, .timeout = -1}};
    struct mpi_record *theirs = (struct mpi_record *)(g->records + g->record_bytes);
    int rc = 0, told = messages_told(g);
    while (!rc && g->took < told) {
        rc = mpi_take(&op, theirs, g->record_bytes, !g->rank);
        int waited = mpi_wait(&op);
        rc = rc ? rc : waited;
        g->took++;
        const acomm_header *mine = &g->gave[theirs->header.sequence % MPI_AHEAD];
        if (!rc && g->check && mine->sequence == theirs->header.sequence && !op_agrees(mine, &theirs->header))
            rc = mpi_differ(g, mine, &theirs->header, !g->rank);
    }
    return rc;
}

static int rest(struct acomm_group *g)
{
    if (!atomic_load(&g->given) || atomic_load(&g->poisoned))
        return 0;
    if (pthread_mutex_trylock(&g->turn)) { /* an operation is under way, and cut */
        g->failed = true;
        return 0;
    }
    int rc = take_rest(g);
    pthread_mutex_unlock(&g->turn);
    return rc;
}

static int fail(struct acomm_group *g, int code, const char *text)
{
    uint64_t given = atomic_load(&g->given);
    acomm_failure failure = {.code = code, .culprit = !g->rank, .origin = g->rank, .sequence = given,
                             .mine = g->gave[given % MPI_AHEAD]};
    strncpy(failure.text, text, sizeof failure.text - 1);
    return mpi_fail(g, &failure);
}

int ahead_settle(struct acomm_group *g)
{
    uint64_t given = atomic_load(&g->given);
    int64_t end = clock_now() + g->timeout;
    if (given)
        messages_ask(g, given);
    while (given && !messages_passed(g, given)) {
        int rc = messages_progress(g);
        bool gone = !rc && messages_missing(g) >= 0;
        if (messages_passed(g, given))
            break;
        if (rc || gone)
            return rc ? rc : fail(g, ACOMM_LOST, "it has closed the group");
        if (clock_now() > end)
            return fail(g, ACOMM_TIMEOUT, "");
        if (wait_interrupted())
            return ACOMM_INTERRUPTED;
        sched_yield();
    }
    return rest(g);
}
