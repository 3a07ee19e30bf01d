/* The algorithms, as passed to a group. */
#include "collectives/collectives.h"
#include "collectives/shared/direct.h"

#define ALWAYS UINT64_MAX
#define MiB(n) ((uint64_t)(n) << 20)
#define KiB(n) ((uint64_t)(n) << 10)

const struct algorithm collectives_table[] = {
#define ROW(kind, name, function, where, does, up_to, max_ranks) {ACOMM_##kind, name, #function, function, where, does, up_to, max_ranks},
#include "collectives/table.h"
#undef ROW
    {ACOMM_RECV, "staged", "", NULL, ANYWHERE, CHECKS, ALWAYS, 0}, /* protocol of long messages, see p2p/offer.c */
    {ACOMM_RECV, "read", "", NULL, ANYWHERE, CHECKS, ALWAYS, 0},
    {.name = NULL},
};
_Static_assert(KiB(512) == DIRECT_FROM, "the row of all_to_all, where some have symmetric arrays too");

int acomm_algorithm(int row, acomm_row *out)
{
    int rows = (int)(sizeof collectives_table / sizeof *collectives_table) - 1;
    if (row < 0 || row >= rows)
        return 0;
    const struct algorithm *a = &collectives_table[row];
    *out = (acomm_row){acomm_operations[a->kind].name, a->name, a->function, (int)a->where, a->max_ranks, a->up_to,
                       (a->does & CHECKS) != 0, (a->does & AHEAD) != 0, (a->does & ORDERED) != 0};
    return 1;
}

/* A collective of the group's fabric, which may be faster: for example networks that reduce in their switches. */
int fabric_collective(struct acomm_op *op)
{
    int rc = op->group->fabric->collective(op);
    return rc == FABRIC_CANNOT ? select_run_own(op) : rc;
}
