/* Runs a part of an operation as a collective of a team. */
#include "group/part.h"

#include "group/group.h"

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
    part->next_look = op->next_look;
    part->waits = op->waits;
    part->tell_at = op->tell_at;
    part->asked = op->asked;
    part->moves = op->moves;
    part->unseen = op->unseen;
    part->compared |= op->compared;
    int rc = run(part);
    op->next_look = part->next_look;
    op->waits = part->waits;
    op->tell_at = part->tell_at;
    op->asked = part->asked;
    op->moves = part->moves;
    op->unseen = part->unseen;
    return rc;
}

int part_run(struct acomm_op *op, struct acomm_op *part)
{
    return part->team->size ? part_run_by(op, part, select_run) : 0;
}
