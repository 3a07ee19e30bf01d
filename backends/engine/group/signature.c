/* Compares the call signatures of all ranks by dissemination, and records a mismatch. */
#include "group/signature.h"

#include "base/pattern.h"
#include "group/transfer.h"

/* Among the ranks of each host; then local rank 0 of all hosts; and once more in the host, whose ranks may go on then. */
static int signature_hosts(struct acomm_op *op)
{
    const struct hosts *hosts = &op->group->hosts;
    struct acomm_op inside = part_of(op, &hosts->host, ACOMM_BARRIER, NULL, NULL, 0), after = inside;
    struct acomm_op between = part_of(op, &hosts->column, ACOMM_BARRIER, NULL, NULL, 0);
    int rc = part_run(op, &inside);
    if (!rc && hosts->host.rank == 0)
        rc = part_run(op, &between);
    op->compared = true;
    return rc ? rc : part_run(op, &after);
}

/* In the memory that they share, where the algorithms of other calls begin, too. */
static int signature_host(struct acomm_op *op)
{
    struct acomm_op inside = part_of(op, op->team, ACOMM_BARRIER, NULL, NULL, 0);
    int rc = part_run(op, &inside);
    op->compared = true;
    return rc;
}

int signature_check(struct acomm_op *op)
{
    if (op->team->place == TEAM_HOSTS)
        return signature_hosts(op);
    if (op->team->place == TEAM_HOST)
        return signature_host(op);
    int rank = op->team->rank, n = op->team->size;
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
