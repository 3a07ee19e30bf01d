#include "agree.h"

#include <string.h>

#include "clock.h"
#include "group.h"
#include "pattern.h"
#include "transfer.h"

_Static_assert(sizeof(acomm_header) == 32, "headers travel as they lie in memory");

int agree_compare(struct acomm_op *op, int peer, const void *theirs)
{
    struct acomm_group *g = op->group;
    acomm_failure failure = {.code = ACOMM_MISMATCH, .culprit = peer, .origin = g->rank, .sequence = op->sequence,
                             .elapsed = clock_now() - op->started};
    op_header(op, &failure.mine);
    memcpy(&failure.theirs, theirs, sizeof failure.theirs);
    if (!g->check || op_agrees(&failure.mine, &failure.theirs))
        return 0;
    failure.peer_sequence = failure.theirs.sequence;
    return group_fail(g, &failure, true);
}

int agree(struct acomm_op *op)
{
    int rank = op->group->rank, n = op->group->size;
    acomm_header mine, theirs;
    op_header(op, &mine);
    for (int step = 0; step < pattern_steps(n); step++) {
        struct pattern_bruck plan = pattern_bruck(rank, n, step);
        struct transfer list[] = {transfer_to(op, plan.to, &mine, sizeof mine),
                                  transfer_from(op, plan.from, &theirs, sizeof theirs)};
        list[1].checked = true;
        int rc = transfer_run(op, list, 2);
        if (rc)
            return rc;
    }
    return 0;
}
