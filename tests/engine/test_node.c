/* engine: node.c node_group.c node_gossip.c node_link.c node_thread.c loop.c */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include "check.h"
#include "clock.h"
#include "group.h"
#include "node.h"
#include "wire_control.h"

#define MS 1000000ll
#define BEAT (20 * MS)
#define SILENCE (1000 * MS)
#define PATIENCE (10000 * MS) /* a loaded machine may be slow; a correct one is done in milliseconds */
#define RANKS 5

/* ---- the engine's side that the node calls ---- */

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

/* ---- a world: nodes in a ring, some ranks played by the test with bare sockets ---- */

struct world {
    acomm_node *node[RANKS];
    int bare[RANKS][2]; /* a bare rank's ends toward its predecessor and its successor */
    int asked[RANKS];   /* requests seen, by who was asked for */
};

static void pair_of(int fds[2])
{
    CHECK_EQUAL(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
}

static void join(struct world *w, int rank, int peer, int fd)
{
    if (w->node[rank])
        CHECK_EQUAL(acomm_node_attach(w->node[rank], peer, fd), 0);
    else
        w->bare[rank][peer == (rank + 1) % RANKS] = fd;
}

static void world_open(struct world *w, unsigned bare_ranks, int64_t silence)
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

static void bare_close(struct world *w, int rank)
{
    for (int i = 0; i < 2; i++)
        if (w->bare[rank][i] >= 0)
            close(w->bare[rank][i]);
    w->bare[rank][0] = w->bare[rank][1] = -1;
}

static void world_close(struct world *w)
{
    for (int r = 0; r < RANKS; r++) {
        bare_close(w, r);
        if (w->node[r])
            CHECK_EQUAL(acomm_node_close(w->node[r], ""), 0);
    }
}

/* What the process's Python thread does: connections that the nodes ask for are made, or refused. */
static void serve(struct world *w)
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
static void quiet(struct world *w, int ms)
{
    for (int i = 0; i < ms; i++) {
        serve(w);
        usleep(1000);
    }
}

static struct acomm_group *group_make(acomm_node *node, uint64_t id, int rank, const int *members, int size)
{
    struct acomm_group *g = calloc(1, sizeof *g);
    g->node = node;
    g->id = id;
    g->rank = rank;
    g->size = size;
    g->members = malloc((size_t)size * sizeof(int));
    memcpy(g->members, members, (size_t)size * sizeof(int));
    pthread_mutex_init(&g->lock, NULL);
    CHECK_EQUAL(node_add(node, g), 0);
    return g;
}

static void group_drop(struct acomm_group *g)
{
    if (!g)
        return;
    node_remove(g->node, g);
    pthread_mutex_destroy(&g->lock);
    free(g->members);
    free(g);
}

struct groups { struct acomm_group *of[RANKS]; /* by world rank; NULL where there is none */ };

static struct groups groups_open(struct world *w, uint64_t id, const int *members, int size)
{
    struct groups groups = {{0}};
    for (int i = 0; i < size; i++)
        if (w->node[members[i]])
            groups.of[members[i]] = group_make(w->node[members[i]], id, i, members, size);
    return groups;
}

static void groups_close(struct groups *groups)
{
    for (int r = 0; r < RANKS; r++)
        group_drop(groups->of[r]);
}

static int failed(const struct groups *groups)
{
    int count = 0;
    for (int r = 0; r < RANKS; r++)
        count += groups->of[r] && atomic_load(&groups->of[r]->poisoned) != 0;
    return count;
}

static const int everybody[RANKS] = {0, 1, 2, 3, 4};

static void send_frame(int fd, int kind, int rank, const char *text)
{
    struct wire_control head = {.magic = WIRE_CONTROL_MAGIC, .kind = (uint8_t)kind, .hops = 9, .rank = rank,
                                .bytes = (uint32_t)strlen(text)};
    CHECK_EQUAL(send(fd, &head, sizeof head, MSG_NOSIGNAL), sizeof head);
    if (*text)
        CHECK_EQUAL(send(fd, text, strlen(text), MSG_NOSIGNAL), strlen(text));
}

/* ---- tests ---- */

static void a_death_is_known_to_all(void)
{
    struct world w;
    world_open(&w, 1 << 2, SILENCE);
    struct groups all = groups_open(&w, 7, everybody, RANKS);
    struct groups others = groups_open(&w, 8, (int[]){4, 1, 0}, 3);
    bare_close(&w, 2);
    AWAIT(&w, failed(&all) == 4);
    for (int r = 0; r < RANKS; r++) {
        if (!all.of[r])
            continue;
        CHECK_EQUAL(all.of[r]->failure.code, ACOMM_LOST);
        CHECK_EQUAL(all.of[r]->failure.culprit, 2);
        CHECK(!strcmp(all.of[r]->failure.text, "process died (connection closed)"));
    }
    CHECK_EQUAL(failed(&others), 0);
    groups_close(&others);
    groups_close(&all);
    world_close(&w);
}

static void two_deaths_cut_the_ring_and_it_is_mended(void)
{
    struct world w;
    world_open(&w, 1 << 1 | 1 << 3, SILENCE);
    struct groups all = groups_open(&w, 7, everybody, RANKS);
    struct groups rest = groups_open(&w, 8, (int[]){0, 2, 4}, 3);
    bare_close(&w, 1);
    bare_close(&w, 3);
    AWAIT(&w, failed(&all) == 3);
    CHECK_EQUAL(failed(&rest), 0);
    acomm_failure failure = {.code = ACOMM_MISMATCH, .culprit = 2, .origin = 1, .sequence = 41};
    strcpy(failure.text, "so it goes");
    group_fail(rest.of[2], &failure, true);
    AWAIT(&w, failed(&rest) == 3);
    CHECK_EQUAL(rest.of[0]->failure.code, ACOMM_MISMATCH);
    CHECK_EQUAL(rest.of[4]->failure.sequence, 41);
    CHECK(!strcmp(rest.of[0]->failure.text, "so it goes"));
    AWAIT(&w, w.asked[2] == 1 && w.asked[4] == 1);
    groups_close(&rest);
    groups_close(&all);
    world_close(&w);
}

static void neighbours_die_one_after_the_other(void)
{
    struct world w;
    world_open(&w, 1 << 1 | 1 << 2 | 1 << 3, SILENCE);
    struct groups rest = groups_open(&w, 8, (int[]){0, 4}, 2);
    struct groups all = groups_open(&w, 7, everybody, RANKS);
    for (int r = 1; r <= 3; r++)
        bare_close(&w, r);
    AWAIT(&w, failed(&all) == 2);
    /* Rank 2 was known to nobody alive: rank 0 asks for it while it mends the ring, and it does not answer. */
    struct groups late = {{0}};
    late.of[0] = group_make(w.node[0], 9, 0, (int[]){0, 2}, 2);
    AWAIT(&w, failed(&late) == 1);
    CHECK_EQUAL(late.of[0]->failure.culprit, 1);
    CHECK_EQUAL(failed(&rest), 0);
    groups_close(&late);
    groups_close(&all);
    groups_close(&rest);
    world_close(&w);
}

static void silence_is_a_loss(void)
{
    struct world w;
    world_open(&w, 1 << 2, 200 * MS);
    struct groups all = groups_open(&w, 7, everybody, RANKS);
    AWAIT(&w, failed(&all) == 4);
    CHECK_EQUAL(all.of[0]->failure.culprit, 2);
    CHECK(strstr(all.of[0]->failure.text, "unresponsive"));
    /* It is told, so that it can give up when it goes on. */
    struct wire_control head = {0};
    while (head.kind == WIRE_HEARTBEAT && recv(w.bare[2][1], &head, sizeof head, MSG_WAITALL) == sizeof head)
        ;
    CHECK_EQUAL(head.kind, WIRE_LOST);
    CHECK_EQUAL(head.rank, 2);
    int fds[2];
    pair_of(fds);
    CHECK_EQUAL(acomm_node_attach(w.node[0], 2, fds[0]), ACOMM_LOST);
    CHECK_EQUAL(fcntl(fds[0], F_GETFD), -1);
    close(fds[1]);
    groups_close(&all);
    world_close(&w);
}

static void heartbeats_are_enough(void)
{
    struct world w;
    world_open(&w, 1 << 2, 300 * MS);
    struct groups all = groups_open(&w, 7, everybody, RANKS);
    for (int64_t end = clock_now() + 900 * MS; clock_now() < end; usleep(20000)) {
        send_frame(w.bare[2][0], WIRE_HEARTBEAT, 2, "");
        send_frame(w.bare[2][1], WIRE_HEARTBEAT, 2, "");
    }
    CHECK_EQUAL(failed(&all), 0);
    groups_close(&all);
    world_close(&w);
}

static void an_orderly_shutdown_fails_nobody(void)
{
    struct world w;
    world_open(&w, 0, SILENCE);
    struct groups all = groups_open(&w, 7, everybody, RANKS);
    for (int r = 0; r < RANKS; r++)
        all.of[r]->sequence = 5;
    CHECK_EQUAL(node_left(w.node[0], all.of[0], -1, 6), -1);
    group_drop(all.of[1]);
    all.of[1] = NULL;
    CHECK_EQUAL(acomm_node_close(w.node[1], ""), 0);
    w.node[1] = NULL;
    for (int r = 2; r <= RANKS; r++) {
        struct acomm_group *g = all.of[r % RANKS];
        AWAIT(&w, node_left(g->node, g, -1, 6) == 1);
        CHECK_EQUAL(node_left(g->node, g, -1, 5), -1); /* rank 1 has done its part of number 5 */
        CHECK_EQUAL(node_left(g->node, g, 1, 6), 1);
        CHECK_EQUAL(node_left(g->node, g, 2, 6), -1);
        CHECK_EQUAL(node_left(g->node, g, 1, UINT64_MAX), 1);
    }
    CHECK_EQUAL(failed(&all), 0);
    AWAIT(&w, w.asked[2] == 1); /* by rank 0, whose successor has gone */
    struct groups late = {{0}};
    late.of[3] = group_make(w.node[3], 9, 0, (int[]){3, 1}, 2);
    CHECK_EQUAL(node_left(w.node[3], late.of[3], -1, 1), 1);
    groups_close(&late);
    groups_close(&all);
    world_close(&w);
}

static void a_group_closed_before_it_is_opened_here(void)
{
    struct world w;
    world_open(&w, 0, SILENCE);
    struct acomm_group *early = group_make(w.node[0], 30, 0, (int[]){0, 3}, 2);
    struct groups mark = groups_open(&w, 31, everybody, RANKS);
    early->sequence = 2;
    group_drop(early);
    acomm_failure failure = {.code = ACOMM_ABORTED, .culprit = -1, .origin = 0};
    group_fail(mark.of[0], &failure, true);
    AWAIT(&w, failed(&mark) == RANKS); /* by then the news before it has arrived too */
    struct acomm_group *late = group_make(w.node[3], 30, 1, (int[]){0, 3}, 2);
    CHECK_EQUAL(node_left(w.node[3], late, 0, 3), 0);
    CHECK_EQUAL(node_left(w.node[3], late, 0, 2), -1);
    group_drop(late);
    groups_close(&mark);
    world_close(&w);
}

static void leaving_by_an_exception_fails_the_groups(void)
{
    struct world w;
    world_open(&w, 0, SILENCE);
    struct groups all = groups_open(&w, 7, everybody, RANKS);
    struct groups others = groups_open(&w, 8, (int[]){4, 2}, 2);
    group_drop(all.of[1]);
    all.of[1] = NULL;
    CHECK_EQUAL(acomm_node_close(w.node[1], "exited with ValueError"), 0);
    w.node[1] = NULL;
    AWAIT(&w, failed(&all) == 4);
    CHECK_EQUAL(all.of[3]->failure.code, ACOMM_LOST);
    CHECK_EQUAL(all.of[3]->failure.culprit, 1);
    CHECK(!strcmp(all.of[3]->failure.text, "exited with ValueError"));
    CHECK_EQUAL(failed(&others), 0);
    AWAIT(&w, w.asked[2] == 1);
    groups_close(&others);
    groups_close(&all);
    world_close(&w);
}

/* A process that exits without closing: its peers hear what acomm_group_close() would have told them. */
static void exiting_with_groups_open(void)
{
    struct world w;
    const char *text;
    world_open(&w, 0, SILENCE);
    struct groups idle = groups_open(&w, 7, everybody, RANKS), busy = groups_open(&w, 8, everybody, RANKS);
    idle.of[1]->sequence = 4;
    atomic_store(&busy.of[1]->busy, 1);
    CHECK_EQUAL(acomm_node_peer(w.node[0], 1, &text), 0);
    CHECK_EQUAL(acomm_node_close(w.node[1], ""), 0);
    w.node[1] = NULL; /* freed with its last group */
    AWAIT(&w, failed(&busy) == 4 && node_left(w.node[3], idle.of[3], 1, 5) == 1);
    CHECK_EQUAL(node_left(w.node[3], idle.of[3], 1, 4), -1);
    CHECK_EQUAL(busy.of[3]->failure.culprit, 1);
    CHECK(strstr(busy.of[3]->failure.text, "under way"));
    AWAIT(&w, acomm_node_peer(w.node[0], 1, &text) == 1);
    CHECK(!text);
    CHECK_EQUAL(failed(&idle), 0);
    groups_close(&busy);
    groups_close(&idle);
    world_close(&w);
}

static void what_is_known_of_a_peer(void)
{
    struct world w;
    const char *text;
    world_open(&w, 1 << 2 | 1 << 4, SILENCE);
    struct pollfd readable = {.fd = acomm_node_eventfd(w.node[3]), .events = POLLIN};
    CHECK_EQUAL(acomm_node_peer(w.node[3], RANKS, &text), ACOMM_ARGUMENT);
    CHECK_EQUAL(acomm_node_peer(w.node[3], 2, &text), 0);
    CHECK_EQUAL(poll(&readable, 1, 0), 0);
    send_frame(w.bare[2][1], WIRE_BYE, 2, "left with KeyError");
    CHECK_EQUAL(poll(&readable, 1, 10000), 1);
    AWAIT(&w, acomm_node_peer(w.node[3], 2, &text) == 1);
    CHECK(!strcmp(text, "left with KeyError"));
    bare_close(&w, 4);
    AWAIT(&w, acomm_node_peer(w.node[3], 4, &text) == ACOMM_LOST);
    CHECK(strstr(text, "died"));
    CHECK_EQUAL(acomm_node_peer(w.node[3], 3, &text), 0);
    send_frame(w.bare[2][1], WIRE_LOST, 3, "unresponsive");
    AWAIT(&w, acomm_node_peer(w.node[3], 3, &text) == ACOMM_ABORTED);
    world_close(&w);
}

static void failures_spread_once_and_reach_late_comers(void)
{
    struct world w;
    world_open(&w, 0, SILENCE);
    struct groups some = groups_open(&w, 7, (int[]){0, 1, 2, 3}, 4);
    for (int r = 0; r < 4; r++) { /* all notice it, as with a mismatch */
        acomm_failure failure = {.code = ACOMM_TIMEOUT, .culprit = 3, .origin = r};
        failure.mine.count = (uint64_t)r + 10;
        group_fail(some.of[r], &failure, true);
    }
    CHECK_EQUAL(failed(&some), 4);
    CHECK(some.of[2]->failure.mine.count >= 10 && some.of[2]->failure.mine.count < 14);
    struct groups marks = groups_open(&w, 8, everybody, RANKS);
    acomm_failure failure = {.code = ACOMM_ABORTED, .culprit = -1, .origin = 0};
    group_fail(marks.of[0], &failure, true);
    AWAIT(&w, failed(&marks) == RANKS);
    struct acomm_group *late = group_make(w.node[4], 7, 0, (int[]){4}, 1);
    CHECK_EQUAL(late->failed, false); /* culprit and origin do not fit a group of one: not this group's */
    group_drop(late);
    late = group_make(w.node[4], 7, 3, (int[]){0, 1, 2, 4}, 4);
    CHECK_EQUAL(late->failure.code, ACOMM_TIMEOUT);
    group_drop(late);
    groups_close(&marks);
    groups_close(&some);
    world_close(&w);
}

static void bad_frames_end_the_connection(void)
{
    struct acomm_failure bad = {.code = ACOMM_LOST, .culprit = 99, .origin = 0};
    struct wire_control frames[] = {
        {.magic = 0x47455420, .kind = WIRE_LOST},
        {.magic = WIRE_CONTROL_MAGIC, .kind = WIRE_KINDS},
        {.magic = WIRE_CONTROL_MAGIC, .kind = WIRE_LOST, .rank = RANKS},
        {.magic = WIRE_CONTROL_MAGIC, .kind = WIRE_LOST, .rank = -1},
        {.magic = WIRE_CONTROL_MAGIC, .kind = WIRE_LOST, .bytes = WIRE_TEXT},
        {.magic = WIRE_CONTROL_MAGIC, .kind = WIRE_FAIL, .bytes = sizeof bad - 1},
        {.magic = WIRE_CONTROL_MAGIC, .kind = WIRE_FAIL, .bytes = UINT32_MAX},
        {.magic = WIRE_CONTROL_MAGIC, .kind = WIRE_HEARTBEAT, .bytes = 1},
        {.magic = WIRE_CONTROL_MAGIC, .kind = WIRE_HEARTBEAT, .zero = 1},
    };
    for (size_t i = 0; i < sizeof frames / sizeof *frames; i++) {
        struct world w;
        world_open(&w, 1 << 2, SILENCE);
        struct groups all = groups_open(&w, 7, everybody, RANKS);
        CHECK_EQUAL(send(w.bare[2][1], &frames[i], sizeof frames[i], MSG_NOSIGNAL), sizeof frames[i]);
        AWAIT(&w, failed(&all) == 4);
        CHECK_EQUAL(all.of[0]->failure.culprit, 2);
        CHECK_MESSAGE(strstr(all.of[0]->failure.text, "invalid control frame"), "frame %zu: %s", i, all.of[0]->failure.text);
        groups_close(&all);
        world_close(&w);
    }
}

static void a_failure_that_does_not_fit_is_ignored(void)
{
    struct world w;
    world_open(&w, 1 << 2, SILENCE);
    struct groups all = groups_open(&w, 7, everybody, RANKS), other = groups_open(&w, 8, everybody, RANKS);
    acomm_failure bad = {.code = ACOMM_LOST, .culprit = 99, .origin = 0};
    struct wire_control head = {.magic = WIRE_CONTROL_MAGIC, .kind = WIRE_FAIL, .hops = 9, .rank = 2, .group = 7,
                                .bytes = sizeof bad};
    CHECK_EQUAL(send(w.bare[2][1], &head, sizeof head, MSG_NOSIGNAL), sizeof head);
    CHECK_EQUAL(send(w.bare[2][1], &bad, sizeof bad, MSG_NOSIGNAL), sizeof bad);
    bad.culprit = 1;
    head.group = 8;
    CHECK_EQUAL(send(w.bare[2][1], &head, sizeof head, MSG_NOSIGNAL), sizeof head);
    CHECK_EQUAL(send(w.bare[2][1], &bad, 100, MSG_NOSIGNAL), 100); /* in pieces */
    usleep(5000);
    CHECK_EQUAL(send(w.bare[2][1], (char *)&bad + 100, sizeof bad - 100, MSG_NOSIGNAL), sizeof bad - 100);
    AWAIT(&w, failed(&other) == 4);
    CHECK_EQUAL(failed(&all), 0);
    groups_close(&other);
    groups_close(&all);
    world_close(&w);
}

static void the_condemned_gives_up(void)
{
    struct world w;
    world_open(&w, 1 << 2, SILENCE);
    struct groups mine = {{0}};
    mine.of[3] = group_make(w.node[3], 7, 0, (int[]){3, 4}, 2);
    send_frame(w.bare[2][1], WIRE_LOST, 3, "unresponsive (stopped or unreachable)");
    AWAIT(&w, failed(&mine) == 1);
    CHECK_EQUAL(mine.of[3]->failure.code, ACOMM_ABORTED);
    CHECK_MESSAGE(strstr(mine.of[3]->failure.text, "declared lost by the others: unresponsive"), "%s",
                  mine.of[3]->failure.text);
    struct acomm_group *late = group_make(w.node[3], 9, 0, (int[]){3, 0}, 2);
    CHECK_EQUAL(late->failure.code, ACOMM_ABORTED);
    int fds[2];
    pair_of(fds);
    CHECK_EQUAL(acomm_node_attach(w.node[3], 0, fds[0]), ACOMM_ABORTED);
    close(fds[1]);
    group_drop(late);
    groups_close(&mine);
    world_close(&w);
}

static void refused_connections(void)
{
    struct world w;
    world_open(&w, 0, SILENCE);
    struct groups all = groups_open(&w, 7, everybody, RANKS), data = groups_open(&w, 8, (int[]){4, 0}, 2);
    acomm_request request;
    node_ask(w.node[0], 8, 4, CHANNEL_P2P, 3);
    struct pollfd readable = {.fd = acomm_node_eventfd(w.node[0]), .events = POLLIN};
    CHECK_EQUAL(poll(&readable, 1, 0), 1);
    CHECK_EQUAL(acomm_node_request(w.node[0], &request), 1);
    CHECK(request.group == 8 && request.peer == 4 && request.channel == CHANNEL_P2P && request.stripe == 3);
    CHECK_EQUAL(acomm_node_request(w.node[0], &request), 0);
    CHECK_EQUAL(poll(&readable, 1, 0), 0);
    acomm_node_refuse(w.node[0], &request, ACOMM_LOST, EHOSTUNREACH, "no way");
    AWAIT(&w, failed(&data) == 2);
    CHECK_EQUAL(data.of[4]->failure.culprit, 0);
    CHECK_EQUAL(data.of[4]->failure.errnum, EHOSTUNREACH);
    CHECK_EQUAL(failed(&all), 0);
    acomm_node_refuse(w.node[0], &(acomm_request){.peer = 3}, ACOMM_LOST, ECONNREFUSED, "connection refused");
    AWAIT(&w, failed(&all) == RANKS);
    CHECK_EQUAL(all.of[1]->failure.culprit, 3);
    CHECK_EQUAL(all.of[3]->failure.code, ACOMM_ABORTED);
    CHECK(!strcmp(all.of[1]->failure.text, "connection refused"));
    groups_close(&data);
    groups_close(&all);
    world_close(&w);
}

static void a_doubtful_rank_may_come_back(void)
{
    struct world w;
    world_open(&w, 0, SILENCE);
    struct groups all = groups_open(&w, 7, everybody, RANKS);
    acomm_node_refuse(w.node[0], &(acomm_request){.peer = 3}, ACOMM_LOST, ECONNREFUSED, "connection refused");
    node_lost(w.node[1], 3, "the network does not reach it"); /* asks, and is answered */
    int fds[2];
    pair_of(fds);
    CHECK_EQUAL(acomm_node_attach(w.node[0], 3, fds[0]), 0);
    CHECK_EQUAL(acomm_node_attach(w.node[3], 0, fds[1]), 0);
    quiet(&w, 500);
    CHECK_EQUAL(w.asked[3], 1);
    CHECK_EQUAL(failed(&all), 0);
    groups_close(&all);
    world_close(&w);
}

static void *remove_group(void *group)
{
    struct acomm_group *g = group;
    node_remove(g->node, g);
    atomic_store(&fail_entered, 2);
    return NULL;
}

static void removal_waits_for_a_call(void)
{
    struct world w;
    world_open(&w, 1 << 2, SILENCE);
    struct groups one = {{0}};
    one.of[1] = group_make(w.node[1], 7, 0, (int[]){1, 2}, 2);
    atomic_store(&fail_entered, 0);
    atomic_store(&fail_hold, 1);
    bare_close(&w, 2);
    AWAIT(&w, atomic_load(&fail_entered) == 1);
    pthread_t thread;
    CHECK_EQUAL(pthread_create(&thread, NULL, remove_group, one.of[1]), 0);
    quiet(&w, 50);
    CHECK_EQUAL(atomic_load(&fail_entered), 1);
    atomic_store(&fail_hold, 0);
    pthread_join(thread, NULL);
    CHECK_EQUAL(failed(&one), 1);
    groups_close(&one);
    world_close(&w);
}

static int child_result(pid_t child)
{
    int status = -1;
    CHECK_EQUAL(waitpid(child, &status, 0), child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

static void a_forked_child_has_no_part_in_it(void)
{
    struct world w;
    world_open(&w, 1 << 2, SILENCE);
    struct groups all = groups_open(&w, 7, everybody, RANKS);
    int event = acomm_node_eventfd(w.node[1]);
    pid_t child = fork();
    if (child == 0) {
        acomm_request request;
        int bad = !node_forked(w.node[1]) || fcntl(event, F_GETFD) >= 0 ||
                  acomm_node_attach(w.node[1], 0, open("/dev/null", O_RDONLY)) != ACOMM_FORKED ||
                  acomm_node_request(w.node[1], &request) != 0 || acomm_node_close(w.node[1], "") != ACOMM_FORKED;
        node_remove(w.node[1], all.of[1]);
        pid_t grandchild = fork(); /* nothing of the parent's node is touched twice */
        if (grandchild == 0)
            _exit(fcntl(w.bare[2][0], F_GETFD) < 0);
        int status = 1;
        waitpid(grandchild, &status, 0);
        _exit(bad ? 1 : status ? 2 : 0);
    }
    CHECK_EQUAL(child_result(child), 0);
    quiet(&w, 100);
    CHECK_EQUAL(failed(&all), 0);
    bare_close(&w, 2);
    AWAIT(&w, failed(&all) == 4);
    groups_close(&all);
    world_close(&w);
}

/* Exit status 0 when the group of this process did not fail although it was stopped for longer than the silence. */
static int sleeper(int fd)
{
    acomm_node *node;
    if (acomm_node_open(0, 2, BEAT, 800 * MS, &node) || acomm_node_attach(node, 1, fd))
        return 1;
    struct acomm_group *g = group_make(node, 7, 0, (int[]){0, 1}, 2);
    struct wire_control ready = {.magic = 1};
    if (send(fd, &ready, 1, 0) != 1) /* "running": the test reads one byte more than the heartbeats */
        return 2;
    usleep(1200000);
    int failed_here = atomic_load(&g->poisoned);
    return failed_here ? 10 - failed_here : 0;
}

static void who_overslept_does_not_accuse_others(void)
{
    int fds[2];
    pair_of(fds);
    pid_t child = fork();
    if (child == 0) {
        close(fds[0]);
        _exit(sleeper(fds[1]));
    }
    close(fds[1]);
    char byte;
    CHECK_EQUAL(recv(fds[0], &byte, 1, 0), 1);
    kill(child, SIGSTOP);
    usleep(1800000); /* twice the silence, and nothing is sent meanwhile */
    kill(child, SIGCONT);
    for (int i = 0; i < 80; i++) { /* 1.6 s of heartbeats */
        struct wire_control head = {.magic = WIRE_CONTROL_MAGIC, .kind = WIRE_HEARTBEAT, .rank = 1};
        usleep(20000);
        if (send(fds[0], &head, sizeof head, MSG_NOSIGNAL) < 0)
            break;
    }
    CHECK_EQUAL(child_result(child), 0);
    close(fds[0]);
}

static void bad_arguments(void)
{
    acomm_node *node;
    CHECK_EQUAL(acomm_node_open(0, 0, BEAT, SILENCE, &node), ACOMM_ARGUMENT);
    CHECK_EQUAL(acomm_node_open(2, 2, BEAT, SILENCE, &node), ACOMM_ARGUMENT);
    CHECK_EQUAL(acomm_node_open(-1, 2, BEAT, SILENCE, &node), ACOMM_ARGUMENT);
    CHECK_EQUAL(acomm_node_open(0, 2, SILENCE, SILENCE, &node), ACOMM_ARGUMENT);
    CHECK_EQUAL(acomm_node_open(0, 1, BEAT, SILENCE, &node), 0);
    CHECK_EQUAL(acomm_node_attach(node, 0, open("/dev/null", O_RDONLY)), ACOMM_ARGUMENT);
    CHECK_EQUAL(acomm_node_attach(node, 1, open("/dev/null", O_RDONLY)), ACOMM_ARGUMENT);
    struct acomm_group *g = group_make(node, 7, 0, (int[]){0}, 1), twin = {.id = 7, .size = 1, .members = (int[]){0}};
    CHECK_EQUAL(node_add(node, &twin), ACOMM_ARGUMENT);
    twin.id = 8;
    twin.members[0] = 1;
    CHECK_EQUAL(node_add(node, &twin), ACOMM_ARGUMENT);
    group_drop(g);
    CHECK_EQUAL(acomm_node_close(node, NULL), 0);
}

static int entries(const char *path)
{
    int count = 0;
    DIR *dir = opendir(path);
    while (dir && readdir(dir))
        count++;
    closedir(dir);
    return count;
}

static void nothing_is_left(void)
{
    struct world w;
    int before = entries("/proc/self/fd"), threads = entries("/proc/self/task");
    for (int i = 0; i < 20; i++) {
        world_open(&w, i & 1 ? 1 << 3 : 0, SILENCE);
        struct groups all = groups_open(&w, 7, everybody, RANKS);
        if (i & 1) {
            bare_close(&w, 3);
            AWAIT(&w, failed(&all) == 4);
        }
        groups_close(&all);
        world_close(&w);
    }
    CHECK_EQUAL(entries("/proc/self/fd"), before);
    CHECK_EQUAL(entries("/proc/self/task"), threads);
}

int main(void)
{
    TEST(a_death_is_known_to_all);
    TEST(two_deaths_cut_the_ring_and_it_is_mended);
    TEST(neighbours_die_one_after_the_other);
    TEST(silence_is_a_loss);
    TEST(heartbeats_are_enough);
    TEST(an_orderly_shutdown_fails_nobody);
    TEST(a_group_closed_before_it_is_opened_here);
    TEST(leaving_by_an_exception_fails_the_groups);
    TEST(exiting_with_groups_open);
    TEST(what_is_known_of_a_peer);
    TEST(failures_spread_once_and_reach_late_comers);
    TEST(bad_frames_end_the_connection);
    TEST(a_failure_that_does_not_fit_is_ignored);
    TEST(the_condemned_gives_up);
    TEST(refused_connections);
    TEST(a_doubtful_rank_may_come_back);
    TEST(removal_waits_for_a_call);
    TEST(a_forked_child_has_no_part_in_it);
    TEST(who_overslept_does_not_accuse_others);
    TEST(bad_arguments);
    TEST(nothing_is_left);
    return CHECK_RESULT();
}
