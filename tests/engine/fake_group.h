/* A world of ranks in one process, one thread each: the parts of group.c and node.c that transfers and algorithms call,
 * over real links. A failure reaches all members at once, as the node would spread it. */
#ifndef FAKE_GROUP_H
#define FAKE_GROUP_H
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>
#include "check.h"
#include "base/clock.h"
#include "group/group.h"
#include "membership/node.h"
#include "group/op.h"
#include "group/wait.h"
#include "fake_node.h"

#define FAKE_RANKS 9
#define FAKE_SECOND 1000000000ll

enum fake_transport { FAKE_SOCKETS, FAKE_STRIPED, FAKE_RINGS, FAKE_MIXED, FAKE_TRANSPORTS };
static const char *const fake_names[] = {"sockets", "striped sockets", "rings", "rings and sockets"};

struct acomm_node { _Atomic int lost; }; /* world rank that node_lost() named, else -1 */
struct fake_world {
    int n;
    enum fake_transport transport;
    struct acomm_group *group[FAKE_RANKS];
    struct acomm_node node;
    struct link *links[2][FAKE_RANKS][FAKE_RANKS]; /* [incoming, outgoing][of rank][peer] */
    struct link_ring *rings[FAKE_RANKS][FAKE_RANKS];
    struct doorbell doorbells[FAKE_RANKS];
    _Atomic int wrong;
};
static struct fake_world *fake; /* the one world that exists at a time */

static void kick(struct acomm_group *g)
{
    uint64_t one = 1;
    if (write(g->wake_fd, &one, sizeof one) < 0)
        atomic_fetch_add(&fake->wrong, 1);
    doorbell_ring(g->doorbell);
}

int group_fail(struct acomm_group *g, const acomm_failure *failure, bool tell)
{
    for (int rank = 0; rank < fake->n; rank++) {
        struct acomm_group *member = fake->group[rank];
        if (!tell && member != g)
            continue;
        pthread_mutex_lock(&member->lock);
        if (!member->failed) {
            member->failed = true;
            member->failure = *failure;
            atomic_store(&member->poisoned, failure->code);
            kick(member);
        }
        pthread_mutex_unlock(&member->lock);
    }
    return atomic_load(&g->poisoned);
}

int group_fail_op(struct acomm_op *op, int code, int culprit, int errnum, const char *text)
{
    if (atomic_load(&op->group->poisoned))
        return atomic_load(&op->group->poisoned);
    acomm_failure failure = {.code = code, .culprit = culprit, .origin = op->group->rank, .errnum = errnum,
                             .sequence = op->sequence};
    op_header(op, &failure.mine);
    strncpy(failure.text, text ? text : "", sizeof failure.text - 1);
    return group_fail(op->group, &failure, true);
}

void group_close_window(struct acomm_group *g)
{
    (void)g; /* its ranks write to nobody's arrays */
}

struct link *group_link(struct acomm_group *g, enum channel channel, int rank, bool outgoing)
{
    (void)channel;
    return fake->links[outgoing][g->rank][rank];
}

void *group_scratch(const struct acomm_op *op, size_t bytes)
{
    struct scratch *scratch = &op->group->scratch[op->whole != NULL];
    free(scratch->data); /* of exactly this size, so that the address sanitizer sees the end */
    scratch->data = aligned_alloc(64, (bytes + 64) / 64 * 64);
    return scratch->data;
}

void group_recycle(struct acomm_group *g, struct acomm_op *op)
{
    (void)g, (void)op;
}

void node_lost(struct acomm_node *node, int world_rank, const char *text)
{
    (void)text;
    atomic_store(&node->lost, world_rank);
}

/* Groups here have no patience. */
void node_ask_members(struct acomm_node *node, const struct acomm_group *group)
{
    (void)node, (void)group;
}

int node_left(struct acomm_node *node, const struct acomm_group *group, int rank, uint64_t sequence)
{
    (void)node, (void)group, (void)rank, (void)sequence;
    return -1;
}

static void fake_sockets(struct fake_world *w, int from, int to, int connections)
{
    struct link *out = w->links[1][from][to] = link_tcp_new(to, true, connections);
    struct link *in = w->links[0][to][from] = link_tcp_new(from, false, connections);
    for (int i = 0; i < connections; i++) {
        int fds[2];
        CHECK_EQUAL(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
        CHECK_EQUAL(out->ops->attach(out, i, fds[0]), 0);
        CHECK_EQUAL(in->ops->attach(in, i, fds[1]), 0);
    }
}

static void fake_ring(struct fake_world *w, int from, int to, size_t bytes)
{
    size_t footprint = (link_shm_footprint(bytes) + 4095) / 4096 * 4096;
    w->rings[from][to] = aligned_alloc(4096, footprint);
    memset(w->rings[from][to], 0, footprint);
    w->links[1][from][to] = link_shm_new(to, true, w->rings[from][to], bytes, &w->doorbells[from], &w->doorbells[to]);
    w->links[0][to][from] = link_shm_new(from, false, w->rings[from][to], bytes, &w->doorbells[to], &w->doorbells[from]);
}

static int fake_connections(const struct fake_world *w)
{
    return w->transport == FAKE_STRIPED ? 3 : 1;
}

static void fake_connect(struct fake_world *w, int from, int to)
{
    bool ring = w->transport == FAKE_RINGS || (w->transport == FAKE_MIXED && from / 2 == to / 2);
    if (ring)
        fake_ring(w, from, to, 8 << 10);
    else
        fake_sockets(w, from, to, fake_connections(w));
}

static struct acomm_group *fake_member(int rank, int n)
{
    struct acomm_group *g = calloc(1, sizeof *g);
    g->node = &fake->node;
    g->rank = rank;
    g->doorbell = &fake->doorbells[rank];
    g->size = n;
    g->check = true;
    g->connections = fake_connections(fake);
    g->loopback = fake->transport == FAKE_RINGS;
    g->hosts.all = (struct team){.rank = rank, .size = n};
    g->oversubscribed = true;
    g->members = malloc((size_t)n * sizeof *g->members);
    for (int i = 0; i < n; i++)
        g->members[i] = 100 + i;
    g->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    pthread_mutex_init(&g->lock, NULL);
    return g;
}

static void fake_open(struct fake_world *w, int n, enum fake_transport transport)
{
    memset(w, 0, sizeof *w);
    fake = w;
    w->n = n;
    w->transport = transport;
    w->node.lost = -1;
    for (int rank = 0; rank < n; rank++)
        w->group[rank] = fake_member(rank, n);
    for (int from = 0; from < n; from++)
        for (int to = 0; to < n; to++)
            if (from != to)
                fake_connect(w, from, to);
}

/* Closes the links of one rank, as the end of its process would. */
static void fake_leave(struct fake_world *w, int rank)
{
    for (int outgoing = 0; outgoing < 2; outgoing++) {
        for (int peer = 0; peer < w->n; peer++) {
            struct link **link = &w->links[outgoing][rank][peer];
            if (*link)
                (*link)->ops->close(*link);
            *link = NULL;
        }
    }
}

static void fake_close(struct fake_world *w)
{
    for (int rank = 0; rank < w->n; rank++) {
        struct acomm_group *g = w->group[rank];
        fake_leave(w, rank);
        for (int to = 0; to < w->n; to++)
            free(w->rings[rank][to]);
        pthread_mutex_destroy(&g->lock);
        close(g->wake_fd);
        for (int i = 0; i < 2; i++)
            free(g->scratch[i].data);
        free(g->members);
        free(g);
    }
}

struct fake_thread { struct fake_world *world; int rank; void (*run)(struct acomm_group *g); };

static void *fake_thread(void *argument)
{
    struct fake_thread *t = argument;
    t->run(t->world->group[t->rank]);
    return NULL;
}

/* Runs `run` on every rank at once; counts in world->wrong what fake_expect() found. */
static void fake_run(struct fake_world *w, void (*run)(struct acomm_group *g))
{
    pthread_t threads[FAKE_RANKS];
    struct fake_thread arguments[FAKE_RANKS];
    for (int rank = 0; rank < w->n; rank++) {
        arguments[rank] = (struct fake_thread){w, rank, run};
        CHECK_EQUAL(pthread_create(&threads[rank], NULL, fake_thread, &arguments[rank]), 0);
    }
    for (int rank = 0; rank < w->n; rank++)
        pthread_join(threads[rank], NULL);
    CHECK_EQUAL(w->wrong, 0);
}

/* CHECK for threads: counts, and shows the first few. */
#define fake_expect(condition, ...)                                                                        \
    do {                                                                                                   \
        if (!(condition) && atomic_fetch_add(&fake->wrong, 1) < 10) {                                      \
            printf("# %s:%d: %s failed over %s, %d ranks: ", __FILE__, __LINE__, #condition,               \
                   fake_names[fake->transport], fake->n);                                                  \
            printf(__VA_ARGS__);                                                                           \
            printf("\n");                                                                                  \
        }                                                                                                  \
    } while (0)

/* A fresh operation in the order of the group's calls. */
static struct acomm_op fake_op(struct acomm_group *g, int kind, int dtype)
{
    struct acomm_op op = {.group = g, .team = &g->hosts.all, .kind = kind, .dtype = dtype, .root = -1, .width = acomm_dtype_bytes(dtype)};
    op.sequence = ++g->sequence;
    op.started = clock_now();
    op.deadline = op.started + 60 * FAKE_SECOND;
    return op;
}
#endif
