/* Collectives over memory that the ranks of one host share (mpi_seats.h), in rounds: in each every rank puts down a piece of every
 * block that it gives, and takes what it gets of the others' pieces. Nothing of a caller's is written before all have met in the
 * first one, and reductions go in rank order. What a piece is and where it lies each rank finds from its own call: nothing that
 * others write there is believed.
 *
 * A long reduction among more than two ranks is sliced: each rank reduces its slice of everybody's piece, puts the result into its own
 * contents, where nobody needs that part, and one round later all copy the finished slices. */
#include <string.h>

#include "mpi_seats.h"
#include "reduce.h"

#define AHEAD ((uint64_t)64 << 10)    /* bytes of broadcasts whose root waits for nobody */
#define WHOLE ((uint64_t)8 << 10)     /* of reductions that each of more than two ranks does for himself */
#define STREAM ((uint64_t)128 << 10)  /* of a piece that one rank writes while others read the one before */
#define BLOCK ((uint64_t)16 << 10)    /* still in the first cache when they are copied on */
#define LINE(bytes) (((bytes) + 63) & ~(uint64_t)63)
#define MOVED ((uint64_t)1 << 20)     /* of an array that is only moved; longer ones go the best of several ways (mpi_ways.c) */

struct pieces {
    struct mpi_op *op;
    uint64_t block, piece; /* bytes of a block, and of it in a round */
    uint64_t at, bytes;    /* the round's piece of every block */
    uint64_t apart;        /* bytes from one block's piece to the next one's, where contents have one for each rank; 0: they have one
                            * alone. Of two ranks each puts down the other's, both in the same place, which changes hands */
    int index;             /* of the round in the operation */
    bool sliced;
    bool met;              /* ranks have, before the first round */
};

struct span { uint64_t at, bytes; };

/* ---- which operations ---- */

/* Bytes of a rank's whole array, given or got. */
static uint64_t whole(const struct mpi_op *op)
{
    bool blocks = mpi_divides(op) || op->call.kind == ACOMM_ALL_GATHER || op->call.kind == ACOMM_GATHER;
    return op->call.kind == ACOMM_BARRIER ? 0 : (blocks ? mpi_total(op, NULL) : op->call.count) * op->width;
}

bool pieces_fit(const struct mpi_op *op)
{
    return op->group->seats && !op->call.counts && !op->on_device && (mpi_reduces(op) || whole(op) <= MOVED);
}

/* Two ranks read as much of each other either way. */
static bool in_slices(const struct mpi_op *op)
{
    bool all = op->call.kind == ACOMM_ALL_REDUCE || op->call.kind == ACOMM_REDUCE;
    return all && op->group->size > 2 && op->call.count * op->width > WHOLE;
}

/* As many as are needed, alike: a last one of some bytes would be a round like any other. */
static uint64_t piece_of(const struct mpi_op *op, uint64_t block)
{
    uint64_t room = mpi_divides(op) ? SEATS_MOST / (uint64_t)op->group->size / 64 * 64 : SEATS_MOST;
    if (op->call.kind == ACOMM_BROADCAST && room > STREAM)
        room = STREAM;
    uint64_t number = (block + room - 1) / room;
    return number ? LINE((block + number - 1) / number) : 0;
}

/* ---- a round ---- */

static char *given(const struct pieces *p)
{
    return (char *)p->op->call.in + p->at;
}

static char *taken(const struct pieces *p)
{
    return (char *)p->op->call.out + p->at;
}

/* A rank's slice of a piece. */
static struct span slice(const struct mpi_op *op, uint64_t bytes, int rank)
{
    uint64_t size = (uint64_t)op->group->size, each = LINE((bytes + size - 1) / size), at = each * (uint64_t)rank;
    at = at < bytes ? at : bytes;
    return (struct span){at, each < bytes - at ? each : bytes - at};
}

/* Whether this rank puts something down. */
static bool gives(const struct mpi_op *op)
{
    const acomm_call *c = &op->call;
    bool root = c->root == op->group->rank;
    switch (c->kind) {
    case ACOMM_BROADCAST:
    case ACOMM_SCATTER:
        return root;
    case ACOMM_GATHER:
        return !root;
    case ACOMM_REDUCE:
        return !root || in_slices(op);
    default:
        return c->kind != ACOMM_BARRIER;
    }
}

/* All but what nobody else reads. */
static void give(const struct pieces *p, char *to)
{
    struct acomm_group *g = p->op->group;
    if (!p->sliced && !mpi_divides(p->op)) {
        seats_fill(g, g->rank, to, given(p), p->bytes);
        return;
    }
    for (int rank = 0; rank < g->size; rank++) {
        struct span s = p->sliced ? slice(p->op, p->bytes, rank) : (struct span){(uint64_t)rank * p->block, p->bytes};
        uint64_t place = p->sliced ? s.at : (uint64_t)rank * p->apart;
        if (rank != g->rank)
            seats_fill(g, rank, to + place, given(p) + s.at, s.bytes);
    }
}

/* What an operation in place leaves where it is. */
static void keep(char *to, const char *from, uint64_t bytes)
{
    if (to != from)
        stream_keep(to, from, bytes);
}

/* A block that this rank gets of another one, or of itself. */
static int take(const struct pieces *p, int from, char *to)
{
    struct mpi_op *op = p->op;
    uint64_t mine = mpi_divides(op) ? (uint64_t)op->group->rank : 0;
    if (from == op->group->rank) {
        keep(to, given(p) + mine * p->block, p->bytes);
        return 0;
    }
    int rc = seats_await(op, from);
    if (!rc)
        stream_keep(to, seats_contents(op->group, from, 0) + mine * p->apart, p->bytes);
    return rc;
}

/* One of every rank. */
static int take_all(const struct pieces *p)
{
    struct acomm_group *g = p->op->group;
    int rc = 0;
    for (int i = 1; i <= g->size && !rc; i++) { /* not everybody reads the same contents at once */
        int from = i < g->size ? mpi_neighbour(g, i) : g->rank;
        rc = take(p, from, taken(p) + (uint64_t)from * p->block);
    }
    return rc;
}

static int await_all(const struct pieces *p)
{
    struct acomm_group *g = p->op->group;
    int rc = 0;
    for (int i = 1; i < g->size && !rc; i++)
        rc = seats_await(p->op, mpi_neighbour(g, i));
    return rc;
}

/* Bytes [part.at, + part.bytes) of everybody's piece for this rank. `copy`: NULL, or where the result is put too. */
static void reduce(const struct pieces *p, struct span part, char *copy)
{
    struct mpi_op *op = p->op;
    struct acomm_group *g = op->group;
    const acomm_call *c = &op->call;
    struct reduction reduction = {c->dtype, c->redop, c->factor, g->size};
    uint64_t mine = mpi_divides(op) ? (uint64_t)g->rank : 0, step = copy ? BLOCK : part.bytes, end = part.at + part.bytes;
    const void *inputs[g->size];
    _Alignas(64) char block[BLOCK];
    for (uint64_t at = part.at; at < end; at += step) {
        uint64_t bytes = end - at < step ? end - at : step;
        char *to = c->out ? taken(p) + at : block;
        for (int rank = 0; rank < g->size; rank++)
            inputs[rank] = rank == g->rank ? given(p) + mine * p->block + at
                                           : seats_contents(g, rank, 0) + mine * p->apart + at;
        reduce_all(&reduction, to, inputs, g->size, bytes / op->width);
        if (copy)
            seats_fill(g, g->rank, copy + (at - part.at), to, bytes);
    }
}

static int reduce_whole(const struct pieces *p)
{
    if (!p->op->call.out)
        return 0;
    int rc = await_all(p);
    if (!rc)
        reduce(p, (struct span){0, p->bytes}, NULL);
    return rc;
}

/* Everybody's slices of the round before, which all have published by now. */
static void copy_finished(const struct pieces *p)
{
    struct mpi_op *op = p->op;
    struct acomm_group *g = op->group;
    uint64_t before = p->at - p->piece, bytes = p->block - before < p->piece ? p->block - before : p->piece;
    for (int i = 1; i < g->size && op->call.out; i++) {
        int rank = mpi_neighbour(g, i);
        struct span s = slice(op, bytes, rank);
        stream_keep((char *)op->call.out + before + s.at, seats_contents(g, rank, 1) + s.at, s.bytes);
    }
}

static int reduce_slice(const struct pieces *p)
{
    struct acomm_group *g = p->op->group;
    int rc = await_all(p);
    if (rc)
        return rc;
    if (p->index)
        copy_finished(p);
    struct span mine = slice(p->op, p->bytes, g->rank);
    reduce(p, mine, seats_contents(g, g->rank, 0) + mine.at);
    return 0;
}

static int take_round(const struct pieces *p)
{
    const acomm_call *c = &p->op->call;
    if (p->sliced)
        return reduce_slice(p);
    if (mpi_reduces(p->op))
        return reduce_whole(p);
    if (c->kind == ACOMM_BROADCAST || c->kind == ACOMM_SCATTER)
        return take(p, c->root, taken(p));
    return c->out && c->kind != ACOMM_BARRIER ? take_all(p) : 0;
}

static int run_round(const struct pieces *p)
{
    struct mpi_op *op = p->op;
    struct acomm_group *g = op->group;
    uint64_t bytes = p->apart ? (uint64_t)g->size * p->apart : p->bytes;
    bool writes = gives(op) && bytes, later = p->met || p->index;
    int rc;
    char *place = later ? seats_next(op, bytes, writes, &rc) : seats_first(op, bytes, writes, &rc);
    if (rc)
        return rc;
    if (writes)
        give(p, place);
    if (later)
        seats_publish(g);
    else
        rc = seats_compare(op);
    rc = rc ? rc : take_round(p);
    if (!rc && (!p->sliced || p->index))
        seats_done(g, p->sliced && p->bytes);
    return rc;
}

static int in_rounds(struct mpi_op *op, bool met)
{
    uint64_t block = 0;
    if (op->call.kind != ACOMM_BARRIER)
        block = op->call.count * op->width;
    struct pieces p = {.op = op, .block = block, .piece = piece_of(op, block), .sliced = in_slices(op), .met = met};
    uint64_t rounds = p.piece ? (block + p.piece - 1) / p.piece : 1;
    int rc = 0;
    for (rounds += p.sliced; !rc && (uint64_t)p.index < rounds; p.index++) {
        p.at = (uint64_t)p.index * p.piece;
        uint64_t left = p.at < block ? block - p.at : 0;
        p.bytes = left < p.piece ? left : p.piece;
        p.apart = mpi_divides(op) && op->group->size > 2 ? LINE(p.bytes) : 0;
        rc = run_round(&p);
    }
    return rc;
}

int pieces_collective(struct mpi_op *op)
{
    if (op->call.kind == ACOMM_BROADCAST && whole(op) <= AHEAD)
        return seats_broadcast(op);
    return in_rounds(op, false);
}

int pieces_follow(struct mpi_op *op)
{
    return in_rounds(op, true);
}
