/* What worlds of groups without nodes say in a node's place: nobody is waited for, and nothing is known of ends. */
#pragma once
#include <stdint.h>
#include "membership/node.h"

void node_waits(struct acomm_node *node, const struct acomm_group *group, const acomm_late *late)
{
    (void)node, (void)group, (void)late;
}

int node_exit_status(struct acomm_node *node, const struct acomm_group *group, int rank)
{
    (void)node, (void)group, (void)rank;
    return -1;
}

void node_leave(struct acomm_node *node, const struct acomm_group *group, int64_t until)
{
    (void)node, (void)group, (void)until;
}

int64_t node_patience(const struct acomm_node *node, int64_t base)
{
    (void)node;
    return base;
}
