/* engine: all */
/* Two ranks whose contents change hands: each fills what it has just read. */
#include "group/group.h"
#include "shared_world.h"

#define COUNT 1000 /* int32 */
#define LONGEST 150000

static int32_t value(int rank, int turn, uint64_t i) { return (int32_t)((uint64_t)rank * 1000003u + (uint64_t)turn * 977u + i * 7u); }

static void fill(int32_t *x, int rank, int turn, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++)
        x[i] = value(rank, turn, i);
}

static int gather(acomm_group *g, int rank, int turn, int32_t *x, int32_t *y, uint64_t count)
{
    fill(x, rank, turn, count);
    int wrong = RUN(g, ACOMM_ALL_GATHER, -1, .in = x, .out = y, .count = count);
    for (uint64_t i = 0; i < 2 * count; i++)
        wrong += y[i] != value((int)(i / count), turn, i % count);
    return wrong;
}

static const void *place(const acomm_group *g, int rank)
{
    return shared_data(&g->shared, rank, g->shared.round, COUNT * sizeof(int32_t));
}

static int swaps(acomm_group *g, int rank, int n)
{
    int32_t x[COUNT], y[2 * COUNT];
    const void *theirs = NULL;
    int wrong = n != 2 || RUN_BARRIER(g);
    for (int turn = 0; turn < 100; turn++) {
        wrong += gather(g, rank, turn, x, y, COUNT) || (turn && place(g, rank) != theirs) || !g->shared.in_cell;
        theirs = place(g, 1 - rank);
    }
    return wrong;
}

static void each_fills_what_it_read(void) { run(2, swaps, 0); }

/* Both ranks of one segment, in one thread: what each has seen of the other is what the test says. */
struct two { struct shared of[2]; int fd; };

static void open_two(struct two *t)
{
    uint64_t piece = shared_piece(2, PIECE), bytes = shared_bytes(2, piece, true);
    t->fd = memfd_create("test", MFD_CLOEXEC);
    CHECK_EQUAL(ftruncate(t->fd, (off_t)bytes), 0);
    for (int rank = 0; rank < 2; rank++)
        CHECK_EQUAL(shared_open(&t->of[rank], t->fd, bytes, rank, 2, piece), 0);
}

static void close_two(struct two *t)
{
    for (int rank = 0; rank < 2; rank++)
        shared_close(&t->of[rank]);
    close(t->fd);
}

/* The next round of a rank that has seen the other one's `seen`: the cell that it fills, NULL where it gets none. */
static const char *next(struct two *t, int rank, uint64_t seen, bool read_later)
{
    struct shared *s = &t->of[rank];
    s->seen[1 - rank] = seen;
    bool cell = shared_take_cell(s, read_later);
    shared_commit(s);
    return cell ? shared_data(s, rank, s->round, COUNT) : NULL;
}

static void in_step_they_swap(void)
{
    struct two t;
    open_two(&t);
    CHECK(!next(&t, 0, 0, false) && !next(&t, 1, 0, false)); /* the other local rank may not be there yet */
    for (uint64_t round = 2; round < 100; round++) {
        bool later = round / 10 % 2;
        const char *place[2];
        for (int rank = 0; rank < 2; rank++) {
            place[rank] = next(&t, rank, round - 1, later);
            CHECK(place[rank] || round % 10 == 0); /* what was read later may be read still when that ends */
        }
        CHECK(place[0] != place[1] || !place[0]);
    }
    close_two(&t);
}

/* Round 4's contents are read in round 5 too, by who may still be there in our round 6. */
static void what_may_be_read_is_not_filled(void)
{
    struct two t;
    open_two(&t);
    for (uint64_t round = 1; round <= 3; round++)
        next(&t, 0, round - 1, false);
    const char *first = next(&t, 0, 3, true);
    CHECK(first);
    CHECK(next(&t, 0, 4, false) != first);
    CHECK(!next(&t, 0, 5, false));
    CHECK(next(&t, 0, 6, false));
    CHECK(next(&t, 0, 7, false) == first);
    close_two(&t);
}

/* Who has not come to the round before may still be filling what we read last. */
static void of_who_is_behind_nothing_is_taken(void)
{
    struct two t;
    open_two(&t);
    for (uint64_t round = 1; round <= 5; round++)
        next(&t, 0, round - 1, false);
    CHECK(!next(&t, 0, 4, false) && !next(&t, 0, 5, true));
    CHECK(next(&t, 0, 7, false));
    close_two(&t);
}

/* A root that is ahead knows of no cell that is free, and waits for none. */
static _Atomic int ahead;

static int runs_ahead(acomm_group *g, int rank, int n)
{
    int32_t x[COUNT] = {0}, y[2 * COUNT];
    int wrong = n != 2 || RUN_BARRIER(g) || gather(g, rank, 0, x, y, COUNT);
    while (rank && ahead < 3)
        sched_yield();
    for (int turn = 1; turn <= 3; turn++, ahead += !rank) {
        fill(x, 0, turn, COUNT);
        int32_t *out = rank ? y : x;
        wrong += RUN(g, ACOMM_BROADCAST, 0, .in = rank ? 0 : x, .out = out, .count = COUNT) || memcmp(out, x, sizeof x);
    }
    wrong += gather(g, rank, 4, x, y, COUNT) || g->shared.in_cell != (rank != 0);
    return wrong + (gather(g, rank, 5, x, y, COUNT) || !g->shared.in_cell);
}

static void who_is_ahead_does_without(void)
{
    ahead = 0;
    run(2, runs_ahead, 0);
}

static uint32_t dice(uint32_t *chance, uint32_t sides)
{
    *chance = *chance * 1664525 + 1013904223;
    return (*chance >> 8) % sides;
}

static int reduce(acomm_group *g, int rank, int turn, int32_t *x, int32_t *y, uint64_t count, int root)
{
    fill(x, rank, turn, count);
    bool all = root < 0;
    int wrong = RUN(g, all ? ACOMM_ALL_REDUCE : ACOMM_REDUCE, root, .in = x, .out = all || rank == root ? y : 0, .count = count);
    for (uint64_t i = 0; (all || rank == root) && i < count; i++)
        wrong += y[i] != value(0, turn, i) + value(1, turn, i);
    return wrong;
}

/* Ten pieces an array, and a round in which nothing is put down: each cell comes to the other rank all the same. */
static int swaps_pieces(acomm_group *g, int rank, int n)
{
    enum { LENGTH = 20000, PIECES = 10 };
    int32_t *x = malloc(LENGTH * sizeof *x), *y = malloc(LENGTH * sizeof *y);
    const void *theirs = NULL;
    int wrong = n != 2 || RUN_BARRIER(g);
    for (int turn = 0; turn < 20; turn++) {
        uint64_t before = g->shared.turns;
        wrong += reduce(g, rank, turn, x, y, LENGTH, -1) || g->shared.turns != before + PIECES;
        uint64_t last = g->shared.round - 1;
        wrong += turn && shared_data(&g->shared, rank, last, PIECE) != theirs;
        theirs = shared_data(&g->shared, 1 - rank, last, PIECE);
    }
    free(x);
    free(y);
    return wrong;
}

static void pieces_change_hands(void) { run(2, swaps_pieces, 0); }

static int scatter(acomm_group *g, int rank, int turn, int32_t *x, int32_t *y, uint64_t count)
{
    fill(x, rank, turn, 2 * count);
    int wrong = RUN(g, ACOMM_REDUCE_SCATTER, -1, .in = x, .out = y, .count = count);
    for (uint64_t i = 0; i < count; i++)
        wrong += y[i] != value(0, turn, (uint64_t)rank * count + i) + value(1, turn, (uint64_t)rank * count + i);
    return wrong;
}

static int exchange(acomm_group *g, int rank, int turn, int32_t *x, int32_t *y, uint64_t count)
{
    fill(x, rank, turn, 2 * count);
    int wrong = RUN(g, ACOMM_ALL_TO_ALL, -1, .in = x, .out = y, .count = count);
    for (uint64_t i = 0; i < 2 * count; i++)
        wrong += y[i] != value((int)(i / count), turn, (uint64_t)rank * count + i % count);
    return wrong;
}

static int broadcast(acomm_group *g, int rank, int turn, int32_t *x, uint64_t count, int root)
{
    fill(x, rank, turn, count);
    int wrong = RUN(g, ACOMM_BROADCAST, root, .in = rank == root ? x : 0, .out = x, .count = count);
    for (uint64_t i = 0; i < count; i++)
        wrong += x[i] != value(root, turn, i);
    return wrong;
}

/* The same calls on both, each slowed down now and then. */
static int any_order(acomm_group *g, int rank, int n)
{
    int32_t *x = malloc(2 * LONGEST * sizeof *x), *y = malloc(2 * LONGEST * sizeof *y);
    uint32_t calls = 7, pauses = (uint32_t)rank + 1;
    int wrong = n != 2;
    for (int turn = 0; turn < 2000 && !wrong; turn++) {
        uint32_t kind = dice(&calls, 6), longest = dice(&calls, 20) ? dice(&calls, 3) ? 3000 : 20000 : LONGEST;
        uint64_t count = dice(&calls, longest);
        int root = (int)dice(&calls, 2);
        for (uint32_t i = dice(&pauses, 4) ? 0 : dice(&pauses, 30); i; i--)
            sched_yield();
        wrong = kind == 0 ? gather(g, rank, turn, x, y, count) : kind == 1 ? reduce(g, rank, turn, x, y, count, -1)
            : kind == 2 ? reduce(g, rank, turn, x, y, count, root) : kind == 3 ? scatter(g, rank, turn, x, y, count)
            : kind == 4 ? exchange(g, rank, turn, x, y, count) : broadcast(g, rank, turn, x, count, root);
    }
    free(x);
    free(y);
    return wrong;
}

static void calls_in_any_order(void) { run(2, any_order, 0); }

int main(void)
{
    TEST(each_fills_what_it_read);
    TEST(in_step_they_swap);
    TEST(what_may_be_read_is_not_filled);
    TEST(of_who_is_behind_nothing_is_taken);
    TEST(who_is_ahead_does_without);
    TEST(pieces_change_hands);
    TEST(calls_in_any_order);
    return CHECK_RESULT();
}
