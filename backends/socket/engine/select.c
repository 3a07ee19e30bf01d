/* The table: the first row of a kind that fits the layout, the ranks and the bytes wins; the last row of a kind that can
 * run anywhere has no limit. To add an algorithm: its file in collectives/, its line in collectives.h, a row here.
 * `arraycomm-bench tune --table` proposes the limits from measurements, last on 2 cores of a Zen 5, 2 and 4 ranks, 2026-11-22;
 * docs/benchmark.md says which were taken. ARRAYCOMM_TUNING puts a machine's own before them. */
#include "select.h"

#include <stdlib.h>
#include <string.h>

#include "collectives/collectives.h"
#include "group.h"

#define ALWAYS UINT64_MAX
#define MiB(n) ((uint64_t)(n) << 20)
#define KiB(n) ((uint64_t)(n) << 10)

/* kind, name, function, where, checks headers itself, bytes up to, ranks up to (0: any).
 * The rows of a kind stand together. Bytes are those of the whole array: all ranks' blocks together for the gathering and
 * scattering kinds. A step costs more than the bytes of many where ranks are NEAR, a turn of them all with more ranks than cores;
 * between more than two hosts bytes cost more, of which "bruck" sends up to n - 1 times as many (but where all are gathered),
 * "doubling" log2 n times and the root of "binomial" too. Rows behind one without a limit are for who tells or measures another choice. The order of reduction of
 * "whole", "sliced", "bruck", "records" and "pairwise" is that of the ranks, so their bits are the same. */
static const struct algorithm TABLE[] = {
    {ACOMM_ALL_REDUCE, "whole", shared_all_reduce_whole, ONE_HOST, true, KiB(16), 0},
    {ACOMM_ALL_REDUCE, "direct", direct_all_reduce, SYMMETRIC, true, ALWAYS, 0},
    {ACOMM_ALL_REDUCE, "whole", shared_all_reduce_whole, ONE_HOST, true, KiB(256), 2},
    {ACOMM_ALL_REDUCE, "sliced", shared_all_reduce_sliced, ONE_HOST, true, ALWAYS, 0},
    {ACOMM_ALL_REDUCE, "leader", hosts_reduce_leader, HOSTS, true, MiB(1), 0},
    {ACOMM_ALL_REDUCE, "leaders", hosts_reduce_leaders, HOSTS, true, ALWAYS, 0},
    {ACOMM_ALL_REDUCE, "bruck", all_reduce_bruck, ANYWHERE, true, KiB(512), 2},
    {ACOMM_ALL_REDUCE, "bruck", all_reduce_bruck, NEAR, true, KiB(192), 8},
    {ACOMM_ALL_REDUCE, "bruck", all_reduce_bruck, ANYWHERE, true, KiB(8), 8},
    {ACOMM_ALL_REDUCE, "bruck", all_reduce_bruck, ANYWHERE, true, KiB(2), 0},
    {ACOMM_ALL_REDUCE, "doubling", all_reduce_doubling, NEAR, false, KiB(64), 0},
    {ACOMM_ALL_REDUCE, "doubling", all_reduce_doubling, ANYWHERE, false, KiB(32), 0},
    {ACOMM_ALL_REDUCE, "pairwise", all_reduce_pairwise, ANYWHERE, true, ALWAYS, 8},
    {ACOMM_ALL_REDUCE, "halving", all_reduce_halving, ANYWHERE, false, KiB(512), 0},
    {ACOMM_ALL_REDUCE, "ring", all_reduce_ring, ANYWHERE, false, ALWAYS, 0},
    {ACOMM_REDUCE, "whole", shared_all_reduce_whole, ONE_HOST, true, KiB(256), 2},
    {ACOMM_REDUCE, "whole", shared_all_reduce_whole, ONE_HOST, true, KiB(96), 8},
    {ACOMM_REDUCE, "whole", shared_all_reduce_whole, ONE_HOST, true, KiB(16), 0},
    {ACOMM_REDUCE, "sliced", shared_all_reduce_sliced, ONE_HOST, true, ALWAYS, 0},
    {ACOMM_REDUCE, "leader", hosts_reduce_leader, HOSTS, true, MiB(1), 0},
    {ACOMM_REDUCE, "leaders", hosts_reduce_leaders, HOSTS, true, ALWAYS, 0},
    {ACOMM_REDUCE, "bruck", reduce_bruck, ANYWHERE, true, KiB(64), 2},
    {ACOMM_REDUCE, "binomial", reduce_binomial, ANYWHERE, false, ALWAYS, 2},
    {ACOMM_REDUCE, "bruck", reduce_bruck, NEAR, true, KiB(48), 8},
    {ACOMM_REDUCE, "binomial", reduce_binomial, ANYWHERE, false, MiB(2), 8},
    {ACOMM_REDUCE, "bruck", reduce_bruck, ANYWHERE, true, KiB(8), 0},
    {ACOMM_REDUCE, "binomial", reduce_binomial, ANYWHERE, false, KiB(64), 0},
    {ACOMM_REDUCE, "pairwise", reduce_pairwise, ANYWHERE, true, ALWAYS, 0},
    {ACOMM_BROADCAST, "shared", shared_broadcast, SYMMETRIC, true, KiB(8), 2},
    {ACOMM_BROADCAST, "direct", direct_broadcast, SYMMETRIC, true, ALWAYS, 2},
    {ACOMM_BROADCAST, "shared", shared_broadcast, SYMMETRIC, true, KiB(64), 0},
    {ACOMM_BROADCAST, "direct", direct_broadcast, SYMMETRIC, true, ALWAYS, 0},
    {ACOMM_BROADCAST, "shared", shared_broadcast, ONE_HOST, true, ALWAYS, 0},
    {ACOMM_BROADCAST, "direct", direct_broadcast, ONE_HOST, true, ALWAYS, 0},
    {ACOMM_BROADCAST, "records", broadcast_bruck, HOSTS, true, KiB(8), 0},
    {ACOMM_BROADCAST, "leaders", hosts_broadcast, HOSTS, false, ALWAYS, 0},
    {ACOMM_BROADCAST, "bruck", broadcast_bruck, ANYWHERE, true, KiB(64), 2},
    {ACOMM_BROADCAST, "bruck", broadcast_bruck, NEAR, true, KiB(48), 8},
    {ACOMM_BROADCAST, "bruck", broadcast_bruck, ANYWHERE, true, KiB(8), 0},
    {ACOMM_BROADCAST, "binomial", broadcast_binomial, ANYWHERE, false, KiB(256), 0},
    {ACOMM_BROADCAST, "chain", broadcast_chain, ANYWHERE, false, MiB(64), 0},
    {ACOMM_BROADCAST, "binomial", broadcast_binomial, NEAR, false, ALWAYS, 0},
    {ACOMM_BROADCAST, "chain", broadcast_chain, ANYWHERE, false, ALWAYS, 0},
    {ACOMM_ALL_GATHER, "shared", shared_all_gather, SYMMETRIC, true, KiB(8), 2},
    {ACOMM_ALL_GATHER, "direct", direct_all_gather, SYMMETRIC, true, ALWAYS, 2},
    {ACOMM_ALL_GATHER, "shared", shared_all_gather, SYMMETRIC, true, KiB(64), 0},
    {ACOMM_ALL_GATHER, "direct", direct_all_gather, SYMMETRIC, true, ALWAYS, 0},
    {ACOMM_ALL_GATHER, "shared", shared_all_gather, ONE_HOST, true, MiB(2), 2},
    {ACOMM_ALL_GATHER, "direct", direct_all_gather, ONE_HOST, true, ALWAYS, 2},
    {ACOMM_ALL_GATHER, "shared", shared_all_gather, ONE_HOST, true, ALWAYS, 0},
    {ACOMM_ALL_GATHER, "direct", direct_all_gather, ONE_HOST, true, ALWAYS, 0},
    {ACOMM_ALL_GATHER, "records", all_gather_bruck, HOSTS, true, KiB(64), 0},
    {ACOMM_ALL_GATHER, "leaders", hosts_all_gather, HOSTS, false, ALWAYS, 0},
    {ACOMM_ALL_GATHER, "bruck", all_gather_bruck, ANYWHERE, true, KiB(512), 2},
    {ACOMM_ALL_GATHER, "ring", all_gather_ring, ANYWHERE, false, ALWAYS, 2},
    {ACOMM_ALL_GATHER, "bruck", all_gather_bruck, ANYWHERE, true, MiB(2), 8},
    {ACOMM_ALL_GATHER, "bruck", all_gather_bruck, ANYWHERE, true, KiB(64), 0},
    {ACOMM_ALL_GATHER, "ring", all_gather_ring, ANYWHERE, false, ALWAYS, 0},
    {ACOMM_GATHER, "shared", shared_all_gather, SYMMETRIC, true, KiB(8), 2},
    {ACOMM_GATHER, "direct", direct_all_gather, SYMMETRIC, true, ALWAYS, 2},
    {ACOMM_GATHER, "shared", shared_all_gather, ONE_HOST, true, KiB(128), 0},
    {ACOMM_GATHER, "direct", direct_gather, ONE_HOST, true, ALWAYS, 0},
    {ACOMM_GATHER, "records", gather_bruck, HOSTS, true, KiB(8), 0},
    {ACOMM_GATHER, "bruck", gather_bruck, ANYWHERE, true, KiB(128), 2},
    {ACOMM_GATHER, "linear", gather_linear, ANYWHERE, false, ALWAYS, 2},
    {ACOMM_GATHER, "bruck", gather_bruck, ANYWHERE, true, KiB(128), 8},
    {ACOMM_GATHER, "bruck", gather_bruck, ANYWHERE, true, KiB(8), 0},
    {ACOMM_GATHER, "binomial", gather_binomial, ANYWHERE, false, KiB(64), 0},
    {ACOMM_GATHER, "linear", gather_linear, ANYWHERE, false, ALWAYS, 0},
    {ACOMM_SCATTER, "shared", shared_scatter, SYMMETRIC, true, KiB(8), 2},
    {ACOMM_SCATTER, "direct", direct_scatter, SYMMETRIC, true, ALWAYS, 2},
    {ACOMM_SCATTER, "shared", shared_scatter, ONE_HOST, true, KiB(64), 0},
    {ACOMM_SCATTER, "direct", direct_scatter, ONE_HOST, true, ALWAYS, 0},
    {ACOMM_SCATTER, "records", scatter_bruck, HOSTS, true, KiB(8), 0},
    {ACOMM_SCATTER, "bruck", scatter_bruck, ANYWHERE, true, KiB(64), 2},
    {ACOMM_SCATTER, "bruck", scatter_bruck, NEAR, true, KiB(48), 8},
    {ACOMM_SCATTER, "bruck", scatter_bruck, ANYWHERE, true, KiB(8), 0},
    {ACOMM_SCATTER, "binomial", scatter_binomial, ANYWHERE, false, KiB(64), 0},
    {ACOMM_SCATTER, "linear", scatter_linear, ANYWHERE, false, ALWAYS, 0},
    {ACOMM_REDUCE_SCATTER, "shared", shared_reduce_scatter, SYMMETRIC, true, KiB(8), 8},
    {ACOMM_REDUCE_SCATTER, "direct", direct_reduce_scatter, SYMMETRIC, true, ALWAYS, 0},
    {ACOMM_REDUCE_SCATTER, "shared", shared_reduce_scatter, ONE_HOST, true, ALWAYS, 0},
    {ACOMM_REDUCE_SCATTER, "records", reduce_scatter_bruck, HOSTS, true, KiB(8), 0},
    {ACOMM_REDUCE_SCATTER, "leaders", hosts_reduce_scatter, EVEN_HOSTS, true, ALWAYS, 0},
    {ACOMM_REDUCE_SCATTER, "bruck", reduce_scatter_bruck, NEAR, true, KiB(32), 8},
    {ACOMM_REDUCE_SCATTER, "bruck", reduce_scatter_bruck, ANYWHERE, true, KiB(8), 0},
    {ACOMM_REDUCE_SCATTER, "pairwise", reduce_scatter_pairwise, ANYWHERE, true, ALWAYS, 16},
    {ACOMM_REDUCE_SCATTER, "ring", reduce_scatter_ring, ANYWHERE, false, ALWAYS, 0},
    {ACOMM_ALL_TO_ALL, "shared", shared_all_to_all, SYMMETRIC, true, KiB(8), 2},
    {ACOMM_ALL_TO_ALL, "direct", direct_all_to_all, SYMMETRIC, true, ALWAYS, 2},
    {ACOMM_ALL_TO_ALL, "shared", shared_all_to_all, SYMMETRIC, true, KiB(32), 8},
    {ACOMM_ALL_TO_ALL, "direct", direct_all_to_all, SYMMETRIC, true, ALWAYS, 8},
    {ACOMM_ALL_TO_ALL, "shared", shared_all_to_all, SYMMETRIC, true, KiB(64), 0},
    {ACOMM_ALL_TO_ALL, "direct", direct_all_to_all, SYMMETRIC, true, ALWAYS, 0},
    {ACOMM_ALL_TO_ALL, "shared", shared_all_to_all, ONE_HOST, true, KiB(128), 2},
    {ACOMM_ALL_TO_ALL, "direct", direct_all_to_all, ONE_HOST, true, ALWAYS, 2},
    {ACOMM_ALL_TO_ALL, "shared", shared_all_to_all, ONE_HOST, true, MiB(2), 0},
    {ACOMM_ALL_TO_ALL, "direct", direct_all_to_all, ONE_HOST, true, ALWAYS, 0},
    {ACOMM_ALL_TO_ALL, "records", all_to_all_bruck, HOSTS, true, KiB(16), 0},
    {ACOMM_ALL_TO_ALL, "bruck", all_to_all_bruck, NEAR, true, KiB(48), 8},
    {ACOMM_ALL_TO_ALL, "bruck", all_to_all_bruck, ANYWHERE, true, KiB(8), 0},
    {ACOMM_ALL_TO_ALL, "pairwise", all_to_all_pairwise, ANYWHERE, true, ALWAYS, 0},
    {ACOMM_BARRIER, "shared", shared_barrier, ONE_HOST, true, ALWAYS, 0},
    {ACOMM_BARRIER, "dissemination", barrier_dissemination, ANYWHERE, true, ALWAYS, 0},
    {ACOMM_RECV, "staged", NULL, ANYWHERE, true, ALWAYS, 0}, /* how long messages come, see p2p_offer.c */
    {ACOMM_RECV, "read", NULL, ANYWHERE, true, ALWAYS, 0},
};
#define ROWS (sizeof TABLE / sizeof *TABLE)
_Static_assert(KiB(128) == DIRECT_FROM && MiB(2) == DIRECT_EXCHANGE_FROM,
               "the rows of all_gather and all_to_all, where some have symmetric arrays too");

static const char *const KINDS[ACOMM_KINDS] = {"all_reduce", "reduce", "broadcast", "all_gather", "gather", "scatter",
                                               "reduce_scatter", "all_to_all", "barrier", "send", "recv"};

static bool equal(const char *name, const char *text, size_t length)
{
    return strlen(name) == length && !memcmp(name, text, length);
}

/* A row of the table by its names, or NULL; of several the one that runs in most places. */
static const struct algorithm *find(const char *kind, size_t kind_length, const char *name, size_t name_length)
{
    const struct algorithm *found = NULL;
    for (const struct algorithm *a = TABLE; a < TABLE + ROWS; a++)
        if (equal(KINDS[a->kind], kind, kind_length) && equal(a->name, name, name_length) && (!found || a->where < found->where))
            found = a;
    return found;
}

/* Takes "all_reduce=whole:4096" or "all_reduce=ring" from a list. Returns what follows; NULL where it names no row: a typing
 * mistake must not run something else. */
static const char *take(const char *list, struct pick *out, bool *limited)
{
    size_t kind = strcspn(list, "=,");
    const char *name = list + kind + (list[kind] == '='), *end = name + strcspn(name, ":,");
    *limited = *end == ':';
    out->algorithm = find(list, kind, name, (size_t)(end - name));
    out->up_to = ALWAYS;
    if (*limited) {
        char *after;
        out->up_to = strtoull(end + 1, &after, 10);
        end = after == end + 1 ? NULL : after;
    }
    if (!out->algorithm || !end || (*end && *end != ','))
        return NULL;
    return end + (*end == ',');
}

/* How many items a list has; negative: ACOMM_ARGUMENT. forced: where to note those without a limit, or NULL. */
static int check(const char *list, const struct algorithm **forced)
{
    struct pick pick;
    bool limited;
    int items = 0;
    for (; list && *list; items++) {
        if (!(list = take(list, &pick, &limited)))
            return ACOMM_ARGUMENT;
        if (forced && !limited)
            forced[pick.algorithm->kind] = pick.algorithm;
    }
    return items;
}

static bool runs_here(const struct acomm_group *g, const struct team *team, const struct algorithm *a, bool symmetric)
{
    switch (a->where) {
    case ANYWHERE: return true;
    case NEAR: return g->loopback || team->size <= 2;
    case ONE_HOST: return team->place == TEAM_HOST;
    case SYMMETRIC: return team->place == TEAM_HOST && symmetric;
    case HOSTS: return team->place == TEAM_HOSTS;
    case EVEN_HOSTS: return team->place == TEAM_HOSTS && g->hosts.least == g->hosts.most;
    }
    return false;
}

/* What picks are gathered for. The functions below write them at `next` and return their end. */
struct want { const struct acomm_group *g; int kind; bool symmetric; };

static struct pick *from_list(struct pick *next, struct want want, const char *list)
{
    while (list && *list) {
        bool limited;
        list = take(list, next, &limited);
        next += next->algorithm->kind == want.kind && runs_here(want.g, &want.g->hosts.all, next->algorithm, want.symmetric);
    }
    return next;
}

static struct pick *from_table(struct pick *next, struct want want)
{
    for (const struct algorithm *a = TABLE; a < TABLE + ROWS; a++)
        if (a->kind == want.kind && runs_here(want.g, &want.g->hosts.all, a, want.symmetric)
            && (!a->max_ranks || want.g->size <= a->max_ranks))
            *next++ = (struct pick){a->up_to, a};
    return next;
}

static bool ends(const struct pick *first, const struct pick *next)
{
    return next > first && next[-1].up_to == ALWAYS;
}

int select_open(struct acomm_group *g, const char *algorithms, const char *tuned[2])
{
    struct selection *s = &g->selection;
    int items[3] = {check(algorithms, s->forced), check(tuned[0], NULL), check(tuned[1], NULL)};
    if (items[0] < 0 || items[1] < 0 || items[2] < 0)
        return ACOMM_ARGUMENT;
    /* One more than can be picked: an item is written before it is known to be of the kind. */
    s->picks = malloc((2 * (ROWS + (size_t)items[0]) + (size_t)items[1] + (size_t)items[2] + 1) * sizeof *s->picks);
    if (!s->picks)
        return ACOMM_RESOURCE;
    struct pick *next = s->picks;
    for (int symmetric = 0; symmetric < 2; symmetric++)
        for (int kind = 0; kind < ACOMM_SEND; kind++) {
            struct want want = {g, kind, symmetric};
            struct pick *first = next;
            s->first[symmetric][kind] = first;
            next = from_list(next, want, algorithms);
            if (!ends(first, next))
                next = from_list(next, want, tuned[symmetric]);
            if (!ends(first, next))
                next = from_table(next, want);
        }
    return 0;
}

void select_close(struct selection *s)
{
    free(s->picks);
    s->picks = NULL;
}

static uint64_t whole_bytes(const struct acomm_op *op)
{
    bool whole = op->kind == ACOMM_ALL_REDUCE || op->kind == ACOMM_REDUCE || op->kind == ACOMM_BROADCAST;
    if (op->kind == ACOMM_ALL_TO_ALL && op->send_counts)
        return ALWAYS; /* each rank's own counts: ranks must not choose by them */
    return whole ? op->count * op->width
                 : op_total(op->kind == ACOMM_ALL_GATHER ? op->recv_counts : op->send_counts, op->count, op->team->size,
                            op->width);
}

/* By the table itself: for parts of an operation, whose teams are other than the group. */
static const struct algorithm *of_part(const struct acomm_group *g, const struct acomm_op *op)
{
    uint64_t bytes = whole_bytes(op);
    for (const struct algorithm *a = TABLE; a < TABLE + ROWS; a++)
        if (a->kind == op->kind && bytes <= a->up_to && runs_here(g, op->team, a, g->direct.symmetric)
            && (!a->max_ranks || op->team->size <= a->max_ranks))
            return a;
    return NULL; /* every kind ends with an unlimited row, so only a point-to-point kind comes here */
}

const struct algorithm *select_algorithm(const struct acomm_group *g, const struct acomm_op *op)
{
    if (op->whole)
        return of_part(g, op);
    const struct pick *pick = g->selection.first[g->direct.symmetric][op->kind];
    uint64_t bytes = whole_bytes(op);
    while (bytes > pick->up_to)
        pick++;
    return pick->algorithm;
}

const char *select_kind_name(int kind)
{
    return kind >= 0 && kind < ACOMM_KINDS ? KINDS[kind] : "unknown";
}

int select_row(size_t row, acomm_row *out)
{
    if (row >= ROWS)
        return 0;
    const struct algorithm *a = &TABLE[row];
    *out = (acomm_row){KINDS[a->kind], a->name, (int)a->where, a->max_ranks, a->up_to};
    return 1;
}
