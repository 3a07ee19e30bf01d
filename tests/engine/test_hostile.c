/* engine: all */
/* A rank that writes into the shared memory what no rank would: the others get an error that names it, and touch nothing outside. */
#include "collectives/collectives.h"
#include "collectives/shared/rounds.h"
#include "collectives/shared/direct.h"
#include "group/group.h"
#include "shared_world.h"

#define LONG ((uint64_t)300000) /* int32: goes directly */
#define LATER 10 /* turns: all know that they reach each other */

static bool names(acomm_group *g, int code, int culprit)
{
    acomm_failure f = {0};
    return acomm_group_failure(g, &f) && f.code == code && f.culprit == culprit;
}

/* ---- rounds ---- */

/* Rank 1 says that it has come to a round that is far off, or that lies in another slot. */
static int64_t beyond;
static _Atomic int forged, seen;

static int forge_stamp(acomm_group *g, int rank, int n)
{
    (void)n;
    if (!rank) {
        while (!forged)
            sched_yield();
        int rc = RUN_BARRIER(g);
        bool named = names(g, ACOMM_PROTOCOL, 1);
        seen = 1;
        return rc == ACOMM_PROTOCOL && named ? 0 : 1;
    }
    _Atomic uint64_t *stamp = (_Atomic uint64_t *)((char *)shared_header(&g->shared, 1, 1) - sizeof *stamp);
    atomic_store(stamp, (uint64_t)(1 + beyond));
    forged = 1;
    while (!seen)
        sched_yield();
    return 0;
}

static void a_round_that_nobody_can_have_come_to(void)
{
    static const int64_t wrong[] = {1, SHARED_SLOTS, SHARED_SLOTS + 1, 1000000 * SHARED_SLOTS, -2};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        beyond = wrong[i];
        forged = seen = 0;
        run(2, forge_stamp, 0);
    }
}

/* The root of a broadcast compares later what it called: rank 1 changes that, in the root's own slot. */
static int forge_call(acomm_group *g, int rank, int n)
{
    static _Atomic int given;
    int32_t x[4] = {rank};
    if (RUN_BARRIER(g) || RUN(g, ACOMM_BROADCAST, 0, .in = rank ? 0 : x, .out = x, .count = 4))
        return 1;
    given += 1;
    while (given < n)
        sched_yield();
    if (rank == 1) {
        acomm_header *root = shared_header(&g->shared, 0, 2);
        root->root = INT16_MAX;
        root->kind = 200;
        forged = 1;
    }
    while (!forged)
        sched_yield();
    int rc = RUN_BARRIER(g); /* the others may take what was changed for the root's word */
    return rank ? 0 : rc;
}

static void what_a_rank_called_is_its_own(void)
{
    forged = 0;
    run(3, forge_call, 0);
}

/* Rank 1 counts itself in as a writer for good, and does not come. */
static int forge_writing(acomm_group *g, int rank, int n)
{
    int32_t *x = calloc(LONG * (uint64_t)(n + 1), sizeof *x);
    acomm_failure f = {0};
    int rc = 0;
    if (rank) {
        region_of(&g->shared, 1)->window.writing = 1;
        forged = 1;
        while (!seen)
            sched_yield();
    } else {
        while (!forged)
            sched_yield();
        g->timeout = SECOND / 100; /* also of the gather, into whose result the others would write */
        rc = RUN(g, ACOMM_GATHER, 0, .in = (x + LONG * (uint64_t)n), .out = x, .count = LONG);
        CHECK(acomm_group_failure(g, &f));
        CHECK_EQUAL(f.writer, 1 + 1);
        seen = 1;
    }
    free(x);
    return rc == (rank ? 0 : ACOMM_TIMEOUT) ? 0 : 1;
}

static void who_writes_for_ever_is_named(void)
{
    forged = seen = 0;
    alarm(60);
    run(2, forge_writing, 0);
    alarm(0);
}

/* Until rank 0 has published the first round. */
static void await_first(const acomm_group *g)
{
    const _Atomic uint64_t *stamp = (const _Atomic uint64_t *)((const char *)shared_header(&g->shared, 0, 1) - sizeof *stamp);
    while (atomic_load(stamp) < 1)
        sched_yield();
}

/* Rank 1 changes how long rank 0 said that its blocks are: rank 0 has all of its own blocks all the same. */
static int forge_count(acomm_group *g, int rank, int n)
{
    enum { OWN = 5000, MANY = 3 * PIECE / 4 };
    uint64_t counts[2][2] = {{MANY, 5}, {5, 5}};
    int32_t *x = calloc(2 * (MANY + OWN), sizeof *x), *y = x + MANY + OWN;
    for (int i = 0; i < MANY + 5; i++)
        x[i] = i;
    if (rank) {
        await_first(g);
        shared_header(&g->shared, 0, 1)->count = 5;
    }
    int rc = acomm_operate(g, ACOMM_ALL_TO_ALL, P(x), P(y), 0, counts[rank], counts[rank], ACOMM_INT32, ACOMM_SUM, 1, -1, 0, 0, -1, NULL);
    if (!rank && (rc || memcmp(y, x, MANY * sizeof *x)))
        rc = 1;
    (void)n;
    free(x);
    return rank ? 0 : rc;
}

static void how_long_a_rank_s_own_blocks_are(void)
{
    run(2, forge_count, 0);
}

/* Blocks that no memory can hold would wrap around to short ones. */
static int call_too_long(acomm_group *g, int rank, int n)
{
    uint64_t counts[2] = {1, 1};
    int32_t x[2] = {0}, y[2];
    struct acomm_op op = {.group = g, .team = &g->hosts.all, .kind = ACOMM_ALL_TO_ALL, .dtype = ACOMM_INT32, .redop = ACOMM_SUM, .root = -1,
                          .count = UINT64_MAX / 4 + 2, .send_counts = counts, .recv_counts = counts, .width = 4, .sequence = 1,
                          .timeout = 20 * SECOND};
    struct rounds r = rounds_start(&op);
    (void)n;
    if (rank)
        return rounds_meet(&r, NULL, 0) ? 0 : 1;
    int rc = acomm_operate(g, ACOMM_ALL_TO_ALL, P(x), P(y), 0, counts, counts, ACOMM_INT32, ACOMM_SUM, 1, -1, 0, 0, -1, NULL);
    return rc == ACOMM_PROTOCOL && names(g, ACOMM_PROTOCOL, 1) ? 0 : 1;
}

static void blocks_beyond_all_memory(void)
{
    run(2, call_too_long, 0);
}

/* ---- arrays that are read where they lie ---- */

static struct direct_offer offers[] = {
    {.in = {ARENA_ROOM + 1, DIRECT_MAPPED}}, {.out = {UINT64_MAX, DIRECT_MAPPED}}, {.in = {0, 7}}, {.out = {1, UINT32_MAX}, .pushes = 255}};
static struct direct_offer *offered;

static int forge_offer(acomm_group *g, int rank, int n)
{
    int32_t *x = calloc(LONG * 3, sizeof *x);
    int rc;
    if (!rank) {
        rc = RUN(g, ACOMM_ALL_GATHER, -1, .in = x, .out = x + LONG, .count = LONG) == ACOMM_PROTOCOL && names(g, ACOMM_PROTOCOL, 1) ? 0 : 1;
    } else {
        struct acomm_op op = {.group = g, .team = &g->hosts.all, .kind = ACOMM_ALL_GATHER, .dtype = ACOMM_INT32, .redop = ACOMM_SUM,
                              .root = -1, .count = LONG, .width = 4, .sequence = 1, .timeout = 20 * SECOND};
        struct rounds r = rounds_start(&op);
        rc = rounds_meet(&r, offered, sizeof *offered);
    }
    (void)n;
    free(x);
    return rc;
}

static void an_offer_of_memory_that_cannot_be(void)
{
    for (size_t i = 0; i < sizeof offers / sizeof *offers; i++) {
        offered = &offers[i];
        run(2, forge_offer, 0);
    }
}

/* Rank 1 changes what rank 0 has offered, and is honest otherwise: rank 0 knows what it offered. */
static int forge_own_offer(acomm_group *g, int rank, int n)
{
    int32_t *x = calloc(LONG * 3, sizeof *x);
    struct direct_offer honest = {.in = {(uint64_t)(uintptr_t)x, DIRECT_PRIVATE}};
    uint8_t reaches[2] = {0};
    x[0] = 7 + rank;
    struct acomm_op op = {.group = g, .team = &g->hosts.all, .kind = ACOMM_ALL_GATHER, .dtype = ACOMM_INT32, .redop = ACOMM_SUM, .root = -1,
                          .count = LONG, .width = 4, .sequence = 1, .timeout = 20 * SECOND, .in = (char *)x, .out = (char *)(x + LONG)};
    struct rounds r = rounds_start(&op);
    int rc;
    if (rank) {
        await_first(g);
        memcpy(shared_data(&g->shared, 0, 1, sizeof *offered), offered, sizeof *offered);
        rc = rounds_meet(&r, &honest, sizeof honest);
        rc = rc ? rc : rounds_meet(&r, reaches, sizeof reaches);
        rc = rc ? rc : shared_all_gather(&op);
    } else {
        rc = RUN(g, ACOMM_ALL_GATHER, -1, .in = x, .out = x + LONG, .count = LONG);
    }
    rc = rc || x[LONG] != 7 || x[2 * LONG] != 8;
    (void)n;
    free(x);
    return rc;
}

static void what_a_rank_offered_is_its_own(void)
{
    for (size_t i = 0; i < sizeof offers / sizeof *offers; i++) {
        offered = &offers[i];
        run(2, forge_own_offer, 0);
    }
}

/* Rank 1 alone has a symmetric array, which rank 0 cannot map. */
static int offer_later(acomm_group *g, int rank, int n)
{
    int32_t *x = calloc(LONG * 3, sizeof *x), *given = x;
    acomm_block *first = NULL, *block = NULL;
    int wrong = 0;
    for (int turn = 0; turn < 16 && !wrong; turn++) {
        if (turn == LATER && rank) {
            first = symmetric_take(g, 1); /* so that the array does not begin where the arena does */
            block = symmetric_take(g, LONG * sizeof *x);
            given = (int32_t *)acomm_block_address(block);
        }
        if (turn == LATER)
            g->direct.map = PATH_CLOSED;
        for (uint64_t i = 0; i < LONG; i++)
            given[i] = turn * 10 + rank;
        wrong = RUN(g, ACOMM_ALL_GATHER, -1, .in = given, .out = x + LONG, .count = LONG);
        for (uint64_t i = 0; i < 2 * LONG && !wrong; i++)
            wrong = x[LONG + i] != turn * 10 + (int32_t)(i / LONG);
    }
    (void)n;
    if (block) {
        acomm_block_free(first);
        acomm_block_free(block);
    }
    free(x);
    return wrong;
}

static void an_offer_that_was_not_agreed_on(void)
{
    run(2, offer_later, 0);
}

int main(void)
{
    TEST(a_round_that_nobody_can_have_come_to);
    TEST(what_a_rank_called_is_its_own);
    TEST(who_writes_for_ever_is_named);
    TEST(how_long_a_rank_s_own_blocks_are);
    TEST(blocks_beyond_all_memory);
    TEST(an_offer_of_memory_that_cannot_be);
    TEST(what_a_rank_offered_is_its_own);
    TEST(an_offer_that_was_not_agreed_on);
    return CHECK_RESULT();
}
