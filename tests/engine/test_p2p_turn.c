/* engine: p2p/ memory/peer_memory.c group/shared/window.c group/shared/shared.c group/hosts.c memory/arena.c link/tcp.c link/shm.c base/doorbell.c memory/stream.c group/op.c group/wait.c base/process.c */
/* How long one peer can keep the others, and a deadline, waiting. Links that always have more, as fast as memory. */
#include "p2p_world.h"

#define FRAMES 100
#define BYTES_PER_NS 3 /* of one thread that copies out of a socket */
#define LATE (SECOND / 10)
#define ATTEMPTS 100

static char data[WIRE_EAGER_MAX];
static uint64_t given[RANKS], taken, longest; /* bytes from each peer; bytes of sends, and of the longest call */
static _Atomic bool flows;

static void spend(uint64_t bytes)
{
    int64_t until = clock_now() + (int64_t)(bytes / BYTES_PER_NS);
    while (clock_now() < until)
        ;
}

/* Eager frames one after the other, of which only the headers are written. */
static ssize_t endless(struct link *link, void *to, size_t bytes)
{
    struct wire_frame frame = {.kind = WIRE_EAGER, .magic = WIRE_MAGIC, .tag = 1, .dtype = ACOMM_UINT8, .count = sizeof data};
    uint64_t *at = &given[link->peer], inside = *at % (sizeof frame + sizeof data);
    if (!atomic_load(&flows) || *at / (sizeof frame + sizeof data) == FRAMES)
        return 0;
    if (!inside)
        wire_put(to, &frame);
    uint64_t left = inside ? sizeof frame + sizeof data - inside : sizeof frame;
    bytes = bytes < left ? bytes : left;
    spend(bytes);
    *at += bytes;
    return (ssize_t)bytes;
}

static ssize_t sink(struct link *link, const void *from, size_t bytes, bool more)
{
    (void)link, (void)from, (void)more;
    taken += bytes;
    longest = bytes > longest ? bytes : longest;
    return (ssize_t)bytes;
}

static const struct link_ops *keep(struct link *link, struct link_ops *ops)
{
    const struct link_ops *before = link->ops;
    *ops = *before;
    link->ops = ops;
    return before;
}

static void one_turn(void)
{
    struct world *w = world_open(2, 0);
    struct p2p *p = w->groups[1].p2p;
    struct link_ops from, to;
    const struct link_ops *before = keep(w->in[0][1], &from);
    keep(w->out[1][0], &to);
    from.recv = endless;
    to.send = sink;
    memset(given, 0, sizeof given);
    p2p_acquire(p); /* our own thread waits meanwhile */
    struct acomm_op receive = message(&w->groups[1], ACOMM_RECV, data, sizeof data, ACOMM_UINT8, 0, 1), send = receive;
    send.kind = ACOMM_SEND;
    send.in = data;
    CHECK_EQUAL(p2p_post_within(p, &receive), 0);
    CHECK_EQUAL(p2p_post_within(p, &send), 0);
    atomic_store(&flows, true);
    for (uint64_t turn = 1; !op_ended(&receive) && turn < 10; turn++) {
        uint64_t so_far = given[0];
        CHECK(p2p_recv_pull(p, p->peers[0], true));
        CHECK_MESSAGE(given[0] - so_far <= P2P_TURN + P2P_SMALL, "received %llu", (unsigned long long)(given[0] - so_far));
    }
    for (uint64_t turn = 1; !op_ended(&send) && turn < 10; turn++) {
        uint64_t so_far = taken;
        CHECK(p2p_send_push(p, p->peers[0]));
        CHECK_MESSAGE(taken - so_far <= P2P_TURN + P2P_SMALL, "sent %llu", (unsigned long long)(taken - so_far));
    }
    CHECK(op_ended(&receive) && op_ended(&send) && longest >= P2P_TURN / 2); /* and not by many small calls */
    atomic_store(&flows, false);
    p2p_release(p);
    w->in[0][1]->ops = w->out[1][0]->ops = before;
    world_close(w);
}

/* Whether the peers kept it busy until the deadline, and how late it was: on a busy machine others have the processor then. */
static bool wait_amid_frames(int64_t *late)
{
    static struct acomm_op receives[RANKS][FRAMES];
    struct link_ops ops[RANKS];
    const struct link_ops *before = NULL;
    struct world *w = world_open(RANKS, 0);
    struct acomm_group *g = &w->groups[0];
    memset(given, 0, sizeof given);
    for (int rank = 1; rank < RANKS - 1; rank++) {
        before = keep(w->in[rank][0], &ops[rank]);
        ops[rank].recv = endless;
        /* Which nobody reads: who sleeps until a link is readable wakes at once. */
        CHECK_EQUAL(w->out[rank][0]->ops->send(w->out[rank][0], data, 1, false), 1);
        for (int i = 0; i < FRAMES; i++)
            world_start(g, &receives[rank][i], ACOMM_RECV, data, sizeof data, rank, 1);
    }
    char byte;
    struct acomm_op silent = message(g, ACOMM_RECV, &byte, 1, ACOMM_UINT8, RANKS - 1, 1);
    silent.synchronous = true;
    silent.timeout = SECOND / 50;
    CHECK_EQUAL(p2p_post(g->p2p, &silent), 0);
    int64_t began = clock_now();
    atomic_store(&flows, true);
    CHECK_EQUAL(p2p_wait(g->p2p, &silent), ACOMM_TIMEOUT);
    *late = clock_now() - began - silent.timeout;
    atomic_store(&flows, false);
    bool busy = true;
    for (int rank = 1; rank < RANKS - 1; rank++) {
        busy = busy && given[rank] > sizeof data;
        w->in[rank][0]->ops = before;
    }
    world_close(w);
    return busy;
}

static void deadline_amid_frames(void)
{
    bool busy = false;
    int64_t late = 0;
    for (int attempt = 0; attempt < ATTEMPTS && (!busy || late >= LATE); attempt++)
        busy = wait_amid_frames(&late);
    CHECK(busy);
    CHECK_MESSAGE(late < LATE, "%lld ms late", (long long)(late / 1000000));
}

/* A pass that looks at no link, as others' posts have moved what there may be between two looks, does not say that none has
 * anything: who has no descriptors to watch would sleep then. */
static void posts_are_no_silence(void)
{
    struct world *w = world_open(2, KINDS[0]);
    struct p2p *p = w->groups[1].p2p;
    char byte = 1, got = 0;
    CHECK_EQUAL(world_do(&w->groups[0], ACOMM_SEND, &byte, 1, 1, 1), 0);
    p2p_acquire(p); /* our own thread waits meanwhile */
    struct acomm_op receive = message(&w->groups[1], ACOMM_RECV, &got, 1, ACOMM_UINT8, 0, 1);
    CHECK_EQUAL(p2p_post_within(p, &receive), 0);
    p->unseen = (size_t)16 << 20;
    while (p2p_progress_pass(p, false))
        ;
    CHECK(op_ended(&receive) && got == 1);
    p2p_release(p);
    world_close(w);
}

int main(void)
{
    TEST(one_turn);
    TEST(posts_are_no_silence);
    TEST(deadline_amid_frames);
    return CHECK_RESULT();
}
