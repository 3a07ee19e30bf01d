/* engine: all */
/* Two ranks that found different ways cheaper go the same way, by the slower one of each; and every way gives the same result. */
#include <sys/mman.h>
#include "collectives/shared/trial.h"
#include "group/group.h"
#define PIECE (512 << 10)
#include "shared_world.h"

#define COUNT 300000 /* int32 a rank: beyond what goes through slots without a trial */
#define BYTES (2 * COUNT * sizeof(int32_t))

static float costs[2][2]; /* of each rank, of each way */
static int want;

struct arrays { int32_t *own, *all; };

static struct arrays make(void)
{
    struct arrays a = {malloc(BYTES / 2), malloc(BYTES)};
    memset(a.all, 0, BYTES);
    return a;
}

static void drop(struct arrays a)
{
    free(a.own);
    free(a.all);
}

static int gather(acomm_group *g, int rank, int turn, struct arrays a)
{
    for (int i = 0; i < COUNT; i++)
        a.own[i] = 7 * i + rank + turn;
    int wrong = RUN(g, ACOMM_ALL_GATHER, -1, .in = a.own, .out = a.all, .count = COUNT);
    for (int i = 0; i < 2 * COUNT; i++)
        wrong += a.all[i] != 7 * (i % COUNT) + i / COUNT + turn;
    return wrong;
}

static int goes_alike(acomm_group *g, int rank, int n)
{
    (void)n;
    struct choice *c = choice_for(g->choices[ACOMM_ALL_GATHER][COUNT * sizeof(int32_t) % SHARED_LINE != 0], BYTES);
    struct arrays a = make();
    int wrong = gather(g, rank, 0, a); /* they find that they reach each other */
    *c = (struct choice){.cost = {costs[rank][0], costs[rank][1]}, .tries = CHOICE_SELDOM}; /* a try of the best way */
    wrong += gather(g, rank, 1, a);
    CHECK_EQUAL(c->agreed, want);
    CHECK_EQUAL(c->moved, BYTES);
    drop(a);
    return wrong;
}

static void the_slower_rank_counts(void)
{
    static const struct { float cost[2][2]; int way; } CASES[] = {
        {{{1, 5}, {4, 2}}, TRIAL_SLOTS}, {{{1, 5}, {9, 2}}, TRIAL_DIRECT}, {{{3, 0}, {3, 0}}, TRIAL_DIRECT}};
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        memcpy(costs, CASES[i].cost, sizeof costs);
        want = CASES[i].way;
        run(2, goes_alike, 0);
    }
}

/* From nothing known on, through tries of every way. A rank whose tries of one were spoilt by the system goes by what the other has found. */
static _Atomic int learnt;

static int learns(acomm_group *g, int rank, int n)
{
    struct choice *c = choice_for(g->choices[ACOMM_ALL_GATHER][COUNT * sizeof(int32_t) % SHARED_LINE != 0], BYTES);
    struct arrays a = make();
    int wrong = n != 2, ways = 0;
    for (int turn = 0; c->tries < CHOICE_KNOWN + TRIAL_WAYS && !wrong; turn++) {
        wrong = gather(g, rank, turn, a);
        ways |= 1 << c->agreed;
    }
    CHECK_EQUAL(ways, 1 << TRIAL_SLOTS | 1 << TRIAL_DIRECT);
    for (int way = 0; way < TRIAL_WAYS; way++)
        atomic_fetch_or(&learnt, (c->cost[way] > 0) << way);
    drop(a);
    return wrong;
}

/* Results whose pages the system brings in during the call, every time: what that costs counts when all tries were so. */
static int learns_late(acomm_group *g, int rank, int n)
{
    struct choice *c = choice_for(g->choices[ACOMM_ALL_GATHER][COUNT * sizeof(int32_t) % SHARED_LINE != 0], BYTES);
    struct arrays a = make();
    int32_t *kept = a.all;
    int wrong = 0;
    for (int turn = 0; c->tries < CHOICE_KNOWN + TRIAL_WAYS && !wrong; turn++) {
        if (c->tries < CHOICE_KNOWN)
            CHECK(c->cost[TRIAL_SLOTS] == 0 && c->cost[TRIAL_DIRECT] == 0 && n == 2);
        a.all = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        wrong = a.all == MAP_FAILED || gather(g, rank, turn, a);
        munmap(a.all, BYTES);
    }
    CHECK(c->cost[TRIAL_SLOTS] > 0 && c->cost[TRIAL_DIRECT] > 0);
    a.all = kept;
    drop(a);
    return wrong;
}

static void every_way_is_tried(void)
{
    learnt = 0;
    run(2, learns, 0);
    CHECK_EQUAL(learnt, 1 << TRIAL_SLOTS | 1 << TRIAL_DIRECT);
}
static void new_memory_teaches_late(void) { run(2, learns_late, 0); }

int main(void)
{
    TEST(the_slower_rank_counts);
    TEST(every_way_is_tried);
    TEST(new_memory_teaches_late);
    return CHECK_RESULT();
}
