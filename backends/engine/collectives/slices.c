/* How an array is divided among the leaders of a host, for the algorithms over several hosts. */
#include "collectives/slices.h"

#include <errno.h>

#include "collectives/partials.h"

int slices_open(struct slices *s, struct acomm_op *op, int leaders, int buffers, size_t bytes)
{
    const struct hosts *h = &op->group->hosts;
    bool scaled = op->redop == ACOMM_AVG || op->redop == ACOMM_PREMUL_SUM;
    *s = (struct slices){.op = op, .hosts = h, .local_rank = h->host.rank, .host = h->of[op->group->rank],
                         .leaders = leaders < h->least ? leaders : h->least, .reduction = partials_reduction(op)};
    s->leads = s->local_rank < s->leaders;
    s->dtype = op_reduces(op) ? reduce_partial_dtype(op->dtype) : op->dtype;
    s->width = acomm_dtype_bytes(s->dtype);
    s->redop = scaled ? ACOMM_SUM : op->redop;
    s->begins = op_reduces(op) && (s->dtype != op->dtype || op->redop == ACOMM_PREMUL_SUM);
    s->segment = bytes / s->width;
    if (s->segment > op->count && !op->send_counts)
        s->segment = op->count ? op->count : 1;
    size_t entries = (size_t)(h->count > h->most ? h->count : h->most);
    s->counts = group_scratch(op, 2 * entries * sizeof *s->counts + (size_t)buffers * s->segment * s->width);
    if (!s->counts)
        return group_fail_op(op, ACOMM_RESOURCE, op->group->rank, ENOMEM, NULL);
    s->places = s->counts + entries;
    s->buffer = (char *)(s->places + entries);
    return 0;
}

struct pattern_range slices_of(const struct slices *s, uint64_t count, int local_rank)
{
    return local_rank < s->leaders ? pattern_block(count, s->leaders, local_rank) : (struct pattern_range){count, 0};
}

void slices_count(const struct slices *s, uint64_t count)
{
    for (int local_rank = 0; local_rank < s->hosts->host.size; local_rank++)
        s->counts[local_rank] = slices_of(s, count, local_rank).count;
}

struct acomm_op slices_reducing(const struct slices *s, const struct team *team, int kind, const void *in, void *out,
                                uint64_t count)
{
    struct acomm_op part = part_of(s->op, team, kind, in, out, count);
    part.dtype = s->dtype;
    part.redop = s->redop;
    part.width = s->width;
    return part;
}
