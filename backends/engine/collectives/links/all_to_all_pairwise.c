/* Pairwise all_to_all: in step s every rank sends to rank + s and receives from rank - s, so that no rank is a
 * bottleneck. Between hosts a rank goes on to its next send while it still receives: links would idle until the slowest flow of a
 * step is done. Inside a host it does not: fewer bytes under way stay in the caches.
 *
 * Short blocks go to and from all ranks at once, each behind its sender's header, and lie in scratch until all headers have been
 * compared: a turn of all ranks for everything, where comparing first is some of them and each step another. */
#include <errno.h>
#include <stdio.h>

#include "group/signature.h"
#include "collectives/collectives.h"

#define SHORT ((uint64_t)192 << 10) /* bytes of a block, and of so many ranks, */
#define SHORT_RANKS 16             /* that go at once */
#define PEER_TRANSFERS 4           /* of headers and blocks */
#define RECEIVES 2                 /* long blocks that come at once */

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

/* Long blocks: one send after the other, and receives in the order in which the peers come to them. */
static int shift(struct acomm_op *op)
{
    int rank = op->team->rank, n = op->team->size;
    struct span own = sent_to(op, rank);
    int rc = blocks_copy_all(op, blocks_at(op->out, got_from(op, rank).offset), blocks_at(op->in, own.offset), own.bytes);
    if (rc)
        return rc;
    struct transfer *list = group_scratch(op, 2 * (size_t)n * sizeof *list);
    if (!list)
        return group_fail_op(op, ACOMM_RESOURCE, op->group->rank, ENOMEM, NULL);
    for (int step = 0; step < n - 1; step++) {
        int to = pattern_pairwise_to(rank, n, step), from = pattern_pairwise_from(rank, n, step);
        struct span sent = sent_to(op, to), got = got_from(op, from);
        struct transfer *send = &list[2 * step], *receive = send + 1;
        *send = transfer_to(op, to, blocks_at(op->in, sent.offset), sent.bytes);
        *receive = transfer_from(op, from, blocks_at(op->out, got.offset), got.bytes);
        send->after = step ? send - 2 : NULL;
        receive->after = step >= RECEIVES ? receive - 2 * RECEIVES : NULL;
    }
    int together = op->group->loopback ? 1 : n - 1; /* steps */
    for (int step = 0; step < n - 1 && !rc; step += together)
        rc = transfer_run(op, list + 2 * step, 2 * together);
    return rc;
}

/* The header and the block of this rank for `to`, and those of `from`, which come to `header` and `place`. */
static void add_peer(struct acomm_op *op, struct transfer *list, int to, int from, acomm_header *header, char *place)
{
    struct span sent = sent_to(op, to);
    list[0] = transfer_to(op, to, &header[op->team->rank], sizeof *header);
    list[0].more = sent.bytes > 0;
    list[1] = transfer_from(op, from, &header[from], sizeof *header);
    list[1].checked = true;
    list[2] = transfer_to(op, to, blocks_at(op->in, sent.offset), sent.bytes);
    list[2].after = &list[0];
    list[3] = transfer_from(op, from, place, sent.bytes);
    list[3].after = &list[1];
}

/* Blocks of one size: all at once. */
static int exchange_short(struct acomm_op *op)
{
    int rank = op->team->rank, n = op->team->size;
    uint64_t block = op->count * op->width;
    struct transfer *list = group_scratch(op, (size_t)n * (PEER_TRANSFERS * sizeof *list + sizeof(acomm_header) + block));
    if (!list)
        return group_fail_op(op, ACOMM_RESOURCE, op->group->rank, ENOMEM, NULL);
    acomm_header *headers = (acomm_header *)(list + PEER_TRANSFERS * n);
    char *places = (char *)(headers + n);
    op_header(op, &headers[rank]);
    for (int step = 0; step < n - 1; step++) {
        int to = pattern_pairwise_to(rank, n, step), from = pattern_pairwise_from(rank, n, step);
        add_peer(op, list + step * PEER_TRANSFERS, to, from, headers, places + (uint64_t)from * block);
    }
    int rc = transfer_run(op, list, PEER_TRANSFERS * (n - 1));
    for (int peer = 0; peer < n && !rc; peer++)
        if (peer != rank)
            blocks_copy(blocks_at(op->out, (uint64_t)peer * block), places + (uint64_t)peer * block, block);
    if (!rc)
        blocks_copy(blocks_at(op->out, (uint64_t)rank * block), blocks_at(op->in, (uint64_t)rank * block), block);
    return rc;
}

int all_to_all_pairwise(struct acomm_op *op)
{
    bool uneven = op->send_counts || op->recv_counts, tells = op->group->check && !op->compared;
    if (!uneven && tells && op->team->size <= SHORT_RANKS && op->count * op->width <= SHORT)
        return exchange_short(op);
    int rc = tells ? signature_check(op) : 0;
    if (!rc && uneven)
        rc = compare_counts(op);
    return rc ? rc : shift(op);
}
