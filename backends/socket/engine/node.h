/* The node's side that groups see: failure detection and gossip between processes. See node.c. */
#ifndef ACOMM_NODE_H
#define ACOMM_NODE_H
#include "acomm.h"
#include "link.h"

/* After this, losses of members poison the group (group_fail with tell=false). A member that is lost already poisons at once. */
int node_add(struct acomm_node *node, struct acomm_group *group);
/* No call into the group happens after this returns. */
void node_remove(struct acomm_node *node, struct acomm_group *group);
/* Tells the members of the group of its failure, over the control connections. Does not block. */
void node_tell(struct acomm_node *node, const struct acomm_group *group, const acomm_failure *failure);
/* Asks for a connection to a world rank: appears in acomm_node_request(). */
void node_ask(struct acomm_node *node, uint64_t group, int world_rank, enum channel channel, int stripe);
/* This process saw the connection to a world rank break: spreads the loss like one of the node's own. */
void node_lost(struct acomm_node *node, int world_rank, const char *text);
/* 1 in a child made by fork. */
int node_forked(const struct acomm_node *node);
#endif
