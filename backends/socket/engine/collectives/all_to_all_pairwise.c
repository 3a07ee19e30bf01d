/* Pairwise all_to_all: in step s every rank sends to rank + s and receives from rank - s, so that no rank is a
 * bottleneck. In place, where a block must leave before its place is overwritten, the partners of a step exchange
 * with each other (rank + partner = s mod n) through a bounded buffer. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "../group.h"
#include "../pattern.h"
#include "../transfer.h"
#include "blocks.h"
#include "collectives.h"

#define PART ((uint64_t)1 << 20) /* bytes of a block exchanged at a time in place */

static struct span sent_to(const struct acomm_op *op, int rank)
{
    return op_block(op->send_counts, op->count, rank, op->width);
}

static struct span got_from(const struct acomm_op *op, int rank)
{
    return op_block(op->recv_counts, op->count, rank, op->width);
}

static uint64_t expected(const struct acomm_op *op, int rank)
{
    return op->recv_counts ? op->recv_counts[rank] : op->count;
}

static int refuse(struct acomm_op *op, int peer, uint64_t theirs)
{
    acomm_failure failure = {.code = ACOMM_MISMATCH, .culprit = team_member(op->team, peer), .origin = op->group->rank,
                             .sequence = op->sequence, .peer_sequence = op->sequence,
                             .elapsed = op_elapsed(op)};
    op_header(op, &failure.mine);
    failure.theirs = failure.mine;
    failure.mine.count = expected(op, peer);
    failure.theirs.count = theirs;
    snprintf(failure.text, sizeof failure.text, "all_to_all: one rank sends %llu elements where the other expects %llu",
             (unsigned long long)theirs, (unsigned long long)failure.mine.count);
    return group_fail(op->group, &failure, true);
}

/* Uneven counts are each rank's own, so that the headers cannot tell whether they fit together. */
static int compare_counts(struct acomm_op *op)
{
    int rank = op->team->rank, n = op->team->size, used = 0;
    struct transfer *list = group_scratch(op, (size_t)n * (2 * sizeof *list + 2 * sizeof(uint64_t)));
    if (!list)
        return group_fail_op(op, ACOMM_RESOURCE, op->group->rank, ENOMEM, NULL);
    uint64_t *mine = (uint64_t *)(list + 2 * n), *theirs = mine + n;
    for (int step = 0; step < n - 1; step++) {
        int to = pattern_pairwise_to(rank, n, step), from = pattern_pairwise_from(rank, n, step);
        mine[to] = op->send_counts ? op->send_counts[to] : op->count;
        list[used++] = transfer_to(op, to, &mine[to], sizeof *mine);
        list[used++] = transfer_from(op, from, &theirs[from], sizeof *theirs);
    }
    int rc = transfer_run(op, list, used);
    for (int peer = 0; peer < n && !rc; peer++)
        if (peer != rank && theirs[peer] != expected(op, peer))
            rc = refuse(op, peer, theirs[peer]);
    return rc;
}

static int shift(struct acomm_op *op, const char *in)
{
    int rank = op->team->rank, n = op->team->size;
    struct span own = sent_to(op, rank);
    int rc = blocks_copy_all(op, blocks_at(op->out, got_from(op, rank).offset), blocks_at(in, own.offset), own.bytes);
    for (int step = 0; step < n - 1 && !rc; step++) {
        int to = pattern_pairwise_to(rank, n, step), from = pattern_pairwise_from(rank, n, step);
        struct span sent = sent_to(op, to), got = got_from(op, from);
        rc = transfer_exchange(op, to, blocks_at(in, sent.offset), sent.bytes, from, blocks_at(op->out, got.offset),
                               got.bytes);
    }
    return rc;
}

static int swap_block(struct acomm_op *op, int peer, char *buffer)
{
    struct span block = sent_to(op, peer);
    int rc = 0;
    for (uint64_t segment = 0; segment * PART < block.bytes && !rc; segment++) {
        struct span part = blocks_part(block, segment, PART);
        blocks_copy(buffer, op->out + part.offset, part.bytes);
        rc = transfer_exchange(op, peer, buffer, part.bytes, peer, op->out + part.offset, part.bytes);
    }
    return rc;
}

static int swap_in_place(struct acomm_op *op)
{
    int rank = op->team->rank, n = op->team->size, rc = 0;
    uint64_t block = op->count * op->width;
    char *buffer = group_scratch(op, block < PART ? block : PART);
    if (!buffer)
        return group_fail_op(op, ACOMM_RESOURCE, op->group->rank, ENOMEM, NULL);
    for (int step = 0; step < n && !rc; step++) {
        int peer = pattern_rank(step, -rank, n);
        if (peer != rank)
            rc = swap_block(op, peer, buffer);
    }
    return rc;
}

/* Blocks of different sizes change places: only a copy of the whole input keeps what has not left yet. */
static int shift_copy(struct acomm_op *op)
{
    uint64_t bytes = op_total(op->send_counts, op->count, op->team->size, op->width);
    char *in = malloc(bytes ? bytes : 1);
    if (!in)
        return group_fail_op(op, ACOMM_RESOURCE, op->group->rank, ENOMEM, NULL);
    int rc = blocks_copy_all(op, in, op->in, bytes);
    if (!rc)
        rc = shift(op, in);
    free(in);
    return rc;
}

int all_to_all_pairwise(struct acomm_op *op)
{
    bool uneven = op->send_counts || op->recv_counts;
    int rc = uneven ? compare_counts(op) : 0;
    if (rc || !op->in || op->in != op->out)
        return rc ? rc : shift(op, op->in);
    return uneven ? shift_copy(op) : swap_in_place(op);
}
