/* engine: membership/ base/loop.c base/process.c */
#include <fcntl.h>
#include <poll.h>
#include "node_world.h"

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
        CHECK_EQUAL(node_left(w.node[r], all.of[r], 2, UINT64_MAX), -1); /* that would be no better reason */
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

/* What acomm_node_late() tells once it tells something: all answers to one question. */
static bool answered(struct world *w, struct groups *all, uint64_t begun[RANKS])
{
    acomm_late late = {.group = 7, .peer = -1, .all = 1};
    node_waits(w->node[0], all->of[0], &late);
    CHECK_EQUAL(acomm_node_late(w->node[0], &late, begun), 1);
    CHECK_EQUAL(acomm_node_late(w->node[0], &late, begun), 0);
    for (int r = 0; r < RANKS; r++)
        if (begun[r] == UINT64_MAX)
            return false;
    return true;
}

static void ranks_are_asked_again_how_far_they_are(void)
{
    struct world w;
    static const uint64_t rounds[] = {1, 2, 300};
    uint64_t begun[RANKS], number;
    world_open(&w, 0, SILENCE);
    struct groups all = groups_open(&w, 7, everybody, RANKS);
    CHECK(!answered(&w, &all, begun));
    for (size_t i = 0; i < sizeof rounds / sizeof *rounds; i++) {
        uint64_t round = rounds[i];
        for (int r = 0; r < RANKS; r++)
            atomic_store(&all.of[r]->sequence, round + (uint64_t)r);
        for (int r = 0; r < RANKS; r += 3) {
            int64_t end = clock_now() + PATIENCE;
            do {
                node_ask_members(w.node[r], all.of[r]);
                serve(&w);
            } while ((!answered(&w, &all, begun) || begun[1] != round + 1 || begun[4] != round + 4) && clock_now() < end);
            CHECK_EQUAL(begun[r], round + (uint64_t)r);
        }
    }
    CHECK_EQUAL(node_behind(w.node[2], all.of[2], 301, &number), 0);
    CHECK_EQUAL(number, 300);
    groups_close(&all);
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
    /* Not asked of the others: rank 3 hangs up when it hears of it, and they may see that first. */
    CHECK_MESSAGE(!strcmp(all.of[0]->failure.text, "connection refused"), "%s", all.of[0]->failure.text);
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

int main(void)
{
    TEST(a_death_is_known_to_all);
    TEST(two_deaths_cut_the_ring_and_it_is_mended);
    TEST(neighbours_die_one_after_the_other);
    TEST(silence_is_a_loss);
    TEST(heartbeats_are_enough);
    TEST(failures_spread_once_and_reach_late_comers);
    TEST(ranks_are_asked_again_how_far_they_are);
    TEST(refused_connections);
    TEST(a_doubtful_rank_may_come_back);
    return CHECK_RESULT();
}
