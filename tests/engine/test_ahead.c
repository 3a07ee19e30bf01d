/* engine: all */
/* Roots that leave a broadcast or scatter before the others have come: what they gave, how far they get, and who is told
 * when the ranks differ. */
#include <sched.h>
#include "group/group.h"
#include "group/shared/shared.h"
#include "shared_world.h"

static int32_t value(int turn, uint64_t i) { return (int32_t)((uint64_t)turn * 1000003u + i * 7u); }

static int broadcast(acomm_group *g, int rank, int root, int32_t *x, uint64_t count, acomm_op **op)
{
    acomm_call *call = CALL(ACOMM_BROADCAST, root, .in = rank == root ? x : 0, .out = x, .count = count);
    return op ? acomm_start(g, call, op) : acomm_run(g, call);
}

/* The part comes to lie behind the whole. */
static int scatter(acomm_group *g, int rank, int n, int root, int32_t *x, uint64_t each)
{
    return RUN(g, ACOMM_SCATTER, root, .in = rank == root ? x : 0, .out = (x + each * (uint64_t)n), .count = each);
}

static void fill(int32_t *x, int turn, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++)
        x[i] = value(turn, i);
}

static int wrong_values(const int32_t *x, int turn, uint64_t offset, uint64_t count)
{
    int wrong = 0;
    for (uint64_t i = 0; i < count; i++)
        wrong += x[i] != value(turn, offset + i);
    return wrong;
}

static _Atomic int stage;
static void reach(int to)
{
    while (atomic_load(&stage) < to)
        sched_yield();
}

/* The root has its turns behind it before anybody else begins, and spoils its array each time. */
static int ahead(acomm_group *g, int rank, int n)
{
    enum { COUNT = 100 };
    int32_t x[COUNT * (MAX_RANKS + 1)];
    int wrong = 0;
    if (rank)
        reach(1);
    for (int turn = 0; turn < (int)shared_ahead(g->oversubscribed); turn++) {
        fill(x, rank ? -1 : turn, (uint64_t)(COUNT * (n + 1)));
        bool parts = turn % 3 == 2;
        uint64_t count = turn % 2 ? COUNT : 1;
        wrong += parts ? scatter(g, rank, n, 0, x, count) : broadcast(g, rank, 0, x, count, NULL);
        wrong += parts ? wrong_values(x + count * (uint64_t)n, turn, count * (uint64_t)rank, count) : wrong_values(x, turn, 0, count);
    }
    atomic_fetch_add(&stage, rank == 0);
    return wrong;
}

enum { LONG = 3 * PIECE / sizeof(int32_t) - 5 }; /* elements: several rounds, which the slots hold */

/* The root of two ranks need not wait for the other with long arrays either. */
static int long_ahead(acomm_group *g, int rank, int n)
{
    int32_t x[LONG * 3];
    int wrong = 0;
    for (int turn = 0; turn < 2; turn++) {
        if (rank)
            reach(turn + 1);
        fill(x, rank ? -1 : turn, LONG * 2);
        wrong += turn ? scatter(g, rank, n, 0, x, LONG) : broadcast(g, rank, 0, x, LONG, NULL);
        wrong += turn ? wrong_values(x + LONG * 2, turn, (uint64_t)rank * LONG, LONG) : wrong_values(x, turn, 0, LONG);
        fill(x, -1, LONG);
        atomic_fetch_add(&stage, rank == 0);
        wrong += RUN_BARRIER(g) != 0;
    }
    return wrong;
}

/* Its slots run out. */
static int alone(acomm_group *g, int rank, int n)
{
    int32_t x[1] = {7};
    int done = 0, rc = 0;
    (void)n;
    if (rank)
        return ACOMM_TIMEOUT;
    for (; done < 2 * SHARED_SLOTS && !rc; done++)
        rc = acomm_run(g, &(acomm_call){.kind = ACOMM_BROADCAST, .in = x, .out = x, .count = 1, .dtype = ACOMM_INT32,
                                        .timeout = SECOND / 20});
    acomm_failure f;
    return done == (int)shared_ahead(g->oversubscribed) + 1 && acomm_group_failure(g, &f) && f.culprit == 1 ? rc : 1;
}

/* Many times round the slots and the area, with roots that change, some ranks slow, and operations in between that wait. */
static int round_and_round(acomm_group *g, int rank, int n)
{
    static const uint64_t counts[] = {0, 1, 6, 7, 300, 1024, 1025, 2000, 2049, 9000};
    int wrong = 0;
    unsigned seed = 7;
    int32_t *x = malloc(9000 * (MAX_RANKS + 1) * sizeof *x);
    for (int turn = 0; turn < 200; turn++) {
        unsigned draw = (unsigned)rand_r(&seed); /* the same on all ranks */
        uint64_t count = counts[draw / 16 % 10];
        int root = turn / 50 % 2 ? (int)(draw / 512) % n : turn / 100 % n, what = (int)(draw % 16);
        fill(x, rank == root ? turn : -1, count * (uint64_t)(n + 1));
        int rc = what < 9 ? broadcast(g, rank, root, x, count, NULL) : what < 15 ? scatter(g, rank, n, root, x, count)
                                                                       : RUN_BARRIER(g);
        wrong += rc != 0;
        if (what < 9)
            wrong += wrong_values(x, turn, 0, count);
        else if (what < 15)
            wrong += wrong_values(x + count * (uint64_t)n, turn, count * (uint64_t)rank, count);
        for (int i = 0; (turn + rank) % 41 == 0 && i < 20; i++)
            sched_yield();
    }
    free(x);
    return wrong;
}

/* More than there are slots for, begun before anybody else comes: those that find no slot are put back, not waited in. */
static int asynchronous(acomm_group *g, int rank, int n)
{
    enum { FLIGHT = 3 * SHARED_SLOTS, COUNT = 3000 };
    static int32_t x[MAX_RANKS][FLIGHT][COUNT];
    acomm_op *op[FLIGHT];
    int wrong = 0;
    (void)n;
    if (rank)
        reach(1);
    for (int k = 0; k < FLIGHT; k++) {
        fill(x[rank][k], rank ? -1 : k, COUNT);
        wrong += broadcast(g, rank, 0, x[rank][k], k % 2 ? COUNT : 1, &op[k]);
    }
    atomic_fetch_add(&stage, rank == 0);
    for (int k = 0; k < FLIGHT; k++) {
        wrong += acomm_wait(op[k], -1) != 0 || wrong_values(x[rank][k], k, 0, k % 2 ? COUNT : 1);
        acomm_op_free(op[k]);
    }
    return wrong;
}

/* ---- ranks that differ ---- */

enum how { NEXT_WAITS, SLOTS_RUN_OUT, CLOSES, HOWS };
static enum how how;
static bool two_roots;

/* What rank 0 gets in the end, which has left the broadcast. */
static int find_out(acomm_group *g, int rank)
{
    int32_t x[4] = {1, 2, 3, 4};
    int rc = 0;
    for (int i = 0; how == SLOTS_RUN_OUT && i <= (int)shared_ahead(g->oversubscribed) && !rc; i++)
        rc = broadcast(g, rank, rank, x, 4, NULL);
    if (how == NEXT_WAITS)
        rc = RUN(g, ACOMM_ALL_REDUCE, -1, .in = x, .out = x, .count = 4);
    return how == CLOSES ? acomm_group_stop(g, NULL) : rc;
}

/* Rank 1 calls something else than the others: a broadcast of fewer elements, or with itself as the root. */
static int differ(acomm_group *g, int rank, int n)
{
    int32_t x[10], y[10] = {-1};
    bool odd = rank == 1, gives = rank == 0 || (odd && two_roots);
    (void)n;
    fill(x, 0, 10);
    int rc = RUN(g, ACOMM_BROADCAST, odd && two_roots, .in = gives ? x : 0, .out = (gives ? x : y),
                 .count = odd && !two_roots ? 9 : 10);
    bool took = !gives && !odd && rc == 0 && wrong_values(y, 0, 0, 10) == 0; /* agrees with the root that it took from */
    if (!(gives && rc == 0) && !took && !(odd && rc == ACOMM_MISMATCH && y[0] == -1))
        return 1;
    if (rank > 1)
        return ACOMM_MISMATCH;
    rc = gives ? find_out(g, rank) : rc;
    acomm_failure f = {0};
    bool named = acomm_group_failure(g, &f) && f.mine.kind == ACOMM_BROADCAST && f.mine.sequence == 1
              && f.theirs.sequence == 1 && f.culprit == !rank;
    bool both = two_roots ? f.mine.root == rank && f.theirs.root == !rank : f.mine.count + f.theirs.count == 19;
    return named && both ? rc : 2;
}

/* Rank 1 wants one element less of a long array: it has taken none when it finds out. */
static int long_differ(acomm_group *g, int rank, int n)
{
    int32_t x[LONG];
    (void)n;
    fill(x, rank, LONG);
    int rc = broadcast(g, rank, 0, x, LONG - (uint64_t)rank, NULL);
    int untouched = rank && wrong_values(x, rank, 0, LONG) == 0;
    return rank ? untouched ? rc : 1 : rc ? rc : acomm_group_stop(g, NULL);
}

/* Nobody is the root. */
static int no_root(acomm_group *g, int rank, int n)
{
    int32_t y[10] = {-1};
    int rc = RUN(g, ACOMM_BROADCAST, (rank + 1) % n, .out = y, .count = 10);
    return y[0] == -1 ? rc : 1;
}

static void go(int n, int (*body)(acomm_group *, int, int), int want)
{
    atomic_store(&stage, 0);
    run(n, body, want);
}
#define FOR_ALL(name, body) static void name(void) { for (int n = 2; n <= MAX_RANKS; n++) go(n, body, 0); }
FOR_ALL(test_root_is_gone_before_others_come, ahead)
FOR_ALL(test_round_the_slots, round_and_round)
FOR_ALL(test_asynchronous, asynchronous)
static void test_slots_run_out(void) { go(2, alone, ACOMM_TIMEOUT); }
static void test_long_arrays_of_two(void) { go(2, long_ahead, 0); go(2, long_differ, ACOMM_MISMATCH); }
static void test_no_root(void) { go(2, no_root, ACOMM_MISMATCH); go(3, no_root, ACOMM_MISMATCH); }
static void test_differing_ranks(void)
{
    for (int k = 0; k < 2 * HOWS; k++) {
        how = (enum how)(k / 2);
        two_roots = k % 2;
        if (how != NEXT_WAITS || two_roots) /* otherwise only rank 1 sees it, and here is no node to tell */
            go(2, differ, ACOMM_MISMATCH);
        if (how == CLOSES) /* the others do not take part in anything else */
            go(4, differ, ACOMM_MISMATCH);
    }
}

int main(void)
{
    TEST(test_root_is_gone_before_others_come);
    TEST(test_slots_run_out);
    TEST(test_round_the_slots);
    TEST(test_asynchronous);
    TEST(test_differing_ranks);
    TEST(test_long_arrays_of_two);
    TEST(test_no_root);
    return CHECK_RESULT();
}
