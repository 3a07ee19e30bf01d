/* Dissemination barrier: log2 n steps. Hensgen, Finkel and Manber, "Two algorithms for barrier synchronization", Int. J. Parallel
 * Programming 17 (1988). The call signature check has the same steps: a rank that has received from all may continue. */
#include "group/signature.h"
#include "collectives/collectives.h"

int barrier_dissemination(struct acomm_op *op)
{
    return op->compared ? 0 : signature_check(op);
}
