/* The call signature check: ranks compare their calls before anything is written.
 *
 * Step k sends the own signature to rank - 2^k and receives the one of rank + 2^k (dissemination, in the direction of the Bruck
 * all-gather). A rank goes on to step k+1 only while all signatures it saw match its own. So a signature received in step k
 * stands for the 2^k ranks from its sender on, and a rank that ends step k knows that the next 2^(k+1) ranks match. A rank that
 * sees a difference poisons the group, which ends the wait of its peers.
 *
 * Every checked algorithm starts its messages with a signature and has the same first step: whatever the ranks' calls are, each
 * rank reads the signature of the rank after it, so some rank always sees a difference. In groups over several hosts, all
 * algorithms begin in the host instead (select.h). */
#ifndef ACOMM_SIGNATURE_H
#define ACOMM_SIGNATURE_H
#include "group/group.h"

int signature_check(struct acomm_op *op);

/* Operations that run ahead. A broadcast or scan of few bytes need not wait for all ranks: each of its messages begins with a
 * signature, which the receiver compares before it uses the rest. So that some rank still sees every difference, each rank queues
 * its signature for rank - 1 as in the first step above, without flushing it, and reads those of rank + 1 when it next receives
 * from there, when SIGNATURES are open, or when the group is closed. */
int signature_ahead(struct acomm_op *op);
/* Queues the signature for the rank before this one, unless a message has carried it there. */
int signature_send(struct acomm_op *op);
/* Bytes of signatures that come on the link from this rank before anything else; and accounts for so many received. 0 or the
 * group's failure. */
size_t signature_awaited(const struct acomm_op *op, int rank);
int signature_heard(struct acomm_op *op, const char *data, size_t bytes);
/* Waits for all of them; then, in a moment at most, until the other ranks close the group too: each has compared its calls with the
 * next one's by then, so that every rank gets the failure where two of them differ. */
int signature_settle(struct acomm_group *g);
#endif
