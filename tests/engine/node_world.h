/* Nodes in a ring of five ranks in one process; some ranks are played by the test with bare sockets. */
#ifndef NODE_WORLD_H
#define NODE_WORLD_H
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include "check.h"
#include "base/clock.h"
#include "group/group.h"
#include "membership/node.h"
#include "membership/wire_control.h"

#define MS 1000000ll
#define BEAT (20 * MS)
#define SILENCE (1000 * MS)
#define PATIENCE (10000 * MS) /* a loaded machine may be slow; a correct one is done in milliseconds */
#define RANKS 5

/* group_fail() shows that it was entered, and stays while fail_hold: for the test of what happens meanwhile. */
static _Atomic int fail_entered, fail_hold;

int group_fail(struct acomm_group *g, const acomm_failure *failure, bool tell)
{
    atomic_store(&fail_entered, 1);
    while (atomic_load(&fail_hold))
        usleep(1000);
    pthread_mutex_lock(&g->lock);
    bool first = !g->failed;
    if (first) {
        g->failure = *failure;
        g->failed = true;
    }
    pthread_mutex_unlock(&g->lock);
    if (first && tell)
        node_tell(g->node, g, failure);
    atomic_store(&g->poisoned, g->failure.code);
    return failure->code;
}

struct world {
    acomm_node *node[RANKS];
    int bare[RANKS][2]; /* a bare rank's ends toward its predecessor and its successor */
    int asked[RANKS];   /* requests seen, by who was asked for */
};

static inline void pair_of(int fds[2])
{
    CHECK_EQUAL(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
}

static inline void send_frame(int fd, int kind, int rank, const char *text)
{
    struct wire_control head = {.magic = WIRE_CONTROL_MAGIC, .kind = (uint8_t)kind, .hops = 9, .rank = rank,
                                .bytes = (uint32_t)strlen(text)};
    CHECK_EQUAL(send(fd, &head, sizeof head, MSG_NOSIGNAL), sizeof head);
    if (*text)
        CHECK_EQUAL(send(fd, text, strlen(text), MSG_NOSIGNAL), strlen(text));
}

static inline void join(struct world *w, int rank, int peer, int fd)
{
    if (w->node[rank])
        CHECK_EQUAL(acomm_node_attach(w->node[rank], peer, fd), 0);
    else
        send_frame(w->bare[rank][peer == (rank + 1) % RANKS] = fd, WIRE_HEARTBEAT, rank, "");
}

static inline void world_open(struct world *w, unsigned bare_ranks, int64_t silence)
{
    memset(w, 0, sizeof *w);
    for (int r = 0; r < RANKS; r++) {
        w->bare[r][0] = w->bare[r][1] = -1;
        if (!(bare_ranks >> r & 1))
            CHECK_EQUAL(acomm_node_open(r, RANKS, BEAT, silence, &w->node[r]), 0);
    }
    for (int r = 0; r < RANKS; r++) {
        int fds[2];
        pair_of(fds);
        join(w, r, (r + 1) % RANKS, fds[0]);
        join(w, (r + 1) % RANKS, r, fds[1]);
    }
}

static inline void bare_close(struct world *w, int rank)
{
    for (int i = 0; i < 2; i++)
        if (w->bare[rank][i] >= 0)
            close(w->bare[rank][i]);
    w->bare[rank][0] = w->bare[rank][1] = -1;
}

static inline void world_close(struct world *w)
{
    for (int r = 0; r < RANKS; r++) {
        bare_close(w, r);
        if (w->node[r])
            CHECK_EQUAL(acomm_node_close(w->node[r], ""), 0);
    }
}

/* What the process's Python thread does: connections that the nodes ask for are made, or refused. */
static inline void serve(struct world *w)
{
    acomm_request request;
    for (int r = 0; r < RANKS; r++) {
        while (w->node[r] && acomm_node_request(w->node[r], &request)) {
            w->asked[request.peer]++;
            CHECK_EQUAL(request.channel, CHANNEL_CONTROL);
            if (!w->node[request.peer]) {
                acomm_node_refuse(w->node[r], &request, ACOMM_LOST, ECONNREFUSED, "connection refused");
                continue;
            }
            int fds[2];
            pair_of(fds);
            acomm_node_attach(w->node[r], request.peer, fds[0]);
            acomm_node_attach(w->node[request.peer], r, fds[1]);
        }
    }
}

#define AWAIT(w, condition)                                       \
    do {                                                          \
        int64_t await_end = clock_now() + PATIENCE;               \
        while (!(condition) && clock_now() < await_end) {         \
            serve(w);                                             \
            usleep(1000);                                         \
        }                                                         \
        CHECK(condition);                                         \
    } while (0)

/* Long enough for news to arrive that must not come. */
static inline void quiet(struct world *w, int ms)
{
    for (int i = 0; i < ms; i++) {
        serve(w);
        usleep(1000);
    }
}

static inline struct acomm_group *group_make(acomm_node *node, uint64_t id, int rank, const int *members, int size)
{
    struct acomm_group *g = calloc(1, sizeof *g);
    g->node = node;
    g->id = id;
    g->rank = rank;
    g->size = size;
    g->members = malloc((size_t)size * sizeof(int));
    memcpy(g->members, members, (size_t)size * sizeof(int));
    pthread_mutex_init(&g->lock, NULL);
    CHECK_EQUAL(node_add(node, g, group_fail), 0);
    return g;
}

static inline void group_drop(struct acomm_group *g)
{
    if (!g)
        return;
    node_remove(g->node, g);
    pthread_mutex_destroy(&g->lock);
    free(g->members);
    free(g);
}

struct groups { struct acomm_group *of[RANKS]; /* by world rank; NULL where there is none */ };

static inline struct groups groups_open(struct world *w, uint64_t id, const int *members, int size)
{
    struct groups groups = {{0}};
    for (int i = 0; i < size; i++)
        if (w->node[members[i]])
            groups.of[members[i]] = group_make(w->node[members[i]], id, i, members, size);
    return groups;
}

static inline void groups_close(struct groups *groups)
{
    for (int r = 0; r < RANKS; r++)
        group_drop(groups->of[r]);
}

static inline int failed(const struct groups *groups)
{
    int count = 0;
    for (int r = 0; r < RANKS; r++)
        count += groups->of[r] && atomic_load(&groups->of[r]->poisoned) != 0;
    return count;
}

static const int everybody[RANKS] = {0, 1, 2, 3, 4};

#endif
