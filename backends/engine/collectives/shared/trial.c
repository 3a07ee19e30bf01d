/* Begins and ends a trial of slots against single copies, which all ranks agree on; and chunks of long operations, each a trial. */
#include "collectives/shared/trial.h"

#include <sys/resource.h>

#include "base/clock.h"
#include "collectives/shared/rounds.h"

#define PAGE 4096u /* elements, too: a chunk begins as its array does in its page */
#define NEW ((uint64_t)4 << 20) /* an array with more than a fault in as many bytes is new: bringing its pages in, huge ones too, takes longer than
                                 * copying (2 ranks, all_gather of 64 MiB: 0.2 to 3 ns a byte instead of 0.1), and first calls would tell nothing
                                 * else. A program may have new ones in every call, so later they count */

/* What a rank says when a try begins. */
struct say {
    float cost[TRIAL_WAYS];      /* ns per byte; 0: not tried yet */
    uint32_t oversubscribed;            /* they are of processor time */
};

/* What a run costs a rank. Where ranks take turns on the cores that is processor time, which they share: who comes last finds
 * the arrays of all others, and is done in the time of its own copies, however long they had its core before. */
static int64_t spent(const struct acomm_group *g)
{
    return g->oversubscribed ? clock_spent() : clock_now();
}

/* Pages that the system has brought in for this thread, while they matter. */
static int64_t faults(const struct choice *c)
{
    struct rusage usage;
    return c->tries >= CHOICE_KNOWN || getrusage(RUSAGE_THREAD, &usage) ? 0 : usage.ru_minflt;
}

/* The same on all ranks: it depends on what all have said, and on counts that go in step. By the slowest rank, because who only
 * gives leaves slots long before who takes; by the sum of all, where that is what they share. */
static int trial_choose(const struct rounds *r, uint32_t try, uint64_t bytes)
{
    float costs[TRIAL_WAYS] = {0};
    struct say first, say;
    shared_copy(&first, rounds_slot(r, 0, sizeof first), sizeof first);
    for (int rank = 0; rank < r->ranks; rank++) {
        shared_copy(&say, rounds_slot(r, rank, sizeof say), sizeof say);
        for (int way = 0; way < TRIAL_WAYS; way++) {
            float most = say.cost[way] > costs[way] ? say.cost[way] : costs[way];
            costs[way] = first.oversubscribed ? costs[way] + say.cost[way] : most;
        }
    }
    return choice_way(try, bytes, costs, TRIAL_WAYS, CHOICE_SELDOM);
}

static int signature_check(struct rounds *r, struct choice *c, uint64_t bytes)
{
    struct say say = {.oversubscribed = r->op->group->oversubscribed};
    memcpy(say.cost, c->cost, sizeof say.cost);
    int rc = rounds_meet(r, &say, sizeof say);
    if (!rc)
        c->agreed = trial_choose(r, c->tries, bytes);
    return rc;
}

int trial_begin(struct trial *t, struct rounds *r, uint64_t bytes)
{
    struct acomm_group *g = r->op->group;
    uint64_t apart = r->op->stride ? r->op->stride : r->op->count, whole = r->op->stride ? bytes / r->op->count * apart : bytes;
    bool odd = apart * r->op->width % SHARED_LINE; /* blocks lie at different places in their pages, over which the kernel's copy may stumble */
    struct choice *c = choice_for(g->choices[r->op->kind][odd], whole);
    int rc = c->moved ? 0 : signature_check(r, c, bytes);
    *t = (struct trial){.choice = c, .bytes = bytes, .way = (enum trial_way)c->agreed};
    if (choice_counts(c, bytes)) {
        t->faults = faults(c);
        t->before = spent(g);
    }
    return rc;
}

void trial_end(const struct trial *t, const struct rounds *r)
{
    bool counts = choice_counts(t->choice, t->bytes);
    int64_t ns = counts ? spent(r->op->group) - t->before : 0;
    if (counts && faults(t->choice) - t->faults > (int64_t)(t->bytes / NEW))
        ns = CHOICE_SPOILT;
    choice_learn(t->choice, (int)t->way, t->bytes, ns, false);
}

/* ---- chunks ---- */

uint64_t chunks_of(const struct acomm_op *op, uint64_t bytes)
{
    bool even = !op->send_counts && !op->recv_counts;
    if (!even || op->whole || op->team->size != 2 || bytes < 2 * CHOICE_LONG)
        return 0;
    uint64_t count = op->count / (bytes / CHOICE_TRY);
    return (count + PAGE - 1) / PAGE * PAGE;
}

static struct acomm_op stretch_of(const struct acomm_op *op, uint64_t first, uint64_t count)
{
    const char *in = op->in ? op->in + first * op->width : NULL;
    char *out = op->out ? op->out + first * op->width : NULL;
    struct acomm_op chunk = part_of(op, op->team, op->kind, in, out, count);
    chunk.stride = op->count;
    chunk.root = op->root;
    chunk.algorithm = op->algorithm;
    return chunk;
}

int chunks_run(struct acomm_op *op, uint64_t bytes)
{
    uint64_t count = chunks_of(op, bytes);
    int rc = 0;
    for (uint64_t first = 0; first < op->count && !rc; first += count) {
        if (op->count - first < 2 * count)
            count = op->count - first;
        struct acomm_op chunk = stretch_of(op, first, count);
        rc = part_run_by(op, &chunk, op->algorithm->run);
        op->compared = chunk.compared;
    }
    return rc;
}
