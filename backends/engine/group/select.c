/* Chooses a group's algorithms by bytes, from its options, the selection file, and the table of all algorithms
 * (collectives/table.h), and runs them. */
#include "group/select.h"

#include <stdlib.h>

#include "group/signature.h"
#include "reduce/reduce.h"

#define ALWAYS UINT64_MAX

static bool equal(const char *name, const char *text, size_t length)
{
    return strlen(name) == length && !memcmp(name, text, length);
}

/* A row of the table by its names, or NULL; of several the one that runs in most places. */
static const struct algorithm *select_find(const struct algorithm *table, const char *kind, size_t kind_length, const char *name, size_t name_length)
{
    const struct algorithm *found = NULL;
    for (const struct algorithm *a = table; a->name; a++)
        if (equal(acomm_operations[a->kind].name, kind, kind_length) && equal(a->name, name, name_length) && (!found || a->where < found->where))
            found = a;
    return found;
}

/* Takes "all_reduce=whole:4096" or "all_reduce=ring" from a list. Returns what follows; NULL where it names no row: a typing
 * mistake must not run something else. */
static const char *select_take(const struct algorithm *table, const char *list, struct pick *out, bool *limited)
{
    size_t kind = strcspn(list, "=,");
    const char *name = list + kind + (list[kind] == '='), *end = name + strcspn(name, ":,");
    *limited = *end == ':';
    out->algorithm = select_find(table, list, kind, name, (size_t)(end - name));
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

/* How many items a list has; negative: ACOMM_ARGUMENT. forced: receives the items without a limit, or NULL. */
static int select_check(const struct algorithm *table, const char *list, const struct algorithm **forced)
{
    struct pick pick;
    bool limited;
    int items = 0;
    for (; list && *list; items++) {
        if (!(list = select_take(table, list, &pick, &limited)))
            return ACOMM_ARGUMENT;
        if (forced && !limited)
            forced[pick.algorithm->kind] = pick.algorithm;
    }
    return items;
}

static bool select_runs_here(const struct acomm_group *g, const struct team *team, const struct algorithm *a, bool symmetric)
{
    switch (a->where) {
    case ANYWHERE: return true;
    case NEAR: return g->loopback || team->size <= 2;
    case ONE_HOST: return team->place == TEAM_HOST;
    case SYMMETRIC: return team->place == TEAM_HOST && symmetric;
    case HOSTS: return team->place == TEAM_HOSTS;
    case EVEN_HOSTS: return team->place == TEAM_HOSTS && g->hosts.least == g->hosts.most;
    case FABRIC: return g->fabric && g->fabric->collective;
    case DEDICATED: return team->place == TEAM_HOST && !g->oversubscribed;
    case DEDICATED_NEAR: return g->loopback && !g->oversubscribed;
    }
    return false;
}

/* What picks are gathered for. The functions below write them at `next` and return their end. */
struct want { const struct acomm_group *g; int kind; bool symmetric; };

static struct pick *from_list(struct pick *next, struct want want, const char *list)
{
    while (list && *list) {
        bool limited;
        list = select_take(want.g->above->algorithms, list, next, &limited);
        next += next->algorithm->kind == want.kind && select_runs_here(want.g, &want.g->hosts.all, next->algorithm, want.symmetric);
    }
    return next;
}

static struct pick *from_table(struct pick *next, struct want want)
{
    for (const struct algorithm *a = want.g->above->algorithms; a->name; a++)
        if (a->kind == want.kind && select_runs_here(want.g, &want.g->hosts.all, a, want.symmetric)
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
    const struct algorithm *table = g->above->algorithms;
    int items[3] = {select_check(table, algorithms, s->forced), select_check(table, tuned[0], NULL), select_check(table, tuned[1], NULL)};
    size_t rows = 0;
    while (table[rows].name)
        rows++;
    if (items[0] < 0 || items[1] < 0 || items[2] < 0)
        return ACOMM_ARGUMENT;
    /* One more than can be picked: an item is written before it is known to be of the kind. */
    s->picks = malloc((2 * (rows + (size_t)items[0]) + (size_t)items[1] + (size_t)items[2] + 1) * sizeof *s->picks);
    if (!s->picks)
        return ACOMM_RESOURCE;
    struct pick *next = s->picks;
    for (int symmetric = 0; symmetric < 2; symmetric++)
        for (int kind = 0; kind < ACOMM_KINDS; kind++) {
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

static uint64_t select_whole_bytes(const struct acomm_op *op)
{
    int array = op_array(op);
    if (array == ACOMM_WHOLE)
        return op->count * op->width;
    if (array == ACOMM_EXCHANGES && op->send_counts)
        return ALWAYS; /* counts differ between ranks: they must not decide the choice */
    return op_total(array == ACOMM_JOINS ? op->recv_counts : op->send_counts, op->count, op->team->size, op->width);
}

/* By the table itself: for parts of an operation, whose teams are other than the group. */
static const struct algorithm *by_table(const struct acomm_group *g, const struct acomm_op *op)
{
    uint64_t bytes = select_whole_bytes(op);
    for (const struct algorithm *a = g->above->algorithms; a->name; a++)
        if (a->kind == op->kind && bytes <= a->up_to && select_runs_here(g, op->team, a, g->direct.symmetric)
            && (!a->max_ranks || op->team->size <= a->max_ranks))
            return a;
    return NULL; /* every kind ends with an unlimited row, so only a point-to-point kind comes here */
}

const struct algorithm *select_algorithm(const struct acomm_group *g, const struct acomm_op *op)
{
    if (op->whole)
        return by_table(g, op);
    const char *name = op->gpu && g->fabric ? acomm_operations[op->kind].name : NULL;
    if (name)
        return select_find(g->above->algorithms, name, strlen(name), "library", 7);
    const struct pick *pick = g->selection.first[g->direct.symmetric][op->kind];
    uint64_t bytes = select_whole_bytes(op);
    while (bytes > pick->up_to)
        pick++;
    return pick->algorithm;
}

/* A team of one: the result is a copy, with what the reduction does to a single contribution. */
static int run_alone(const struct acomm_op *op)
{
    uint64_t elements = op->count ? op->count : op->send_counts ? op->send_counts[0]
                                          : op->recv_counts     ? op->recv_counts[0] : 0;
    bool scaled = op_reduces(op) && (op->redop == ACOMM_PREMUL_SUM || op->dtype == ACOMM_BOOL);
    if (!op->out || !elements)
        return 0;
    uint64_t place = op->places ? op->places[0] * op->width : 0;
    const char *in = op->in + (op_array(op) == ACOMM_CUTS ? place : 0);
    char *out = op->out + (op_array(op) == ACOMM_JOINS ? place : 0);
    int contributions = op_inputs(op, 0, 1);
    if (scaled || !contributions) {
        struct reduction r = {.dtype = op->dtype, .redop = op->redop, .factor = op->factor, .ranks = 1};
        const void *inputs = in;
        reduce_all(&r, out, &inputs, contributions, elements);
    } else if (out != in) {
        memcpy(out, in, elements * op->width);
    }
    return 0;
}

/* Whether the algorithm compares call signatures while it runs, and has the common first step of all calls in this team. */
static bool begins_right(const struct acomm_op *op)
{
    const struct algorithm *a = op->algorithm;
    enum team_place place = op->team->place;
    return (a->does & CHECKS) && (place == TEAM_APART || (place == TEAM_HOST ? select_in_memory(a) : select_spans_hosts(a)));
}

/* A rank that learns of a mismatch later must not have written half of its array by then, so this is for short arrays only. Of
 * two ranks, the other one compares before it writes. */
static bool select_goes_ahead(const struct acomm_op *op)
{
    return (op->algorithm->does & AHEAD) && !op->whole && op->team->place == TEAM_APART
        && (op->team->size == 2 || select_whole_bytes(op) <= SIGNATURE_AHEAD_BYTES);
}

static int run_by(struct acomm_op *op, const struct algorithm *algorithm)
{
    struct acomm_group *g = op->group;
    op->algorithm = algorithm;
    if (!select_in_memory(algorithm))
        op_release_lock(op); /* it waits in parts, and for links that others make */
    bool checks = !begins_right(op) && g->check && !op->compared;
    int rc = !checks ? 0 : select_goes_ahead(op) ? signature_ahead(op) : signature_check(op);
    rc = rc ? rc : op->algorithm->run(op);
    if (!rc && !op->ahead && !op->whole)
        g->signatures.compared = g->signatures.called;
    return rc || !op->owes ? rc : signature_send(op); /* without elements no message has carried the signature */
}

int select_run(struct acomm_op *op)
{
    return op->team->size == 1 ? run_alone(op) : run_by(op, select_algorithm(op->group, op));
}

int select_run_own(struct acomm_op *op)
{
    return run_by(op, by_table(op->group, op));
}

/* ---- parts ---- */

struct acomm_op part_of(const struct acomm_op *op, const struct team *team, int kind, const void *in, void *out,
                        uint64_t count)
{
    return (struct acomm_op){.group = op->group, .team = team, .whole = op, .kind = kind, .in = in, .out = out,
                             .count = count, .dtype = op->dtype, .redop = op->redop, .factor = op->factor,
                             .width = op->width, .root = -1, .sequence = op->sequence, .timeout = op->timeout,
                             .peer = -1, .synchronous = op->synchronous};
}

int part_run_by(struct acomm_op *op, struct acomm_op *part, int (*run)(struct acomm_op *part))
{
    op_begin(op);
    part->started = op->started;
    part->deadline = op->deadline;
    part->waits = op->waits;
    part->compared |= op->compared;
    int rc = run(part);
    op->waits = part->waits;
    return rc;
}

int part_run(struct acomm_op *op, struct acomm_op *part)
{
    return part->team->size ? part_run_by(op, part, select_run) : 0;
}
