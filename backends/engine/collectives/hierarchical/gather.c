/* all_gather over several hosts: first the ranks of each host among themselves; then the leaders exchange their hosts' blocks,
 * with the ranks of a host assigned to its leaders round robin; then each host's ranks receive the others' blocks from their
 * leaders. Blocks go straight to their places, in whatever order the ranks lie on the hosts. */
#include "collectives/slices.h"

/* Entry i of counts and places: the block of a rank, or none for -1. */
static void enter(const struct slices *s, int i, int rank)
{
    struct span block = rank < 0 ? (struct span){0, 0} : op_block(s->op->recv_counts, s->op->count, rank, 1);
    s->counts[i] = block.bytes;
    s->places[i] = block.offset;
}

/* The rank of a host whose block its leader `local_rank` exchanges in this turn. */
static int dealt(const struct slices *s, int host, int local_rank, int turn)
{
    int other = local_rank + turn * s->leaders;
    return local_rank < s->leaders && other < hosts_ranks(s->hosts, host) ? hosts_rank(s->hosts, host, other) : -1;
}

/* An all_gather of the blocks that are entered, of which this rank contributes number `own`. */
static int hierarchical_gather_host(struct slices *s, const struct team *team, const char *in, int own)
{
    struct acomm_op *op = s->op;
    struct acomm_op part = part_of(op, team, ACOMM_ALL_GATHER, in ? in : op->out + s->places[own] * op->width, op->out, 0);
    part.recv_counts = s->counts;
    part.places = s->places;
    return part_run(op, &part);
}

static int hierarchical_gather_between(struct slices *s, int turn)
{
    for (int host = 0; host < s->hosts->count; host++)
        enter(s, host, dealt(s, host, s->local_rank, turn));
    return s->leads ? hierarchical_gather_host(s, &s->hosts->column, NULL, s->host) : 0;
}

static int onward(struct slices *s, int turn)
{
    int rc = 0;
    for (int host = 0; host < s->hosts->count && !rc; host++) {
        for (int local_rank = 0; local_rank < s->hosts->host.size; local_rank++)
            enter(s, local_rank, dealt(s, host, local_rank, turn));
        if (host != s->host)
            rc = hierarchical_gather_host(s, &s->hosts->host, NULL, s->local_rank);
    }
    return rc;
}

int hierarchical_all_gather(struct acomm_op *op)
{
    struct slices s;
    int rc = slices_open(&s, op, op->group->size, 0, 0);
    if (rc)
        return rc;
    for (int local_rank = 0; local_rank < s.hosts->host.size; local_rank++)
        enter(&s, local_rank, s.hosts->host.members[local_rank]);
    rc = hierarchical_gather_host(&s, &s.hosts->host, op->in, s.local_rank);
    int turns = (s.hosts->most + s.leaders - 1) / s.leaders;
    for (int turn = 0; turn < turns && !rc; turn++) {
        rc = hierarchical_gather_between(&s, turn);
        rc = rc ? rc : onward(&s, turn);
    }
    return rc;
}
