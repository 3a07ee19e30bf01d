/* engine: membership/ base/loop.c base/process.c */
#include <poll.h>
#include "membership/node_state.h"
#include "node_world.h"

/* It does not look after the ring again and again, but as often as something happens to it. */
static bool calm(struct acomm_node *node)
{
    pthread_mutex_lock(&node->lock);
    bool is = !node->mend_at;
    pthread_mutex_unlock(&node->lock);
    return is;
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
    AWAIT(&w, calm(w.node[0]) && calm(w.node[3]));
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

/* A process that exits without closing: its peers hear what acomm_group_close() would have told them, and its own groups are closed. */
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
    AWAIT(&w, failed(&busy) == RANKS && node_left(w.node[3], idle.of[3], 1, 5) == 1);
    CHECK_EQUAL(node_left(w.node[3], idle.of[3], 1, 4), -1);
    CHECK_EQUAL(busy.of[3]->failure.culprit, 1);
    CHECK(strstr(busy.of[3]->failure.text, "under way"));
    AWAIT(&w, acomm_node_peer(w.node[0], 1, &text) == 1);
    CHECK(!text);
    CHECK_EQUAL(failed(&idle), 1);
    CHECK_EQUAL(idle.of[1]->failure.code, ACOMM_CLOSED);
    CHECK_EQUAL(busy.of[1]->failure.code, ACOMM_CLOSED);
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

/* Others leave by exceptions because one did: the groups that are still to be opened, late comers and who asks hear of that one. */
static void the_first_that_failed(void)
{
    struct world w;
    world_open(&w, 1 << 0 | 1 << 1 | 1 << 4, 20 * SILENCE);
    CHECK_EQUAL(acomm_node_failed(w.node[3]), -1);
    send_frame(w.bare[4][0], WIRE_BYE, 4, "");
    send_frame(w.bare[4][0], WIRE_BYE, 1, "left with ValueError");
    send_frame(w.bare[4][0], WIRE_BYE, 0, "left with PeerLost");
    const char *text;
    AWAIT(&w, acomm_node_peer(w.node[2], 0, &text) == 1);
    CHECK_EQUAL(acomm_node_failed(w.node[2]), 1);
    CHECK_EQUAL(acomm_node_failed(w.node[3]), 1);
    struct groups all = groups_open(&w, 7, everybody, RANKS), others = groups_open(&w, 8, (int[]){3, 0, 2}, 3);
    CHECK_EQUAL(all.of[2]->failure.culprit, 1);
    CHECK(!strcmp(all.of[2]->failure.text, "left with ValueError"));
    CHECK_EQUAL(others.of[3]->failure.culprit, 1);
    CHECK(!strcmp(others.of[3]->failure.text, "left with PeerLost"));
    send_frame(w.bare[1][1], WIRE_LOST, 0, "process died"); /* has left */
    AWAIT(&w, acomm_node_failed(w.node[2]) == 1);
    send_frame(w.bare[1][1], WIRE_LOST, 3, "process died");
    AWAIT(&w, acomm_node_failed(w.node[2]) == 3 && acomm_node_failed(w.node[3]) == 3); /* 3: of itself */
    groups_close(&others);
    groups_close(&all);
    world_close(&w);
}

/* A bare rank's connection to a node that it had none with. */
static int connected(struct world *w, int rank, int to)
{
    int fds[2];
    pair_of(fds);
    CHECK_EQUAL(acomm_node_attach(w->node[to], rank, fds[0]), 0);
    return fds[1];
}

/* Rank 2 dies, and rank 1 has heard of it, come to rank 3 in its place, and ended, before rank 3's thread looks at either. */
static void who_ends_because_of_a_loss_is_not_blamed(bool known)
{
    struct world w;
    world_open(&w, 1 << 1 | 1 << 2, 20 * SILENCE);
    struct groups all = groups_open(&w, 7, everybody, RANKS);
    int fd = connected(&w, 1, 3);
    if (known)
        send_frame(fd, WIRE_HEARTBEAT, 1, "");
    pthread_mutex_lock(&w.node[3]->lock);
    bare_close(&w, 2);
    close(fd);
    pthread_mutex_unlock(&w.node[3]->lock);
    AWAIT(&w, failed(&all) == 3);
    for (int r = 0; r < RANKS; r++)
        CHECK(!all.of[r] || all.of[r]->failure.culprit == 2);
    groups_close(&all);
    world_close(&w);
}

static void one_that_was_closing_when_it_connected(void)
{
    who_ends_because_of_a_loss_is_not_blamed(false);
}

static void one_that_ends_as_soon_as_it_has_heard(void)
{
    who_ends_because_of_a_loss_is_not_blamed(true);
}

/* A connection that ends without a frame proves nothing: the rank is asked, and is lost where it cannot be reached. */
static void a_connection_given_up_is_looked_into(void)
{
    struct world w;
    world_open(&w, 1 << 1, 20 * SILENCE);
    struct groups all = groups_open(&w, 7, everybody, RANKS);
    close(connected(&w, 1, 3));
    AWAIT(&w, w.asked[1] == 1);
    AWAIT(&w, failed(&all) == 4);
    CHECK_EQUAL(all.of[3]->failure.culprit, 1);
    groups_close(&all);
    world_close(&w);
}

/* Frames that a node has sent, but heartbeats: their kinds, as they come. */
static int kinds_sent(int fd, uint8_t *kinds, int most)
{
    char payload[WIRE_CONTROL_PAYLOAD];
    struct wire_control head;
    int count = 0;
    while (count < most && recv(fd, &head, sizeof head, MSG_DONTWAIT) == sizeof head) {
        CHECK_EQUAL(recv(fd, payload, head.bytes, MSG_DONTWAIT | (head.bytes ? 0 : MSG_PEEK)) >= 0 || !head.bytes, 1);
        if (head.kind != WIRE_HEARTBEAT)
            kinds[count++] = head.kind;
    }
    return count;
}

/* Whoever is told may end its process at once: the neighbours have the frame before. */
static void neighbours_hear_before_the_groups(void)
{
    struct world w;
    uint8_t kind = 0;
    world_open(&w, 1 << 1 | 1 << 3, 20 * SILENCE);
    struct groups all = groups_open(&w, 7, everybody, RANKS);
    atomic_store(&fail_entered, 0);
    atomic_store(&fail_hold, 1);
    bare_close(&w, 1);
    AWAIT(&w, atomic_load(&fail_entered));
    AWAIT(&w, kind || kinds_sent(w.bare[3][0], &kind, 1)); /* of rank 2, whose group_fail() has not returned */
    CHECK_EQUAL(kind, WIRE_LOST);
    atomic_store(&fail_hold, 0);
    AWAIT(&w, failed(&all) == 3);
    groups_close(&all);
    world_close(&w);
}

/* Late comers are told of losses before what came of them. */
static void causes_come_first(void)
{
    struct world w;
    uint8_t kinds[3] = {0};
    const char *text;
    world_open(&w, 1 << 0 | 1 << 2, 20 * SILENCE);
    struct groups all = groups_open(&w, 7, everybody, RANKS);
    acomm_failure failure = {.code = ACOMM_LOST, .culprit = 0, .origin = 0, .text = "left with PeerLost"};
    struct wire_control head = {.magic = WIRE_CONTROL_MAGIC, .kind = WIRE_FAIL, .hops = 9, .group = 7, .bytes = sizeof failure};
    send_frame(w.bare[2][1], WIRE_LOST, 2, "process died");
    AWAIT(&w, failed(&all) == 2);
    CHECK_EQUAL(send(w.bare[0][0], &head, sizeof head, MSG_NOSIGNAL), sizeof head);
    CHECK_EQUAL(send(w.bare[0][0], &failure, sizeof failure, MSG_NOSIGNAL), sizeof failure);
    send_frame(w.bare[0][0], WIRE_BYE, 0, "left with PeerLost");
    AWAIT(&w, acomm_node_peer(w.node[4], 0, &text) == 1);
    int fd = connected(&w, 1, 4), found = 0;
    AWAIT(&w, (found += kinds_sent(fd, kinds + found, 3 - found)) == 3);
    CHECK(kinds[0] == WIRE_LOST && kinds[1] == WIRE_FAIL && kinds[2] == WIRE_BYE);
    close(fd);
    groups_close(&all);
    world_close(&w);
}

int main(void)
{
    TEST(an_orderly_shutdown_fails_nobody);
    TEST(a_group_closed_before_it_is_opened_here);
    TEST(leaving_by_an_exception_fails_the_groups);
    TEST(exiting_with_groups_open);
    TEST(what_is_known_of_a_peer);
    TEST(the_first_that_failed);
    TEST(one_that_was_closing_when_it_connected);
    TEST(one_that_ends_as_soon_as_it_has_heard);
    TEST(a_connection_given_up_is_looked_into);
    TEST(neighbours_hear_before_the_groups);
    TEST(causes_come_first);
    return CHECK_RESULT();
}
