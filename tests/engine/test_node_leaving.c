/* engine: node*.c loop.c */
#include <poll.h>
#include "node_world.h"

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

int main(void)
{
    TEST(an_orderly_shutdown_fails_nobody);
    TEST(a_group_closed_before_it_is_opened_here);
    TEST(leaving_by_an_exception_fails_the_groups);
    TEST(exiting_with_groups_open);
    TEST(what_is_known_of_a_peer);
    return CHECK_RESULT();
}
