/* all_to_all and scatter over the shared segment: every other rank finds a piece in the slot, or in the pair's exchange buffer,
 * and copies it out. A rank copies its own block straight from its input to its output. */
#include "collectives/shared/rounds.h"

/* Blocks of a slot: no rank puts its own block there. */
static int shared_all_to_all_blocks(int ranks)
{
    return ranks > 1 ? ranks - 1 : 1;
}

/* The piece of `from` for `to`. */
static char *shared_all_to_all_piece_of(const struct rounds *r, int from, int to)
{
    size_t slot = (size_t)r->piece * (size_t)shared_all_to_all_blocks(r->ranks);
    return rounds_given(r, from, to, (size_t)(to > from ? to - 1 : to) * r->piece, slot);
}

static void shared_all_to_all_fill(const struct rounds *r)
{
    const struct acomm_op *op = r->op;
    for (int rank = 0; op->in && rank < r->ranks; rank++) {
        struct span block = op_scattered(op, rank);
        size_t bytes = rounds_piece(r, block.bytes, r->index);
        if (bytes && rank != r->rank)
            rounds_fill(r, rank, shared_all_to_all_piece_of(r, r->rank, rank), op->in + block.offset + r->index * r->piece, bytes);
    }
}

/* Copies this rank's piece out of the slot of `from` into its block at `block`. */
static int shared_all_to_all_take(const struct rounds *r, int from, struct span block)
{
    size_t bytes = rounds_piece(r, block.bytes, r->index);
    /* A rank that sends us nothing may still read our contents of the turn before, which lie where we write in the next turn. */
    int rc = bytes || r->pairs ? rounds_await(r, from) : 0;
    if (rc || !bytes)
        return rc;
    char *to = r->op->out + block.offset + r->index * r->piece;
    const char *piece = from == r->rank ? r->op->in + op_scattered(r->op, from).offset + r->index * r->piece
                                        : shared_all_to_all_piece_of(r, from, r->rank);
    if (to != piece)
        rounds_take(r, to, piece, bytes);
    return 0;
}

static int drain_all(const struct rounds *r)
{
    const struct acomm_op *op = r->op;
    int rc = 0, first = r->cells ? 1 : 0; /* a cell's contents before its own block, which would evict them from the caches */
    for (int i = 0; i < r->ranks && !rc; i++) {
        int from = (r->rank + first + i) % r->ranks;
        rc = shared_all_to_all_take(r, from, op_gathered(op, from));
    }
    return rc;
}

static int shared_all_to_all_drain_root(const struct rounds *r)
{
    return shared_all_to_all_take(r, r->op->root, (struct span){0, r->op->count * r->op->width});
}

int shared_all_to_all(struct acomm_op *op)
{
    struct rounds_plan plan = {.block = op->send_counts ? 0 : op->count * op->width, .blocks = shared_all_to_all_blocks(op->team->size),
                               .fill = shared_all_to_all_fill, .drain = drain_all,
                               .mutual = !op->send_counts, .pairwise = true,
                               .result = op_total(op->recv_counts, op->count, op->team->size, op->width)};
    return rounds_run(op, &plan);
}

int shared_scatter(struct acomm_op *op)
{
    struct rounds_plan plan = {.block = op->count * op->width, .blocks = shared_all_to_all_blocks(op->team->size), .one_way = true,
                               .fill = shared_all_to_all_fill, .drain = shared_all_to_all_drain_root};
    return rounds_run(op, &plan);
}
