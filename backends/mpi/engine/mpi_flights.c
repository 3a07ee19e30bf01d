/* See mpi_flights.h. */
#include <stdlib.h>
#include <string.h>

#include "mpi_flights.h"
#include "mpi_messages.h"

#define LEAST_ROOM 512   /* so that the spare one serves most messages */
#define MOST_SPARE 16384 /* longer ones go back to the system */

struct mpi_flight *flight_new(struct acomm_group *g, struct mpi_op *op, int requests, size_t bytes)
{
    struct mpi_flights *all = messages_flights(g);
    size_t before = ((size_t)requests * g->mpi->handle_bytes + 15) & ~(size_t)15, room = before + bytes;
    struct mpi_flight *f = all->spare;
    if (f && f->room >= room) {
        all->spare = NULL;
    } else {
        room = room < LEAST_ROOM ? LEAST_ROOM : room;
        f = malloc(sizeof *f + room);
        if (!f)
            return NULL;
        f->room = room;
    }
    f->op = op;
    f->memory = f->requests + before;
    f->number = f->ended = 0;
    f->next = all->first;
    all->first = f;
    if (op)
        op->flight = f;
    return f;
}

int flight_pieces(const acomm_mpi *mpi, uint64_t bytes)
{
    return (int)((bytes + mpi_piece(mpi, bytes) - 1) / mpi_piece(mpi, bytes));
}

int flight_move(struct acomm_group *g, struct mpi_flight *f, char *data, uint64_t bytes, int peer, int tag, bool takes)
{
    const acomm_mpi *mpi = g->mpi;
    uint64_t piece = mpi_piece(mpi, bytes);
    for (uint64_t at = 0; at < bytes; at += piece) {
        int part = (int)(bytes - at < piece ? bytes - at : piece);
        void *request = f->requests + (size_t)f->number * mpi->handle_bytes;
        int rc = takes ? mpi->Irecv(data + at, part, mpi->byte, peer, tag, g->comm, request)
                       : mpi->Isend(data + at, part, mpi->byte, peer, tag, g->comm, request);
        if (rc)
            return rc;
        f->number++;
    }
    return 0;
}

static void end(struct acomm_group *g, struct mpi_flight *f)
{
    struct mpi_flights *all = messages_flights(g);
    struct mpi_flight **at = &all->first;
    struct mpi_op *op = f->op;
    while (*at != f)
        at = &(*at)->next;
    *at = f->next;
    if (f->room <= MOST_SPARE && (!all->spare || all->spare->room < f->room)) {
        free(all->spare);
        all->spare = f;
    } else {
        free(f);
    }
    if (op)
        mpi_end_op(op, 0);
}

/* Whether all of its requests have ended. */
static int look(const acomm_mpi *mpi, struct mpi_flight *f, bool *over)
{
    int flag = 1;
    while (f->ended < f->number && flag) {
        int rc = mpi->Test(f->requests + (size_t)f->ended * mpi->handle_bytes, &flag, mpi->ignore);
        if (rc)
            return rc;
        f->ended += flag;
    }
    *over = f->ended == f->number;
    return 0;
}

int flight_test(struct acomm_group *g, struct mpi_flight *f)
{
    bool over = false;
    int rc = look(g->mpi, f, &over);
    if (!rc && over)
        end(g, f);
    return rc;
}

int flights_test(struct acomm_group *g)
{
    int rc = 0;
    for (struct mpi_flight *f = messages_flights(g)->first, *next; f && !rc; f = next) {
        next = f->next;
        rc = flight_test(g, f);
    }
    return rc;
}

void flights_end(struct acomm_group *g, int code)
{
    for (struct mpi_flight *f = messages_flights(g)->first; f; f = f->next) {
        struct mpi_op *op = f->op;
        if (!op)
            continue;
        flights_leave(g, op);
        mpi_end_op(op, code);
    }
}

void flights_leave(struct acomm_group *g, const struct mpi_op *op)
{
    for (struct mpi_flight *f = messages_flights(g)->first; f; f = f->next)
        if (f->op == op) {
            f->op = NULL;
            atomic_store(&g->stuck, true);
        }
}

void flights_free(struct acomm_group *g)
{
    free(messages_flights(g)->spare);
}
