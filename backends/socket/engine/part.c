#include "part.h"

#include <string.h>

#include "agree.h"
#include "group.h"
#include "reduce.h"

struct acomm_op part_of(const struct acomm_op *op, const struct team *team, int kind, const void *in, void *out,
                        uint64_t count)
{
    return (struct acomm_op){.group = op->group, .team = team, .whole = op, .kind = kind, .in = in, .out = out,
                             .count = count, .dtype = op->dtype, .redop = op->redop, .factor = op->factor,
                             .width = op->width, .root = -1, .sequence = op->sequence, .timeout = op->timeout,
                             .peer = -1, .synchronous = op->synchronous};
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
    const char *in = op->in + (op->kind == ACOMM_REDUCE_SCATTER ? place : 0);
    char *out = op->out + (op->kind == ACOMM_ALL_GATHER ? place : 0);
    if (scaled) {
        struct reduction r = {.dtype = op->dtype, .redop = op->redop, .factor = op->factor, .ranks = 1};
        const void *inputs = in;
        reduce_all(&r, out, &inputs, 1, elements);
    } else if (out != in) {
        memcpy(out, in, elements * op->width);
    }
    return 0;
}

/* Whether the algorithm compares headers while it runs, and begins as all do in this team. */
static bool begins_right(const struct acomm_op *op)
{
    return op->algorithm->checks && (op->team->place != TEAM_HOSTS || select_spans_hosts(op->algorithm));
}

int part_perform(struct acomm_op *op)
{
    struct acomm_group *g = op->group;
    if (op->team->size == 1)
        return run_alone(op);
    op->algorithm = select_algorithm(g, op);
    if (op->algorithm->where != ONE_HOST && op->algorithm->where != SYMMETRIC)
        op_let_go(op); /* it waits in parts, and for links that others make */
    int rc = !begins_right(op) && g->check && !op->compared ? agree(op) : 0;
    return rc ? rc : op->algorithm->run(op);
}

int part_run(struct acomm_op *op, struct acomm_op *part)
{
    if (!part->team->size)
        return 0;
    op_begin(op);
    part->started = op->started;
    part->deadline = op->deadline;
    part->next_look = op->next_look;
    part->moves = op->moves;
    part->unseen = op->unseen;
    part->compared |= op->compared;
    int rc = part_perform(part);
    op->next_look = part->next_look;
    op->moves = part->moves;
    op->unseen = part->unseen;
    return rc;
}
