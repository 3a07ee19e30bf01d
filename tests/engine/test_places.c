/* engine: all */
/* A rank that shares its processor with too many moves to another one, if it may; and may afterwards what it could before. */
#include "clock.h"
#include "fake_processors.h"
#include "group.h"
#include "p2p_peer.h"
#include "places.h"

#define LOOKS 300 /* places_spread() does not look each time */
#define WAITS 100 /* nor does each wait come so far on a busy machine */
#define FEW 3     /* in which no yield lasts by chance */

static int mine = 1; /* which of two ranks waits */
static bool many; /* there are more ranks than processors, though none of them is here */

/* The last of RANKS ranks, of which all but rank 0 wait on the first processor. Where it says it is after some looks. */
static int place_after_looks(int other)
{
    struct shared s = open_shared(RANKS - 1);
    struct places places = {0};
    start_on_first(other);
    for (int rank = 0; rank < RANKS; rank++)
        atomic_store(shared_place(&s, rank), 1 + (rank ? first : second));
    CHECK_EQUAL(places_say(&s), 1 + first);
    cpu_set_t before[KERNEL_MOST / CPU_SETSIZE];
    memcpy(before, permitted, sizeof before);
    for (int i = 0; i < LOOKS; i++)
        places_spread(&places, &s);
    CHECK(!memcmp(before, permitted, sizeof before));
    CHECK_EQUAL(moves, other != first);
    int place = atomic_load(shared_place(&s, RANKS - 1)) - 1;
    shared_close(&s);
    return place;
}

/* Any of them, at once. */
static void test_parts(void)
{
    struct shared s = open_shared(1);
    struct places places = {0};
    start_on_first(second);
    for (int rank = 1; rank < RANKS; rank++)
        atomic_store(shared_place(&s, rank), 1 + first);
    CHECK(!places_part(&s)); /* it is not known where rank 0 is */
    atomic_store(shared_place(&s, 0), 1 + second);
    for (int i = 0; i < LOOKS; i++)
        CHECK(!places_spread(&places, &s)); /* which is for the last one to do */
    refuses = true;
    CHECK(!places_part(&s));
    CHECK_EQUAL(atomic_load(shared_place(&s, 1)), 1 + first);
    refuses = false;
    CHECK(places_part(&s));
    CHECK_EQUAL(moves, 1);
    CHECK_EQUAL(atomic_load(shared_place(&s, 1)), 1 + second);
    CHECK(!places_part(&s));
    shared_close(&s);
}

static void test_moves_to_where_fewer_wait(void) { CHECK_EQUAL(place_after_looks(second), second); }
static void test_stays_where_it_may_be(void) { CHECK_EQUAL(place_after_looks(first), first); }

static int recv_once(struct acomm_op *op)
{
    op->kind = ACOMM_RECV;
    int rc = p2p_post(op->group->p2p, op); /* where the time may be over before it waits */
    return rc ? rc : p2p_wait(op->group->p2p, op);
}

static int await_once(struct acomm_op *op)
{
    op->kind = ACOMM_BARRIER;
    return shared_await(&op->group->shared, op, 1 - mine, 1);
}

/* Two ranks on one processor, of as many as there are ranks or one, part in a wait if they may. It fails by its deadline, and with it
 * the group. When it would sleep at once until, because others took its core. */
static int64_t wait_beside_one(int (*wait)(struct acomm_op *), int vacant, bool lent)
{
    int32_t members[] = {0, 1}, hosts[] = {0, 0};
    acomm_group_options o = {.id = 1, .rank = mine, .size = 2, .local = 2, .crowded = many || vacant == first,
                             .members = members, .hosts = hosts, .piece_bytes = PIECE, .segment_fd = memfd_create("test", MFD_CLOEXEC),
                             .segment_bytes = acomm_segment_bytes(2, PIECE), .connections = 1, .check = 1, .timeout = 20 * SECOND};
    acomm_group *g = NULL;
    start_on_first(vacant);
    CHECK(ftruncate(o.segment_fd, (off_t)o.segment_bytes) == 0);
    CHECK_EQUAL(acomm_group_open(NULL, &o, &g), 0);
    atomic_store(shared_place(&g->shared, 1 - mine), 1 + first);
    char byte;
    struct acomm_op op = {.group = g, .out = &byte, .count = 1, .dtype = ACOMM_UINT8, .width = 1, .peer = 1 - mine, .root = -1,
                          .timeout = SECOND / 20, .synchronous = true};
    theirs = lent ? shared_turn(&g->shared, 1 - mine) : NULL;
    yields = 0; /* opening may have yielded */
    CHECK_EQUAL(wait(&op), ACOMM_TIMEOUT);
    CHECK_EQUAL(atomic_load(shared_place(&g->shared, mine)) - 1, moves ? second : first);
    struct core_turn *ours = shared_turn(&g->shared, mine);
    CHECK(!yields || (atomic_load(&ours->since) && atomic_load(&ours->until)));
    int64_t until = atomic_load(&g->stolen.until);
    theirs = NULL;
    acomm_group_close(g);
    close(o.segment_fd);
    return until;
}

static void parts_two(int (*wait)(struct acomm_op *))
{
    for (int i = 0; i == 0 || (i < WAITS && !moves); i++)
        wait_beside_one(wait, second, false);
    CHECK_EQUAL(moves, 1);
}

/* Where the ranks of a host share no memory, no network is between them all the same if they are all there. */
static void test_counts_the_ranks_of_the_host(void)
{
    int32_t members[] = {0, 1, 2}, apart[] = {0, 1, 2};
    for (int local = 1; local <= 3; local++) {
        acomm_group_options o = {.id = 1, .rank = 1, .size = 3, .local = local, .crowded = local > 2, .members = members,
                                 .hosts = apart, .segment_fd = -1, .connections = 1};
        acomm_group *g = NULL;
        CHECK_EQUAL(acomm_group_open(NULL, &o, &g), 0);
        CHECK_EQUAL(g->crowded, local > 2);
        CHECK_EQUAL(g->loopback, local == 3);
        acomm_group_close(g);
    }
}

static void test_messages_part_two(void) { parts_two(recv_once); }
static void test_collectives_part_two(void) { parts_two(await_once); }

/* A machine of thousands of processors. */
static void test_moves_beyond_1024(void)
{
    known = KERNEL_MOST;
    for (second = 5000; second < KERNEL_MOST; second += 3191)
        test_moves_to_where_fewer_wait();
    known = CPU_SETSIZE;
    second = 1;
}

/* Long turns are taken for others', unless another rank tells of having had them on our core, where it may copy for as long. */
static void test_a_core_that_another_rank_needs_is_not_stolen(void)
{
    turn = SECOND / 1000;
    CHECK(wait_beside_one(await_once, first, false) > 0);
    CHECK_EQUAL(wait_beside_one(await_once, first, true), 0);
    turn = 0;
}

/* Of a rest of ours from 100 to 200: what ranks on our processor had of it, one that has not come back yet to its end. */
static void test_lent(void)
{
    const struct { int64_t since, until; int place; int64_t lent; } cases[] = {
        {0, 0, first, 0}, {110, 150, first, 40}, {50, 150, first, 50}, {110, 300, first, 90}, {110, 90, first, 90},
        {50, 40, first, 100}, {20, 60, first, 0}, {250, 90, first, 0}, {110, 150, second, 0},
    };
    struct shared s = open_shared(1);
    start_on_first(second);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        atomic_store(shared_place(&s, 3), 1 + cases[i].place);
        atomic_store(&shared_turn(&s, 3)->since, cases[i].since);
        atomic_store(&shared_turn(&s, 3)->until, cases[i].until);
        CHECK_EQUAL(places_lent(&s, 100, 200), cases[i].lent);
    }
    atomic_store(shared_place(&s, 2), 1 + first);
    places_rest(&s, 150);
    CHECK_EQUAL(places_resume(&s, 180), 30); /* our own turns are none of others */
    atomic_store(&shared_turn(&s, 2)->since, 180);
    atomic_store(&shared_turn(&s, 2)->until, 190);
    atomic_store(shared_place(&s, 3), 1 + first); /* whose turn is still that of the last case */
    CHECK_EQUAL(places_lent(&s, 100, 200), 10 + 40);
    CHECK_EQUAL(atomic_load(&shared_turn(&s, 1)->until), 150);
    CHECK_EQUAL(atomic_load(&shared_turn(&s, 1)->since), 180);
    shared_close(&s);
}

/* The kernel wakes a rank beside the one that woke it, which works and does not look where it is. The last rank of a processor would
 * move without a sleep, too. */
static void who_slept_moves(int (*wait)(struct acomm_op *))
{
    mine = 0;
    for (int i = 0; i == 0 || (i < FEW && !moves); i++)
        wait_beside_one(wait, second, false);
    CHECK_EQUAL(moves, 1);
    wait_beside_one(wait, first, false);
    CHECK_EQUAL(moves, 0);
    many = true; /* they take turns */
    wait_beside_one(wait, second, false);
    CHECK_EQUAL(moves, 0);
    many = false;
    mine = 1;
}

static void test_who_slept_in_a_collective_moves(void) { who_slept_moves(await_once); }
static void test_who_slept_for_a_message_moves(void) { who_slept_moves(recv_once); }

/* As soon as a yield has shown that somebody works on this processor. */
static void test_whose_core_was_taken_moves(void)
{
    turn = SECOND / 10000;
    for (int i = 0; i == 0 || (i < WAITS && yields < 2); i++) { /* on a busy machine it sleeps after the first yield */
        wait_beside_one(await_once, second, false);
        CHECK_EQUAL(moves, 1);
    }
    CHECK_EQUAL(moves_by_then, 1);
    turn = 0;
}

/* Who is about to copy for long says where, for whoever waits for it meanwhile. */
static void test_who_copies_says_where(void)
{
    struct shared s = open_shared(0);
    struct acomm_group group = {0};
    struct acomm_op op = {.group = &group};
    start_on_first(second);
    CHECK_EQUAL(shared_claim(&s, &op, SHARED_SHORT, false), 0);
    CHECK_EQUAL(atomic_load(shared_place(&s, 0)), 0);
    CHECK_EQUAL(shared_claim(&s, &op, SHARED_SHORT + 1, false), 0);
    CHECK_EQUAL(atomic_load(shared_place(&s, 0)), 1 + first);
    shared_close(&s);
}

/* For how long a rank yields that has slept for so many ns. */
static int64_t yields_after(struct acomm_op *op, int64_t slept)
{
    struct wait w = wait_start(op);
    if (op->group->shared.base)
        places_rest(&op->group->shared, clock_now() - slept);
    wait_woke(&w);
    return wait_start(op).yield_ns;
}

/* A sleep that was shorter than a wake-up takes would be followed by one of the other rank, and so on. */
static void test_who_slept_shortly_yields_longer(void)
{
    enum { MILLISECOND = 1000000 };
    struct acomm_group group = {.size = 2, .shared = open_shared(0)};
    struct acomm_op op = {.group = &group};
    start_on_first(second);
    int64_t usual = wait_start(&op).yield_ns, longest = usual;
    CHECK_EQUAL(yields_after(&op, MILLISECOND), 2 * usual);
    CHECK_EQUAL(yields_after(&op, MILLISECOND), 4 * usual);
    for (int i = 0; i < FEW * FEW; i++)
        longest = yields_after(&op, 0);
    CHECK(longest > 2 * MILLISECOND && longest < 10 * MILLISECOND);
    CHECK_EQUAL(yields_after(&op, 20 * MILLISECOND), usual); /* somebody is late */
    atomic_store(&group.stolen.until, INT64_MAX); /* it sleeps at once, because others than ranks want its core */
    CHECK_EQUAL(yields_after(&op, MILLISECOND), usual);
    atomic_store(&group.stolen.until, 0);
    group.crowded = true;
    int64_t turns = wait_start(&op).yield_ns;
    CHECK_EQUAL(yields_after(&op, MILLISECOND), turns);
    group.crowded = false;
    CHECK_EQUAL(wait_start(&op).yield_ns, usual);
    struct shared shared = group.shared;
    group.shared.base = NULL; /* sockets are slept on by poll() */
    CHECK_EQUAL(yields_after(&op, MILLISECOND), usual);
    shared_close(&shared);
}

int main(void)
{
    TEST(test_moves_to_where_fewer_wait);
    TEST(test_stays_where_it_may_be);
    TEST(test_parts);
    TEST(test_counts_the_ranks_of_the_host);
    TEST(test_moves_beyond_1024);
    TEST(test_messages_part_two);
    TEST(test_collectives_part_two);
    TEST(test_a_core_that_another_rank_needs_is_not_stolen);
    TEST(test_lent);
    TEST(test_who_slept_in_a_collective_moves);
    TEST(test_who_slept_for_a_message_moves);
    TEST(test_whose_core_was_taken_moves);
    TEST(test_who_copies_says_where);
    TEST(test_who_slept_shortly_yields_longer);
    return CHECK_RESULT();
}
