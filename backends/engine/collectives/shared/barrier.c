/* barrier over the shared segment: one round without contents. */
#include "collectives/collectives.h"
#include "collectives/shared/rounds.h"

int shared_barrier(struct acomm_op *op)
{
    struct rounds_plan plan = {.blocks = 1, .drain = rounds_await_all};
    return rounds_run(op, &plan);
}
