/* engine: all */
/* The entry points over one shared segment, with threads as the ranks of a host and pieces so small that every
 * operation takes several rounds. */
#include <sched.h>
#include <stdbool.h>
#include "shared_world.h"

static const uint64_t COUNTS[] = {0, 1, 3, 6, 7, 1023, 1024, 1025, 5000, 20011};
#define SIZES (sizeof COUNTS / sizeof *COUNTS)
static int32_t value(int rank, uint64_t i) { return (int32_t)((uint64_t)rank * 1000003u + i * 7u); }

static int32_t *filled(int rank, uint64_t count)
{
    int32_t *x = malloc((count + 1) * sizeof *x);
    for (uint64_t i = 0; i < count; i++)
        x[i] = value(rank, i);
    return x;
}

static int wrong_sum(const int32_t *y, uint64_t offset, uint64_t count, int n)
{
    int wrong = 0;
    for (uint64_t i = 0; i < count; i++) {
        int32_t sum = 0;
        for (int r = 0; r < n; r++)
            sum += value(r, offset + i);
        wrong += y[i] != sum;
    }
    return wrong;
}

static int all_reduce(acomm_group *g, int rank, int n)
{
    int wrong = 0;
    for (size_t s = 0; s < SIZES; s++) {
        int32_t *x = filled(rank, COUNTS[s]), *y = filled(0, COUNTS[s]);
        int rc = RUN(g, ACOMM_ALL_REDUCE, -1, .in = x, .out = y, .count = COUNTS[s]);
        wrong += rc != 0 || wrong_sum(y, 0, COUNTS[s], n);
        rc = RUN(g, ACOMM_REDUCE, 1 % n, .in = x, .out = rank == 1 % n ? y : 0, .count = COUNTS[s]);
        wrong += rc != 0 || (rank == 1 % n && wrong_sum(y, 0, COUNTS[s], n));
        rc = RUN(g, ACOMM_ALL_REDUCE, -1, .in = x, .out = x, .count = COUNTS[s]);
        wrong += rc != 0 || wrong_sum(x, 0, COUNTS[s], n);
        free(x);
        free(y);
    }
    return wrong;
}

static int uneven(acomm_group *g, int kind, const int32_t *x, int32_t *y, const uint64_t *counts, const uint64_t *received)
{
    return acomm_operate(g, kind, P(x), P(y), 0, counts, received, ACOMM_INT32, ACOMM_SUM, 1, -1, 0, 0, -1, NULL);
}

static int reduce_scatter(acomm_group *g, int rank, int n)
{
    int wrong = 0;
    for (size_t s = 0; s < SIZES; s++) {
        uint64_t each = COUNTS[s], counts[MAX_RANKS], whole = 0, offset = 0;
        int32_t *x = filled(rank, each * (uint64_t)n + 40), *y = filled(0, each + 40);
        wrong += RUN(g, ACOMM_REDUCE_SCATTER, -1, .in = x, .out = y, .count = each) != 0
            || wrong_sum(y, each * (uint64_t)rank, each, n);
        for (int r = 0; r < n; r++) {
            counts[r] = r == 1 ? 0 : each + (uint64_t)r;
            offset = r == rank ? whole : offset;
            whole += counts[r];
        }
        wrong += uneven(g, ACOMM_REDUCE_SCATTER, x, y, counts, NULL) != 0
            || wrong_sum(y, offset, counts[rank], n);
        free(x);
        free(y);
    }
    return wrong;
}

static int gathers(acomm_group *g, int rank, int n)
{
    int wrong = 0;
    for (size_t s = 0; s < SIZES; s++) {
        uint64_t each = COUNTS[s], counts[MAX_RANKS], offset = 0;
        int32_t *x = filled(rank, each + 40), *y = calloc(each * (uint64_t)n + 200, sizeof *y);
        for (int form = 0; form < 3; form++) {
            int root = n - 1;
            for (int r = 0; r < n; r++)
                counts[r] = form == 1 && r != 1 ? each + (uint64_t)r : form == 1 ? 0 : each;
            int rc = form == 2 ? RUN(g, ACOMM_GATHER, root, .in = x, .out = rank == root ? y : 0, .count = each)
                : form ? uneven(g, ACOMM_ALL_GATHER, x, y, counts, NULL)
                       : RUN(g, ACOMM_ALL_GATHER, -1, .in = x, .out = y, .count = each);
            wrong += rc != 0;
            offset = 0;
            for (int r = 0; r < n && (form < 2 || rank == root); offset += counts[r++])
                for (uint64_t i = 0; i < counts[r]; i++)
                    wrong += y[offset + i] != value(r, i);
        }
        free(x);
        free(y);
    }
    return wrong;
}

static int spreads(acomm_group *g, int rank, int n)
{
    int wrong = 0;
    for (size_t s = 0; s < SIZES; s++) {
        uint64_t each = COUNTS[s];
        int32_t *x = filled(rank, each * (uint64_t)n), *y = calloc(each * (uint64_t)n + 1, sizeof *y);
        int root = n / 2;
        wrong += RUN(g, ACOMM_BROADCAST, root, .in = rank == root ? x : 0, .out = y, .count = each) != 0;
        for (uint64_t i = 0; i < each; i++)
            wrong += y[i] != value(root, i);
        wrong += RUN(g, ACOMM_SCATTER, root, .in = rank == root ? x : 0, .out = y, .count = each) != 0;
        for (uint64_t i = 0; i < each; i++)
            wrong += y[i] != value(root, each * (uint64_t)rank + i);
        wrong += RUN(g, ACOMM_ALL_TO_ALL, -1, .in = x, .out = y, .count = each) != 0;
        for (int r = 0; r < n; r++)
            for (uint64_t i = 0; i < each; i++)
                wrong += y[each * (uint64_t)r + i] != value(r, each * (uint64_t)rank + i);
        wrong += RUN_BARRIER(g) != 0;
        free(x);
        free(y);
    }
    return wrong;
}

/* Rank r sends r + d + 1 elements (times a factor) to rank d. */
static int uneven_exchange(acomm_group *g, int rank, int n)
{
    int wrong = 0;
    for (uint64_t factor = 0; factor < 3000; factor += 999) {
        uint64_t sends[MAX_RANKS], receives[MAX_RANKS], offset = 0;
        for (int r = 0; r < n; r++)
            sends[r] = receives[r] = (uint64_t)(rank + r + 1) * factor;
        int32_t *x = malloc(400000 * sizeof *x), *y = malloc(400000 * sizeof *y);
        for (int d = 0; d < n; offset += sends[d++])
            for (uint64_t i = 0; i < sends[d]; i++)
                x[offset + i] = value(rank * 10 + d, i);
        wrong += uneven(g, ACOMM_ALL_TO_ALL, x, y, sends, receives) != 0;
        offset = 0;
        for (int r = 0; r < n; offset += receives[r++])
            for (uint64_t i = 0; i < receives[r]; i++)
                wrong += y[offset + i] != value(r * 10 + rank, i);
        free(x);
        free(y);
    }
    return wrong;
}

/* Several operations in flight, ended in another order. */
static int asynchronous(acomm_group *g, int rank, int n)
{
    enum { FLIGHT = 10 };
    int32_t *x[FLIGHT];
    acomm_op *op[FLIGHT];
    int wrong = 0;
    for (int k = 0; k < FLIGHT; k++) {
        x[k] = filled(rank, 3000);
        wrong += acomm_start(g, CALL(ACOMM_ALL_REDUCE, -1, .in = x[k], .out = x[k], .count = 3000), &op[k]) != 0;
    }
    wrong += RUN_BARRIER(g) != 0;
    for (int k = FLIGHT - 1; k >= 0; k--) {
        wrong += acomm_wait(op[k], -1) != 0 || wrong_sum(x[k], 0, 3000, n);
        acomm_op_free(op[k]);
        free(x[k]);
    }
    return wrong;
}

/* Rank 0 begins operations, waits for them in vain, and leaves them; then the others come. */
static _Atomic int left;
static int leaving(acomm_group *g, int rank, int n)
{
    enum { FLIGHT = 3 };
    const uint64_t counts[FLIGHT] = {5, 3000, 200000};
    int32_t *x[FLIGHT];
    acomm_op *op[FLIGHT];
    int wrong = 0;
    while (rank && atomic_load(&left) < FLIGHT)
        sched_yield();
    for (int k = 0; k < FLIGHT; k++) {
        x[k] = filled(rank, counts[k]);
        wrong += acomm_start(g, CALL(ACOMM_ALL_REDUCE, -1, .in = x[k], .out = x[k], .count = counts[k]), &op[k]) != 0;
        if (rank == 0)
            wrong += n > 1 && (acomm_wait(op[k], 0) != 1 || acomm_wait(op[k], SECOND / 500) != 1);
        atomic_fetch_add(&left, rank == 0);
    }
    for (int k = 0; k < FLIGHT; k++) {
        wrong += acomm_wait(op[k], -1) != 0 || wrong_sum(x[k], 0, counts[k], n);
        acomm_op_free(op[k]);
        free(x[k]);
    }
    return wrong;
}

/* Before anything is sent: the group goes on. */
static int refused(acomm_group *g, int rank, int n)
{
    static const int kinds[] = {ACOMM_ALL_REDUCE, ACOMM_GATHER, ACOMM_ALL_TO_ALL, ACOMM_ALL_GATHER, ACOMM_REDUCE_SCATTER, ACOMM_SEND};
    uint64_t counts[MAX_RANKS] = {1, 1};
    int32_t x[MAX_RANKS] = {rank, rank}, y[MAX_RANKS];
    int wrong = 0;
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++)
        for (int asks = 0; asks < 2; asks++) {
            acomm_op *op = NULL;
            bool both = kinds[k] == ACOMM_ALL_GATHER || kinds[k] == ACOMM_REDUCE_SCATTER, sends = kinds[k] == ACOMM_SEND;
            int rc = acomm_operate(g, kinds[k], P(x), P(y), 1, sends ? NULL : counts, both ? counts : NULL, ACOMM_INT32, ACOMM_SUM,
                                   1, kinds[k] == ACOMM_GATHER ? 0 : -1, 0, 0, -1, asks ? &op : NULL);
            wrong += rc != ACOMM_ARGUMENT || op;
        }
    wrong += RUN(g, ACOMM_ALL_REDUCE, -1, .in = x, .out = x, .count = 2) != 0 || x[0] != n * (n - 1) / 2;
    return wrong;
}

static int mismatch(acomm_group *g, int rank, int n)
{
    int32_t x[10] = {rank}, y[10] = {-1};
    uint64_t count = rank == n - 1 ? 9 : 10;
    int rc = RUN(g, ACOMM_ALL_REDUCE, -1, .in = x, .out = y, .count = count);
    acomm_failure f;
    int named = acomm_group_failure(g, &f) && f.mine.count != f.theirs.count;
    int again = RUN_BARRIER(g);
    return rc == ACOMM_MISMATCH && named && again == ACOMM_MISMATCH && y[0] == -1 ? ACOMM_MISMATCH : 1;
}

static int late(acomm_group *g, int rank, int n)
{
    (void)n;
    if (rank == 0)
        return ACOMM_TIMEOUT;
    int rc = acomm_run(g, &(acomm_call){.kind = ACOMM_BARRIER, .root = -1, .timeout = SECOND / 20});
    acomm_failure f;
    return acomm_group_failure(g, &f) && f.culprit == 0 ? rc : 1;
}

#define FOR_ALL(name, body) static void name(void) { for (int n = 1; n <= MAX_RANKS; n++) run(n, body, 0); }
FOR_ALL(test_all_reduce_and_reduce, all_reduce)
FOR_ALL(test_reduce_scatter, reduce_scatter)
FOR_ALL(test_all_gather_and_gather, gathers)
FOR_ALL(test_broadcast_scatter_all_to_all, spreads)
FOR_ALL(test_uneven_all_to_all, uneven_exchange)
FOR_ALL(test_asynchronous, asynchronous)
static void test_leaving(void)
{
    for (int n = 1; n <= MAX_RANKS; n++) {
        atomic_store(&left, 0);
        run(n, leaving, 0);
    }
}
static void test_refused_arguments(void) { run(2, refused, 0); }
static void test_mismatch_on_every_rank(void) { for (int n = 2; n <= 5; n++) run(n, mismatch, ACOMM_MISMATCH); }
static void test_absent_rank_is_named(void) { run(3, late, ACOMM_TIMEOUT); }

int main(void)
{
    TEST(test_all_reduce_and_reduce);
    TEST(test_reduce_scatter);
    TEST(test_all_gather_and_gather);
    TEST(test_broadcast_scatter_all_to_all);
    TEST(test_uneven_all_to_all);
    TEST(test_asynchronous);
    TEST(test_leaving);
    TEST(test_refused_arguments);
    TEST(test_mismatch_on_every_rank);
    TEST(test_absent_rank_is_named);
    return CHECK_RESULT();
}
