#include "trial.h"

#include "clock.h"
#include "collectives/shared_rounds.h"
#include "group.h"

/* What a rank says when a try begins. */
struct say {
    float cost[TRIAL_WAYS];      /* ns per byte; 0: not tried yet */
    uint32_t crowded;            /* they are of processor time */
};

/* What a run costs a rank. Where ranks take turns on the cores that is processor time, which they share: who comes last finds
 * the arrays of all others, and is done in the time of its own copies, however long they had its core before. */
static int64_t spent(const struct acomm_group *g)
{
    return g->crowded ? clock_spent() : clock_now();
}

/* The same on all ranks: it depends on what all have said, and on counts that go in step. By the slowest rank, because who only
 * gives leaves slots long before who takes; by the sum of all, where that is what they share. */
static int choose(const struct rounds *r, uint32_t try, uint64_t bytes, int ways)
{
    float costs[TRIAL_WAYS] = {0};
    struct say first, say;
    memcpy(&first, rounds_slot(r, 0, sizeof first), sizeof first);
    for (int rank = 0; rank < r->ranks; rank++) {
        memcpy(&say, rounds_slot(r, rank, sizeof say), sizeof say);
        for (int way = 0; way < ways; way++) {
            float most = say.cost[way] > costs[way] ? say.cost[way] : costs[way];
            costs[way] = first.crowded ? costs[way] + say.cost[way] : most;
        }
    }
    return choice_way(try, bytes, costs, ways);
}

static int agree(struct rounds *r, struct choice *c, uint64_t bytes, int ways)
{
    struct say say = {.crowded = r->op->group->crowded};
    memcpy(say.cost, c->cost, sizeof say.cost);
    int rc = rounds_meet(r, &say, sizeof say);
    if (!rc)
        c->agreed = choose(r, c->tries, bytes, ways);
    return rc;
}

int trial_begin(struct trial *t, struct rounds *r, uint64_t bytes, bool direct)
{
    struct acomm_group *g = r->op->group;
    int slots = r->ranks == 2 ? TRIAL_SLOTS : 1, ways = slots + direct;
    uint64_t whole = r->op->stride ? bytes / r->op->count * r->op->stride : bytes;
    struct choice *c = choice_for(g->choices[r->op->kind], whole);
    bool under_way = c->moved && c->agreed < ways; /* it was begun with more ways than there are now */
    int rc = under_way ? 0 : agree(r, c, bytes, ways);
    *t = (struct trial){.choice = c, .bytes = bytes, .way = c->agreed, .direct = c->agreed == slots, .stores = STREAM_TRIED,
                        .before = choice_counts(c, bytes) ? spent(g) : 0};
    if (slots == TRIAL_SLOTS)
        t->stores = t->way == TRIAL_PAST ? STREAM_PAST : STREAM_KEPT;
    return rc;
}

void trial_end(const struct trial *t, const struct rounds *r)
{
    int64_t now = choice_counts(t->choice, t->bytes) ? spent(r->op->group) : 0;
    choice_learn(t->choice, t->way, t->bytes, now - t->before);
}
