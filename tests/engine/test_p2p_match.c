/* engine: p2p/ memory/peer_memory.c group/shared/window.c group/shared/shared.c group/hosts.c memory/arena.c link/tcp.c link/shm.c base/doorbell.c memory/stream.c group/op.c group/wait.c base/process.c */
#include "p2p_world.h"

#define LARGE 5000000

/* Receives that could both take a message: the one posted first does. */
static void receives_match_in_posting_order(void)
{
    EVERY_KIND(2, {
        struct acomm_group *a = &w->groups[0], *b = &w->groups[1];
        char got[2] = {0}, sent[2] = {1, 2};
        for (int any_first = 0; any_first < 2; any_first++) {
            struct acomm_op ops[2];
            for (int i = 0; i < 2; i++)
                world_start(b, &ops[i], ACOMM_RECV, &got[i], 1, i == !any_first ? -1 : 0, 1);
            for (int i = 0; i < 2; i++)
                CHECK_EQUAL(world_do(a, ACOMM_SEND, &sent[i], 1, 1, 1), 0);
            for (int i = 0; i < 2; i++)
                CHECK_EQUAL(p2p_wait(b->p2p, &ops[i]), 0);
            CHECK(got[0] == 1 && got[1] == 2 && ops[0].peer == 0 && ops[1].peer == 0);
        }
    })
}

/* A receive from any source takes the message that came first, also when both came before it. */
static void messages_match_in_order_of_arrival(void)
{
    EVERY_KIND(3, {
        char byte = 0;
        for (int turn = 0; turn < 2; turn++) {
            for (int i = 0; i < 2; i++) {
                int peer = 1 + (turn + i) % 2;
                CHECK_EQUAL(world_do(&w->groups[peer], ACOMM_SEND, &byte, 1, 0, 1), 0);
                CHECK_EQUAL(world_do(&w->groups[peer], ACOMM_SEND, &byte, 1, 0, 2), 0);
                CHECK_EQUAL(world_do(&w->groups[0], ACOMM_RECV, &byte, 1, peer, 2), 0); /* reads past the first */
            }
            for (int i = 0; i < 2; i++) {
                struct acomm_op op;
                world_start(&w->groups[0], &op, ACOMM_RECV, &byte, 1, -1, 1);
                CHECK_EQUAL(p2p_wait(w->groups[0].p2p, &op), 0);
                CHECK_EQUAL(op.peer, 1 + (turn + i) % 2);
            }
        }
    })
}

static void check_truncated(const struct acomm_op *op, int status, uint64_t theirs, int dtype)
{
    CHECK_EQUAL(status, ACOMM_TRUNCATED);
    CHECK_EQUAL(op->failure.code, ACOMM_TRUNCATED);
    CHECK_EQUAL(op->failure.culprit, 1 - op->group->rank);
    CHECK_EQUAL(op->failure.mine.count, op->count);
    CHECK_EQUAL(op->failure.theirs.count, theirs);
    CHECK_EQUAL(op->failure.theirs.dtype, dtype);
    CHECK_EQUAL(op->failure.theirs.kind, op->kind == ACOMM_SEND ? ACOMM_RECV : ACOMM_SEND);
}

/* Sends `count` bytes to receives of other counts and dtypes, posted before (`early`) or after the message came. */
static void truncated(struct world *w, uint64_t count, uint64_t posted, int dtype, bool early)
{
    struct acomm_group *a = &w->groups[0], *b = &w->groups[1];
    char *from = calloc(1, count + 1), *to = calloc(1, 8 * posted + 1);
    struct acomm_op send, receive = message(b, ACOMM_RECV, to, posted, dtype, 0, 3);
    if (early)
        CHECK_EQUAL(p2p_post(b->p2p, &receive), 0);
    world_start(a, &send, ACOMM_SEND, from, count, 1, 3);
    if (!early) {
        struct acomm_op other; /* makes b read the message before its receive is there */
        char byte;
        world_start(b, &other, ACOMM_RECV, &byte, 1, 0, 4);
        CHECK_EQUAL(world_do(a, ACOMM_SEND, &byte, 1, 1, 4), 0);
        CHECK_EQUAL(p2p_wait(b->p2p, &other), 0);
        CHECK_EQUAL(p2p_post(b->p2p, &receive), 0);
    }
    check_truncated(&receive, p2p_wait(b->p2p, &receive), count, ACOMM_UINT8);
    int status = p2p_wait(a->p2p, &send);
    if (count <= WIRE_EAGER_MAX)
        CHECK_EQUAL(status, 0); /* was buffered */
    else
        check_truncated(&send, status, posted, dtype);
    CHECK(!a->failed && !b->failed);
    free(from);
    free(to);
}

static void messages_that_do_not_fit(void)
{
    EVERY_KIND(2, {
        for (int early = 0; early < 2; early++) {
            truncated(w, 100, 99, ACOMM_UINT8, early);
            truncated(w, 100, 101, ACOMM_UINT8, early);
            truncated(w, 100, 100, ACOMM_FLOAT64, early);
            truncated(w, 0, 1, ACOMM_UINT8, early);
            truncated(w, 100, 0, ACOMM_UINT8, early);
            truncated(w, WIRE_EAGER_MAX + 100, WIRE_EAGER_MAX + 99, ACOMM_UINT8, early);
            truncated(w, WIRE_EAGER_MAX + 100, WIRE_EAGER_MAX + 100, ACOMM_INT32, early);
        }
        char byte = 0;
        CHECK_EQUAL(world_do(&w->groups[0], ACOMM_SEND, &byte, 1, 1, 5), 0);
        CHECK_EQUAL(world_do(&w->groups[1], ACOMM_RECV, &byte, 1, 0, 5), 0);
        const struct p2p_peer *sender = w->groups[1].p2p->peers[0];
        CHECK_EQUAL(sender->arrived, sender->consumed); /* what they took is for others again */
    })
}

static void messages_to_oneself(void)
{
    struct world *w = world_open(1, 0);
    struct acomm_group *g = &w->groups[0];
    char *from = malloc(LARGE), *to = calloc(1, LARGE);
    struct acomm_op a, b;
    fill_bytes(from, LARGE, 1);
    CHECK_EQUAL(world_do(g, ACOMM_SEND, from, WIRE_EAGER_NEAR, 0, 1), 0); /* buffered */
    CHECK_EQUAL(world_do(g, ACOMM_SEND, from, 3, 0, 1), 0);
    CHECK_EQUAL(world_do(g, ACOMM_RECV, to, WIRE_EAGER_NEAR, -1, 1), 0);
    CHECK(has_bytes(to, WIRE_EAGER_NEAR, 1));
    CHECK_EQUAL(world_do(g, ACOMM_RECV, to, 3, 0, 1), 0);
    world_start(g, &a, ACOMM_SEND, from, LARGE, 0, 2);
    CHECK_EQUAL(p2p_wait_until(g->p2p, &a, 0), 1);
    CHECK_EQUAL(world_do(g, ACOMM_RECV, to, LARGE, 0, 2), 0);
    CHECK(has_bytes(to, LARGE, 1) && p2p_wait(g->p2p, &a) == 0);
    world_start(g, &b, ACOMM_RECV, to, 5, 0, 2);
    world_start(g, &a, ACOMM_SEND, from, 6, 0, 2);
    CHECK_EQUAL(p2p_wait(g->p2p, &a), ACOMM_TRUNCATED);
    CHECK_EQUAL(p2p_wait(g->p2p, &b), ACOMM_TRUNCATED);
    free(from);
    free(to);
    world_close(w);
}

/* More unexpected messages than the receiver keeps: later ones wait at their sender, and none blocks another tag. */
static void unexpected_messages_are_bounded(void)
{
    enum { MANY = 5 * WIRE_CREDIT_MAX / WIRE_EAGER_NEAR };
    EVERY_KIND(2, {
        struct acomm_group *a = &w->groups[0], *b = &w->groups[1];
        static struct acomm_op ops[MANY + 1];
        char *data = malloc(WIRE_EAGER_NEAR);
        fill_bytes(data, WIRE_EAGER_NEAR, 9);
        for (int i = 0; i < MANY; i++)
            world_start(a, &ops[i], ACOMM_SEND, data, WIRE_EAGER_NEAR, 1, 1);
        world_start(a, &ops[MANY], ACOMM_SEND, data, 10, 1, 2);
        char *got = malloc(WIRE_EAGER_NEAR);
        CHECK_EQUAL(world_do(b, ACOMM_RECV, got, 10, 0, 2), 0);
        struct p2p_peer *peer = b->p2p->peers[0];
        CHECK(peer->arrived - peer->consumed <= wire_credit(2) && peer->arrived - peer->consumed > wire_credit(2) / 2);
        for (int i = 0; i < MANY; i++) {
            memset(got, 0, WIRE_EAGER_NEAR);
            CHECK_EQUAL(world_do(b, ACOMM_RECV, got, WIRE_EAGER_NEAR, 0, 1), 0);
            CHECK(has_bytes(got, WIRE_EAGER_NEAR, 9));
        }
        CHECK_EQUAL(peer->arrived, peer->consumed);
        for (int i = 0; i <= MANY; i++)
            CHECK_EQUAL(op_wait(&ops[i], -1), 0);
        free(data);
        free(got);
    })
}

int main(void)
{
    TEST(receives_match_in_posting_order);
    TEST(messages_match_in_order_of_arrival);
    TEST(messages_that_do_not_fit);
    TEST(messages_to_oneself);
    TEST(unexpected_messages_are_bounded);
    return CHECK_RESULT();
}
