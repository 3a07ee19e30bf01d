/* Short messages: every collective as an all-gather of the ranks' inputs, in log2 n steps. Bruck et al., "Efficient
 * algorithms for all-to-all communications in multiport message-passing systems", IEEE Trans. Parallel and Distributed
 * Systems 8 (1997).
 *
 * Input and header travel together as one record, and a message is a run of records of which the first is its sender's:
 * the comparison of headers (see agree.h) costs no step of its own. Nothing is written into the caller's arrays before
 * the last record is there. Reductions are in rank order with one rounding: the bits of the shared-memory forms. */
#include <errno.h>
#include <string.h>

#include "../agree.h"
#include "blocks.h"
#include "partials.h"

struct records {
    struct acomm_op *op;
    int rank, n;
    size_t stride;
    const void **inputs; /* room for n, used by reductions */
    char *base;          /* place i: the record of rank + i */
};

static int open_records(struct records *r, struct acomm_op *op, uint64_t bytes)
{
    *r = (struct records){.op = op, .rank = op->group->rank, .n = op->group->size};
    r->stride = sizeof(acomm_header) + (bytes + 7) / 8 * 8;
    r->inputs = group_scratch(op->group, (size_t)r->n * (sizeof *r->inputs + r->stride));
    if (!r->inputs)
        return group_fail_op(op, ACOMM_RESOURCE, r->rank, ENOMEM, NULL);
    r->base = (char *)(r->inputs + r->n);
    return 0;
}

/* What rank gave. */
static const char *record(const struct records *r, int rank)
{
    return r->base + (size_t)pattern_rank(rank, -r->rank, r->n) * r->stride + sizeof(acomm_header);
}

static void fill_own(const struct records *r, uint64_t bytes)
{
    acomm_header header;
    op_header(r->op, &header);
    memcpy(r->base, &header, sizeof header);
    memset(r->base + sizeof header, 0, r->stride - sizeof header); /* no old contents of memory leave this process */
    blocks_copy(r->base + sizeof header, r->op->in, bytes);
}

/* Gathers the records. Messages have room for `bytes`, of which this rank gives `own`. */
static int gather(struct records *r, struct acomm_op *op, uint64_t bytes, uint64_t own)
{
    int rc = open_records(r, op, bytes);
    if (rc)
        return rc;
    fill_own(r, own);
    for (int step = 0; step < pattern_steps(r->n) && !rc; step++) {
        struct pattern_bruck plan = pattern_bruck(r->rank, r->n, step);
        size_t length = (size_t)plan.blocks * r->stride;
        struct transfer list[] = {transfer_to(op, plan.to, r->base, length),
                                  transfer_from(op, plan.from, r->base + (size_t)plan.at * r->stride, length)};
        list[1].checked = true;
        rc = transfer_run(op, list, 2);
    }
    return rc;
}

/* out = the reduction of `bytes` at `offset` of every record. */
static void reduce_records(const struct records *r, uint64_t offset, uint64_t bytes)
{
    struct reduction reduction = partials_reduction(r->op);
    for (int rank = 0; rank < r->n; rank++)
        r->inputs[rank] = record(r, rank) + offset;
    if (bytes)
        reduce_all(&reduction, r->op->out, r->inputs, r->n, bytes / r->op->width);
}

int all_reduce_bruck(struct acomm_op *op)
{
    struct records r;
    uint64_t bytes = op->count * op->width;
    int rc = gather(&r, op, bytes, bytes);
    if (!rc && op->out)
        reduce_records(&r, 0, bytes);
    return rc;
}

int reduce_bruck(struct acomm_op *op)
{
    return all_reduce_bruck(op); /* only the root has an output */
}

int broadcast_bruck(struct acomm_op *op)
{
    struct records r;
    uint64_t bytes = op->count * op->width;
    int rc = gather(&r, op, bytes, op->group->rank == op->root ? bytes : 0);
    if (!rc && op->out)
        blocks_copy(op->out, record(&r, op->root), bytes);
    return rc;
}

int all_gather_bruck(struct acomm_op *op)
{
    struct records r;
    uint64_t largest = blocks_largest(op->recv_counts, op->count, op->group->size) * op->width;
    int rc = gather(&r, op, largest, op_block(op->recv_counts, op->count, op->group->rank, op->width).bytes);
    for (int rank = 0; !rc && op->out && rank < r.n; rank++) {
        struct span block = op_block(op->recv_counts, op->count, rank, op->width);
        blocks_copy(blocks_at(op->out, block.offset), record(&r, rank), block.bytes);
    }
    return rc;
}

int gather_bruck(struct acomm_op *op)
{
    return all_gather_bruck(op); /* only the root has an output */
}

int scatter_bruck(struct acomm_op *op)
{
    struct records r;
    uint64_t bytes = op_total(NULL, op->count, op->group->size, op->width);
    int rc = gather(&r, op, bytes, op->group->rank == op->root ? bytes : 0);
    if (!rc) {
        struct span own = op_block(NULL, op->count, r.rank, op->width);
        blocks_copy(op->out, record(&r, op->root) + own.offset, own.bytes);
    }
    return rc;
}

int reduce_scatter_bruck(struct acomm_op *op)
{
    struct records r;
    uint64_t bytes = op_total(op->send_counts, op->count, op->group->size, op->width);
    int rc = gather(&r, op, bytes, bytes);
    if (!rc) {
        struct span own = op_block(op->send_counts, op->count, r.rank, op->width);
        reduce_records(&r, own.offset, own.bytes);
    }
    return rc;
}

int all_to_all_bruck(struct acomm_op *op)
{
    struct records r;
    if (op->send_counts || op->recv_counts) { /* records have one size on all ranks */
        int rc = agree(op);
        return rc ? rc : all_to_all_pairwise(op);
    }
    uint64_t bytes = op_total(NULL, op->count, op->group->size, op->width);
    int rc = gather(&r, op, bytes, bytes);
    struct span own = op_block(NULL, op->count, op->group->rank, op->width);
    for (int rank = 0; !rc && rank < r.n; rank++)
        blocks_copy(blocks_at(op->out, (uint64_t)rank * own.bytes), record(&r, rank) + own.offset, own.bytes);
    return rc;
}
