/* The node's side that groups see: failure detection and gossip between processes. See node.c. */
#ifndef ACOMM_NODE_H
#define ACOMM_NODE_H
#include "link/link.h"

/* Called for a lost member of a group: group_fail(). */
typedef int node_fail_group(struct acomm_group *group, const acomm_failure *failure, bool tell);

/* After this, losses of members fail the group (`fail` with tell=false). A member that is lost already poisons at once. */
int node_add(struct acomm_node *node, struct acomm_group *group, node_fail_group *fail);
/* No call into the group happens after this returns. */
void node_remove(struct acomm_node *node, struct acomm_group *group);
/* Notifies the members of the group of its failure, over the control connections. Does not block. */
void node_tell(struct acomm_node *node, const struct acomm_group *group, const acomm_failure *failure);
/* Asks for a connection to a world rank: appears in acomm_node_request(). False: out of memory. */
bool node_ask(struct acomm_node *node, uint64_t group, int world_rank, enum channel channel, int stripe);
/* Reports a broken connection to a world rank. The node finds out whether the process is dead (by a control connection to it) and
 * then spreads the loss; a peer that only closed the group stays what it is. Does not block. */
void node_lost(struct acomm_node *node, int world_rank, const char *text);
/* A rank of the group (`rank`, or any when -1) that closed it, or left the world, before it had begun collective number
 * `sequence`; -1 when there is none. For waits: a collective with such a member cannot end. UINT64_MAX: closed it at
 * all. An atomic load while nobody has left anything. Not for ends that fail the group. */
int node_left(struct acomm_node *node, const struct acomm_group *group, int rank, uint64_t sequence);
/* Notifies the other members that this rank leaves the group, before node_remove(), and waits until they have left it as well, until
 * the group has failed, or until this time. */
void node_leave(struct acomm_node *node, const struct acomm_group *group, int64_t until);
/* Of the process of a rank that left the world without closing it; -1 for others. */
int node_exit_status(struct acomm_node *node, const struct acomm_group *group, int rank);
/* How long to wait for a notice of another rank, which is forwarded from rank to rank: `base`, and more in a large world. */
int64_t node_patience(const struct acomm_node *node, int64_t base);
/* Asks the members how many collectives they have begun, and waits for the answers, < 0.2 s. The first rank that has not
 * begun number `sequence`, else one that does not answer, else -1. *begun: how many, 0 where unknown. */
int node_behind(struct acomm_node *node, const struct acomm_group *group, uint64_t sequence, uint64_t *begun);
/* Asks them without waiting for the answers. */
void node_ask_members(struct acomm_node *node, const struct acomm_group *group);
/* An operation has waited for long: acomm_node_late() reports it. */
void node_waits(struct acomm_node *node, const struct acomm_group *group, const acomm_late *late);
/* How long answers take, at most. */
#define NODE_ANSWER_NS 200000000
/* 1 in a child made by fork. */
int node_forked(const struct acomm_node *node);
#endif
