/* The end of an operation, and waiting for it. */
#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/interrupt.h"
#include "base/relax.h"
#include "group/group.h"
#include "group/op.h"
#include "group/wait.h"

static void completion_sleep(_Atomic int *word, int value, int64_t ns)
{
    struct timespec t = {ns / 1000000000, ns % 1000000000};
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, &t, NULL, 0);
}

void op_complete(struct acomm_op *op)
{
    struct acomm_group *g = op->group;
    if (op->then) {
        op->then(op);
        return;
    }
    int before = atomic_exchange(&op->done, OP_ENDED);
    if (before == OP_ABANDONED)
        group_recycle(g, op);
    else if (before == OP_AWAITED)
        syscall(SYS_futex, &op->done, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

int op_wait(struct acomm_op *op, int64_t timeout)
{
    int64_t end = timeout < 0 ? INT64_MAX : clock_now() + timeout;
    for (int turn = 0; !op_ended(op); turn++) {
        if (turn < 200 && timeout) {
            relax();
            continue;
        }
        int64_t left = end - clock_now();
        if (left <= 0)
            return 1;
        int under_way = OP_UNDER_WAY;
        if (atomic_compare_exchange_strong(&op->done, &under_way, OP_AWAITED) || under_way == OP_AWAITED)
            completion_sleep(&op->done, OP_AWAITED, left < WAIT_LOOK_NS ? left : WAIT_LOOK_NS);
        if (interrupt_pending())
            return ACOMM_INTERRUPTED;
    }
    return op->status;
}

void op_abandon(struct acomm_op *op)
{
    int state = atomic_load(&op->done);
    while (state != OP_ENDED)
        if (atomic_compare_exchange_weak(&op->done, &state, OP_ABANDONED))
            return;
    group_recycle(op->group, op);
}
