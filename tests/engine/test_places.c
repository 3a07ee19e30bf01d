/* engine: all */
/* A rank that shares its processor with too many moves to another one, if it may; and may afterwards what it could before. */
#include <sched.h>
#include "group.h"
#include "p2p.h"
#include "places.h"
#include "shared.h"
#include "shared_world.h"

#define LOOKS 300 /* places_spread() does not look each time */
#define RANKS 4

static cpu_set_t permitted;
static int first, second; /* permitted processors; the same where there is only one */

static void find_processors(void)
{
    CHECK(sched_getaffinity(0, sizeof permitted, &permitted) == 0);
    for (first = 0; !CPU_ISSET(first, &permitted); first++)
        ;
    for (second = first + 1; second < CPU_SETSIZE && !CPU_ISSET(second, &permitted); second++)
        ;
    second = second < CPU_SETSIZE ? second : first;
}

static void permit(int a, int b)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(a, &set);
    CPU_SET(b, &set);
    CHECK(sched_setaffinity(0, sizeof set, &set) == 0);
}

/* The last of RANKS ranks, of which all but rank 0 wait on the first processor. Where it says it is after some looks. */
static int place_after_looks(int other)
{
    struct shared s;
    struct places places = {0};
    uint64_t piece = shared_piece(RANKS, PIECE), bytes = shared_bytes(RANKS, piece);
    int fd = memfd_create("test", MFD_CLOEXEC);
    CHECK(ftruncate(fd, (off_t)bytes) == 0);
    CHECK_EQUAL(shared_open(&s, fd, bytes, RANKS - 1, RANKS, piece), 0);
    permit(first, first);
    for (int rank = 0; rank < RANKS; rank++)
        atomic_store(shared_place(&s, rank), 1 + (rank ? first : second));
    CHECK_EQUAL(places_say(&s), 1 + first);
    permit(first, other);
    cpu_set_t before, after;
    CHECK(sched_getaffinity(0, sizeof before, &before) == 0);
    for (int i = 0; i < LOOKS; i++)
        places_spread(&places, &s);
    CHECK(sched_getaffinity(0, sizeof after, &after) == 0);
    CHECK(CPU_EQUAL(&before, &after));
    int place = atomic_load(shared_place(&s, RANKS - 1)) - 1;
    shared_close(&s);
    close(fd);
    CHECK(sched_setaffinity(0, sizeof permitted, &permitted) == 0);
    return place;
}

static void test_moves_to_where_fewer_wait(void) { CHECK_EQUAL(place_after_looks(second), second); }
static void test_stays_where_it_may_be(void) { CHECK_EQUAL(place_after_looks(first), first); }

static int recv_once(struct acomm_op *op)
{
    op->kind = ACOMM_RECV;
    CHECK_EQUAL(p2p_post(op->group->p2p, op), 0);
    return p2p_wait(op->group->p2p, op);
}

static int await_once(struct acomm_op *op)
{
    op->kind = ACOMM_BARRIER;
    return shared_await(&op->group->shared, op, 0, 1);
}

/* Two ranks on one processor, of as many as there are ranks: one wait that fails by its deadline is enough to part them. */
static void parts_two(int (*wait)(struct acomm_op *))
{
    int32_t members[] = {0, 1}, hosts[] = {0, 0};
    acomm_group_options o = {.id = 1, .rank = 1, .size = 2, .members = members, .hosts = hosts, .piece_bytes = PIECE,
                             .segment_fd = memfd_create("test", MFD_CLOEXEC), .segment_bytes = acomm_segment_bytes(2, PIECE),
                             .connections = 1, .check = 1, .timeout = 20 * SECOND};
    acomm_group *g = NULL;
    CHECK(ftruncate(o.segment_fd, (off_t)o.segment_bytes) == 0);
    CHECK_EQUAL(acomm_group_open(NULL, &o, &g), 0);
    permit(first, first);
    atomic_store(shared_place(&g->shared, 0), 1 + first);
    permit(first, second);
    char byte;
    struct acomm_op op = {.group = g, .out = &byte, .count = 1, .dtype = ACOMM_UINT8, .width = 1, .peer = 0, .root = -1,
                          .timeout = SECOND / 20, .synchronous = true};
    CHECK_EQUAL(wait(&op), ACOMM_TIMEOUT);
    CHECK_EQUAL(atomic_load(shared_place(&g->shared, 1)) - 1, second);
    acomm_group_close(g);
    close(o.segment_fd);
    CHECK(sched_setaffinity(0, sizeof permitted, &permitted) == 0);
}

static void test_messages_part_two(void) { parts_two(recv_once); }
static void test_collectives_part_two(void) { parts_two(await_once); }

int main(void)
{
    find_processors();
    TEST(test_moves_to_where_fewer_wait);
    TEST(test_stays_where_it_may_be);
    TEST(test_messages_part_two);
    TEST(test_collectives_part_two);
    return CHECK_RESULT();
}
