/* engine: p2p/ memory/peer_memory.c group/shared/window.c group/shared/shared.c group/hosts.c memory/arena.c link/tcp.c link/shm.c base/doorbell.c memory/stream.c group/op.c group/wait.c base/process.c */
#include <sched.h>
#include "base/doorbell.h"
#include "p2p_world.h"

/* ---- messages go round ---- */

static const size_t SIZES[] = {0, 1, 8, 4056, 4057, 65536, WIRE_EAGER_NEAR, WIRE_EAGER_NEAR + 1, 3000001, WIRE_EAGER_MAX, WIRE_EAGER_MAX + 1};
#define N_SIZES (sizeof SIZES / sizeof *SIZES)

static void *ping_pong(void *argument)
{
    struct acomm_group *g = argument;
    char *data = malloc(SIZES[N_SIZES - 1]);
    for (uint32_t i = 0; i < 4 * N_SIZES; i++) {
        size_t bytes = SIZES[i % N_SIZES];
        world_turn(g, i, data, bytes, 1 - g->rank);
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

#define MANY (WIRE_CREDIT_MAX / (WIRE_EAGER_NEAR + 256) - 1) /* messages that a receiver keeps aside */
/* Everybody sends to the right and then receives from the left: right as long as the messages are buffered. */
static void *send_then_receive(void *argument)
{
    struct acomm_group *g = argument;
    int n = g->size, right = (g->rank + 1) % n, left = (g->rank + n - 1) % n;
    char *data = malloc(WIRE_EAGER_NEAR);
    for (uint32_t i = 0; i < MANY; i++) {
        fill_bytes(data, WIRE_EAGER_NEAR, i);
        CHECK_EQUAL(world_do(g, ACOMM_SEND, data, WIRE_EAGER_NEAR, right, 1), 0);
    }
    for (uint32_t i = 0; i < MANY; i++) {
        CHECK_EQUAL(world_do(g, ACOMM_RECV, data, WIRE_EAGER_NEAR, left, 1), 0);
        CHECK(has_bytes(data, WIRE_EAGER_NEAR, i));
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
    static const uint32_t limits[] = {1, 50, 5000, 2 * WIRE_EAGER_NEAR, 600000};
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

int main(void)
{
    TEST(synchronous_messages_of_all_sizes);
    TEST(eager_sends_in_a_circle_do_not_deadlock);
    TEST(large_messages_both_ways);
    TEST(random_traffic_matches_the_model);
    TEST(threads_share_a_group);
    return CHECK_RESULT();
}
