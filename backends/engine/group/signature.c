/* Compares the call signatures of all ranks by dissemination, and records a mismatch. */
#include "group/signature.h"

#include "base/clock.h"
#include "base/pattern.h"
#include "group/transfer.h"
#include "membership/node.h"

/* Among the ranks of each host, in the memory that they share, where the algorithms of other calls begin, too. Of several hosts then
 * local rank 0 of all; and once more in the host, after which its ranks may continue. */
static int signature_hosts(struct acomm_op *op)
{
    const struct hosts *hosts = &op->group->hosts;
    bool several = op->team->place == TEAM_HOSTS;
    struct acomm_op inside = part_of(op, &hosts->host, ACOMM_BARRIER, NULL, NULL, 0), after = inside;
    struct acomm_op between = part_of(op, &hosts->column, ACOMM_BARRIER, NULL, NULL, 0);
    int rc = part_run(op, &inside);
    if (!rc && several && hosts->host.rank == 0)
        rc = part_run(op, &between);
    op->compared = true;
    return rc || !several ? rc : part_run(op, &after);
}

int signature_check(struct acomm_op *op)
{
    if (op->team->place != TEAM_APART)
        return signature_hosts(op);
    int rank = op->team->rank, n = op->team->size;
    acomm_header mine, theirs;
    op_header(op, &mine);
    for (int step = 0; step < pattern_steps(n); step++) {
        struct pattern_bruck plan = pattern_bruck(rank, n, step);
        struct transfer list[] = {transfer_to(op, plan.to, &mine, sizeof mine),
                                  transfer_from(op, plan.from, &theirs, sizeof theirs)};
        list[1].checked = true;
        int rc = transfer_run(op, list, 2);
        if (rc)
            return rc;
    }
    return 0;
}

/* ---- operations that run ahead ---- */

#define TOGETHER_NS 2000000000 /* that a closing group waits for other ranks' findings, at most */
#define FLUSHED 16 /* every so many signatures one flushes those before it, */
#define DRAINED (SIGNATURES - 2 * FLUSHED) /* so that of all open ones so many are flushed */

size_t signature_awaited(const struct acomm_op *op, int rank)
{
    const struct acomm_group *g = op->group;
    const struct signatures *s = &g->signatures;
    return rank == pattern_next(g->rank, g->size) ? s->called * sizeof *s->mine - s->heard : 0;
}

int signature_heard(struct acomm_op *op, const char *data, size_t bytes)
{
    struct acomm_group *g = op->group;
    struct signatures *s = &g->signatures;
    size_t each = sizeof *s->mine;
    int rc = 0;
    for (size_t i = 0; i < bytes && !rc; i++) {
        size_t at = s->heard++ % sizeof s->theirs;
        ((char *)s->theirs)[at] = data[i];
        if (s->heard % each == 0)
            rc = op_compare_earlier(op, pattern_next(g->rank, g->size), &s->mine[at / each], &s->theirs[at / each]);
    }
    return rc;
}

/* Receives so many signatures of the next rank, with nothing else. */
static int signature_drain(struct acomm_op *op, size_t bytes)
{
    struct link *link = group_link(op->group, CHANNEL_COLLECTIVE, pattern_next(op->group->rank, op->group->size), false);
    struct transfer heads = {.link = link, .bytes = bytes, .hears = true};
    return transfer_run(op, &heads, 1);
}

int signature_ahead(struct acomm_op *op)
{
    struct signatures *s = &op->group->signatures;
    size_t each = sizeof *s->mine, awaited = signature_awaited(op, pattern_next(op->group->rank, op->group->size));
    int rc = awaited + each <= sizeof s->mine ? 0 : signature_drain(op, DRAINED * each);
    op_header(op, &s->mine[s->called++ % SIGNATURES]);
    op->ahead = op->owes = true;
    return rc;
}

/* To the rank before this one: sent with a later message, or after a delay. */
int signature_send(struct acomm_op *op)
{
    const struct signatures *s = &op->group->signatures;
    const acomm_header *mine = &s->mine[(s->called - 1) % SIGNATURES];
    op->owes = false;
    struct transfer head = transfer_to(op, pattern_prev(op->team->rank, op->team->size), mine, sizeof *mine);
    head.head = 0;
    head.more = s->called % FLUSHED != 0;
    return transfer_run(op, &head, 1);
}

int signature_settle(struct acomm_group *g)
{
    const struct signatures *s = &g->signatures;
    struct acomm_op op = op_of_header(g, &s->mine[(s->called - 1) % SIGNATURES]);
    size_t awaited = signature_awaited(&op, pattern_next(g->rank, g->size));
    bool open = s->called > s->compared;
    struct link *back = open ? group_link(g, CHANNEL_COLLECTIVE, pattern_prev(g->rank, g->size), true) : NULL;
    if (back)
        back->ops->send(back, NULL, 0, false);
    int rc = awaited ? signature_drain(&op, awaited) : 0;
    if (!rc && open && g->size > 2 && g->node)
        node_leave(g->node, g, clock_now() + (g->timeout < TOGETHER_NS ? g->timeout : TOGETHER_NS));
    return rc;
}
