/* The ranks compare what they were called for before anything is written.
 *
 * Step k sends the own header to rank - 2^k and receives that of rank + 2^k (dissemination, in the direction of the
 * Bruck all-gather). A rank goes on to step k+1 only while all headers it saw agree with its own. So a header
 * received in step k vouches for the 2^k ranks from its sender on, and who ends step k knows that the next 2^(k+1)
 * ranks agree with it. Whoever sees a difference poisons the group, which ends the wait of those that its silence
 * stopped.
 *
 * Every checked algorithm starts its messages with a header and goes the same way in its first step: whatever the
 * ranks were called for, each reads the header of the rank after it, and a difference is always seen by somebody.
 * In groups over several hosts, all algorithms begin in the host instead (select.h). */
#ifndef ACOMM_SIGNATURE_H
#define ACOMM_SIGNATURE_H
#include "group/group.h"

int signature_check(struct acomm_op *op);

/* Operations that run ahead. A broadcast or scan of few bytes need not wait for all ranks: each of its messages begins with a header,
 * which the receiver compares before it uses the rest. So that a difference is seen by somebody all the same, each rank sends its
 * header to rank - 1 as in the first step above, without having it leave at once, and reads those of rank + 1 when it next takes
 * something from there, when SIGNATURES are open, or when the group is closed. */
int signature_ahead(struct acomm_op *op);
/* The header to the rank before this one, where no message has taken it there. */
int signature_send(struct acomm_op *op);
/* Bytes of headers that come on the link from this rank before anything else; and so many have come. 0 or the group's failure. */
size_t signature_awaited(const struct acomm_op *op, int rank);
int signature_heard(struct acomm_op *op, const char *data, size_t bytes);
/* Waits for all of them. */
int signature_settle(struct acomm_group *g);
#endif
