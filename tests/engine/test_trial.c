/* engine: all */
/* Two ranks that found different ways cheaper go the same way, by the slower one of each; and every way gives the same result. */
#include "group.h"
#define PIECE (512 << 10)
#include "shared_world.h"

#define COUNT 300000 /* int32 a rank: beyond what goes through slots without a trial */
#define BYTES (2 * COUNT * sizeof(int32_t))

static float costs[2][2]; /* of each rank, of each way */
static int want;

static int gather(acomm_group *g, int rank, int turn)
{
    int32_t *own = malloc(COUNT * sizeof *own), *all = malloc(BYTES);
    for (int i = 0; i < COUNT; i++)
        own[i] = 7 * i + rank + turn;
    int wrong = RUN(g, ACOMM_ALL_GATHER, -1, .in = P(own), .out = P(all), .count = COUNT);
    for (int i = 0; i < 2 * COUNT; i++)
        wrong += all[i] != 7 * (i % COUNT) + i / COUNT + turn;
    free(own);
    free(all);
    return wrong;
}

static int goes_alike(acomm_group *g, int rank, int n)
{
    (void)n;
    struct choice *c = choice_for(g->choices[ACOMM_ALL_GATHER], BYTES);
    int wrong = gather(g, rank, 0); /* they find that they reach each other */
    *c = (struct choice){.cost = {costs[rank][0], costs[rank][1]}, .tries = CHOICE_SELDOM}; /* a try of the best way */
    wrong += gather(g, rank, 1);
    CHECK_EQUAL(c->agreed, want);
    CHECK_EQUAL(c->moved, BYTES);
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

/* From nothing known on, through tries of every way. */
static int learns(acomm_group *g, int rank, int n)
{
    struct choice *c = choice_for(g->choices[ACOMM_ALL_GATHER], BYTES);
    int wrong = 0, ways = 0;
    for (int turn = 0; c->tries < TRIAL_WAYS * CHOICE_FIRST && !wrong; turn++) {
        wrong = gather(g, rank, turn);
        ways |= 1 << c->agreed;
    }
    CHECK_EQUAL(ways, 1 << TRIAL_SLOTS | 1 << TRIAL_DIRECT);
    CHECK(n == 2);
    return wrong;
}

static void every_way_is_tried(void) { run(2, learns, 0); }

int main(void)
{
    TEST(the_slower_rank_counts);
    TEST(every_way_is_tried);
    return CHECK_RESULT();
}
