/* Long operations of two ranks, chunk by chunk. */
#include "collectives/shared/chunks.h"

#include "base/choice.h"
#include "group/group.h"
#include "group/part.h"
#include "group/select.h"

#define PAGE 4096u /* elements, too: a chunk begins as its array does in its page */

uint64_t chunks_of(const struct acomm_op *op, uint64_t bytes)
{
    bool even = !op->send_counts && !op->recv_counts;
    if (!even || op->whole || op->team->size != 2 || bytes < 2 * CHOICE_LONG)
        return 0;
    uint64_t count = op->count / (bytes / CHOICE_TRY);
    return (count + PAGE - 1) / PAGE * PAGE;
}

static struct acomm_op stretch_of(const struct acomm_op *op, uint64_t first, uint64_t count)
{
    const char *in = op->in ? op->in + first * op->width : NULL;
    char *out = op->out ? op->out + first * op->width : NULL;
    struct acomm_op chunk = part_of(op, op->team, op->kind, in, out, count);
    chunk.stride = op->count;
    chunk.root = op->root;
    chunk.algorithm = op->algorithm;
    return chunk;
}

int chunks_run(struct acomm_op *op, uint64_t bytes)
{
    uint64_t count = chunks_of(op, bytes);
    int rc = 0;
    for (uint64_t first = 0; first < op->count && !rc; first += count) {
        if (op->count - first < 2 * count)
            count = op->count - first;
        struct acomm_op chunk = stretch_of(op, first, count);
        rc = part_run_by(op, &chunk, op->algorithm->run);
        op->compared = chunk.compared;
    }
    return rc;
}
