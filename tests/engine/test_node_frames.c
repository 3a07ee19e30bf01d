/* engine: membership/ base/loop.c base/process.c */
#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include "membership/node_state.h"
#include "node_world.h"

static int unwatched = -1; /* a descriptor that the kernel has no memory for */

int epoll_ctl(int epoll, int operation, int fd, struct epoll_event *event)
{
    if (operation == EPOLL_CTL_ADD && fd == unwatched) {
        errno = ENOMEM;
        return -1;
    }
    return (int)syscall(SYS_epoll_ctl, epoll, operation, fd, event);
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
        {.magic = WIRE_CONTROL_MAGIC, .kind = WIRE_HEARTBEAT, .number = 1},
    };
    for (size_t i = 0; i < sizeof frames / sizeof *frames; i++) {
        struct world w;
        world_open(&w, 1 << 2, SILENCE);
        struct groups all = groups_open(&w, 7, everybody, RANKS);
        CHECK_EQUAL(send(w.bare[2][1], &frames[i], sizeof frames[i], MSG_NOSIGNAL), sizeof frames[i]);
        AWAIT(&w, failed(&all) == 4);
        CHECK_EQUAL(all.of[0]->failure.culprit, 2);
        CHECK_MESSAGE(strstr(all.of[0]->failure.text, "invalid control frame"), "frame %zu: %s", i,
                      all.of[0]->failure.text);
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
    CHECK_EQUAL(node_add(node, &twin, group_fail), ACOMM_ARGUMENT);
    twin.id = 8;
    twin.members[0] = 1;
    CHECK_EQUAL(node_add(node, &twin, group_fail), ACOMM_ARGUMENT);
    group_drop(g);
    CHECK_EQUAL(acomm_node_close(node, NULL), 0);
}

static void who_cannot_take_a_connection_says_so(void)
{
    struct world w;
    world_open(&w, 0, SILENCE);
    struct groups all = groups_open(&w, 7, everybody, RANKS);
    int fds[2];
    pair_of(fds);
    unwatched = fds[1];
    CHECK_EQUAL(acomm_node_attach(w.node[0], 2, fds[0]), 0);
    CHECK_EQUAL(acomm_node_attach(w.node[2], 0, fds[1]), ACOMM_RESOURCE);
    unwatched = -1;
    AWAIT(&w, failed(&all) == RANKS);
    CHECK_EQUAL(all.of[3]->failure.culprit, 2);
    CHECK_MESSAGE(strstr(all.of[3]->failure.text, "it has no memory or descriptors"), "%s", all.of[3]->failure.text);
    CHECK_MESSAGE(strstr(all.of[2]->failure.text, "it has no memory or descriptors"), "%s", all.of[2]->failure.text);
    groups_close(&all);
    world_close(&w);
}

/* A rank without memory would else take a peer for one that does not read. */
static void what_waits_for_a_peer_needs_no_memory(void)
{
    struct wire_control beat = {.magic = WIRE_CONTROL_MAGIC, .kind = WIRE_HEARTBEAT};
    struct rlimit all, none;
    int fds[2], taken = -1;
    pair_of(fds);
    struct node_link *link = node_link_new(2, fds[0], 0);
    CHECK_EQUAL(getrlimit(RLIMIT_AS, &all), 0);
    none = all;
    none.rlim_cur = 0;
    CHECK_EQUAL(setrlimit(RLIMIT_AS, &none), 0);
    for (; !link->broken; taken++)
        node_link_put(link, &beat, NULL);
    CHECK_EQUAL(setrlimit(RLIMIT_AS, &all), 0);
    CHECK_EQUAL(taken, NODE_LINK_ROOM / sizeof beat);
    node_link_free(link);
    close(fds[1]);
}

int main(void)
{
    TEST(bad_frames_end_the_connection);
    TEST(a_failure_that_does_not_fit_is_ignored);
    TEST(the_condemned_gives_up);
    TEST(bad_arguments);
    TEST(who_cannot_take_a_connection_says_so);
    TEST(what_waits_for_a_peer_needs_no_memory);
    return CHECK_RESULT();
}
