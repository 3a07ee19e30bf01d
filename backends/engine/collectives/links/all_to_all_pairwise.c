/* Pairwise all_to_all: in step s every rank sends to rank + s and receives from rank - s, so that no rank is a bottleneck.
 * A rank continues with its next send while it still receives: links would idle until the slowest flow of a step is done.
 *
 * Short blocks go to and from all ranks at once, each behind its sender's call signature (signature_ahead), and stay in scratch
 * until all signatures have been compared: a single exchange, instead of several for the check and one per step. */
#include <errno.h>
#include <stdio.h>

#include "group/signature.h"
#include "collectives/collectives.h"

#define SHORT ((uint64_t)192 << 10) /* bytes of a block, and of so many ranks, */
#define SHORT_RANKS 16             /* that go at once */
#define RECEIVES 2                 /* long blocks that come at once */

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

/* Uneven counts differ between ranks, so call signatures cannot show whether they are consistent. */
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

/* Long blocks: one send after the other, and receives in the order in which the peers send. Or all at once, kept in scratch until
 * all call signatures have been compared. */
static int shift(struct acomm_op *op, bool at_once)
{
    int rank = op->team->rank, n = op->team->size;
    uint64_t block = at_once ? op->count * op->width : 0;
    struct transfer *list = group_scratch(op, (size_t)n * (2 * sizeof *list + block));
    if (!list)
        return group_fail_op(op, ACOMM_RESOURCE, op->group->rank, ENOMEM, NULL);
    char *aside = (char *)(list + 2 * n);
    for (int step = 0; step < n - 1; step++) {
        int to = pattern_pairwise_to(rank, n, step), from = pattern_pairwise_from(rank, n, step);
        struct span sent = op_scattered(op, to), got = op_gathered(op, from);
        struct transfer *send = &list[2 * step], *receive = send + 1;
        *send = transfer_to(op, to, blocks_at(op->in, sent.offset), sent.bytes);
        *receive = transfer_from(op, from, at_once ? aside + got.offset : blocks_at(op->out, got.offset), got.bytes);
        send->after = step && !at_once ? send - 2 : NULL;
        receive->after = step >= RECEIVES && !at_once ? receive - 2 * RECEIVES : NULL;
    }
    int rc = n > 1 ? transfer_run(op, list, 2 * (n - 1)) : 0;
    for (int from = 0; from < n && !rc; from++)
        if (from == rank || at_once)
            rc = blocks_copy_all(op, blocks_at(op->out, op_gathered(op, from).offset),
                                 from == rank ? blocks_at(op->in, op_scattered(op, rank).offset) : aside + (uint64_t)from * block,
                                 op_gathered(op, from).bytes);
    return rc;
}

int all_to_all_pairwise(struct acomm_op *op)
{
    bool uneven = op->send_counts || op->recv_counts, tells = op->group->check && !op->compared;
    bool at_once = !uneven && tells && op->team->place == TEAM_APART && !op->whole && op->team->size <= SHORT_RANKS
                && op->count * op->width <= SHORT;
    int rc = at_once ? signature_ahead(op) : tells ? signature_check(op) : 0;
    if (!rc && uneven)
        rc = compare_counts(op);
    return rc ? rc : shift(op, at_once);
}
