/* Point-to-point messages with tags over the links of CHANNEL_P2P. Independent of the collectives. See p2p/peer.h.
 *
 * An operation that ended with ACOMM_TRUNCATED has its own failure and leaves the group alive; every other failure
 * poisons the group. None of these functions may be called with group->lock held. */
#ifndef ACOMM_P2P_H
#define ACOMM_P2P_H
#include "group/op.h"
struct p2p;
/* NULL: out of memory. */
struct p2p *p2p_open(struct acomm_group *group);
/* Posts op (kind SEND or RECV; in/out, count, dtype, width, peer, tag, timeout, synchronous are set). Does not block.
 * Ends by setting op->status, op->peer, op->tag, op->bytes, then op->done with a futex wake (op_complete).
 * A synchronous op progresses only in p2p_wait(), which must follow at once and alone ends its life.
 * Negative: not posted, op untouched (ACOMM_ARGUMENT, ACOMM_RESOURCE or the group's failure). */
int p2p_post(struct p2p *p2p, struct acomm_op *op);
/* The same with the lock held, as in an operation's `then`. Of an asynchronous one. */
int p2p_post_within(struct p2p *p2p, struct acomm_op *op);
/* Progresses everything posted until op is done; in the calling thread. Blocks. Returns the status.
 * Ctrl-C ends a synchronous op and the group; an asynchronous one stays under way, with ACOMM_INTERRUPTED returned. */
int p2p_wait(struct p2p *p2p, struct acomm_op *op);
/* The same until `until` (clock_now): 1 when op is still under way then. Polls the links at least once. */
int p2p_wait_until(struct p2p *p2p, struct acomm_op *op, int64_t until);
/* Probes for a message that a receive of this op (peer and tag are set) would match, until `until` (clock_now): 0 and its peer,
 * tag, dtype and count; 1 when none has arrived; ACOMM_INTERRUPTED, or the group's failure. The message stays. */
int p2p_probe(struct p2p *p2p, struct acomm_op *op, int64_t until);
/* The group is poisoned: every posted operation ends with the group's failure. */
void p2p_fail(struct p2p *p2p);
/* Ends what is under way with ACOMM_CLOSED (or the group's failure). No other call may be in progress or follow. */
void p2p_close(struct p2p *p2p);
#endif
