/* Requests of a collective, and waiting for them. MPI makes progress only inside its functions and has nothing to sleep on,
 * so a wait asks again and again: at once at first, then yielding, after a while with sleeps between. */
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "mpi_group.h"
#include "mpi_messages.h"
#include "wait.h"

#define SPINS_CROWDED 4
#define LOOKS 16            /* turns between two looks at clock and poison, past the spinning */
#define PATIENT_NS 20000000 /* then it sleeps between turns, for a hundredth of the time that it has waited, */
#define NAP_NS 1000000      /* at most this */
#define GRACE_NS 200000000  /* for requests of a failed operation to end */
#define TELL_NS 2000000     /* then it tells its peers what it calls */

void mpi_nap(int64_t waited)
{
    int64_t ns = waited < PATIENT_NS ? 0 : waited / 100 < NAP_NS ? waited / 100 : NAP_NS;
    if (ns)
        nanosleep(&(struct timespec){0, ns}, NULL);
}

int mpi_look(struct mpi_op *op, int culprit)
{
    struct acomm_group *g = op->group;
    int64_t now = clock_now();
    if (!op->started) {
        op->started = now;
        op->deadline = now + (op->call.timeout < 0 ? g->timeout : op->call.timeout);
        op->next_look = now + WAIT_LOOK_NS;
    }
    int rc = atomic_load(&g->poisoned);
    if (!rc)
        rc = messages_news(op);
    if (rc)
        return rc;
    if (now >= op->deadline)
        return mpi_fail_op(op, ACOMM_TIMEOUT, culprit, NULL);
    if (now >= op->next_look) {
        op->next_look = now + WAIT_LOOK_NS;
        if (op->synchronous && wait_interrupted())
            return mpi_fail_op(op, ACOMM_INTERRUPTED, -1, NULL);
    }
    if (op->tells && now - op->started > TELL_NS)
        ahead_tell(op);
    return 0;
}

int mpi_turn(struct mpi_op *op, unsigned *turns, int culprit)
{
    unsigned turn = (*turns)++, spins = op->group->crowded ? SPINS_CROWDED : MPI_SPINS;
    if (turn < spins)
        return 0;
    if (turn % LOOKS == 0) {
        int rc = mpi_look(op, culprit);
        if (rc)
            return rc;
        mpi_nap(clock_now() - op->started);
    }
    sched_yield();
    return 0;
}

bool mpi_grow(char **place, size_t *room, size_t bytes)
{
    if (bytes <= *room)
        return true;
    free(*place);
    *place = NULL;
    *room = 0;
    if (posix_memalign((void **)place, 64, bytes))
        return false;
    *room = bytes;
    return true;
}

static void *place(struct acomm_group *g, int peer, bool takes)
{
    struct mpi_requests *r = &g->requests;
    if (r->number == r->room) {
        int room = r->room ? 2 * r->room : 16;
        char *handles = realloc(r->handles, (size_t)room * g->mpi->handle_bytes);
        r->handles = handles ? handles : r->handles;
        struct request_facts *facts = handles ? realloc(r->facts, (size_t)room * sizeof *facts) : NULL;
        r->facts = facts ? facts : r->facts;
        if (!facts)
            return NULL;
        r->room = room;
    }
    r->facts[r->number] = (struct request_facts){peer, takes};
    return r->handles + (size_t)r->number++ * g->mpi->handle_bytes;
}

void *mpi_request(struct mpi_op *op)
{
    return place(op->group, -1, false);
}

static int move(struct mpi_op *op, char *data, uint64_t bytes, uint64_t most, int peer, int tag, bool takes)
{
    struct acomm_group *g = op->group;
    const acomm_mpi *mpi = g->mpi;
    do {
        int part = (int)(bytes < most ? bytes : most);
        void *request = place(g, peer, takes);
        if (!request)
            return mpi_fail_op(op, ACOMM_RESOURCE, -1, "no memory for requests");
        int rc = takes ? mpi->Irecv(data, part, mpi->byte, peer, tag, g->comm, request)
                       : mpi->Isend(data, part, mpi->byte, peer, tag, g->comm, request);
        if (rc) {
            g->requests.number--;
            return mpi_fail_library(op, rc, peer);
        }
        data += part;
        bytes -= (uint64_t)part;
    } while (bytes);
    return 0;
}

int mpi_give(struct mpi_op *op, const void *data, uint64_t bytes, int peer)
{
    return move(op, (char *)data, bytes, mpi_piece(op->group->mpi, bytes), peer, TAG_BLOCKS, false);
}

int mpi_take(struct mpi_op *op, void *data, uint64_t bytes, int peer)
{
    return move(op, data, bytes, mpi_piece(op->group->mpi, bytes), peer, TAG_BLOCKS, true);
}

int mpi_give_record(struct mpi_op *op, const void *record, uint64_t bytes, int peer)
{
    return move(op, (char *)record, bytes, bytes + 1, peer, TAG_RECORDS, false);
}

int mpi_take_record(struct mpi_op *op, void *record, uint64_t most, int peer)
{
    return move(op, record, most, most + 1, peer, TAG_RECORDS, true);
}

/* Receives are cancelled. Sends and collectives cannot be: they get a moment to end, in which peers drain what was sent (mpi_drain.c). */
void mpi_take_back(struct acomm_group *g)
{
    const acomm_mpi *mpi = g->mpi;
    int64_t end = clock_now() + GRACE_NS;
    for (int i = 0; i < g->requests.number; i++) {
        void *request = g->requests.handles + (size_t)i * mpi->handle_bytes;
        int flag = mpi_read(mpi, request) == mpi->no_request;
        if (!flag && g->requests.facts[i].takes)
            mpi->Cancel(request);
        while (!flag && !mpi->Test(request, &flag, mpi->ignore) && !flag && clock_now() < end)
            sched_yield();
        if (!flag)
            atomic_store(&g->stuck, true);
    }
    g->requests.number = 0;
}

static int wait_for_one(struct mpi_op *op, int number)
{
    struct acomm_group *g = op->group;
    const acomm_mpi *mpi = g->mpi;
    void *request = g->requests.handles + (size_t)number * mpi->handle_bytes;
    int peer = g->requests.facts[number].peer, rc = 0, over = 0;
    unsigned turns = 0;
    while (!rc) {
        int code = mpi->Test(request, &over, mpi->ignore);
        if (code)
            return mpi_fail_library(op, code, peer);
        if (over)
            return 0;
        rc = mpi_turn(op, &turns, peer);
    }
    return rc;
}

int mpi_wait_for(struct mpi_op *op, int number)
{
    struct acomm_group *g = op->group;
    int rc = atomic_load_explicit(&g->poisoned, memory_order_relaxed);
    for (int i = 0; i < number && !rc; i++)
        rc = wait_for_one(op, i);
    return rc;
}

int mpi_wait(struct mpi_op *op)
{
    struct acomm_group *g = op->group;
    int rc = mpi_wait_for(op, g->requests.number);
    if (rc)
        mpi_take_back(g);
    g->requests.number = 0;
    return rc;
}
