/* all_reduce and reduce over several hosts: each leader reduces its slice of its host's contributions, its column reduces that
 * over the hosts, and the host's ranks receive the finished slices from their leaders. Each link between hosts carries as many
 * bytes as with one rank a host, for any number of ranks. Karonis et al., "Exploiting hierarchy in parallel computer networks to
 * optimize collective operation performance" (2000); with several leaders, Bayatpour et al., "Scalable reduction collectives with
 * data partitioning-based multi-leader design" (2017).
 *
 * One leader: fewer messages, for short arrays. All leaders: all ranks of a host do a share of the work. Until all call
 * signatures have been compared, which takes the first segment, nothing is written into the caller's array. */
#include "collectives/slices.h"

#define SEGMENT ((size_t)16 << 20) /* bytes of partials: between two of them the links between hosts are idle */

struct turn {
    struct slices *s;
    const char *in;
    char *out;                    /* NULL where this rank receives nothing */
    uint64_t count;
    struct pattern_range own;
    char *partial;                /* of the own slice */
};

/* The host's contributions to the own slice. */
static int reduce_inside(struct turn *t)
{
    struct slices *s = t->s;
    const char *from = t->in;
    if (s->begins && t->count) {
        reduce_begin(&s->reduction, s->buffer, t->in, t->count);
        from = s->buffer;
    }
    slices_count(s, t->count);
    struct acomm_op part = slices_reducing(s, &s->hosts->host, ACOMM_REDUCE_SCATTER, from, t->partial, 0);
    part.send_counts = s->counts;
    return part_run(s->op, &part);
}

static int reduce_between(struct turn *t)
{
    struct slices *s = t->s;
    bool everybody = s->op->kind == ACOMM_ALL_REDUCE;
    int root = everybody ? -1 : s->hosts->of[s->op->root];
    char *out = everybody || s->host == root ? t->partial : NULL;
    struct acomm_op part = slices_reducing(s, &s->hosts->column, s->op->kind, t->partial, out, t->own.count);
    part.root = root;
    return part_run(s->op, &part);
}

/* A rank without a result still receives from its leader that all hosts' calls match. */
static int hear(struct turn *t)
{
    struct acomm_op *op = t->s->op;
    bool told = op->compared || (op->kind == ACOMM_ALL_REDUCE && t->count);
    struct acomm_op part = part_of(op, &t->s->hosts->host, ACOMM_BARRIER, NULL, NULL, 0);
    op->compared = true;
    return told ? 0 : part_run(op, &part);
}

/* Sends the finished slices to the ranks that have a result. */
static int hand_out(struct turn *t, char *finished)
{
    struct slices *s = t->s;
    struct acomm_op part = part_of(s->op, &s->hosts->host, ACOMM_ALL_GATHER, finished, t->out, 0);
    part.recv_counts = s->counts;
    return part_run(s->op, &part);
}

/* Scratch: a segment of widened contributions, the own slice of partials, and finished where there is no output. */
static int hierarchical_reduce_run_segment(struct turn *t)
{
    struct slices *s = t->s;
    struct acomm_op *op = s->op;
    bool wanted = op->kind == ACOMM_ALL_REDUCE || s->host == s->hosts->of[op->root];
    char *partials = s->buffer + s->segment * s->width, *spare = partials + s->segment * s->width;
    t->own = slices_of(s, t->count, s->local_rank);
    char *finished = t->out ? t->out + t->own.first * op->width : spare;
    t->partial = s->begins || !op->compared || !t->out ? partials : finished;
    int rc = reduce_inside(t);
    if (!rc && s->leads)
        rc = reduce_between(t);
    rc = rc ? rc : hear(t);
    if (rc || !wanted)
        return rc;
    reduce_finish(&s->reduction, finished, t->partial, t->own.count);
    return hand_out(t, finished);
}

static int hierarchical_reduce_run(struct acomm_op *op, int leaders)
{
    struct slices s;
    int rc = slices_open(&s, op, leaders, 3, SEGMENT);
    uint64_t at = 0;
    do {
        if (rc)
            return rc;
        uint64_t count = op->count - at < s.segment ? op->count - at : s.segment;
        struct turn t = {.s = &s, .in = blocks_at(op->in, at * op->width), .out = blocks_at(op->out, at * op->width),
                         .count = count};
        rc = hierarchical_reduce_run_segment(&t);
        at += s.segment;
    } while (at < op->count);
    return rc;
}

int hierarchical_reduce_leader(struct acomm_op *op)
{
    return hierarchical_reduce_run(op, 1);
}

int hierarchical_reduce_leaders(struct acomm_op *op)
{
    return hierarchical_reduce_run(op, op->group->size);
}
