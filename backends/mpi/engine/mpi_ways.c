/* What moves long arrays among ranks of one host. Three ways lead there: in pieces through the memory that they share (two copies),
 * by the library's messages, and by reading each other's arrays where they lie (one copy, and a system call). Which one is best
 * depends on the library, on the kernel, and on how far the cores are apart, so trials choose (choice.h): ranks meet first, tell
 * what each way has cost them and where their arrays lie, and all find the same way, by the slowest. What is known of shorter arrays
 * is no beginning: those lie in caches. */
#include <string.h>

#include "clock.h"
#include "mpi_seats.h"

enum way { PIECES, MESSAGES, READS, WAYS };
_Static_assert((int)WAYS == CHOICE_WAYS, "as many as a choice has");

struct say {
    uint64_t array;   /* where a rank's lies */
    float cost[WAYS]; /* ns per byte; 0: not tried yet */
};

bool ways_fit(const struct mpi_op *op)
{
    return op->group->seats && !mpi_reduces(op) && !op->counts && !op->on_device;
}

/* All have called the same, and what they say is in their contents. */
static int meet(struct mpi_op *op, const struct choice *c)
{
    struct say say = {.array = op->call.in};
    int rc;
    char *mine = seats_first(op, sizeof say, true, &rc);
    if (rc)
        return rc;
    memcpy(say.cost, c->cost, sizeof say.cost);
    memcpy(mine, &say, sizeof say);
    return seats_compare(op);
}

static enum way choose(const struct mpi_op *op, uint32_t try, uint64_t *arrays)
{
    const struct acomm_group *g = op->group;
    float costs[WAYS] = {0};
    struct say say;
    for (int rank = 0; rank < g->size; rank++) {
        memcpy(&say, seats_contents(g, rank, 0), sizeof say);
        arrays[rank] = say.array;
        for (int way = 0; way < WAYS; way++)
            costs[way] = say.cost[way] > costs[way] ? say.cost[way] : costs[way];
    }
    return (enum way)choice_way(try, costs, g->seats->reads ? WAYS : READS);
}

static int by_messages(struct mpi_op *op)
{
    seats_done(op->group, 0);
    return mpi_move_long(op);
}

static int go(struct mpi_op *op, enum way way, const uint64_t *arrays)
{
    bool lost = false;
    int rc = 0;
    if (way == PIECES)
        return pieces_follow(op);
    if (way == READS)
        rc = reads_blocks(op, arrays, &lost);
    return rc || (way == READS && !lost) ? rc : by_messages(op);
}

int ways_collective(struct mpi_op *op)
{
    struct acomm_group *g = op->group;
    uint64_t arrays[g->size], bytes = (op->call.kind == ACOMM_BROADCAST ? op->call.count : mpi_total(op, NULL)) * op->width;
    struct choice *c = &g->seats->choices[op->call.kind][choice_class(bytes)];
    int rc = meet(op, c);
    if (!rc) {
        enum way way = choose(op, c->tries, arrays);
        int64_t before = clock_now();
        if (c->moved) /* in the try that is under way */
            way = (enum way)c->agreed;
        c->agreed = way;
        rc = go(op, way, arrays);
        choice_learn(c, way, bytes, clock_now() - before);
    }
    if (rc)
        seats_leave(g);
    return rc;
}
