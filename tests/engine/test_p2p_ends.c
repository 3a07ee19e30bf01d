/* engine: p2p/ memory/peer_memory.c group/shared/window.c group/shared/shared.c group/hosts.c memory/arena.c link/tcp.c link/shm.c base/doorbell.c memory/stream.c group/op.c group/wait.c base/process.c */
/* Operations that do not end well. */
#include "p2p_world.h"

static void deadlines(void)
{
    EVERY_KIND(2, {
        struct acomm_group *g = &w->groups[0];
        char byte;
        struct acomm_op other, late = message(g, ACOMM_RECV, &byte, 1, ACOMM_UINT8, 1, 1);
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
        static char large[WIRE_EAGER_MAX + 1];
        char byte = 1;
        struct acomm_op any, lost, send;
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

/* And to who has it from its own first look at the link: that caller gives up its lock, once. */
static void lost_at_first_sight(void)
{
    EVERY_KIND(2, {
        char byte;
        world_leave(w, 1);
        CHECK_EQUAL(world_do(&w->groups[0], ACOMM_RECV, &byte, 1, 1, 3), ACOMM_LOST);
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
    CHECK_EQUAL(w->in[1][0]->ops->attach(w->in[1][0], 0, fds[1]), 0);
    CHECK_EQUAL(w->out[1][0]->ops->attach(w->out[1][0], 0, fds[0]), 0);
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
        struct acomm_op *abandoned = malloc(sizeof *abandoned), waiting;
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

/* A link that always has one more message of a tag that nobody receives, and never two at once. */
static struct { uint64_t id; bool pause; const struct caller *caller; bool kept; } stream;

static ssize_t next_of_stream(struct link *link, void *data, size_t bytes)
{
    (void)link;
    struct wire_frame frame = {.magic = WIRE_MAGIC, .kind = WIRE_RTS, .tag = 9, .count = 1, .id = stream.id};
    stream.pause = !stream.pause;
    if (stream.pause || bytes < sizeof frame)
        return 0;
    stream.id++;
    stream.kept |= stream.id > 1000 && stream.caller->holds;
    wire_put(data, &frame);
    return sizeof frame;
}

static bool always(const struct link *link)
{
    (void)link;
    return true;
}

/* Who waits while a peer sends and sends something else gives up its caller's lock, and ends at its deadline. */
static void deadline_while_others_stream(void)
{
    struct world *w = world_open(2, KINDS[0]);
    struct link_ops ops = *w->in[1][0]->ops;
    ops.recv = next_of_stream;
    ops.waiting = always;
    w->in[1][0]->ops = &ops;
    char byte;
    struct acomm_op late = message(&w->groups[0], ACOMM_RECV, &byte, 1, ACOMM_UINT8, 1, 1);
    struct caller caller = {.thread = pthread_self(), .holds = true};
    stream.caller = &caller;
    late.synchronous = true;
    late.timeout = SECOND / 5; /* a busy machine may take the processor for some of it */
    late.release_lock = give_up_lock;
    late.lock = &caller;
    CHECK_EQUAL(p2p_post(w->groups[0].p2p, &late), 0);
    CHECK_EQUAL(p2p_wait(w->groups[0].p2p, &late), ACOMM_TIMEOUT);
    CHECK(stream.id > 1000 && !stream.kept);
    world_close(w);
}

int main(void)
{
    TEST(deadlines);
    TEST(deadline_while_others_stream);
    TEST(peers_that_leave);
    TEST(lost_at_first_sight);
    TEST(peer_that_never_connected);
    TEST(connection_that_comes_late);
    TEST(failure_ends_everything);
    return CHECK_RESULT();
}
