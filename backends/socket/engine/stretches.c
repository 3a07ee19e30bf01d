#include "stretches.h"

#include "choice.h"
#include "group.h"
#include "part.h"
#include "select.h"
#include "trial.h"

#define PAGE 4096u /* elements, too: a stretch begins as its array does in its page */

uint64_t stretches_next(const struct acomm_op *op, uint64_t bytes)
{
    bool even = !op->send_counts && !op->recv_counts;
    if (!even || op->whole || bytes < 2 * CHOICE_LONG || !trial_wanted(op, bytes))
        return 0;
    uint64_t each = op->team->size == 2 ? CHOICE_TRY : CHOICE_LONG;
    uint64_t count = op->count / (bytes / each);
    return (count + PAGE - 1) / PAGE * PAGE;
}

static struct acomm_op stretch_of(const struct acomm_op *op, uint64_t first, uint64_t count)
{
    const char *in = op->in ? op->in + first * op->width : NULL;
    char *out = op->out ? op->out + first * op->width : NULL;
    struct acomm_op stretch = part_of(op, op->team, op->kind, in, out, count);
    stretch.stride = op->count;
    stretch.root = op->root;
    stretch.algorithm = op->algorithm;
    return stretch;
}

int stretches_run(struct acomm_op *op, uint64_t bytes)
{
    int rc = 0;
    for (uint64_t first = 0, count; first < op->count && !rc; first += count) {
        uint64_t left = op->count - first;
        count = stretches_next(op, bytes);
        count = count && left >= 2 * count ? count : left;
        struct acomm_op stretch = stretch_of(op, first, count);
        rc = part_run_by(op, &stretch, op->algorithm->run);
        op->compared = stretch.compared;
    }
    return rc;
}
