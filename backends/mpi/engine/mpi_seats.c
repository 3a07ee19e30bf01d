/* See mpi_seats.h. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "clock.h"
#include "mpi_lanes.h"
#include "mpi_seats.h"
#include "op.h"
#include "stream.h"
#include "wait.h"

#define INLINE 88               /* contents up to that follow the header */
#define NEAR 2048               /* up to that they lie in a short ring, which stays in the writer's cache; longer ones in a */
#define NEAR_RING ((uint64_t)64 << 10) /* long one: lines that another core has just read are dear to write */
#define FAR_RING (4 * SEATS_MOST)
#define LONG ((uint64_t)16 << 20) /* bytes of a gathered array: it goes to memory, and what is filled past the caches costs it no more */
#define LATE (SEATS_SLOTS / 2) /* rounds after which a root looks whether the others have come */
#define LOOKS 4                 /* at a stamp in a turn of waiting */
#define TOLD_NS 200000000       /* for others to tell what they called, by the thread that looks at messages */
#define FULL(bytes) (((bytes) + 63) & ~(uint64_t)63)

struct slot {
    _Alignas(64) acomm_header header;
    uint32_t before, ahead; /* as in struct mpi_record */
    char contents[INLINE];
};
struct seat {
    _Alignas(64) _Atomic uint64_t round;
    _Alignas(64) _Atomic uint64_t done;
    _Atomic uint32_t left;
    struct slot slots[SEATS_SLOTS];
    _Alignas(64) char near[NEAR_RING];
    char far[FAR_RING];
    char cell[SEATS_MOST];
    char apart[4096 + 192]; /* seats that lie a power of two apart would meet in the same lines of a cache */
};

static struct seat *seat(const struct acomm_group *g, int rank)
{
    return (struct seat *)(void *)g->seats->base + rank;
}

static struct slot *slot(const struct acomm_group *g, int rank, uint64_t round)
{
    return &seat(g, rank)->slots[round % SEATS_SLOTS];
}

/* ---- rounds ---- */

static uint64_t round_of(const struct acomm_group *g, int rank)
{
    return atomic_load_explicit(&seat(g, rank)->round, memory_order_acquire);
}

static uint64_t done_of(const struct acomm_group *g, int rank)
{
    return atomic_load_explicit(&seat(g, rank)->done, memory_order_acquire);
}

static void set_done(struct acomm_group *g, uint64_t round)
{
    g->seats->done = round;
    atomic_store_explicit(&seat(g, g->rank)->done, round, memory_order_release);
}

void seats_done(struct acomm_group *g, uint64_t before)
{
    set_done(g, g->seats->round - before);
}

static struct mpi_record record_of(const struct slot *slot)
{
    return (struct mpi_record){.before = (uint16_t)slot->before, .ahead = (uint16_t)slot->ahead, .header = slot->header};
}

/* A rank has called something else in that round. Where that was not its call of the same number, one of the two has called there what
 * goes by messages: this rank knows what it called, or is told by who is past it. */
static int clash(struct mpi_op *op, int rank, uint64_t round)
{
    struct acomm_group *g = op->group;
    acomm_header mine = slot(g, g->rank, round)->header;
    struct mpi_record theirs = record_of(slot(g, rank, round));
    int64_t end = clock_now() + TOLD_NS;
    unsigned turns = 0;
    int rc = mine.sequence == theirs.header.sequence ? 0 : ahead_ask(g, mine.sequence, &theirs, rank);
    while (!rc && mine.sequence != theirs.header.sequence && clock_now() < end)
        rc = mpi_turn(op, &turns, rank);
    return rc ? rc : mpi_differ(g, &mine, &theirs.header, rank);
}

/* All have called the same in that round. 0 or a code; 1: not all have come to it. */
static int compare(struct mpi_op *op, uint64_t round)
{
    const struct acomm_group *g = op->group;
    const acomm_header *mine = &slot(g, g->rank, round)->header;
    for (int rank = 0; rank < g->size; rank++) {
        if (rank != g->rank && round_of(g, rank) < round)
            return 1;
        if (g->check && !op_agrees(mine, &slot(g, rank, round)->header))
            return clash(op, rank, round);
    }
    return 0;
}

/* The rounds that this rank has left before the others came, as far as they have come. 0 or a code. */
static int catch_up(struct mpi_op *op, uint64_t last)
{
    struct acomm_group *g = op->group;
    int rc = 0;
    while (!rc && g->seats->done < last)
        if (!(rc = compare(op, g->seats->done + 1)))
            set_done(g, g->seats->done + 1);
    return rc < 0 ? rc : 0;
}

/* Who waits catches up, or two who wait for each other's doing so would wait for good. */
static int turn(struct mpi_op *op, unsigned *turns, int rank)
{
    int rc = catch_up(op, op->group->seats->first - 1);
    return rc ? rc : mpi_turn(op, turns, rank);
}

/* A wait for a rank has failed: 0 where only another rank's failure, after what was awaited, was in its way. What has all come ends well. */
static int unless_there(struct acomm_group *g, int rc, bool there)
{
    acomm_failure failure;
    bool known = there && acomm_mpi_failure(g, &failure) && failure.code != ACOMM_MISMATCH;
    return known && (failure.origin != g->rank || failure.code == ACOMM_LOST) ? 0 : rc;
}

int seats_await(struct mpi_op *op, int rank)
{
    struct acomm_group *g = op->group;
    uint64_t round = g->seats->round;
    unsigned turns = 0;
    for (;;) {
        for (int i = 0; i < LOOKS; i++, wait_relax())
            if (round_of(g, rank) >= round)
                return 0;
        int rc = turn(op, &turns, rank);
        if (rc)
            return unless_there(g, rc, round_of(g, rank) >= round);
    }
}

static int await_all(struct mpi_op *op)
{
    struct acomm_group *g = op->group;
    int rc = 0;
    for (int i = 1; i < g->size && !rc; i++)
        rc = seats_await(op, mpi_neighbour(g, i));
    return rc;
}

/* Nobody needs that round any more. */
static int await_done(struct mpi_op *op, uint64_t round)
{
    struct acomm_group *g = op->group;
    uint64_t least = UINT64_MAX;
    for (int i = 1; i < g->size; i++) {
        int rank = mpi_neighbour(g, i);
        unsigned turns = 0;
        uint64_t done;
        while ((done = done_of(g, rank)) < round) {
            int rc = turn(op, &turns, rank);
            if (rc && unless_there(g, rc, done_of(g, rank) >= round))
                return rc;
        }
        least = done < least ? done : least;
    }
    g->seats->everyone = least;
    return 0;
}

/* Whether this round's contents change hands, alike on both ranks. */
static bool in_cell(const struct mpi_op *op, uint64_t bytes)
{
    int kind = op->call.kind;
    if (kind == ACOMM_ALL_GATHER && op->call.count * op->width >= LONG / 2)
        return false;
    bool mutual = kind == ACOMM_ALL_REDUCE || kind == ACOMM_ALL_GATHER || kind == ACOMM_REDUCE_SCATTER || kind == ACOMM_ALL_TO_ALL;
    return mutual && op->group->size == 2 && bytes > INLINE;
}

/* Room for contents in a cell, or in their ring. Returns the last round whose own lie there still, or 0. */
static uint64_t take_room(struct mpi_seats *s, uint64_t bytes, bool cell)
{
    bool far = bytes > NEAR;
    s->cells[s->round % SEATS_SLOTS] = cell ? ++s->celled : 0;
    uint64_t last = 0, full = bytes > INLINE && !cell ? FULL(bytes) : 0, room = far ? FAR_RING : NEAR_RING, *at = &s->at[far];
    if (*at % room + full > room)
        *at += room - *at % room;
    s->starts[s->round % SEATS_SLOTS] = *at;
    s->lengths[s->round % SEATS_SLOTS] = bytes;
    *at += full;
    for (uint64_t round = s->everyone + 1; round < s->round && full; round++) {
        if ((s->lengths[round % SEATS_SLOTS] > NEAR) != far)
            continue;
        if (s->starts[round % SEATS_SLOTS] + room >= *at)
            break;
        last = round;
    }
    return last;
}

/* The next round, of this rank's own seat. Who writes no contents does not wait for room in the ring: a root may have left, and
 * say only with its next call that it has done. */
static int begin(struct mpi_op *op, uint64_t bytes, bool gives)
{
    struct mpi_seats *s = op->group->seats;
    uint64_t round = ++s->round;
    int rc = round > s->everyone + SEATS_SLOTS ? await_done(op, round - SEATS_SLOTS) : 0;
    if (!rc && round > s->done + SEATS_SLOTS) /* what this rank itself has called there is compared first */
        rc = catch_up(op, s->first - 1);
    uint64_t last = rc ? 0 : take_room(s, bytes, in_cell(op, bytes));
    return last && gives ? await_done(op, last) : rc;
}

char *seats_contents(const struct acomm_group *g, int rank, uint64_t before)
{
    const struct mpi_seats *s = g->seats;
    uint64_t round = s->round - before, bytes = s->lengths[round % SEATS_SLOTS], start = s->starts[round % SEATS_SLOTS];
    uint64_t cell = s->cells[round % SEATS_SLOTS];
    if (cell)
        return seat(g, (int)((cell + (uint64_t)rank) % 2))->cell;
    if (bytes <= INLINE)
        return slot(g, rank, round)->contents;
    return bytes > NEAR ? seat(g, rank)->far + start % FAR_RING : seat(g, rank)->near + start % NEAR_RING;
}

void seats_fill(struct acomm_group *g, int reader, char *to, const void *from, uint64_t bytes)
{
    if (g->seats->cells[g->seats->round % SEATS_SLOTS])
        stream_store(STREAM_KEPT, to, from, bytes);
    else
        stream_fill(&g->seats->stores[reader], to, from, bytes);
}

void seats_publish(struct acomm_group *g)
{
    atomic_store_explicit(&seat(g, g->rank)->round, g->seats->round, memory_order_release);
}

static char *first(struct mpi_op *op, uint64_t bytes, bool gives, bool ahead, int *rc)
{
    struct acomm_group *g = op->group;
    g->seats->first = g->seats->round + 1;
    *rc = begin(op, bytes, gives);
    if (*rc)
        return NULL;
    struct slot *mine = slot(g, g->rank, g->seats->round);
    mpi_header(op, &mine->header);
    mine->before = g->before;
    mine->ahead = ahead ? 1 : MPI_SEATED;
    struct mpi_record record = record_of(mine); /* compared with those of who calls what goes by messages, too */
    *rc = ahead_note(op, &record);
    return *rc ? NULL : seats_contents(g, g->rank, 0);
}

/* What ranks called before agrees as far as this record tells. Where two believed themselves root of a broadcast, also of one that went
 * by messages, they are told of it, and tell. 0 or a code. */
static int compare_before(struct mpi_op *op, int rank)
{
    struct acomm_group *g = op->group;
    const struct slot *theirs = slot(g, rank, g->seats->round);
    unsigned turns = 0;
    if (!g->check || (theirs->header.sequence == op->sequence && theirs->before == g->before))
        return 0;
    if (theirs->header.sequence != op->sequence)
        return clash(op, rank, g->seats->round);
    struct mpi_record record = record_of(theirs);
    int rc = ahead_ask(g, op->sequence, &record, rank);
    while (!rc)
        rc = turn(op, &turns, rank);
    return rc;
}

char *seats_first(struct mpi_op *op, uint64_t bytes, bool gives, int *rc)
{
    return first(op, bytes, gives, false, rc);
}

char *seats_next(struct mpi_op *op, uint64_t bytes, bool gives, int *rc)
{
    *rc = begin(op, bytes, gives);
    return *rc ? NULL : seats_contents(op->group, op->group->rank, 0);
}

/* All have called the same in this round. */
static int compare_all(struct mpi_op *op)
{
    struct acomm_group *g = op->group;
    const acomm_header *first = &slot(g, 0, g->seats->round)->header;
    for (int odd = 1; odd < g->size && g->check; odd++) { /* every rank finds the same two */
        const acomm_header *other = &slot(g, odd, g->seats->round)->header;
        if (!op_agrees(first, other))
            return mpi_fail(g, &(acomm_failure){.code = ACOMM_MISMATCH, .origin = 0, .culprit = odd, .sequence = op->sequence,
                                                .mine = *first, .theirs = *other});
    }
    return 0;
}

int seats_compare(struct mpi_op *op)
{
    struct acomm_group *g = op->group;
    seats_publish(g);
    int rc = await_all(op);
    rc = rc ? rc : catch_up(op, g->seats->first - 1);
    for (int rank = 0; rank < g->size && !rc; rank++)
        rc = compare_before(op, rank);
    rc = rc ? rc : compare_all(op);
    ahead_met(g);
    return rc;
}

int seats_meet(struct mpi_op *op)
{
    seats_publish(op->group);
    return await_all(op);
}

/* A caller writes its array after the mark is there; who has read what was written sees the mark. */
void seats_leave(struct acomm_group *g)
{
    atomic_store(&seat(g, g->rank)->left, 1);
    atomic_thread_fence(memory_order_seq_cst);
}

bool seats_left(const struct acomm_group *g, int rank)
{
    atomic_thread_fence(memory_order_seq_cst);
    return atomic_load(&seat(g, rank)->left) != 0;
}

/* ---- broadcasts ---- */

static int take(struct mpi_op *op, char *to, uint64_t bytes)
{
    struct acomm_group *g = op->group;
    struct mpi_seats *s = g->seats;
    int root = op->call.root, rc = seats_await(op, root);
    const acomm_header *mine = &slot(g, g->rank, s->round)->header, *theirs = &slot(g, root, s->round)->header;
    if (!rc && g->check && !op_agrees(mine, theirs))
        rc = clash(op, root, s->round);
    rc = rc ? rc : compare_before(op, root);
    if (rc)
        return rc;
    stream_keep(to, seats_contents(g, root, 0), bytes);
    if (s->done == s->round - 1)
        seats_done(g, 0); /* the others compare with the root */
    return 0;
}

int seats_broadcast(struct mpi_op *op)
{
    struct acomm_group *g = op->group;
    const acomm_call *c = &op->call;
    uint64_t bytes = c->count * op->width;
    bool gives = c->root == g->rank;
    int rc;
    atomic_store_explicit(&g->unmet, op->sequence, memory_order_relaxed);
    char *place = first(op, bytes, gives, true, &rc);
    if (rc)
        return rc;
    if (gives)
        seats_fill(g, g->rank, place, (const void *)c->in, bytes);
    seats_publish(g);
    if (!gives)
        rc = take(op, (char *)c->out, bytes);
    if (!rc && g->seats->round - g->seats->done > LATE)
        rc = catch_up(op, g->seats->round);
    g->before = (uint16_t)(c->root + 1);
    if (!rc && gives && c->in != c->out)
        stream_long((void *)c->out, (const void *)c->in, bytes, bytes);
    return rc;
}

/* ---- beginning and end ---- */

/* The lanes lie behind them, on pages of their own. */
static uint64_t seats_bytes(int size)
{
    return ((uint64_t)size * sizeof(struct seat) + 4095) & ~(uint64_t)4095;
}

uint64_t acomm_mpi_shared_bytes(int size)
{
    return size <= SEATS_RANKS ? seats_bytes(size) + lanes_bytes(size) : 0;
}

/* Whether every other rank's memory can be read. */
static bool reaches(const struct acomm_group *g, struct mpi_seats *s, const int32_t *processes)
{
    bool all = true;
    for (int rank = 0; rank < g->size; rank++) {
        s->processes[rank] = processes[rank];
        all = all && (rank == g->rank || peer_memory_reaches(processes[rank]));
    }
    return all;
}

int acomm_mpi_share(struct acomm_group *g, int descriptor, const int32_t *processes)
{
    struct mpi_seats *s = calloc(1, sizeof *s);
    size_t bytes = (size_t)acomm_mpi_shared_bytes(g->size);
    char *base = s ? mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0) : MAP_FAILED;
    if (base == MAP_FAILED) {
        free(s);
        return 0;
    }
    s->base = base;
    s->bytes = bytes;
    s->lanes = lanes_new(g, base + seats_bytes(g->size));
    g->lent = s;
    if (!s->lanes) {
        seats_free(g);
        return 0;
    }
    return reaches(g, s, processes) ? 2 : 1;
}

void acomm_mpi_share_from_now(struct acomm_group *g, int reads)
{
    g->seats = g->lent;
    g->seats->reads = reads;
    lanes_use(g, g->seats->lanes);
}

void seats_free(struct acomm_group *g)
{
    struct mpi_seats *s = g->lent;
    if (!s)
        return;
    lanes_free(s->lanes);
    munmap(s->base, s->bytes);
    free(s);
    g->lent = g->seats = NULL;
}
