/* The whole engine: a group with every algorithm. */
#include "collectives/shared/rounds.h"
#include "group/signature.h"

static int engine_settle(struct acomm_group *g)
{
    int rc = rounds_settle(g);
    return rc ? rc : signature_settle(g);
}

static const struct group_above ABOVE = {collectives_table, engine_settle};

int acomm_group_open(acomm_node *node, const acomm_group_options *options, acomm_group **out)
{
    return group_open(node, options, &ABOVE, out);
}
