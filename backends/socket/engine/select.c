/* The table: the first row of a kind that fits the layout, the ranks and the bytes wins; the last row of a kind that can
 * run anywhere has no limit. To add an algorithm: its file in collectives/, its line in collectives.h, a row here. */
#include "select.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "collectives/collectives.h"
#include "group.h"

#define ALWAYS UINT64_MAX
#define MiB(n) ((uint64_t)(n) << 20)
#define KiB(n) ((uint64_t)(n) << 10)

/* kind, name, function, where, checks headers itself, bytes up to, ranks up to (0: any).
 * The rows of a kind stand together. Bytes are those of the whole array: all ranks' blocks together for the gathering and
 * scattering kinds. The order of reduction of "whole", "sliced", "bruck", "records" and "pairwise" is that of the ranks, so
 * their bits are the same. */
static const struct algorithm TABLE[] = {
    {ACOMM_ALL_REDUCE, "whole", shared_all_reduce_whole, ONE_HOST, true, KiB(16), 0},
    {ACOMM_ALL_REDUCE, "direct", direct_all_reduce, SYMMETRIC, true, ALWAYS, 0},
    {ACOMM_ALL_REDUCE, "whole", shared_all_reduce_whole, ONE_HOST, true, MiB(4), 2},
    {ACOMM_ALL_REDUCE, "sliced", shared_all_reduce_sliced, ONE_HOST, true, ALWAYS, 0},
    {ACOMM_ALL_REDUCE, "leader", hosts_reduce_leader, HOSTS, true, MiB(1), 0},
    {ACOMM_ALL_REDUCE, "leaders", hosts_reduce_leaders, HOSTS, true, ALWAYS, 0},
    {ACOMM_ALL_REDUCE, "bruck", all_reduce_bruck, ANYWHERE, true, KiB(64), 8},
    {ACOMM_ALL_REDUCE, "bruck", all_reduce_bruck, ANYWHERE, true, KiB(2), 0},
    {ACOMM_ALL_REDUCE, "doubling", all_reduce_doubling, ANYWHERE, false, KiB(64), 0},
    {ACOMM_ALL_REDUCE, "pairwise", all_reduce_pairwise, ANYWHERE, false, ALWAYS, 8},
    {ACOMM_ALL_REDUCE, "halving", all_reduce_halving, ANYWHERE, false, KiB(512), 0},
    {ACOMM_ALL_REDUCE, "ring", all_reduce_ring, ANYWHERE, false, ALWAYS, 0},
    {ACOMM_REDUCE, "whole", shared_all_reduce_whole, ONE_HOST, true, KiB(16), 0},
    {ACOMM_REDUCE, "sliced", shared_all_reduce_sliced, ONE_HOST, true, ALWAYS, 0},
    {ACOMM_REDUCE, "leader", hosts_reduce_leader, HOSTS, true, MiB(1), 0},
    {ACOMM_REDUCE, "leaders", hosts_reduce_leaders, HOSTS, true, ALWAYS, 0},
    {ACOMM_REDUCE, "bruck", reduce_bruck, ANYWHERE, true, KiB(8), 0},
    {ACOMM_REDUCE, "binomial", reduce_binomial, ANYWHERE, false, KiB(64), 0},
    {ACOMM_REDUCE, "pairwise", reduce_pairwise, ANYWHERE, false, ALWAYS, 0},
    {ACOMM_BROADCAST, "shared", shared_broadcast, ONE_HOST, true, KiB(64), 0},
    {ACOMM_BROADCAST, "direct", direct_broadcast, ONE_HOST, true, ALWAYS, 0},
    {ACOMM_BROADCAST, "records", broadcast_bruck, HOSTS, true, KiB(8), 0},
    {ACOMM_BROADCAST, "leaders", hosts_broadcast, HOSTS, false, ALWAYS, 0},
    {ACOMM_BROADCAST, "bruck", broadcast_bruck, ANYWHERE, true, KiB(8), 0},
    {ACOMM_BROADCAST, "binomial", broadcast_binomial, ANYWHERE, false, KiB(256), 0},
    {ACOMM_BROADCAST, "chain", broadcast_chain, ANYWHERE, false, ALWAYS, 0},
    {ACOMM_ALL_GATHER, "shared", shared_all_gather, ONE_HOST, true, KiB(64), 0},
    {ACOMM_ALL_GATHER, "direct", direct_all_gather, ONE_HOST, true, ALWAYS, 0},
    {ACOMM_ALL_GATHER, "records", all_gather_bruck, HOSTS, true, KiB(64), 0},
    {ACOMM_ALL_GATHER, "leaders", hosts_all_gather, HOSTS, false, ALWAYS, 0},
    {ACOMM_ALL_GATHER, "bruck", all_gather_bruck, ANYWHERE, true, KiB(64), 0},
    {ACOMM_ALL_GATHER, "ring", all_gather_ring, ANYWHERE, false, ALWAYS, 0},
    {ACOMM_GATHER, "shared", shared_all_gather, ONE_HOST, true, KiB(64), 0},
    {ACOMM_GATHER, "direct", direct_gather, ONE_HOST, true, ALWAYS, 0},
    {ACOMM_GATHER, "records", gather_bruck, HOSTS, true, KiB(8), 0},
    {ACOMM_GATHER, "bruck", gather_bruck, ANYWHERE, true, KiB(8), 0},
    {ACOMM_GATHER, "binomial", gather_binomial, ANYWHERE, false, KiB(64), 0},
    {ACOMM_GATHER, "linear", gather_linear, ANYWHERE, false, ALWAYS, 0},
    {ACOMM_SCATTER, "shared", shared_scatter, ONE_HOST, true, KiB(64), 0},
    {ACOMM_SCATTER, "direct", direct_scatter, ONE_HOST, true, ALWAYS, 0},
    {ACOMM_SCATTER, "records", scatter_bruck, HOSTS, true, KiB(8), 0},
    {ACOMM_SCATTER, "bruck", scatter_bruck, ANYWHERE, true, KiB(8), 0},
    {ACOMM_SCATTER, "binomial", scatter_binomial, ANYWHERE, false, KiB(64), 0},
    {ACOMM_SCATTER, "linear", scatter_linear, ANYWHERE, false, ALWAYS, 0},
    {ACOMM_REDUCE_SCATTER, "direct", direct_reduce_scatter, SYMMETRIC, true, ALWAYS, 0},
    {ACOMM_REDUCE_SCATTER, "shared", shared_reduce_scatter, ONE_HOST, true, ALWAYS, 0},
    {ACOMM_REDUCE_SCATTER, "records", reduce_scatter_bruck, HOSTS, true, KiB(8), 0},
    {ACOMM_REDUCE_SCATTER, "leaders", hosts_reduce_scatter, EVEN_HOSTS, true, ALWAYS, 0},
    {ACOMM_REDUCE_SCATTER, "bruck", reduce_scatter_bruck, ANYWHERE, true, KiB(8), 0},
    {ACOMM_REDUCE_SCATTER, "pairwise", reduce_scatter_pairwise, ANYWHERE, false, ALWAYS, 16},
    {ACOMM_REDUCE_SCATTER, "ring", reduce_scatter_ring, ANYWHERE, false, ALWAYS, 0},
    {ACOMM_ALL_TO_ALL, "shared", shared_all_to_all, ONE_HOST, true, KiB(64), 0},
    {ACOMM_ALL_TO_ALL, "direct", direct_all_to_all, ONE_HOST, true, ALWAYS, 0},
    {ACOMM_ALL_TO_ALL, "records", all_to_all_bruck, HOSTS, true, KiB(16), 0},
    {ACOMM_ALL_TO_ALL, "bruck", all_to_all_bruck, ANYWHERE, true, KiB(8), 0},
    {ACOMM_ALL_TO_ALL, "pairwise", all_to_all_pairwise, ANYWHERE, false, ALWAYS, 0},
    {ACOMM_BARRIER, "shared", shared_barrier, ONE_HOST, true, ALWAYS, 0},
    {ACOMM_BARRIER, "dissemination", barrier_dissemination, ANYWHERE, true, ALWAYS, 0},
    {ACOMM_RECV, "staged", NULL, ANYWHERE, true, ALWAYS, 0}, /* how long messages come, see p2p_offer.c */
    {ACOMM_RECV, "read", NULL, ANYWHERE, true, ALWAYS, 0},
};
#define ROWS (sizeof TABLE / sizeof *TABLE)

static const char *const KINDS[ACOMM_KINDS] = {"all_reduce", "reduce", "broadcast", "all_gather", "gather", "scatter",
                                               "reduce_scatter", "all_to_all", "barrier", "send", "recv"};

static bool equal(const char *name, const char *text, size_t length)
{
    return strlen(name) == length && !memcmp(name, text, length);
}

/* One "all_reduce=ring". A name that fits no row is an error: a typing mistake must not run something else. */
static int force(struct selection *s, const char *text, size_t length)
{
    const char *sign = memchr(text, '=', length);
    bool found = false;
    for (size_t row = 0; sign && row < ROWS; row++) {
        const struct algorithm *a = &TABLE[row];
        if (!equal(KINDS[a->kind], text, (size_t)(sign - text))
            || !equal(a->name, sign + 1, (size_t)(text + length - sign - 1)))
            continue;
        s->forced[a->kind] = a;
        found = true;
    }
    return found ? 0 : ACOMM_ARGUMENT;
}

/* One "all_reduce.doubling=4096". */
static int limit(struct selection *s, const char *text, size_t length)
{
    const char *dot = memchr(text, '.', length), *sign = memchr(text, '=', length);
    bool found = false;
    for (size_t row = 0; dot && sign && dot < sign && row < ROWS; row++) {
        const struct algorithm *a = &TABLE[row];
        if (!equal(KINDS[a->kind], text, (size_t)(dot - text)) || !equal(a->name, dot + 1, (size_t)(sign - dot - 1)))
            continue;
        s->up_to[row] = strtoull(sign + 1, NULL, 10);
        found = true;
    }
    return found ? 0 : ACOMM_ARGUMENT;
}

static int each(struct selection *s, const char *list, int (*apply)(struct selection *, const char *, size_t))
{
    int rc = 0;
    while (list && *list && !rc) {
        size_t length = strcspn(list, ",");
        if (length)
            rc = apply(s, list, length);
        list += length;
        if (*list == ',')
            list++;
    }
    return rc;
}

int select_open(struct selection *s, const char *algorithms, const char *thresholds)
{
    *s = (struct selection){.up_to = malloc(ROWS * sizeof *s->up_to)};
    if (!s->up_to)
        return ACOMM_RESOURCE;
    for (size_t row = ROWS; row-- > 0;) {
        s->up_to[row] = TABLE[row].up_to;
        s->first[TABLE[row].kind] = row;
    }
    int rc = each(s, thresholds, limit);
    return rc ? rc : each(s, algorithms, force);
}

void select_close(struct selection *s)
{
    free(s->up_to);
    s->up_to = NULL;
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

static bool runs_here(const struct acomm_group *g, const struct team *team, const struct algorithm *a)
{
    switch (a->where) {
    case ANYWHERE: return true;
    case ONE_HOST: return team->place == TEAM_HOST;
    case SYMMETRIC: return team->place == TEAM_HOST && g->direct.symmetric;
    case HOSTS: return team->place == TEAM_HOSTS;
    case EVEN_HOSTS: return team->place == TEAM_HOSTS && g->hosts.least == g->hosts.most;
    }
    return false;
}

const struct algorithm *select_algorithm(const struct acomm_group *g, const struct acomm_op *op)
{
    const struct algorithm *forced = op->whole ? NULL : g->selection.forced[op->kind];
    if (forced && runs_here(g, op->team, forced))
        return forced;
    uint64_t bytes = whole_bytes(op);
    for (size_t row = g->selection.first[op->kind]; row < ROWS && TABLE[row].kind == op->kind; row++) {
        const struct algorithm *a = &TABLE[row];
        bool fits = runs_here(g, op->team, a) && bytes <= g->selection.up_to[row]
            && (!a->max_ranks || op->team->size <= a->max_ranks);
        if (fits)
            return a;
    }
    return NULL; /* every kind ends with an unlimited row, so only a point-to-point kind comes here */
}

const char *select_kind_name(int kind)
{
    return kind >= 0 && kind < ACOMM_KINDS ? KINDS[kind] : "unknown";
}

int select_name(size_t row, const char **kind, const char **name)
{
    if (row >= ROWS)
        return 0;
    *kind = KINDS[TABLE[row].kind];
    *name = TABLE[row].name;
    return 1;
}
