/* engine: all */
/* One-sided operations: ranks as threads, with memory that they map and memory that the kernel reaches. */
#include <stdbool.h>
#include "shared_world.h"

#define COUNT ((size_t)40 << 10) /* int64: several parts of an accumulate */
#define BYTES (COUNT * sizeof(int64_t))
#define TRY(call)                                                   \
    do {                                                            \
        int tried = (call);                                         \
        if (tried) {                                                \
            printf("# rank %d: %s gave %d\n", rank, #call, tried);  \
            exit(1);                                                \
        }                                                           \
    } while (0)

/* Odd ranks have memory of their own, the others a symmetric array. */
static int64_t *taken(acomm_group *g, int rank, acomm_block **block)
{
    TRY(acomm_group_share(g, BYTES, -1, block));
    int64_t *mine = rank % 2 ? malloc(BYTES) : (int64_t *)acomm_block_address(*block);
    memset(mine, 0, BYTES);
    return mine;
}

static void given_back(int rank, int64_t *mine, acomm_block *block)
{
    if (rank % 2)
        free(mine);
    acomm_block_free(block);
}

static void ended(acomm_group *g, int rank, acomm_rma *r)
{
    TRY(RUN_BARRIER(g));
    TRY(acomm_group_stop(g, NULL));
    CHECK_EQUAL(acomm_rma_put(r, 0, 0, 0, 0), ACOMM_CLOSED);
    acomm_rma_free(r);
}

static int64_t *filled(int64_t value)
{
    int64_t *array = malloc(BYTES);
    for (size_t i = 0; i < COUNT; i++)
        array[i] = value;
    return array;
}

static bool holds(const int64_t *array, int64_t value)
{
    for (size_t i = 0; i < COUNT; i++)
        if (array[i] != value)
            return false;
    return true;
}

static int move(acomm_group *g, int rank, int n)
{
    acomm_block *block;
    acomm_rma *r;
    int64_t *mine = taken(g, rank, &block), *given = filled(rank + 1), *got = filled(-1);
    int right = (rank + 1) % n, left = (rank + n - 1) % n;
    TRY(acomm_rma_open(g, g, P(mine), BYTES, -1, &r));
    for (int turn = 0; turn < 20; turn++) {
        TRY(acomm_rma_put(r, right, 0, P(given), BYTES));
        TRY(acomm_rma_signal(r, right));
        TRY(acomm_rma_wait(r, left, 10 * SECOND));
        CHECK(holds(mine, left + 1));
        TRY(acomm_rma_get(r, right, 0, P(got), BYTES));
        CHECK(holds(got, rank + 1));
        int32_t late = -1;
        TRY(acomm_rma_fence(r, 10 * SECOND, &late));
    }
    CHECK_EQUAL(acomm_rma_wait(r, left, 0), 1);
    CHECK_EQUAL(acomm_rma_wait(r, left, 1000000), 1);
    CHECK_EQUAL(acomm_rma_put(r, right, 8, P(given), BYTES), ACOMM_ARGUMENT);
    CHECK_EQUAL(acomm_rma_get(r, right, UINT64_MAX, P(got), 8), ACOMM_ARGUMENT);
    CHECK_EQUAL(acomm_rma_accumulate(r, right, 0, P(given), UINT64_MAX / 8 + 1, ACOMM_INT64, ACOMM_SUM), ACOMM_ARGUMENT);
    CHECK_EQUAL(acomm_rma_signal(r, n), ACOMM_ARGUMENT);
    ended(g, rank, r);
    given_back(rank, mine, block);
    free(given);
    free(got);
    return 0;
}

struct adder { acomm_rma *rma; int rank, n; pthread_t thread; };
#define TIMES 15

static void *add_to_all(void *argument)
{
    struct adder *a = argument;
    int rank = a->rank;
    int64_t *given = filled(rank + 1);
    for (int turn = 0; turn < TIMES; turn++)
        for (int target = 0; target < a->n; target++)
            TRY(acomm_rma_accumulate(a->rma, target, 0, P(given), COUNT, ACOMM_INT64, ACOMM_SUM));
    free(given);
    return NULL;
}

static int accumulate(acomm_group *g, int rank, int n)
{
    acomm_block *block;
    acomm_rma *r;
    int64_t *mine = taken(g, rank, &block);
    TRY(acomm_rma_open(g, g, P(mine), BYTES, -1, &r));
    struct adder adders[2];
    for (int i = 0; i < 2; i++) {
        adders[i] = (struct adder){.rma = r, .rank = rank, .n = n};
        CHECK_EQUAL(pthread_create(&adders[i].thread, NULL, add_to_all, &adders[i]), 0);
    }
    for (int i = 0; i < 2; i++)
        pthread_join(adders[i].thread, NULL);
    int32_t late = -1;
    TRY(acomm_rma_fence(r, 20 * SECOND, &late));
    CHECK(holds(mine, 2 * TIMES * n * (n + 1) / 2));
    ended(g, rank, r);
    given_back(rank, mine, block);
    return 0;
}

/* Rank 0 closes while others write to it and one of its own threads waits: then its memory is its own. */
static void *wait_for_nobody(void *rma)
{
    CHECK_EQUAL(acomm_rma_wait(rma, 1, 20 * SECOND), ACOMM_CLOSED);
    return NULL;
}

static int leave(acomm_group *g, int rank, int n)
{
    static _Atomic int begun;
    acomm_block *block;
    acomm_rma *r;
    int64_t *mine = taken(g, rank, &block), *given = filled(1), *copy = malloc(BYTES);
    TRY(acomm_rma_open(g, g, P(mine), BYTES, -1, &r));
    if (rank == 0) {
        pthread_t thread;
        CHECK_EQUAL(pthread_create(&thread, NULL, wait_for_nobody, r), 0);
        while (atomic_load(&begun) < 100)
            sched_yield();
        acomm_group_stop(g, NULL);
        memcpy(copy, mine, BYTES);
        pthread_join(thread, NULL);
        usleep(20000);
        CHECK(!memcmp(copy, mine, BYTES));
    } else {
        int rc = 0;
        for (int turn = 0; !rc; turn++, atomic_fetch_add(&begun, 1)) {
            given[turn % COUNT]++;
            rc = acomm_rma_put(r, 0, 0, P(given), BYTES);
        }
        CHECK_EQUAL(rc, ACOMM_LOST);
        acomm_group_stop(g, NULL);
    }
    (void)n;
    acomm_rma_free(r);
    given_back(rank, mine, block);
    free(given);
    free(copy);
    return 0;
}

static acomm_rma *_Atomic giver; /* rank 1's */
static _Thread_local bool waits;

/* A handler that raises, while the signal comes. */
static int signal_and_raise(void)
{
    if (!waits)
        return 0;
    waits = false;
    int rank = 1;
    TRY(acomm_rma_signal(giver, 0));
    return 1;
}

static int interrupt(acomm_group *g, int rank, int n)
{
    acomm_block *block;
    acomm_rma *r;
    int64_t *mine = taken(g, rank, &block);
    TRY(acomm_rma_open(g, g, P(mine), BYTES, -1, &r));
    if (rank)
        giver = r;
    TRY(RUN_BARRIER(g));
    if (!rank) {
        waits = true;
        CHECK_EQUAL(acomm_rma_wait(r, 1, 20 * SECOND), ACOMM_INTERRUPTED);
        CHECK_EQUAL(acomm_rma_wait(r, 1, 0), 0);
        CHECK_EQUAL(acomm_rma_wait(r, 1, 0), 1);
    }
    ended(g, rank, r);
    given_back(rank, mine, block);
    (void)n;
    return 0;
}

static void what_a_handler_raises_is_not_lost_with_the_signal(void)
{
    acomm_set_interrupt(signal_and_raise);
    run(2, interrupt, 0);
    acomm_set_interrupt(NULL);
}

static void each_writes_and_reads_the_others(void)
{
    run(2, move, 0);
    run(5, move, 0);
}

static void nothing_is_lost_of_what_is_accumulated_at_once(void)
{
    run(4, accumulate, 0);
}

static void who_closes_waits_for_writers(void)
{
    run(3, leave, 0);
}

int main(void)
{
    TEST(each_writes_and_reads_the_others);
    TEST(nothing_is_lost_of_what_is_accumulated_at_once);
    TEST(who_closes_waits_for_writers);
    TEST(what_a_handler_raises_is_not_lost_with_the_signal);
    return CHECK_RESULT();
}
