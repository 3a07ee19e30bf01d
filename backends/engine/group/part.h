/* Parts of an operation: collectives of a team on behalf of one of the whole group.
 *
 * A part is an operation of its own in all but this: its header, its sequence and its failures are those of the operation
 * that it is a part of, and whether headers have still to be compared is for that one to say (`compared`). The table
 * chooses its algorithm; algorithms that are made of parts are for groups over several hosts, so parts have none. A chunk
 * (chunks.h) is a part of the same team by the same algorithm.
 *
 * Every algorithm for several hosts begins with a round among the ranks of each host and goes on with a message that
 * starts with a header among those of local rank 0, and so does signature_check(): whatever the ranks were called for, they meet. */
#ifndef ACOMM_PART_H
#define ACOMM_PART_H
#include "group/hosts.h"
#include "group/op.h"

/* A part with the type, reduction and layout of `op`; everything else is given. */
struct acomm_op part_of(const struct acomm_op *op, const struct team *team, int kind, const void *in, void *out,
                        uint64_t count);
/* Blocking; 0 or the group's failure. A team that this rank is not in has nothing to do. */
int part_run(struct acomm_op *op, struct acomm_op *part);
/* The same by an algorithm that is given. */
int part_run_by(struct acomm_op *op, struct acomm_op *part, int (*run)(struct acomm_op *part));
#endif
