/* engine: link/tcp.c link/shm.c base/doorbell.c memory/stream.c group/transfer.c group/signature.c group/select.c group/op.c group/wait.c base/process.c group/shared/shared.c group/shared/symmetric.c memory/arena.c group/shared/window.c memory/peer_memory.c reduce/ collectives/ */
#include <errno.h>
#include "group/signature.h"
#include "fake_group.h"
#include "group/transfer.h"

#define LARGE ((size_t)1 << 20)

static struct fake_world world;

static void on_transports(int n, void (*run)(struct acomm_group *g))
{
    for (int transport = 0; transport < FAKE_TRANSPORTS; transport++) {
        fake_open(&world, n, (enum fake_transport)transport);
        fake_run(&world, run);
        fake_close(&world);
    }
}

/* Everybody exchanges large messages with everybody at once; both directions of a pair are full all the time. */
static void exchange_all(struct acomm_group *g)
{
    struct acomm_op op = fake_op(g, ACOMM_ALL_TO_ALL, ACOMM_UINT8);
    unsigned char *sent = malloc(LARGE), *got = malloc(LARGE * FAKE_RANKS);
    memset(sent, g->rank + 1, LARGE);
    struct transfer list[2 * FAKE_RANKS];
    int used = 0;
    for (int peer = 0; peer < g->size; peer++) {
        if (peer == g->rank)
            continue;
        list[used++] = transfer_to(&op, peer, sent, LARGE - (size_t)g->rank);
        list[used++] = transfer_from(&op, peer, got + LARGE * (size_t)peer, LARGE - (size_t)peer);
    }
    fake_expect(transfer_run(&op, list, used) == 0, "rank %d", g->rank);
    for (int peer = 0; peer < g->size; peer++)
        for (size_t i = 0; peer != g->rank && i < LARGE - (size_t)peer; i++)
            if (got[LARGE * (size_t)peer + i] != peer + 1) {
                fake_expect(false, "byte %zu from %d", i, peer);
                break;
            }
    free(sent);
    free(got);
}
static void full_in_all_directions(void) { on_transports(4, exchange_all); }

static void exchange_small(struct acomm_group *g)
{
    struct acomm_op op = fake_op(g, ACOMM_BARRIER, ACOMM_UINT8);
    int next = (g->rank + 1) % g->size, prev = (g->rank + g->size - 1) % g->size;
    for (int round = 0; round < 200; round++) {
        int64_t mine = g->rank * 1000 + round, theirs = -1;
        fake_expect(transfer_exchange(&op, next, &mine, sizeof mine, prev, &theirs, sizeof theirs) == 0, "%d", round);
        fake_expect(theirs == prev * 1000 + round, "round %d", round);
    }
    fake_expect(transfer_exchange(&op, -1, NULL, 0, -1, NULL, 0) == 0, "nothing at all");
    fake_expect(transfer_exchange(&op, next, NULL, 0, prev, NULL, 0) == 0, "no bytes");
    if (g->rank == 0)
        fake_expect(transfer_exchange(&op, next, "abc", 3, -1, NULL, 0) == 0, "only a send");
    char text[4] = {0};
    if (g->rank == 1)
        fake_expect(transfer_exchange(&op, -1, NULL, 0, 0, text, 3) == 0 && !strcmp(text, "abc"), "only a receive");
}
static void small_exchanges(void) { on_transports(3, exchange_small); }

/* Elements that straddle what one call receives: the stream goes through in odd portions first. */
static void combine_stream(struct acomm_group *g)
{
    struct acomm_op op = fake_op(g, ACOMM_ALL_REDUCE, ACOMM_FLOAT64);
    struct reduction sum = {.dtype = ACOMM_FLOAT64, .redop = ACOMM_SUM, .ranks = 2};
    size_t count = 100003;
    double *values = malloc(count * sizeof *values);
    char *bounce = malloc(TRANSFER_PIECE);
    for (size_t i = 0; i < count; i++)
        values[i] = (double)i;
    if (g->rank == 0) {
        char *data = (char *)values;
        for (size_t done = 0, part = 1; done < count * 8; done += part, part = part * 3 % 100000) {
            if (part > count * 8 - done)
                part = count * 8 - done;
            fake_expect(transfer_exchange(&op, 1, data + done, part, -1, NULL, 0) == 0, "at %zu", done);
        }
    } else {
        struct transfer t = transfer_from(&op, 0, bounce, count * 8);
        t.reduction = &sum;
        t.partial = (char *)values;
        fake_expect(transfer_run(&op, &t, 1) == 0, "receive");
        for (size_t i = 0; i < count; i++)
            if (values[i] != 2.0 * (double)i) {
                fake_expect(false, "element %zu is %g", i, values[i]);
                break;
            }
    }
    free(values);
    free(bounce);
}
static void combines_in_pieces(void) { on_transports(2, combine_stream); }

static void in_order(struct acomm_group *g)
{
    struct acomm_op op = fake_op(g, ACOMM_BARRIER, ACOMM_UINT8);
    size_t size = 300000;
    char *first = malloc(size), *second = malloc(size);
    memset(first, g->rank == 0 ? 'a' : 0, size);
    memset(second, g->rank == 0 ? 'b' : 0, size);
    struct transfer list[2];
    for (int i = 0; i < 2; i++)
        list[i] = g->rank == 0 ? transfer_to(&op, 1, i ? second : first, size)
                               : transfer_from(&op, 0, i ? second : first, size);
    list[1].after = &list[0];
    fake_expect(transfer_run(&op, list, 2) == 0, "rank %d", g->rank);
    fake_expect(first[0] == 'a' && first[size - 1] == 'a' && second[0] == 'b' && second[size - 1] == 'b', "order");
    free(first);
    free(second);
}
static void one_after_the_other(void) { on_transports(2, in_order); }

/* Rank 1 answers only the second message, so whoever waited for the answer after the first would wait for ever. */
static void answer_the_second(struct acomm_group *g)
{
    struct acomm_op op = fake_op(g, ACOMM_BARRIER, ACOMM_UINT8);
    size_t size = 300000;
    char *answer = malloc(size), call = 'a';
    memset(answer, g->rank == 1 ? 'b' : 0, size);
    struct transfer list[2] = {{0}};
    list[0] = g->rank == 0 ? transfer_from(&op, 1, answer, size) : transfer_to(&op, 0, answer, size);
    for (int turn = 0; turn < 2; turn++) {
        list[0].aside = g->rank == 0 && turn == 0;
        list[1] = g->rank == 0 ? transfer_to(&op, 1, &call, 1) : transfer_from(&op, 0, &call, 1);
        fake_expect(transfer_run(&op, list + g->rank, 2 - g->rank) == 0, "rank %d", g->rank);
    }
    fake_expect(g->rank == 0 || transfer_run(&op, list, 1) == 0, "answer");
    fake_expect(answer[0] == 'b' && answer[size - 1] == 'b', "rank %d", g->rank);
    free(answer);
}
static void one_aside(void) { on_transports(2, answer_the_second); }

static void leave_or_wait(struct acomm_group *g)
{
    struct acomm_op op = fake_op(g, ACOMM_BROADCAST, ACOMM_UINT8);
    char data[10];
    if (g->rank == 1) {
        fake_leave(&world, 1);
        return;
    }
    int rc = transfer_exchange(&op, -1, NULL, 0, g->rank == 0 ? 1 : 0, data, sizeof data);
    fake_expect(rc == ACOMM_LOST, "%d", rc);
    fake_expect(g->failure.culprit == 1 && g->failure.sequence == 1, "culprit %d", g->failure.culprit);
    fake_expect(strstr(g->failure.text, "closed"), "%s", g->failure.text);
}

/* Rank 0 waits for rank 1, which leaves; rank 2 waits for rank 0 and learns from it. */
static void lost_peer(void)
{
    fake_open(&world, 3, FAKE_SOCKETS);
    fake_run(&world, leave_or_wait);
    CHECK_EQUAL(world.node.lost, -1); /* a closed connection is no proof that the process has ended */
    fake_close(&world);
}

/* The peer closes because the group failed over there: the failure that is told counts, not the closed connection. */
static void tell_then_wait(struct acomm_group *g)
{
    char data[10];
    if (g->rank == 1) {
        fake_leave(&world, 1);
        usleep(20000);
        acomm_failure failure = {.code = ACOMM_ABORTED, .culprit = 1, .origin = 1};
        group_fail(g, &failure, true);
        return;
    }
    struct acomm_op op = fake_op(g, ACOMM_BROADCAST, ACOMM_UINT8);
    int rc = transfer_exchange(&op, -1, NULL, 0, 1, data, sizeof data);
    fake_expect(rc == ACOMM_ABORTED, "%d", rc);
}
static void told_reason(void)
{
    fake_open(&world, 2, FAKE_SOCKETS);
    fake_run(&world, tell_then_wait);
    fake_close(&world);
}

static void wait_in_vain(struct acomm_group *g)
{
    if (g->rank == 1)
        return;
    struct acomm_op op = fake_op(g, ACOMM_BROADCAST, ACOMM_UINT8);
    char data[10];
    op.deadline = op.started + FAKE_SECOND / 10;
    int rc = transfer_exchange(&op, -1, NULL, 0, 1, data, sizeof data);
    int64_t took = clock_now() - op.started;
    fake_expect(rc == ACOMM_TIMEOUT && g->failure.culprit == 1, "%d, culprit %d", rc, g->failure.culprit);
    fake_expect(took >= FAKE_SECOND / 10, "took %lld ns", (long long)took);
    rc = transfer_exchange(&op, -1, NULL, 0, 1, data, sizeof data);
    fake_expect(rc == ACOMM_TIMEOUT, "poisoned %d", rc);
}
static void deadline(void) { on_transports(2, wait_in_vain); }

static int64_t last;    /* the deadline */
static uint64_t beyond; /* bytes that were asked for after it: whoever else has the core, time passes */

/* As much as is asked for, up to what a socket's buffer may hold, at 3 bytes a ns. */
static ssize_t plenty(struct link *link, void *to, size_t bytes)
{
    (void)link, (void)to;
    bytes = bytes < 8 * LARGE ? bytes : 8 * LARGE;
    int64_t until = clock_now() + (int64_t)(bytes / 3);
    beyond += clock_now() > last ? bytes : 0;
    while (clock_now() < until)
        ;
    return (ssize_t)bytes;
}

static void all_have_plenty(struct acomm_group *g)
{
    if (g->rank)
        return;
    struct acomm_op op = fake_op(g, ACOMM_ALL_TO_ALL, ACOMM_UINT8);
    struct transfer list[FAKE_RANKS];
    struct link_ops ops[FAKE_RANKS];
    const struct link_ops *before = NULL;
    char unwritten;
    last = op.deadline = op.started + FAKE_SECOND / 50;
    beyond = 0;
    for (int peer = 1; peer < g->size; peer++) {
        list[peer] = transfer_from(&op, peer, &unwritten, 1ull << 40);
        before = list[peer].link->ops;
        ops[peer] = *before;
        ops[peer].recv = plenty;
        list[peer].link->ops = &ops[peer];
    }
    int rc = transfer_run(&op, list + 1, g->size - 1);
    fake_expect(rc == ACOMM_TIMEOUT && beyond < 300000000, "%d, %llu bytes after the deadline", rc, (unsigned long long)beyond);
    for (int peer = 1; peer < g->size; peer++)
        list[peer].link->ops = before;
}
static void deadline_amid_data(void)
{
    fake_open(&world, FAKE_RANKS, FAKE_SOCKETS);
    fake_run(&world, all_have_plenty);
    fake_close(&world);
}

/* Time is up at a look after the turn in which the last bytes moved: nothing is waited for any more, so nobody is named. */
static void move_too_late(struct acomm_group *g)
{
    struct acomm_op op = fake_op(g, ACOMM_BROADCAST, ACOMM_UINT8);
    char call = 'a', answer[2];
    if (g->rank == 1)
        return; /* the link has room for the byte */
    op.deadline = op.started;
    op.waits.moves = WAIT_MOVES - 1;
    struct transfer list[2] = {transfer_to(&op, 1, &call, 1), transfer_from(&op, 1, answer, 2)};
    list[1].aside = true; /* is not waited for, and never comes */
    int rc = transfer_run(&op, list, 2);
    fake_expect(rc == ACOMM_TIMEOUT && list[0].done == 1, "%d", rc);
    fake_expect(g->failure.culprit == -1, "culprit %d", g->failure.culprit);
}
static void moved_at_the_deadline(void) { on_transports(2, move_too_late); }

static void poison_sleeper(struct acomm_group *g)
{
    struct acomm_op op = fake_op(g, ACOMM_BROADCAST, ACOMM_UINT8);
    char data[10];
    if (g->rank == 0) {
        int rc = transfer_exchange(&op, -1, NULL, 0, 1, data, sizeof data);
        fake_expect(rc == ACOMM_ABORTED, "%d", rc);
        return;
    }
    usleep(50000); /* long enough for the other to be asleep */
    acomm_failure failure = {.code = ACOMM_ABORTED, .culprit = 1};
    group_fail(g, &failure, true);
}
static void poisoned_while_asleep(void) { on_transports(2, poison_sleeper); }

static int interrupt(void)
{
    return 1;
}
static void wait_for_interrupt(struct acomm_group *g)
{
    struct acomm_op op = fake_op(g, ACOMM_BROADCAST, ACOMM_UINT8);
    char data[10];
    op.synchronous = g->rank == 0;
    int rc = transfer_exchange(&op, -1, NULL, 0, 1 - g->rank, data, sizeof data);
    fake_expect(rc == ACOMM_INTERRUPTED, "%d", rc);
}
/* It may be long in work and never wait for long. */
static void work_until_interrupt(struct acomm_group *g)
{
    struct acomm_op op = fake_op(g, ACOMM_BROADCAST, ACOMM_UINT8);
    char mine[10] = {0}, theirs[10];
    int rc = 0;
    op.synchronous = g->rank == 0;
    while (!rc && clock_now() < op.started + 5 * FAKE_SECOND)
        rc = transfer_exchange(&op, 1 - g->rank, mine, sizeof mine, 1 - g->rank, theirs, sizeof theirs);
    fake_expect(rc == ACOMM_INTERRUPTED, "%d", rc);
}
static void interrupted(void)
{
    acomm_set_interrupt(interrupt);
    on_transports(2, wait_for_interrupt);
    on_transports(2, work_until_interrupt);
    acomm_set_interrupt(NULL);
}

/* A forged length in the ring ends the group, whoever waits. */
static void forge(struct acomm_group *g)
{
    struct acomm_op op = fake_op(g, ACOMM_BROADCAST, ACOMM_UINT8);
    char data[10];
    if (g->rank == 1) {
        uint64_t *stamp = (uint64_t *)(void *)world.rings[1][0] + 32; /* of the first piece */
        *stamp = (uint64_t)1 << 36 | 0xffffff;
        return;
    }
    int rc = transfer_exchange(&op, -1, NULL, 0, 1, data, sizeof data);
    fake_expect(rc == ACOMM_PROTOCOL && g->failure.culprit == 1 && g->failure.errnum == EPROTO, "%d", rc);
}
static void hostile_ring(void)
{
    fake_open(&world, 2, FAKE_RINGS);
    fake_run(&world, forge);
    fake_close(&world);
}

static void no_memory_for_link(void)
{
    fake_open(&world, 2, FAKE_SOCKETS);
    fake_leave(&world, 0);
    struct acomm_op op = fake_op(world.group[0], ACOMM_BROADCAST, ACOMM_UINT8);
    CHECK_EQUAL(transfer_exchange(&op, 1, "x", 1, -1, NULL, 0), ACOMM_RESOURCE);
    fake_close(&world);
}

static void signature_all(struct acomm_group *g)
{
    for (int i = 0; i < 20; i++) {
        struct acomm_op op = fake_op(g, ACOMM_BROADCAST, ACOMM_FLOAT32);
        op.root = i % g->size;
        fake_expect(signature_check(&op) == 0, "round %d", i);
    }
}

static int odd_one; /* the rank that calls something else */
static void signature_but_one(struct acomm_group *g)
{
    struct acomm_op op = fake_op(g, ACOMM_ALL_REDUCE, ACOMM_FLOAT32);
    op.count = g->rank == odd_one ? 8 : 7;
    int rc = signature_check(&op);
    fake_expect(rc == ACOMM_MISMATCH, "rank %d of %d, odd %d: %d", g->rank, g->size, odd_one, rc);
    fake_expect(g->failure.mine.count + g->failure.theirs.count == 15, "both sides shown");
    fake_expect(g->failure.culprit >= 0 && g->failure.culprit < g->size, "culprit");
}

static void agreement(void)
{
    for (int n = 1; n <= FAKE_RANKS; n++)
        on_transports(n, signature_all);
    for (int n = 2; n <= FAKE_RANKS; n++)
        for (odd_one = 0; odd_one < n; odd_one++)
            on_transports(n, signature_but_one);
}

static void signature_unchecked(struct acomm_group *g)
{
    struct acomm_op op = fake_op(g, ACOMM_ALL_REDUCE, ACOMM_FLOAT32);
    op.count = (uint64_t)g->rank;
    g->check = false;
    fake_expect(signature_check(&op) == 0, "rank %d", g->rank);
}
static void unchecked_group(void) { on_transports(5, signature_unchecked); }

int main(void)
{
    TEST(full_in_all_directions);
    TEST(small_exchanges);
    TEST(combines_in_pieces);
    TEST(one_after_the_other);
    TEST(one_aside);
    TEST(lost_peer);
    TEST(told_reason);
    TEST(deadline);
    TEST(deadline_amid_data);
    TEST(moved_at_the_deadline);
    TEST(poisoned_while_asleep);
    TEST(interrupted);
    TEST(hostile_ring);
    TEST(no_memory_for_link);
    TEST(agreement);
    TEST(unchecked_group);
    return CHECK_RESULT();
}
