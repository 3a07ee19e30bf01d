/* engine: all */
/* More than two ranks: what each gives to another changes hands; and contents that may be read still are never overwritten. */
#include "group/group.h"
#include "shared_world.h"

#define LENGTH 30000 /* int32, of several pieces */
#define TURNS 40

static int32_t value(int rank, int turn, uint64_t i) { return (int32_t)((uint64_t)rank * 1000003u + (uint64_t)turn * 977u + i * 7u); }

static uint32_t dice(uint32_t *chance, uint32_t sides)
{
    *chance = *chance * 1664525 + 1013904223;
    return (*chance >> 8) % sides;
}

/* Every kind of operation, of any length, on the same arrays of all ranks; the number of wrong elements. */
struct arrays { int32_t *x, *y; };

static int32_t summed(int n, int turn, uint64_t i)
{
    int32_t sum = 0;
    for (int rank = 0; rank < n; rank++)
        sum += value(rank, turn, i);
    return sum;
}

static int operate(acomm_group *g, int rank, int n, int turn, int kind, uint64_t count, struct arrays a)
{
    bool scattered = kind == ACOMM_REDUCE_SCATTER || kind == ACOMM_ALL_TO_ALL, rooted = kind == ACOMM_GATHER || kind == ACOMM_REDUCE;
    uint64_t given = scattered ? count * (uint64_t)n : count, each = count, first = scattered ? count * (uint64_t)rank : 0;
    int root = rooted || kind == ACOMM_BROADCAST ? turn % n : -1, wrong = 0;
    for (uint64_t i = 0; i < given; i++)
        a.x[i] = value(rank, turn, i);
    bool gets = root < 0 || rank == root || kind == ACOMM_BROADCAST, gives = kind != ACOMM_BROADCAST || rank == root;
    wrong += RUN(g, kind, root, .in = gives ? a.x : 0, .out = gets ? a.y : 0, .count = count) != 0;
    if (!gets)
        return wrong;
    if (kind == ACOMM_ALL_REDUCE || kind == ACOMM_REDUCE || kind == ACOMM_REDUCE_SCATTER)
        for (uint64_t i = 0; i < each; i++)
            wrong += a.y[i] != summed(n, turn, first + i);
    else if (kind == ACOMM_BROADCAST)
        for (uint64_t i = 0; i < each; i++)
            wrong += a.y[i] != value(root, turn, i);
    else
        for (uint64_t i = 0; i < each * (uint64_t)n; i++)
            wrong += a.y[i] != value((int)(i / each), turn, first + i % each);
    return wrong;
}

static struct arrays arrays(int n)
{
    return (struct arrays){malloc((size_t)n * LENGTH * sizeof(int32_t)), malloc((size_t)n * LENGTH * sizeof(int32_t))};
}

static void drop(struct arrays a)
{
    free(a.x);
    free(a.y);
}

/* Where this rank put down what a peer got lies where it will find that one's next. */
static int changes_hands(acomm_group *g, int rank, int n)
{
    static const int kinds[] = {ACOMM_ALL_TO_ALL, ACOMM_REDUCE_SCATTER, ACOMM_ALL_REDUCE};
    struct arrays a = arrays(n);
    int wrong = n > 2 ? RUN_BARRIER(g) : 0;
    for (int turn = 0; turn < TURNS; turn++) {
        const char *ours[MAX_RANKS], *theirs[MAX_RANKS];
        uint64_t before = g->shared.turns;
        for (int peer = 0; peer < n; peer++) {
            ours[peer] = peer == rank ? NULL : shared_pair(&g->shared, rank, peer);
            theirs[peer] = peer == rank ? NULL : shared_pair(&g->shared, peer, rank);
        }
        wrong += operate(g, rank, n, turn, kinds[turn % 3], turn % 3 == 2 ? 4500 : 3000 / (uint64_t)n, a); /* one piece */
        wrong += g->shared.turns != before + 1;
        for (int peer = 0; peer < n; peer++) {
            wrong += peer != rank && shared_pair(&g->shared, rank, peer) != theirs[peer];
            wrong += peer != rank && shared_pair(&g->shared, peer, rank) != ours[peer];
        }
    }
    drop(a);
    return wrong;
}

static void each_fills_what_it_read(void)
{
    for (int n = 3; n <= MAX_RANKS; n++)
        run(n, changes_hands, 0);
}

/* No two pairs, and no two directions of one, share a byte; nothing lies outside the segment. */
static void places_are_apart(void)
{
    for (int n = 3; n <= MAX_RANKS; n++) {
        uint64_t piece = shared_piece(n, PIECE), bytes = shared_bytes(n, piece, true);
        int fd = memfd_create("test", MFD_CLOEXEC);
        struct shared s;
        CHECK_EQUAL(ftruncate(fd, (off_t)bytes), 0);
        CHECK_EQUAL(shared_open(&s, fd, bytes, 0, n, piece), 0);
        uint64_t room = shared_pair_room(&s);
        unsigned char *used = calloc(1, s.bytes);
        for (s.turns = 0; s.turns < 2; s.turns++) {
            memset(used, 0, s.bytes);
            for (int from = 0; from < n; from++)
                for (int to = 0; to < n; to++)
                    for (uint64_t i = 0; to != from && i < room; i++) {
                        uint64_t at = (uint64_t)(shared_pair(&s, from, to) - s.base) + i;
                        CHECK(at < s.bytes && !used[at]++);
                    }
        }
        free(used);
        shared_close(&s);
        close(fd);
    }
}

/* All kinds in turn, of lengths by chance: contents of all sizes meet in the area, and ranks that only give run ahead. */
static int by_chance(acomm_group *g, int rank, int n)
{
    static const int kinds[] = {ACOMM_ALL_TO_ALL, ACOMM_REDUCE_SCATTER, ACOMM_ALL_REDUCE, ACOMM_ALL_GATHER,
                                ACOMM_GATHER, ACOMM_REDUCE, ACOMM_BROADCAST};
    struct arrays a = arrays(n);
    uint32_t chance = (uint32_t)n;
    int wrong = 0;
    for (int turn = 0; turn < 400; turn++) {
        int kind = kinds[dice(&chance, sizeof kinds / sizeof *kinds)];
        uint64_t most = dice(&chance, 4) ? 3000 : LENGTH;
        wrong += operate(g, rank, n, turn, kind, dice(&chance, (uint32_t)most), a);
    }
    drop(a);
    return wrong;
}

static void all_kinds_in_turn(void)
{
    for (int n = 3; n <= MAX_RANKS; n++)
        run(n, by_chance, 0);
}

/* A rank among others that have come to its own last round: where its contents of `bytes` go, read later or not. */
static uint64_t next(struct shared *s, struct acomm_op *op, size_t bytes, bool later)
{
    for (int rank = 0; rank < s->ranks; rank++)
        s->seen[rank] = s->round;
    CHECK_EQUAL(shared_acquire(s, op, bytes, later), 0);
    shared_commit(s);
    return s->laid[s->round % SHARED_SLOTS].from;
}

/* Whoever waits for its own next round would wait for ever: shared_acquire() would not come back. */
static void what_is_read_stays(void)
{
    enum { RANKS = 4 };
    uint64_t piece = shared_piece(RANKS, 1 << 16), bytes = shared_bytes(RANKS, piece, true);
    int fd = memfd_create("test", MFD_CLOEXEC);
    struct shared s;
    CHECK_EQUAL(ftruncate(fd, (off_t)bytes), 0);
    CHECK_EQUAL(shared_open(&s, fd, bytes, 0, RANKS, piece), 0);
    struct acomm_group group = {.timeout = SECOND};
    struct acomm_op op = {.group = &group, .kind = ACOMM_ALL_GATHER, .timeout = SECOND};
    uint32_t chance = 1;
    uint64_t from[2] = {0}, to[2] = {0};
    bool later[2] = {false, false};
    for (int round = 0; round < 5000; round++) {
        size_t length = 16385 + dice(&chance, (uint32_t)piece - 16384);
        bool again = dice(&chance, 2);
        uint64_t at = next(&s, &op, length, again);
        CHECK(at + length <= 4 * piece);
        CHECK(round < 2 || at >= to[0] || at + length <= from[0]);
        CHECK(round < 2 || !later[1] || at >= to[1] || at + length <= from[1]);
        from[1] = from[0], to[1] = to[0], later[1] = later[0];
        from[0] = at, to[0] = at + length, later[0] = again;
    }
    shared_close(&s);
    close(fd);
}

int main(void)
{
    TEST(each_fills_what_it_read);
    TEST(places_are_apart);
    TEST(all_kinds_in_turn);
    TEST(what_is_read_stays);
    return CHECK_RESULT();
}
