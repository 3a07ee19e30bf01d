/* all_gather, gather, broadcast, scatter and all_to_all between the ranks' arrays, without slots: the receivers copy, and if the
 * senders would be idle, they copy too. */
#include "collectives/shared/direct.h"
#include "collectives/shared/rounds.h"

#define PAGE 4096u
/* Bytes of all ranks' inputs and outputs, beyond which results use non-temporal stores for blocks of any length. A cache of 32
 * MiB keeps none of so many for the next reader, but would fetch the overwritten lines. */
#define ALL_LONG ((uint64_t)64 << 20)

/* Bytes [offset, offset + to.bytes) of a peer's input, or of our own, to their place in the output. `all`: of all ranks' arrays. */
static int fetch(struct rounds *r, int rank, uint64_t offset, struct span to, uint64_t all)
{
    char *out = r->op->out + to.offset;
    size_t whole = all >= ALL_LONG && to.bytes < STREAM_LONG ? STREAM_LONG : to.bytes;
    if (rank != r->rank)
        return to.bytes ? direct_read(r, rank, direct_offer(r, rank)->in, offset, out, to.bytes, whole) : 0;
    return blocks_copy_part(r->op, out, r->op->in + offset, to.bytes, whole);
}

static int direct_moves_gather(struct rounds *r)
{
    const struct acomm_op *op = r->op;
    uint64_t result = op_total(op->recv_counts, op->count, r->ranks, op->width);
    uint64_t all = result * (uint64_t)(op->kind == ACOMM_GATHER ? 2 : r->ranks + 1);
    int rc = 0;
    for (int i = 0; op->out && i < r->ranks && !rc; i++) {
        int rank = (r->rank + i) % r->ranks; /* so that ranks do not all read the same array at once */
        rc = fetch(r, rank, 0, op_gathered(op, rank), all);
    }
    return rc;
}

int direct_all_gather(struct acomm_op *op)
{
    uint64_t bytes = op_total(op->recv_counts, op->count, op->team->size, op->width);
    struct direct_plan plan = {.bytes = bytes, .offered = op_gathered(op, op->team->rank).bytes,
                               .shared = op->team->size > 2 || bytes <= DIRECT_FROM,
                               .repeats = true, .staged = shared_all_gather, .move = direct_moves_gather};
    return direct_run(op, &plan);
}

static int gather_pushed(struct rounds *r)
{
    const struct acomm_op *op = r->op;
    struct span own = op_gathered(op, r->rank);
    return op->out ? blocks_copy_part(r->op, op->out + own.offset, op->in, own.bytes, own.bytes)
                   : direct_write(r, op->root, direct_offer(r, op->root)->out, own.offset, op->in, own.bytes);
}

/* To one root: the senders copy, all at once. Even counts only: the root alone knows where uneven blocks lie. */
int direct_gather(struct acomm_op *op)
{
    uint64_t bytes = op->count * op->width * (uint64_t)op->team->size;
    struct direct_plan plan = {.bytes = bytes, .offered_out = op->out ? bytes : 0, .pushed = true,
                               .repeats = true, .staged = shared_all_gather, .move = gather_pushed};
    return op->recv_counts ? direct_all_gather(op) : direct_run(op, &plan);
}

/* Bytes at the end of every other rank's array that an idle root writes, so that all copy as many bytes; whole pages. */
static uint64_t pushed_end(const struct rounds *r)
{
    uint64_t bytes = r->op->count * r->op->width;
    return direct_offer(r, r->op->root)->pushes ? bytes / (uint64_t)r->ranks / PAGE * PAGE : 0;
}

static int push_ends(struct rounds *r, uint64_t first, uint64_t end)
{
    int rc = 0;
    for (int i = 1; i < r->ranks && end && !rc; i++) {
        int rank = (r->rank + i) % r->ranks;
        rc = direct_write(r, rank, direct_offer(r, rank)->out, first, r->op->in + first, end);
    }
    return rc;
}

static int broadcast(struct rounds *r)
{
    const struct acomm_op *op = r->op;
    uint64_t bytes = op->count * op->width, end = pushed_end(r);
    if (r->rank != op->root)
        return fetch(r, op->root, 0, (struct span){0, bytes - end}, bytes * (uint64_t)r->ranks);
    int rc = push_ends(r, bytes - end, end);
    return rc || !op->out ? rc : blocks_copy_all(r->op, op->out, op->in, bytes);
}

int direct_broadcast(struct acomm_op *op)
{
    uint64_t bytes = op->count * op->width;
    bool root = op->team->rank == op->root, idle = !op->group->oversubscribed && (!op->out || op->out == op->in);
    struct direct_plan plan = {.bytes = bytes, .offered = root ? bytes : 0, .offered_out = root ? 0 : bytes,
                               .pushed = true, .pushes = root && idle, .shared = true,
                               .repeats = true, .staged = shared_broadcast, .move = broadcast};
    return direct_run(op, &plan);
}

static int scatter(struct rounds *r)
{
    const struct acomm_op *op = r->op;
    uint64_t bytes = op->count * op->width;
    return fetch(r, op->root, op_scattered(op, r->rank).offset, (struct span){0, bytes}, 2 * bytes * (uint64_t)r->ranks);
}

int direct_scatter(struct acomm_op *op)
{
    uint64_t bytes = op->count * op->width * (uint64_t)op->team->size;
    struct direct_plan plan = {.bytes = bytes, .offered = op->team->rank == op->root ? bytes : 0,
                               .repeats = true, .staged = shared_scatter, .move = scatter};
    return direct_run(op, &plan);
}

/* A rank's own block is the first to use non-temporal stores: if the kernel copies the others, those go through the caches. */
static int direct_moves_exchange(struct rounds *r)
{
    const struct acomm_op *op = r->op;
    uint64_t block = op->count * op->width, own = op_scattered(op, r->rank).offset;
    uint64_t all = 2 * block * (uint64_t)r->ranks * (uint64_t)r->ranks;
    int rc = blocks_copy_part(r->op, op->out + own, op->in + own, block, all >= ALL_LONG / 2 ? STREAM_LONG : block);
    for (int i = 1; i < r->ranks && !rc; i++) {
        int rank = (r->rank + i) % r->ranks;
        rc = fetch(r, rank, own, op_gathered(op, rank), all);
    }
    return rc;
}

/* Even counts only: with uneven ones, only the peer's own counts show where a block lies in its array. */
int direct_all_to_all(struct acomm_op *op)
{
    uint64_t bytes = op->count * op->width * (uint64_t)op->team->size;
    struct direct_plan plan = {.bytes = bytes, .offered = bytes, .shared = bytes <= DIRECT_FROM,
                               .repeats = true, .staged = shared_all_to_all, .move = direct_moves_exchange};
    return op->send_counts ? shared_all_to_all(op) : direct_run(op, &plan);
}
