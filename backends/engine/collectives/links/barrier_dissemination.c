/* Dissemination barrier: log2 n steps. Hensgen, Finkel and Manber, "Two algorithms for barrier synchronization",
 * Int. J. Parallel Programming 17 (1988). Comparing headers is just that: who has heard from all may go on. */
#include "group/signature.h"
#include "collectives/collectives.h"

int barrier_dissemination(struct acomm_op *op)
{
    return op->compared ? 0 : signature_check(op);
}
