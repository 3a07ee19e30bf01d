/* broadcast over several hosts: the root sends the array to the ranks of its host, whose leaders send their slices to the leaders
 * of the other hosts, and these to their hosts' ranks; one leader sends all of a short array. A host's outgoing data waits in the
 * kernel's buffers while the next segment moves. */
#include "collectives/slices.h"

#define SEGMENT ((size_t)1 << 20)
#define ONE_LEADER ((size_t)64 << 10) /* bytes: several would share their host's link, and wait for each other */

static int hierarchical_broadcast_run_segment(struct slices *s, uint64_t at, uint64_t count)
{
    struct acomm_op *op = s->op;
    const struct hosts *h = s->hosts;
    int root = h->of[op->root], rc = 0;
    bool has_root = s->host == root;
    char *out = blocks_at(op->out, at * op->width);
    const char *in = op->group->rank == op->root ? op->in + at * op->width : out;
    slices_count(s, count);
    struct pattern_range own = slices_of(s, count, s->local_rank);
    struct acomm_op inside = part_of(op, &h->host, ACOMM_BROADCAST, in, out, count);
    struct acomm_op between = part_of(op, &h->column, ACOMM_BROADCAST, in + own.first * op->width,
                                      has_root ? NULL : out + own.first * op->width, own.count);
    struct acomm_op onward = part_of(op, &h->host, ACOMM_ALL_GATHER, in + own.first * op->width, out, 0);
    inside.root = h->local_rank[op->root];
    between.root = root;
    onward.recv_counts = s->counts;
    if (has_root)
        rc = part_run(op, &inside);
    if (!rc && s->leads)
        rc = part_run(op, &between);
    return rc || has_root ? rc : part_run(op, &onward);
}

int hierarchical_broadcast(struct acomm_op *op)
{
    struct slices s;
    int leaders = op->count * op->width <= ONE_LEADER ? 1 : op->group->size;
    int rc = slices_open(&s, op, leaders, 0, SEGMENT);
    for (uint64_t at = 0; at < op->count && !rc; at += s.segment)
        rc = hierarchical_broadcast_run_segment(&s, at, op->count - at < s.segment ? op->count - at : s.segment);
    return rc;
}
