/* engine: p2p.c p2p_match.c p2p_send.c p2p_recv.c p2p_progress.c p2p_wait.c link_tcp.c link_shm.c op.c wait.c */
#include "p2p_world.h"

/* Rings as in real groups, rings smaller than a message, sockets. */
static const size_t KINDS[] = {256 << 10, 8 << 10, 0};
#define EVERY_KIND(ranks, body)                                          \
    for (size_t kind = 0; kind < sizeof KINDS / sizeof *KINDS; kind++) { \
        struct world *w = world_open(ranks, KINDS[kind]);                \
        body                                                             \
        world_close(w);                                                  \
    }

/* ---- messages go round ---- */

static const size_t SIZES[] = {0, 1, 8, 4056, 4057, 65535, 65536, 65537, 262144, 262145, 3000001};
#define N_SIZES (sizeof SIZES / sizeof *SIZES)

static void *ping_pong(void *argument)
{
    struct acomm_group *g = argument;
    char *data = malloc(SIZES[N_SIZES - 1]);
    for (uint32_t i = 0; i < 4 * N_SIZES; i++) {
        size_t bytes = SIZES[i % N_SIZES];
        bool sends = (i + (uint32_t)g->rank) % 2 == 0;
        memset(data, 0, bytes);
        if (sends)
            fill_bytes(data, bytes, i);
        CHECK_EQUAL(world_do(g, sends ? ACOMM_SEND : ACOMM_RECV, data, bytes, 1 - g->rank, 7), 0);
        CHECK(has_bytes(data, bytes, i));
    }
    free(data);
    return NULL;
}

static void synchronous_messages_of_all_sizes(void)
{
    EVERY_KIND(2, {
        world_run(w, ping_pong);
        CHECK(!w->groups[0].p2p->started); /* nobody needed a thread */
    })
}

/* Everybody sends to the right and then receives from the left: right as long as the messages are buffered. */
static void *send_then_receive(void *argument)
{
    struct acomm_group *g = argument;
    int n = g->size, right = (g->rank + 1) % n, left = (g->rank + n - 1) % n;
    char *data = malloc(WIRE_EAGER_MAX);
    for (uint32_t i = 0; i < 20; i++) {
        fill_bytes(data, WIRE_EAGER_MAX, i);
        CHECK_EQUAL(world_do(g, ACOMM_SEND, data, WIRE_EAGER_MAX, right, 1), 0);
    }
    for (uint32_t i = 0; i < 20; i++) {
        CHECK_EQUAL(world_do(g, ACOMM_RECV, data, WIRE_EAGER_MAX, left, 1), 0);
        CHECK(has_bytes(data, WIRE_EAGER_MAX, i));
    }
    free(data);
    return NULL;
}

static void eager_sends_in_a_circle_do_not_deadlock(void)
{
    EVERY_KIND(3, world_run(w, send_then_receive);)
    EVERY_KIND(2, world_run(w, send_then_receive);)
}

#define LARGE 5000000
/* Large messages both ways at once, some ended by the waiting thread and some by the engine's own. */
static void *exchange_around(void *argument)
{
    struct acomm_group *g = argument;
    int n = g->size, right = (g->rank + 1) % n, left = (g->rank + n - 1) % n;
    char *in = malloc(LARGE), *out = malloc(LARGE);
    for (int i = 0; i < 4; i++) {
        struct acomm_op to_right, to_left, from_left, from_right;
        fill_bytes(in, LARGE, (uint32_t)(g->rank + i));
        world_start(g, &to_right, ACOMM_SEND, in, LARGE, right, i);
        world_start(g, &to_left, ACOMM_SEND, in, LARGE / 2, left, i + 100);
        world_start(g, &from_right, ACOMM_RECV, out + LARGE / 2, LARGE / 2, right, i + 100);
        CHECK_EQUAL(i % 2 ? op_wait(&from_right, -1) : p2p_wait(g->p2p, &from_right), 0);
        CHECK(has_bytes(out + LARGE / 2, LARGE / 2, (uint32_t)(right + i)));
        world_start(g, &from_left, ACOMM_RECV, out, LARGE, left, i);
        CHECK_EQUAL(i % 2 ? p2p_wait(g->p2p, &from_left) : op_wait(&from_left, -1), 0);
        CHECK(has_bytes(out, LARGE, (uint32_t)(left + i)));
        CHECK_EQUAL(p2p_wait(g->p2p, &to_right), 0);
        CHECK_EQUAL(op_wait(&to_left, -1), 0);
    }
    free(in);
    free(out);
    return NULL;
}

static void large_messages_both_ways(void)
{
    EVERY_KIND(3, world_run(w, exchange_around);)
}

/* ---- random traffic against a model ---- */

#define MESSAGES 60  /* from each rank to each */
#define TAGS 3       /* TAGS - 1 is received from any source */
#define TRAFFIC_RANKS 4

struct plan { uint32_t seed; };
static struct plan plan;

static uint32_t mix(uint32_t a, uint32_t b, uint32_t c)
{
    uint32_t h = plan.seed * 2654435761u ^ a * 2246822519u ^ b * 3266489917u ^ c * 668265263u;
    h = (h ^ (h >> 15)) * 2246822519u;
    return h ^ (h >> 13);
}

/* The model: message i from -> to has this tag, size and contents. */
static int64_t tag_of(int from, int to, int i)
{
    return mix((uint32_t)from, (uint32_t)to, (uint32_t)i) % TAGS;
}

static uint64_t size_of(int from, int to, int i)
{
    static const uint32_t limits[] = {1, 50, 5000, 2 * WIRE_EAGER_MAX, 600000};
    if (tag_of(from, to, i) == TAGS - 1)
        return 70001; /* who receives from any source knows no other size */
    uint32_t h = mix((uint32_t)from + 99, (uint32_t)to, (uint32_t)i);
    return h / 8 % limits[h % 5];
}

static uint32_t contents_of(int from, int to, int i)
{
    return mix((uint32_t)from, (uint32_t)to + 99, (uint32_t)i);
}

struct traffic { struct acomm_op op; char *data; int peer, index; };

static void begin_traffic(struct acomm_group *g, struct traffic *t, int kind, int peer, int i)
{
    int from = kind == ACOMM_SEND ? g->rank : peer, to = kind == ACOMM_SEND ? peer : g->rank;
    int64_t tag = tag_of(from, to, i);
    uint64_t bytes = size_of(from, to, i);
    t->peer = peer;
    t->index = i;
    t->data = malloc(bytes + 1);
    if (kind == ACOMM_SEND)
        fill_bytes(t->data, bytes, contents_of(from, to, i));
    world_start(g, &t->op, kind, t->data, bytes, kind == ACOMM_RECV && tag == TAGS - 1 ? -1 : peer, tag);
}

/* Messages received from any source come in each source's order: the next one of this source with that tag. */
static int next_from(int from, int to, int after)
{
    int i = after + 1;
    while (i < MESSAGES && tag_of(from, to, i) != TAGS - 1)
        i++;
    return i;
}

static void end_traffic(struct acomm_group *g, struct traffic *t, int *last)
{
    struct acomm_op *op = &t->op;
    bool thread = mix((uint32_t)t->peer, (uint32_t)t->index, 5) % 4 == 0;
    CHECK_EQUAL(thread ? op_wait(op, -1) : p2p_wait(g->p2p, op), 0);
    if (op->kind == ACOMM_RECV) {
        int i = t->index;
        if (op->tag == TAGS - 1)
            i = last[op->peer] = next_from(op->peer, g->rank, last[op->peer]);
        else
            CHECK_EQUAL(op->peer, t->peer);
        CHECK_EQUAL(op->bytes, size_of(op->peer, g->rank, i));
        CHECK(has_bytes(t->data, op->bytes, contents_of(op->peer, g->rank, i)));
    }
    free(t->data);
}

/* Posts sends and receives to and from all ranks (itself too) in a random order that keeps the order of each pair. */
static void *random_rank(void *argument)
{
    struct acomm_group *g = argument;
    enum { ALL = 2 * MESSAGES * TRAFFIC_RANKS };
    struct traffic *all = calloc(ALL, sizeof *all);
    int posted[2][TRAFFIC_RANKS] = {{0}}, last[TRAFFIC_RANKS], ended = 0;
    memset(last, -1, sizeof last);
    for (uint32_t n = 0, draw = 0; n < ALL; draw++) {
        uint32_t h = mix((uint32_t)g->rank, draw, 17);
        int kind = h % 2 ? ACOMM_SEND : ACOMM_RECV, peer = (int)(h / 2 % TRAFFIC_RANKS);
        int *i = &posted[kind == ACOMM_SEND][peer];
        if (*i < MESSAGES)
            begin_traffic(g, &all[n++], kind, peer, (*i)++);
        if (h % 50 == 0)
            while (ended < (int)n && p2p_wait_until(g->p2p, &all[ended].op, 0) != 1)
                end_traffic(g, &all[ended++], last);
    }
    while (ended < ALL)
        end_traffic(g, &all[ended++], last);
    free(all);
    return NULL;
}

static void random_traffic_matches_the_model(void)
{
    for (plan.seed = 1; plan.seed <= 3; plan.seed++)
        EVERY_KIND(TRAFFIC_RANKS, {
            world_run(w, random_rank);
            for (int rank = 0; rank < TRAFFIC_RANKS; rank++)
                CHECK(p2p_list_empty(&w->groups[rank].p2p->all) && w->groups[rank].p2p->async == 0);
        })
}

/* ---- matching ---- */

static void *two_threads_send(void *argument)
{
    struct acomm_group *g = argument;
    char byte = (char)g->rank;
    for (int i = 0; i < 200; i++)
        CHECK_EQUAL(world_do(g, g->rank ? ACOMM_SEND : ACOMM_RECV, &byte, 1, g->rank ? 0 : 1, 5), 0);
    return NULL;
}

/* Two threads wait on one engine at the same time: one moves things for both. */
static void threads_share_a_group(void)
{
    EVERY_KIND(2, {
        pthread_t more[2];
        for (int i = 0; i < 2; i++)
            pthread_create(&more[i], NULL, two_threads_send, &w->groups[i]);
        world_run(w, two_threads_send);
        for (int i = 0; i < 2; i++)
            pthread_join(more[i], NULL);
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
            truncated(w, 100000, 99999, ACOMM_UINT8, early);
            truncated(w, 100000, 100000, ACOMM_INT32, early);
        }
        world_run(w, ping_pong);
    })
}

static void messages_to_oneself(void)
{
    struct world *w = world_open(1, 0);
    struct acomm_group *g = &w->groups[0];
    char *from = malloc(LARGE), *to = calloc(1, LARGE);
    struct acomm_op a, b;
    fill_bytes(from, LARGE, 1);
    CHECK_EQUAL(world_do(g, ACOMM_SEND, from, WIRE_EAGER_MAX, 0, 1), 0); /* buffered */
    CHECK_EQUAL(world_do(g, ACOMM_SEND, from, 3, 0, 1), 0);
    CHECK_EQUAL(world_do(g, ACOMM_RECV, to, WIRE_EAGER_MAX, -1, 1), 0);
    CHECK(has_bytes(to, WIRE_EAGER_MAX, 1));
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
    enum { MANY = 400 };
    EVERY_KIND(2, {
        struct acomm_group *a = &w->groups[0]; struct acomm_group *b = &w->groups[1];
        static struct acomm_op ops[MANY + 1];
        char *data = malloc(WIRE_EAGER_MAX);
        fill_bytes(data, WIRE_EAGER_MAX, 9);
        for (int i = 0; i < MANY; i++)
            world_start(a, &ops[i], ACOMM_SEND, data, WIRE_EAGER_MAX, 1, 1);
        world_start(a, &ops[MANY], ACOMM_SEND, data, 10, 1, 2);
        char *got = malloc(WIRE_EAGER_MAX);
        CHECK_EQUAL(world_do(b, ACOMM_RECV, got, 10, 0, 2), 0);
        struct p2p_peer *peer = b->p2p->peers[0];
        CHECK(peer->arrived - peer->consumed <= wire_credit(2) && peer->arrived - peer->consumed > wire_credit(2) / 2);
        for (int i = 0; i < MANY; i++) {
            memset(got, 0, WIRE_EAGER_MAX);
            CHECK_EQUAL(world_do(b, ACOMM_RECV, got, WIRE_EAGER_MAX, 0, 1), 0);
            CHECK(has_bytes(got, WIRE_EAGER_MAX, 9));
        }
        CHECK_EQUAL(peer->arrived, peer->consumed);
        for (int i = 0; i <= MANY; i++)
            CHECK_EQUAL(op_wait(&ops[i], -1), 0);
        free(data);
        free(got);
    })
}

/* ---- ends that are not good ---- */

static void deadlines(void)
{
    EVERY_KIND(2, {
        struct acomm_group *g = &w->groups[0];
        char byte;
        struct acomm_op other; struct acomm_op late = message(g, ACOMM_RECV, &byte, 1, ACOMM_UINT8, 1, 1);
        world_start(g, &other, ACOMM_RECV, &byte, 1, -1, 2);
        late.timeout = SECOND / 20;
        late.synchronous = kind == 1;
        CHECK_EQUAL(p2p_post(g->p2p, &late), 0);
        CHECK_EQUAL(kind == 1 ? p2p_wait(g->p2p, &late) : op_wait(&late, 10 * SECOND), ACOMM_TIMEOUT);
        CHECK_EQUAL(late.failure.culprit, 1);
        CHECK_EQUAL(op_wait(&other, 10 * SECOND), ACOMM_TIMEOUT);
        CHECK_EQUAL(world_do(g, ACOMM_SEND, &byte, 1, 1, 1), ACOMM_TIMEOUT);
        struct acomm_op wrong = message(g, ACOMM_SEND, &byte, UINT64_MAX / 2, ACOMM_FLOAT64, 1, 1);
        CHECK_EQUAL(p2p_post(g->p2p, &wrong), ACOMM_ARGUMENT);
    })
}

/* A peer that closes is lost to who waits for it, not to who can be served by others; what it sent before counts. */
static void peers_that_leave(void)
{
    EVERY_KIND(3, {
        struct acomm_group *g = &w->groups[0];
        char byte = 1; char large[100000] = {0};
        struct acomm_op any; struct acomm_op lost; struct acomm_op send;
        world_start(g, &any, ACOMM_RECV, &byte, 1, -1, 2);
        CHECK_EQUAL(world_do(&w->groups[2], ACOMM_SEND, &byte, 1, 0, 3), 0);
        world_leave(w, 2);
        CHECK_EQUAL(op_wait(&any, SECOND / 10), 1);
        CHECK_EQUAL(world_do(g, ACOMM_RECV, &byte, 1, 2, 3), 0);
        CHECK_EQUAL(world_do(&w->groups[1], ACOMM_SEND, &byte, 1, 0, 2), 0);
        CHECK_EQUAL(op_wait(&any, -1), 0);
        CHECK_EQUAL(any.peer, 1);
        world_start(g, &send, ACOMM_SEND, large, sizeof large, 1, 1);
        world_start(g, &lost, ACOMM_RECV, &byte, 1, 2, 3);
        CHECK_EQUAL(op_wait(&lost, 10 * SECOND), ACOMM_LOST);
        CHECK_EQUAL(lost.failure.culprit, 2);
        CHECK_EQUAL(op_wait(&send, 10 * SECOND), ACOMM_LOST);
        CHECK_EQUAL(w->lost, 1);
    })
}

/* The peer closes the group before its connection to us was made: no link says so, only the node. */
static void peer_that_never_connected(void)
{
    struct world *w = world_open(2, 0);
    w->in[1][0]->ops->close(w->in[1][0]);
    w->in[1][0] = link_tcp_new(1, false, 1);
    world_leave(w, 1);
    char byte;
    CHECK_EQUAL(world_do(&w->groups[0], ACOMM_RECV, &byte, 1, 1, 1), ACOMM_LOST);
    world_close(w);
}

static void *attach_soon(void *argument)
{
    struct world *w = argument;
    static char byte = 42;
    int fds[2];
    usleep(20000);
    CHECK_EQUAL(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
    CHECK_EQUAL(link_tcp_attach(w->in[1][0], 0, fds[1]), 0);
    CHECK_EQUAL(link_tcp_attach(w->out[1][0], 0, fds[0]), 0);
    CHECK_EQUAL(world_do(&w->groups[1], ACOMM_SEND, &byte, 1, 0, 1), 0);
    return NULL;
}

static void connection_that_comes_late(void)
{
    struct world *w = world_open(2, 0);
    pthread_t thread;
    char byte = 0;
    w->in[1][0]->ops->close(w->in[1][0]);
    w->out[1][0]->ops->close(w->out[1][0]);
    w->in[1][0] = link_tcp_new(1, false, 1);
    w->out[1][0] = link_tcp_new(0, true, 1);
    pthread_create(&thread, NULL, attach_soon, w);
    CHECK_EQUAL(world_do(&w->groups[0], ACOMM_RECV, &byte, 1, 1, 1), 0);
    CHECK_EQUAL(byte, 42);
    pthread_join(thread, NULL);
    world_close(w);
}

static void *fail_soon(void *argument)
{
    acomm_failure failure = {.code = ACOMM_ABORTED, .culprit = 1};
    usleep(20000);
    group_fail(argument, &failure, false);
    return NULL;
}

static void failure_ends_everything(void)
{
    EVERY_KIND(2, {
        struct acomm_group *g = &w->groups[0];
        pthread_t thread;
        char byte;
        struct acomm_op *abandoned = malloc(sizeof *abandoned); struct acomm_op waiting;
        world_start(g, abandoned, ACOMM_RECV, &byte, 1, 1, 1);
        atomic_store(&abandoned->done, OP_ABANDONED);
        world_start(g, &waiting, ACOMM_RECV, &byte, 1, -1, 1);
        pthread_create(&thread, NULL, fail_soon, g);
        CHECK_EQUAL(world_do(g, ACOMM_RECV, &byte, 1, 1, 1), ACOMM_ABORTED);
        pthread_join(thread, NULL);
        CHECK_EQUAL(op_wait(&waiting, 0), ACOMM_ABORTED);
        CHECK_EQUAL(w->recycled, 1);
    })
}

int main(void)
{
    TEST(synchronous_messages_of_all_sizes);
    TEST(eager_sends_in_a_circle_do_not_deadlock);
    TEST(large_messages_both_ways);
    TEST(random_traffic_matches_the_model);
    TEST(threads_share_a_group);
    TEST(messages_that_do_not_fit);
    TEST(messages_to_oneself);
    TEST(unexpected_messages_are_bounded);
    TEST(deadlines);
    TEST(peers_that_leave);
    TEST(peer_that_never_connected);
    TEST(connection_that_comes_late);
    TEST(failure_ends_everything);
    return CHECK_RESULT();
}
