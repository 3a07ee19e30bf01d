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
#endif
