/* Point-to-point messages with tags over the links of CHANNEL_P2P. Independent of the collectives. See p2p.c. */
#ifndef ACOMM_P2P_H
#define ACOMM_P2P_H
#include "op.h"
struct p2p;
struct p2p *p2p_open(struct acomm_group *group);
/* Posts op (kind SEND or RECV; in/out, count, dtype, width, peer, tag, timeout are set). Does not block.
 * Ends by setting op->status, op->peer, op->tag, op->bytes, then op->done with a futex wake (op_complete). */
int p2p_post(struct p2p *p2p, struct acomm_op *op);
/* Progresses everything posted until op is done; in the calling thread. Blocks. */
int p2p_wait(struct p2p *p2p, struct acomm_op *op);
/* The group is poisoned: every posted operation ends with the group's failure. */
void p2p_fail(struct p2p *p2p);
void p2p_close(struct p2p *p2p);
#endif
