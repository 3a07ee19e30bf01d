/* A collective by what carries the group's data, which may know better: networks that reduce in their switches, say. */
#include "group/group.h"
#include "collectives/collectives.h"

int fabric_collective(struct acomm_op *op)
{
    int rc = op->group->fabric->collective(op);
    return rc == FABRIC_CANNOT ? select_run_own(op) : rc;
}
