/* What moves long arrays among ranks of one host, in one of two ways: in pieces through the memory that they share (two copies); or
 * by reading each other's arrays where they lie (one copy, and a system call), or by the library's messages if ranks may not. Which
 * one is better depends on the kernel and on how far the cores are apart, so trials choose (choice.h). Ranks meet first, and tell
 * where their arrays lie, and when they began and ended what they called so before. All learn the same from that, what it took from
 * the first one's beginning to the last one's end, and so choose alike. What is known of shorter arrays is no beginning: those lie
 * in caches. */
#include <string.h>

#include "clock.h"
#include "mpi_seats.h"

#define LONGEST ((uint64_t)1 << 50) /* ns, whatever others say */

enum way { PIECES, WHOLE, WAYS };
_Static_assert((int)WAYS <= CHOICE_WAYS, "a choice has so many");

/* What a rank says when all meet. */
struct say {
    uint64_t array;      /* where others read it */
    uint64_t begin, end; /* of its last call; one clock for all, as they are on one host */
};

bool ways_fit(const struct mpi_op *op)
{
    return op->group->seats && !mpi_reduces(op) && !op->call.counts && !op->on_device;
}

/* All have called the same, and what they say is in their contents. */
static int meet(struct mpi_op *op)
{
    const struct mpi_ways *w = &op->group->seats->ways;
    struct say say = {reads_array(op), w->begin, w->end};
    int rc;
    char *mine = seats_first(op, sizeof say, true, &rc);
    if (rc)
        return rc;
    memcpy(mine, &say, sizeof say);
    return seats_compare(op);
}

/* What the last call cost, and where arrays lie. */
static void hear(struct acomm_group *g, uint64_t *arrays)
{
    const struct mpi_ways *w = &g->seats->ways;
    uint64_t begin = UINT64_MAX, end = 0;
    struct say say;
    for (int rank = 0; rank < g->size; rank++) {
        memcpy(&say, seats_contents(g, rank, 0), sizeof say);
        arrays[rank] = say.array;
        begin = say.begin < begin ? say.begin : begin;
        end = say.end > end ? say.end : end;
    }
    uint64_t took = end > begin ? end - begin : 1;
    void (*learn)(struct choice *, int, uint64_t, int64_t) = g->crowded ? choice_learn_mean : choice_learn; /* the same on all ranks */
    if (w->last)
        learn(w->last, w->last->agreed, w->bytes, (int64_t)(took < LONGEST ? took : LONGEST));
}

static int move_whole(struct mpi_op *op, const uint64_t *arrays)
{
    bool reads = op->group->seats->reads, lost = !reads;
    int rc = reads ? reads_blocks(op, arrays, &lost) : 0;
    if (rc || !lost)
        return rc;
    seats_done(op->group, 0);
    return mpi_move_long(op);
}

int ways_collective(struct mpi_op *op)
{
    struct acomm_group *g = op->group;
    struct mpi_ways *w = &g->seats->ways;
    uint64_t arrays[g->size], bytes = (op->call.kind == ACOMM_BROADCAST ? op->call.count : mpi_total(op, NULL)) * op->width;
    struct choice *c = &w->choices[op->call.kind][choice_class(bytes)];
    int rc = meet(op);
    if (!rc) {
        hear(g, arrays);
        if (!c->moved) /* the last try is over */
            c->agreed = choice_way(c->tries, bytes, c->cost, WAYS);
        w->last = c, w->bytes = bytes, w->begin = (uint64_t)clock_now();
        rc = c->agreed == PIECES ? pieces_follow(op) : move_whole(op, arrays);
        w->end = (uint64_t)clock_now();
    }
    if (rc)
        seats_leave(g);
    return rc;
}
