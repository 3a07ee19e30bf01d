/* engine: all */
/* Arrays that the system lets nobody but their owner reach, which shows when they are first copied; and what trials cost. */
#include <errno.h>
#include <sys/uio.h>
#include "base/choice.h"
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

/* What the worse ones of so many ways cost, as a part of all time, beyond what the best one would have taken. */
static double loss(double ratio, int ways)
{
    enum { TRIES = 16 * CHOICE_SELDOM };
    double more = 0;
    const float cost[] = {(float)ratio, 1, (float)ratio};
    for (uint32_t try = 0; try < TRIES; try++)
        more += choice_way(TRIES + try, CHOICE_TRY, cost, ways, CHOICE_SELDOM) != 1 ? ratio - 1 : 0;
    return more / TRIES;
}

static void trials_cost_little(void)
{
    for (double ratio = 1.001; ratio < 2.28; ratio += 0.001)
        for (int ways = 2; ways <= CHOICE_WAYS; ways++) {
            double all = loss(ratio, ways), each = all / (ways - 1);
            CHECK_MESSAGE(all > 0 && each <= CHOICE_LOSS + 1e-6, "%g times as long costs %g of %d ways", ratio, all, ways);
        }
    CHECK(loss(10, 2) > CHOICE_LOSS && loss(10, 2) <= 9.0 / CHOICE_SELDOM);
}

/* Of tries that cost these ns a byte, what is known afterwards: by the best one, or by the mean of the last. */
static float known(const int *tries, int n, bool mean)
{
    struct choice c = {0};
    for (int run = 0; run < 2 * n; run++) { /* whose first half does not count */
        int64_t ns = (int64_t)(CHOICE_TRY / 2) * (run % 2 ? tries[run / 2] : 1000);
        choice_learn(&c, 0, CHOICE_TRY / 2, ns, mean);
    }
    CHECK_EQUAL((int)c.tries, n);
    return c.cost[0];
}

static void tries_that_disturb_each_other_count_by_their_mean(void)
{
    const int alone[] = {90, 10, 30, 30, 30, 30, 30, 30, 30, 30, 30, 30, 30, 30, 30, 30}; /* and with others beside it, from then on */
    const int once[] = {90, 10, 10, 10, 10, 10, 10, 500}; /* who had the core for a while */
    CHECK(known(alone, 12, false) == 10);
    CHECK_MESSAGE(known(alone, 16, true) > 28 && known(alone, 16, true) < 30, "%g", known(alone, 16, true));
    CHECK_MESSAGE(known(once, 8, true) > 10 && known(once, 8, true) <= 12.5f, "%g", known(once, 8, true));
}

/* Every one is a try, two of each way are enough; nothing that other sizes have taught counts. */
static void long_runs_learn_soon(void)
{
    struct choice classes[CHOICE_CLASSES] = {0};
    int taken[2] = {0};
    classes[choice_class(CHOICE_LONG - 1)] = (struct choice){.cost = {1, 9}, .tries = CHOICE_KNOWN};
    for (int run = 0; run < 9; run++) {
        struct choice *c = choice_for(classes, CHOICE_LONG);
        int way = choice_way(c->tries, CHOICE_LONG, c->cost, 2, CHOICE_SELDOM);
        choice_learn(c, way, CHOICE_LONG, (int64_t)CHOICE_LONG * (way ? 10 : 11), false);
        taken[way]++;
    }
    CHECK_EQUAL(taken[0], CHOICE_FIRST);
    CHECK_EQUAL(taken[1], 9 - CHOICE_FIRST);
    CHECK(choice_for(classes, 16 * CHOICE_LONG)->cost[0] == 0);
    CHECK(choice_for(classes, CHOICE_LONG / 4)->cost[0] == 0);
    CHECK(choice_for(classes, CHOICE_LONG - 1)->tries == CHOICE_KNOWN);
}

/* Tries that something else made dear: nothing is known of a way until one that was not, and such a way is tried next. */
static void spoilt_tries_teach_nothing(void)
{
    struct choice c = {0};
    for (int run = 0; run < 2 * CHOICE_FIRST; run++)
        choice_learn(&c, choice_way(c.tries, CHOICE_LONG, c.cost, 2, CHOICE_SELDOM), CHOICE_LONG, CHOICE_SPOILT, false);
    CHECK(c.tries == 2 * CHOICE_FIRST && c.cost[0] == 0 && c.cost[1] == 0);
    for (int way = 0; way < 2; way++) {
        CHECK_EQUAL(choice_way(c.tries, CHOICE_LONG, c.cost, 2, CHOICE_SELDOM), way);
        choice_learn(&c, way, CHOICE_LONG, (int64_t)CHOICE_LONG * (3 - way), false);
    }
    CHECK(c.cost[0] == 3 && c.cost[1] == 2);
    CHECK_EQUAL(choice_way(c.tries, CHOICE_LONG, c.cost, 2, CHOICE_SELDOM), 1);
}

int main(void)
{
    TEST(trials_cost_little);
    TEST(tries_that_disturb_each_other_count_by_their_mean);
    TEST(long_runs_learn_soon);
    TEST(an_input_of_two);
    TEST(a_result_of_two);
    TEST(a_result_of_three);
    TEST(spoilt_tries_teach_nothing);
    return CHECK_RESULT();
}
