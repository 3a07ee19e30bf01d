/* all_to_all and scatter over the shared segment: a slot holds a piece for every other rank, each copies out its own.
 * What a rank keeps for itself goes straight from its input to its output. */
#include "../stream.h"
#include "collectives.h"
#include "shared_rounds.h"

static size_t slot_bytes(const struct rounds *r)
{
    return (size_t)r->piece * (size_t)r->ranks;
}

static void fill(const struct rounds *r)
{
    const struct acomm_op *op = r->op;
    char *slot = rounds_slot(r, r->rank, slot_bytes(r));
    for (int rank = 0; op->in && rank < r->ranks; rank++) {
        struct span block = op_block(op->send_counts, op->count, rank, op->width);
        size_t bytes = rounds_piece(r, block.bytes, r->index);
        if (bytes && rank != r->rank)
            rounds_fill(r, slot + (size_t)rank * r->piece, op->in + block.offset + r->index * r->piece, bytes);
    }
}

/* This rank's piece for itself. */
static const char *own(const struct rounds *r)
{
    const struct acomm_op *op = r->op;
    return op->in + op_block(op->send_counts, op->count, r->rank, op->width).offset + r->index * r->piece;
}

/* Copies this rank's piece out of the slot of `from` into its block at `block`. */
static int take(const struct rounds *r, int from, struct span block)
{
    size_t bytes = rounds_piece(r, block.bytes, r->index);
    if (!bytes)
        return 0;
    int rc = rounds_await(r, from);
    char *to = r->op->out + block.offset + r->index * r->piece;
    const char *piece = from == r->rank ? own(r) : rounds_slot(r, from, slot_bytes(r)) + (size_t)r->rank * r->piece;
    if (!rc && to != piece)
        stream_keep(to, piece, bytes);
    return rc;
}

static int drain_all(const struct rounds *r)
{
    const struct acomm_op *op = r->op;
    int rc = 0;
    for (int i = 0; i < r->ranks && !rc; i++) {
        int from = (r->rank + i) % r->ranks;
        rc = take(r, from, op_block(op->recv_counts, op->count, from, op->width));
    }
    return rc;
}

static int drain_root(const struct rounds *r)
{
    return take(r, r->op->root, (struct span){0, r->op->count * r->op->width});
}

int shared_all_to_all(struct acomm_op *op)
{
    struct rounds_plan plan = {.block = op->send_counts ? 0 : op->count * op->width, .blocks = op->team->size,
                               .fill = fill, .drain = drain_all};
    return rounds_run(op, &plan);
}

int shared_scatter(struct acomm_op *op)
{
    struct rounds_plan plan = {.block = op->count * op->width, .blocks = op->team->size, .one_way = true,
                               .fill = fill, .drain = drain_root};
    return rounds_run(op, &plan);
}
