/* Short messages: every collective as an all-gather of the ranks' inputs, in log2 n steps. Bruck et al., "Efficient
 * algorithms for all-to-all communications in multiport message-passing systems", IEEE Trans. Parallel and Distributed
 * Systems 8 (1997).
 *
 * Input and header travel together as one record, and a message is a run of records of which the first is its sender's: the call
 * signature check (see signature.h) costs no step of its own. Nothing is written into the caller's arrays before the last record
 * has arrived. Reductions are in rank order with one rounding: the bits of the shared-memory forms.
 *
 * Over several hosts a host's local rank 0 gathers the host's records, exchanges them with the other hosts in log2 steps of their
 * number, and sends all of them to the ranks of its host. */
#include <errno.h>

#include "collectives/partials.h"

struct records {
    struct acomm_op *op;
    int rank, n;
    size_t stride;
    const void **inputs; /* capacity n, used by reductions */
    uint64_t *counts;    /* of the hosts, where it goes over them */
    char *base;          /* place i: the record of rank + i; or host by host */
    const struct hosts *hosts; /* NULL: not over them */
};

static int open_records(struct records *r, struct acomm_op *op, uint64_t bytes)
{
    *r = (struct records){.op = op, .rank = op->team->rank, .n = op->team->size};
    r->stride = sizeof(acomm_header) + (bytes + 7) / 8 * 8;
    r->inputs = group_scratch(op, (size_t)r->n * (sizeof *r->inputs + sizeof *r->counts + r->stride));
    if (!r->inputs)
        return group_fail_op(op, ACOMM_RESOURCE, op->group->rank, ENOMEM, NULL);
    r->counts = (uint64_t *)(r->inputs + r->n);
    r->base = (char *)(r->counts + r->n);
    r->hosts = select_spans_hosts(op->algorithm) ? &op->group->hosts : NULL;
    return 0;
}

static char *record_of(const struct records *r, int rank)
{
    int place = r->hosts ? r->hosts->first[r->hosts->of[rank]] + r->hosts->local_rank[rank] : pattern_rank(rank, -r->rank, r->n);
    return r->base + (size_t)place * r->stride;
}

/* The contribution of `rank`. */
static const char *bruck_record(const struct records *r, int rank)
{
    return record_of(r, rank) + sizeof(acomm_header);
}

static void fill_own(const struct records *r, uint64_t bytes)
{
    acomm_header header;
    char *own = record_of(r, r->rank);
    op_header(r->op, &header);
    memcpy(own, &header, sizeof header);
    memset(own + sizeof header, 0, r->stride - sizeof header); /* no old contents of memory leave this process */
    blocks_copy(own + sizeof header, r->op->in, bytes);
}

static struct acomm_op bruck_bytes_of(const struct records *r, const struct team *team, int kind, const void *in, void *out,
                                uint64_t count)
{
    struct acomm_op part = part_of(r->op, team, kind, in, out, count);
    part.dtype = ACOMM_UINT8;
    part.width = 1;
    part.root = 0;
    return part;
}

static int gather_over_hosts(struct records *r, struct acomm_op *op)
{
    const struct hosts *h = r->hosts;
    bool leads = h->host.rank == 0;
    char *ours = record_of(r, h->host.members[0]);
    struct acomm_op up = bruck_bytes_of(r, &h->host, ACOMM_GATHER, record_of(r, r->rank), leads ? ours : NULL, r->stride);
    struct acomm_op across = bruck_bytes_of(r, &h->column, ACOMM_ALL_GATHER, ours, r->base, 0);
    struct acomm_op down = bruck_bytes_of(r, &h->host, ACOMM_BROADCAST, leads ? r->base : NULL, r->base,
                                    (uint64_t)r->n * r->stride);
    for (int host = 0; host < h->count; host++)
        r->counts[host] = (uint64_t)hosts_ranks(h, host) * r->stride;
    across.recv_counts = r->counts;
    int rc = part_run(op, &up);
    if (!rc && leads)
        rc = part_run(op, &across);
    op->compared = true;
    return rc ? rc : part_run(op, &down);
}

/* Gathers the records. Messages have a capacity of `bytes`, of which this rank contributes `own`. */
static int bruck_gather(struct records *r, struct acomm_op *op, uint64_t bytes, uint64_t own)
{
    int rc = open_records(r, op, bytes);
    if (rc)
        return rc;
    fill_own(r, own);
    if (r->hosts)
        return gather_over_hosts(r, op);
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
    for (int rank = 0; rank < reduction.ranks; rank++)
        r->inputs[rank] = bruck_record(r, rank) + offset;
    if (bytes)
        reduce_all(&reduction, r->op->out, r->inputs, reduction.ranks, bytes / r->op->width);
}

/* A rank receives its block of each rank's contribution, or of the root's, or the reduction of those. */
int bruck_run(struct acomm_op *op)
{
    const acomm_operation *kind = &acomm_operations[op->kind];
    int rank = op->team->rank, n = op->team->size;
    bool cuts = kind->array & ACOMM_CUTS, joins = kind->array & ACOMM_JOINS, root_gives = kind->gives == ACOMM_ROOT;
    if (cuts && joins && (op->send_counts || op->recv_counts)) /* records have one size on all ranks */
        return all_to_all_pairwise(op);
    uint64_t most = cuts ? op_total(op->send_counts, op->count, n, op->width) : op_largest(op->recv_counts, op->count, n) * op->width;
    uint64_t gives = root_gives && rank != op->root ? 0 : joins && !cuts ? op_gathered(op, rank).bytes : most;
    struct span own = cuts ? op_block(op->send_counts, op->count, rank, op->width) : (struct span){0, most};
    struct records r;
    int rc = bruck_gather(&r, op, most, gives);
    if (rc || !op->out)
        return rc;
    if (kind->reduces)
        reduce_records(&r, own.offset, own.bytes);
    for (int from = 0; from < n && !kind->reduces; from++) {
        struct span to = joins ? op_gathered(op, from) : (struct span){0, own.bytes};
        if (!root_gives || from == op->root)
            blocks_copy(blocks_at(op->out, to.offset), bruck_record(&r, from) + own.offset, to.bytes);
    }
    return 0;
}
