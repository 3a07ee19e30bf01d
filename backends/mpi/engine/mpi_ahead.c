/* Short broadcasts: the root's record, its contents with it, goes to every other rank, and the root goes on at once. The others
 * compare it with their own call. So that ranks still learn of every difference, and none runs away:
 * - after MPI_AHEAD of them without a meeting, one is done as other short operations are (mpi_exchange.c), and ranks meet there;
 * - who has waited for a while tells all what it calls. Who has called something else there, or comes to do so, says so;
 * - a record tells of the broadcast before it, too. Where two believed themselves its root, those who took from one of them find
 *   that out when they take from one who had the other;
 * - a record of another operation than this rank's is one that its sender gave: it waits where this rank took somebody else's;
 * - who closes the group waits until all have come as far, and they compare the last broadcast. */
#include <sched.h>
#include <string.h>

#include "clock.h"
#include "mpi_group.h"
#include "mpi_messages.h"
#include "op.h"
#include "wait.h"

#define FROM_ROOT 3 /* ranks of which each gets long contents from the root itself, whose record it has compared */

bool ahead_fits(const struct mpi_op *op)
{
    const struct acomm_group *g = op->group;
    bool good = op->is_short ? g->size <= MPI_AHEAD_RANKS : g->check && g->size <= FROM_ROOT;
    return op->call.kind == ACOMM_BROADCAST && good && g->ahead < MPI_AHEAD;
}

/* ---- what ranks called ---- */

/* Two that both exchange records, in the same way, find out there, all ranks naming the same two. */
static bool differ(const struct mpi_record *a, const struct mpi_record *b)
{
    bool meet = a->ahead == b->ahead && a->ahead != 1;
    return a->header.sequence == b->header.sequence && !meet && !op_agrees(&a->header, &b->header);
}

int ahead_note(struct mpi_op *op, const struct mpi_record *mine)
{
    struct acomm_group *g = op->group;
    uint64_t sequence = op->sequence;
    acomm_header theirs;
    int odd = -1;
    if (g->size > MPI_AHEAD_RANKS)
        return 0;
    pthread_mutex_lock(&g->lock);
    g->called[sequence % MPI_CALLED] = *mine;
    for (int rank = 0; rank < g->size && g->heard >= sequence; rank++)
        if (differ(mine, &g->told[rank]))
            odd = rank, theirs = g->told[rank].header;
    pthread_mutex_unlock(&g->lock);
    op->tells = g->check;
    return odd < 0 ? 0 : mpi_differ(g, &mine->header, &theirs, odd);
}

/* What this rank called then; another sequence in it: that is not known any more, or not yet. */
static struct mpi_record called(struct acomm_group *g, uint64_t sequence)
{
    pthread_mutex_lock(&g->lock);
    struct mpi_record mine = g->called[sequence % MPI_CALLED];
    pthread_mutex_unlock(&g->lock);
    return mine;
}

bool ahead_heard(struct acomm_group *g, int peer, const struct mpi_record *theirs, struct mpi_record *mine)
{
    if (!g->check || g->size > MPI_AHEAD_RANKS)
        return true;
    pthread_mutex_lock(&g->lock);
    g->told[peer] = *theirs;
    g->heard = theirs->header.sequence > g->heard ? theirs->header.sequence : g->heard;
    *mine = g->called[theirs->header.sequence % MPI_CALLED];
    pthread_mutex_unlock(&g->lock);
    return !differ(mine, theirs);
}

void ahead_tell(struct mpi_op *op)
{
    struct mpi_record mine = called(op->group, op->sequence);
    op->tells = false;
    messages_call(op->group, &mine, false);
}

int ahead_ask(struct acomm_group *g, uint64_t sequence, const struct mpi_record *theirs, int peer)
{
    struct mpi_record same = called(g, theirs->header.sequence), mine = called(g, sequence), before = called(g, sequence - 1);
    if (differ(&same, theirs))
        return mpi_differ(g, &same.header, &theirs->header, peer);
    messages_call(g, &before, false); /* they are past it, or differ in the one before: then they know with whom */
    messages_call(g, &mine, false);
    return 0;
}

int ahead_clash(struct mpi_op *op, const struct mpi_record *theirs, int peer)
{
    unsigned turns = 0;
    int rc = ahead_ask(op->group, op->sequence, theirs, peer);
    op->tells = false;
    while (!rc)
        rc = mpi_turn(op, &turns, peer);
    return rc;
}

/* ---- broadcasts ---- */

/* The record to everybody, then what is too long to come with it. */
static int give(struct mpi_op *op, uint64_t bytes)
{
    struct acomm_group *g = op->group;
    const acomm_call *c = &op->call;
    int rc = 0;
    for (int i = 1; i < g->size && !rc; i++)
        rc = mpi_give_record(op, g->records, bytes, mpi_neighbour(g, i));
    if (!rc && !op->is_short)
        rc = mpi_tree(op);
    int waited = mpi_wait(op);
    if (rc || waited)
        return rc ? rc : waited;
    if (op->is_short && c->in != c->out)
        memcpy((void *)c->out, (const void *)c->in, c->count * op->width);
    return 0;
}

static int take(struct mpi_op *op)
{
    struct acomm_group *g = op->group;
    const acomm_call *c = &op->call;
    struct mpi_record *mine = (struct mpi_record *)g->records, *theirs = (struct mpi_record *)(g->records + g->record_bytes);
    int rc = mpi_take_record(op, theirs, (size_t)(g->size - 1) * g->record_bytes, c->root); /* it may be in an exchange, and have several */
    int waited = mpi_wait(op);
    if (rc || waited)
        return rc ? rc : waited;
    if (g->check && (!theirs->ahead || theirs->before != mine->before || !op_agrees(&mine->header, &theirs->header)))
        return ahead_clash(op, theirs, c->root);
    op->tells = false;
    if (!op->is_short)
        return mpi_tree(op);
    memcpy((void *)c->out, theirs + 1, c->count * op->width);
    return 0;
}

int ahead_broadcast(struct mpi_op *op)
{
    struct acomm_group *g = op->group;
    if (!mpi_room_for_records(op))
        return ACOMM_RESOURCE;
    uint64_t bytes = mpi_write_record(op, g->records, g->rank, true);
    int rc = ahead_note(op, (struct mpi_record *)g->records);
    if (!rc)
        rc = op->call.root == g->rank ? give(op, bytes) : take(op);
    g->ahead++;
    g->before = (uint16_t)(op->call.root + 1);
    atomic_store_explicit(&g->unmet, op->sequence, memory_order_relaxed);
    return rc;
}

void ahead_met(struct acomm_group *g)
{
    g->ahead = 0;
    g->before = 0;
    atomic_store_explicit(&g->unmet, 0, memory_order_relaxed);
}

/* ---- the end ---- */

static int fail(struct acomm_group *g, const acomm_header *last, int code, int rank, const char *text)
{
    acomm_failure failure = {.code = code, .culprit = rank, .origin = g->rank, .sequence = last->sequence, .mine = *last};
    strncpy(failure.text, text, sizeof failure.text - 1);
    return mpi_fail(g, &failure);
}

int ahead_settle(struct acomm_group *g)
{
    uint64_t unmet = atomic_load(&g->unmet);
    int64_t began = clock_now(), now = began;
    if (!unmet)
        return 0;
    struct mpi_record last = called(g, unmet);
    messages_call(g, &last, true);
    for (;;) {
        bool gone = false;
        int rc = messages_progress(g), rank = messages_behind(g, unmet, &gone);
        if (rank < 0)
            return 0;
        if (rc || gone)
            return rc ? rc : fail(g, &last.header, ACOMM_LOST, rank, "it has closed the group");
        now = clock_now();
        if (now - began > g->timeout)
            return fail(g, &last.header, ACOMM_TIMEOUT, rank, "");
        if (wait_interrupted())
            return ACOMM_INTERRUPTED;
        mpi_nap(now - began);
        sched_yield();
    }
}
