/* A world of ranks in one process for tests of p2p.c: what group.c and node.c do for it, over real links.
 * Every rank is a thread; links are rings in ordinary memory, or Unix sockets in the place of TCP. */
#ifndef P2P_WORLD_H
#define P2P_WORLD_H
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "check.h"
#include "base/clock.h"
#include "group/group.h"
#include "membership/node.h"
#include "p2p/peer.h"
#include "fake_node.h"

#define RANKS 8
#define SECOND 1000000000ll

/* Rings as in real groups, rings smaller than a message, sockets. */
static const size_t KINDS[] = {256 << 10, 8 << 10, 0};
#define EVERY_KIND(ranks, ...)                                           \
    for (size_t kind = 0; kind < sizeof KINDS / sizeof *KINDS; kind++) { \
        struct world *w = world_open(ranks, KINDS[kind]);                \
        __VA_ARGS__                                                      \
        world_close(w);                                                  \
    }

struct acomm_node { int unused; };

struct world {
    int size, stripes;
    size_t ring;                           /* bytes; 0: sockets */
    struct acomm_group groups[RANKS];
    struct link *out[RANKS][RANKS], *in[RANKS][RANKS]; /* [from][to] */
    struct link_ring *rings[RANKS][RANKS];
    struct doorbell doorbells[RANKS];
    struct acomm_node node;
    _Atomic int left[RANKS], recycled, lost;
    char *arenas[RANKS];                   /* as their peers map them; NULL: they have none */
};

static struct world *world_of(struct acomm_group *g)
{
    return P2P_OF(struct world, groups, g - g->rank);
}

struct link *group_link(struct acomm_group *g, enum channel channel, int rank, bool outgoing)
{
    struct world *w = world_of(g);
    CHECK_EQUAL(channel, CHANNEL_P2P);
    return outgoing ? w->out[g->rank][rank] : w->in[rank][g->rank];
}

bool group_link_ready(struct acomm_group *g, const struct link *link)
{
    return world_of(g)->ring || link->ops->complete(link);
}

char *symmetric_map(struct acomm_group *g, int rank, uint64_t upto)
{
    CHECK(upto <= ARENA_BYTES);
    return world_of(g)->arenas[rank];
}

int group_fail(struct acomm_group *g, const acomm_failure *failure, bool tell)
{
    (void)tell;
    pthread_mutex_lock(&g->lock);
    bool first = !g->failed;
    if (first) {
        g->failure = *failure;
        g->failed = true;
        atomic_store(&g->poisoned, failure->code);
    }
    pthread_mutex_unlock(&g->lock);
    if (first)
        p2p_fail(g->p2p);
    return atomic_load(&g->poisoned);
}

int group_fail_op(struct acomm_op *op, int code, int culprit, int errnum, const char *text)
{
    op_release_lock(op); /* as the real one */
    acomm_failure failure = {.code = code, .culprit = culprit, .origin = op->group->rank, .errnum = errnum};
    op_header(op, &failure.mine);
    strncpy(failure.text, text ? text : "", sizeof failure.text - 1);
    return group_fail(op->group, &failure, true);
}

void group_close_window(struct acomm_group *g)
{
    window_close(&g->shared, 20000000000);
}

void group_recycle(struct acomm_group *g, struct acomm_op *op)
{
    atomic_fetch_add(&world_of(g)->recycled, 1);
    free(op);
}

void node_lost(struct acomm_node *node, int world_rank, const char *text)
{
    (void)world_rank;
    (void)text;
    atomic_fetch_add(&P2P_OF(struct world, node, node)->lost, 1);
}

/* Groups here have no patience. */
void node_ask_members(struct acomm_node *node, const struct acomm_group *group)
{
    (void)node, (void)group;
}

int node_left(struct acomm_node *node, const struct acomm_group *group, int rank, uint64_t sequence)
{
    (void)group;
    (void)sequence;
    return atomic_load(&P2P_OF(struct world, node, node)->left[rank]) ? rank : -1;
}

uint64_t acomm_dtype_bytes(int dtype)
{
    if (dtype < 0 || dtype >= ACOMM_OPAQUE_END || (dtype >= ACOMM_DTYPES && dtype < ACOMM_OPAQUE))
        return 0;
    return dtype == ACOMM_FLOAT64 || dtype == ACOMM_INT64 ? 8 : dtype == ACOMM_INT32 ? 4 : 1;
}

static void make_ring(struct world *w, int from, int to)
{
    size_t bytes = link_shm_footprint(w->ring);
    w->rings[from][to] = aligned_alloc(128, (bytes + 127) / 128 * 128);
    memset(w->rings[from][to], 0, bytes);
    w->out[from][to] = link_shm_new(to, true, w->rings[from][to], w->ring, &w->doorbells[from], &w->doorbells[to]);
    w->in[from][to] = link_shm_new(from, false, w->rings[from][to], w->ring, &w->doorbells[to], &w->doorbells[from]);
}

static void make_sockets(struct world *w, int from, int to)
{
    w->out[from][to] = link_tcp_new(to, true, w->stripes);
    w->in[from][to] = link_tcp_new(from, false, w->stripes);
    for (int stripe = 0; stripe < w->stripes; stripe++) {
        int fds[2];
        CHECK_EQUAL(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
        CHECK_EQUAL(w->out[from][to]->ops->attach(w->out[from][to], stripe, fds[0]), 0);
        CHECK_EQUAL(w->in[from][to]->ops->attach(w->in[from][to], stripe, fds[1]), 0);
    }
}

static inline struct world *world_open(int size, size_t ring)
{
    static int members[RANKS] = {0, 1, 2, 3, 4, 5, 6, 7};
    static int32_t processes[RANKS];
    struct world *w = calloc(1, sizeof *w);
    w->size = size;
    w->ring = ring;
    w->stripes = 2;
    for (int from = 0; from < size; from++)
        for (int to = 0; to < size; to++)
            if (from != to)
                (ring ? make_ring : make_sockets)(w, from, to);
    for (int rank = 0; rank < size; rank++) {
        struct acomm_group *g = &w->groups[rank];
        processes[rank] = (int32_t)getpid();
        *g = (struct acomm_group){.node = &w->node, .rank = rank, .size = size, .doorbell = ring ? &w->doorbells[rank] : NULL, .members = members,
                                    .shared.processes = processes, .hosts = {.local_rank = members, .host = {.size = size}},
                                  .timeout = 60 * SECOND, .oversubscribed = size > sysconf(_SC_NPROCESSORS_ONLN)};
        pthread_mutex_init(&g->lock, NULL);
        g->p2p = p2p_open(g);
    }
    return w;
}

/* Closes a rank's engine and what it sends on; its peers see the end of the links. */
static inline void world_leave(struct world *w, int rank)
{
    struct acomm_group *g = &w->groups[rank];
    p2p_close(g->p2p);
    g->p2p = NULL;
    for (int to = 0; to < w->size; to++)
        if (w->out[rank][to]) {
            w->out[rank][to]->ops->close(w->out[rank][to]);
            w->out[rank][to] = NULL;
        }
    atomic_store(&w->left[rank], 1);
}

static inline void world_close(struct world *w)
{
    for (int rank = 0; rank < w->size; rank++)
        if (w->groups[rank].p2p)
            world_leave(w, rank);
    for (int from = 0; from < w->size; from++)
        for (int to = 0; to < w->size; to++) {
            if (w->in[from][to])
                w->in[from][to]->ops->close(w->in[from][to]);
            free(w->rings[from][to]);
        }
    for (int rank = 0; rank < w->size; rank++)
        pthread_mutex_destroy(&w->groups[rank].lock);
    free(w);
}

/* Runs function(group) in one thread per rank. */
static inline void world_run(struct world *w, void *(*function)(void *))
{
    pthread_t threads[RANKS];
    for (int rank = 0; rank < w->size; rank++)
        pthread_create(&threads[rank], NULL, function, &w->groups[rank]);
    for (int rank = 0; rank < w->size; rank++)
        pthread_join(threads[rank], NULL);
}

static inline struct acomm_op message(struct acomm_group *g, int kind, void *data, uint64_t count, int dtype, int peer,
                                      int64_t tag)
{
    return (struct acomm_op){.group = g, .kind = kind, .in = kind == ACOMM_SEND ? data : NULL,
                             .out = kind == ACOMM_RECV ? data : NULL, .count = count, .dtype = dtype,
                             .width = acomm_dtype_bytes(dtype), .peer = peer, .tag = tag, .timeout = -1, .root = -1};
}

/* In the place of Python's lock: a caller gives up its own, and once. */
struct caller {
    pthread_t thread;
    bool holds;
};
static inline void give_up_lock(void *lock)
{
    struct caller *caller = lock;
    CHECK(caller->holds && pthread_equal(caller->thread, pthread_self()));
    caller->holds = false;
}

/* Synchronous, of bytes. */
static inline int world_do(struct acomm_group *g, int kind, void *data, uint64_t count, int peer, int64_t tag)
{
    struct acomm_op op = message(g, kind, data, count, ACOMM_UINT8, peer, tag);
    struct caller caller = {.thread = pthread_self(), .holds = true};
    op.synchronous = true;
    op.release_lock = give_up_lock;
    op.lock = &caller;
    int rc = p2p_post(g->p2p, &op);
    return rc ? rc : p2p_wait(g->p2p, &op);
}

/* Asynchronous, of bytes, in op. */
static inline void world_start(struct acomm_group *g, struct acomm_op *op, int kind, void *data, uint64_t count,
                               int peer, int64_t tag)
{
    *op = message(g, kind, data, count, ACOMM_UINT8, peer, tag);
    CHECK_EQUAL(p2p_post(g->p2p, op), 0);
}

static inline void fill_bytes(char *data, size_t bytes, uint32_t seed)
{
    for (size_t i = 0; i < bytes; i++)
        data[i] = (char)((i * 2654435761u + seed * 40503u) >> 7);
}

static inline bool has_bytes(const char *data, size_t bytes, uint32_t seed)
{
    for (size_t i = 0; i < bytes; i++)
        if (data[i] != (char)((i * 2654435761u + seed * 40503u) >> 7))
            return false;
    return true;
}

/* Message number i between two ranks, which change direction from one to the next; `data` holds it afterwards on both. */
static inline void world_turn(struct acomm_group *g, uint32_t i, char *data, size_t bytes, int source)
{
    bool sends = (i + (uint32_t)g->rank) % 2 == 0;
    memset(data, 0, bytes);
    if (sends)
        fill_bytes(data, bytes, i);
    CHECK_EQUAL(world_do(g, sends ? ACOMM_SEND : ACOMM_RECV, data, bytes, sends ? 1 - g->rank : source, 7), 0);
    CHECK(has_bytes(data, bytes, i));
}

/* A block of each of two ranks' arena, which their peers can map, or not. */
static inline void world_arenas(struct world *w, struct acomm_block **blocks, size_t bytes, bool mapped)
{
    for (int rank = 0; rank < 2; rank++) {
        int fd = memfd_create("arena", MFD_CLOEXEC);
        CHECK_EQUAL(ftruncate(fd, ARENA_BYTES), 0);
        w->groups[rank].direct.arena = arena_open(fd, 0);
        blocks[rank] = arena_take(w->groups[rank].direct.arena, bytes);
        if (mapped)
            w->arenas[rank] = mmap(NULL, ARENA_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        CHECK(w->arenas[rank] != MAP_FAILED);
        close(fd);
    }
}

static inline void world_close_arenas(struct world *w, struct acomm_block **blocks)
{
    for (int rank = 0; rank < 2; rank++) {
        acomm_block_free(blocks[rank]);
        arena_close(w->groups[rank].direct.arena);
        w->groups[rank].direct.arena = NULL;
        if (w->arenas[rank])
            munmap(w->arenas[rank], ARENA_BYTES);
        w->arenas[rank] = NULL;
    }
}
#endif
