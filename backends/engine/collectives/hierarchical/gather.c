/* all_gather over several hosts: first the ranks of each host among themselves; then the leaders exchange their hosts'
 * blocks, the ranks of a host dealt out to its leaders in turn; then each host's ranks get the others' blocks from their
 * leaders. Blocks go straight to their places, in whatever order the ranks lie on the hosts. */
#include "collectives/blocks.h"
#include "collectives/slices.h"

/* Entry i of counts and places: the block of a rank, or none for -1. */
static void enter(const struct slices *s, int i, int rank)
{
    struct span block = rank < 0 ? (struct span){0, 0} : op_block(s->op->recv_counts, s->op->count, rank, 1);
    s->counts[i] = block.bytes;
    s->places[i] = block.offset;
}

/* The rank of a host whose block its leader `seat` exchanges in this turn. */
static int dealt(const struct slices *s, int host, int seat, int turn)
{
    int other = seat + turn * s->leaders;
    return seat < s->leaders && other < hosts_ranks(s->hosts, host) ? hosts_rank(s->hosts, host, other) : -1;
}

/* An all_gather of the blocks that are entered, of which this rank gives number `own`. */
static int hosts_gather_gather(struct slices *s, const struct team *team, const char *in, int own)
{
    struct acomm_op *op = s->op;
    struct acomm_op part = part_of(op, team, ACOMM_ALL_GATHER, in ? in : op->out + s->places[own] * op->width, op->out, 0);
    part.recv_counts = s->counts;
    part.places = s->places;
    return part_run(op, &part);
}

static int hosts_gather_between(struct slices *s, int turn)
{
    for (int host = 0; host < s->hosts->count; host++)
        enter(s, host, dealt(s, host, s->seat, turn));
    return s->leads ? hosts_gather_gather(s, &s->hosts->column, NULL, s->host) : 0;
}

static int onward(struct slices *s, int turn)
{
    int rc = 0;
    for (int host = 0; host < s->hosts->count && !rc; host++) {
        for (int seat = 0; seat < s->hosts->host.size; seat++)
            enter(s, seat, dealt(s, host, seat, turn));
        if (host != s->host)
            rc = hosts_gather_gather(s, &s->hosts->host, NULL, s->seat);
    }
    return rc;
}

int hosts_all_gather(struct acomm_op *op)
{
    struct slices s;
    int rc = slices_open(&s, op, op->group->size, 0, 0);
    if (rc)
        return rc;
    for (int seat = 0; seat < s.hosts->host.size; seat++)
        enter(&s, seat, s.hosts->host.members[seat]);
    rc = hosts_gather_gather(&s, &s.hosts->host, op->in, s.seat);
    int turns = (s.hosts->most + s.leaders - 1) / s.leaders;
    for (int turn = 0; turn < turns && !rc; turn++) {
        rc = hosts_gather_between(&s, turn);
        rc = rc ? rc : onward(&s, turn);
    }
    return rc;
}
