/* engine: all */
/* Arrays that the system lets nobody but their owner reach, which shows when they are first copied. */
#include <errno.h>
#include <sys/uio.h>
#include "collectives/shared/direct.h"
#include "group/group.h"
#include "shared_world.h"

#define BARRED_TURN 6 /* when the arrays are barred */
#define TURNS 16
#define COUNT ((uint64_t)300000) /* int32 a rank: beyond DIRECT_FROM for two */

static _Atomic uintptr_t barred; /* an array of one rank */
static _Atomic int refused, copied;

static bool is_barred(const struct iovec *remote)
{
    uintptr_t at = (uintptr_t)remote->iov_base, from = atomic_load(&barred);
    return from && at >= from && at < from + COUNT * sizeof(int32_t);
}

/* Between threads of a process. A part is copied before it fails, as of an array whose end cannot be reached. Nothing lies at NULL. */
static ssize_t copy(const struct iovec *to, const struct iovec *from, const struct iovec *remote)
{
    if (!remote->iov_base)
        return errno = EFAULT, -1;
    if (is_barred(remote)) {
        memcpy(to->iov_base, from->iov_base, to->iov_len / 2);
        atomic_fetch_add(&refused, 1);
        return errno = EFAULT, -1;
    }
    memcpy(to->iov_base, from->iov_base, to->iov_len);
    atomic_fetch_add(&copied, to->iov_len > 64);
    return (ssize_t)to->iov_len;
}

ssize_t process_vm_readv(pid_t pid, const struct iovec *local, unsigned long locals, const struct iovec *remote,
                         unsigned long remotes, unsigned long flags)
{
    CHECK(pid == getpid() && locals == 1 && remotes == 1 && !flags);
    return copy(local, remote, remote);
}

ssize_t process_vm_writev(pid_t pid, const struct iovec *local, unsigned long locals, const struct iovec *remote,
                          unsigned long remotes, unsigned long flags)
{
    CHECK(pid == getpid() && locals == 1 && remotes == 1 && !flags);
    return copy(remote, local, remote);
}

static int32_t value(int rank, int turn, uint64_t i) { return (int32_t)(1000003 * rank + 7919 * turn + (int)i); }

static int wrong(const int32_t *x, int rank, int turn, uint64_t first)
{
    int found = 0;
    for (uint64_t i = 0; i < COUNT; i++)
        found += x[i] != value(rank, turn, first + i);
    return found;
}

/* all_gather in place, where this rank's block of the result is what it gives; or `pushed`, a gather to rank 0, into whose array the
 * others write. From BARRED_TURN on an array of rank 0 is barred. */
static int turns(acomm_group *g, int rank, int n, bool pushed)
{
    int32_t *all = malloc(COUNT * (uint64_t)(n + 1) * sizeof *all), *own = all + COUNT * (uint64_t)(pushed ? n : rank);
    int found = 0;
    for (int turn = 0; turn < TURNS && !found; turn++) {
        memset(all, 0, COUNT * (uint64_t)n * sizeof *all);
        for (uint64_t i = 0; i < COUNT; i++)
            own[i] = value(rank, turn, i);
        if (!rank && turn == BARRED_TURN)
            atomic_store(&barred, (uintptr_t)(pushed ? all + COUNT : own));
        found = pushed ? RUN(g, ACOMM_GATHER, 0, .in = own, .out = rank ? 0 : all, .count = COUNT)
                       : RUN(g, ACOMM_ALL_GATHER, -1, .in = own, .out = all, .count = COUNT);
        for (int other = 0; !(pushed && rank) && other < n; other++)
            found += wrong(all + COUNT * (uint64_t)other, other, turn, 0);
    }
    CHECK_EQUAL(g->direct.reach, PATH_CLOSED);
    free(all);
    return found;
}

static int gathers(acomm_group *g, int rank, int n) { return turns(g, rank, n, false); }
static int pushes(acomm_group *g, int rank, int n) { return turns(g, rank, n, true); }

static void barred_arrays_go_through_slots(int (*body)(acomm_group *, int, int), int n)
{
    atomic_store(&barred, 0);
    atomic_store(&refused, 0);
    atomic_store(&copied, 0);
    run(n, body, 0);
    CHECK(atomic_load(&copied) > 0);
    CHECK_MESSAGE(atomic_load(&refused) >= 1 && atomic_load(&refused) < n, "%d calls were refused", atomic_load(&refused));
}

static void an_input_of_two(void) { barred_arrays_go_through_slots(gathers, 2); }
static void a_result_of_two(void) { barred_arrays_go_through_slots(pushes, 2); }
static void a_result_of_three(void) { barred_arrays_go_through_slots(pushes, 3); }

int main(void)
{
    TEST(an_input_of_two);
    TEST(a_result_of_two);
    TEST(a_result_of_three);
    return CHECK_RESULT();
}
