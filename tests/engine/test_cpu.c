/* engine: all */
/* A rank tells which processor it is on: who waits for it there yields at once. No rank moves anybody. */
#include "base/clock.h"
#include "fake_cpu.h"
#include "group/group.h"
#include "p2p/peer.h"

#define FEW 3      /* in which no yield lasts by chance */
#define ATTEMPTS 100 /* a wait does not come so far each time on a busy machine */
#define MANY_LOOKS 50

static int looks, looks_by_then; /* for what has come; before the first yield */

static bool look(const struct link *link)
{
    (void)link;
    looks++;
    return false;
}

static void count_looks(void)
{
    looks_by_then = yields ? looks_by_then : looks;
}

static int recv_once(struct acomm_op *op)
{
    op->kind = ACOMM_RECV;
    int rc = p2p_post(op->group->p2p, op); /* where the time may be over before it waits */
    if (rc)
        return rc;
    struct link *from = op->group->p2p->peers[0]->from;
    const struct link_ops *before = from->ops;
    struct link_ops counting = *before;
    counting.waiting = look;
    from->ops = &counting;
    rc = p2p_wait(op->group->p2p, op);
    from->ops = before;
    return rc;
}

static int await_once(struct acomm_op *op)
{
    op->kind = ACOMM_BARRIER;
    return shared_await(&op->group->shared, op, 0, 0, 1);
}

/* A wait of rank 1 of two, which is on the first processor, for rank 0. It fails by its deadline, and with it the group. */
struct waiting {
    int (*wait)(struct acomm_op *);
    int peer_at;             /* the processor of rank 0 */
    bool oversubscribed;
    bool lent;               /* rank 0 has our processor when we yield */
};

/* When it would sleep at once until, because others took its core. */
static int64_t wait_once(struct waiting t)
{
    int32_t members[] = {0, 1}, hosts[] = {0, 0}, processes[] = {1, 1};
    acomm_group_options o = {.id = 1, .rank = 1, .size = 2, .local = 2, .oversubscribed = t.oversubscribed,
                             .members = members, .hosts = hosts, .processes = processes, .piece_bytes = PIECE, .segment_fd = memfd_create("test", MFD_CLOEXEC),
                             .segment_bytes = acomm_segment_bytes(2, PIECE, 1), .connections = 1, .check = 1, .timeout = 20 * SECOND};
    acomm_group *g = NULL;
    CHECK(ftruncate(o.segment_fd, (off_t)o.segment_bytes) == 0);
    CHECK_EQUAL(acomm_group_open(NULL, &o, &g), 0);
    atomic_store(&region_of(&g->shared, 0)->cpu, 1 + t.peer_at);
    char byte;
    struct acomm_op op = {.group = g, .out = &byte, .count = 1, .dtype = ACOMM_UINT8, .width = 1, .peer = 0, .root = -1,
                          .timeout = SECOND / 20, .synchronous = true};
    theirs = t.lent ? &region_of(&g->shared, 0)->turn : NULL;
    yields = looks = looks_by_then = 0; /* opening may have yielded */
    CHECK_EQUAL(t.wait(&op), ACOMM_TIMEOUT);
    CHECK_EQUAL(atomic_load(&region_of(&g->shared, 1)->cpu), 1 + first);
    struct cpu_turn *ours = &region_of(&g->shared, 1)->turn;
    CHECK(!yields || (atomic_load(&ours->since) && atomic_load(&ours->until)));
    int64_t until = atomic_load(&g->preempted.until);
    theirs = NULL;
    acomm_group_close(g);
    close(o.segment_fd);
    return until;
}

/* Before the first yield. A wait that has no time left when it begins does not yield at all. */
static int looks_for(int peer_at)
{
    before_yield = count_looks;
    int most = 0;
    for (int i = 0; i < FEW; i++) {
        for (int attempt = 0; attempt == 0 || (attempt < ATTEMPTS && !yields); attempt++)
            wait_once((struct waiting){.wait = recv_once, .peer_at = peer_at});
        most = looks_by_then > most ? looks_by_then : most;
    }
    before_yield = NULL;
    return most;
}

static void test_yields_at_once_for_a_message_of_a_rank_on_the_same_processor(void)
{
    int here = looks_for(first), apart = looks_for(second);
    CHECK_MESSAGE(apart > MANY_LOOKS * here / 2 && here > 0, "%d looks here, %d apart", here, apart);
}

/* Steps of a wait before it yields. */
static int steps(int where, bool oversubscribed)
{
    struct acomm_group group = {.size = 2, .oversubscribed = oversubscribed};
    struct acomm_op op = {.group = &group, .deadline = INT64_MAX, .timeout = SECOND};
    struct wait w = wait_start(&op);
    w.where = where;
    int n = 0;
    for (yields = 0; !yields && n < 1000; n++)
        CHECK_EQUAL(wait_step(&w), 0);
    return n;
}

static void test_yields_at_once_for_a_rank_on_the_same_processor(void)
{
    for (int oversubscribed = 0; oversubscribed < 2; oversubscribed++) {
        CHECK_EQUAL(steps(WAIT_HERE, oversubscribed), 1);
        CHECK(steps(WAIT_ANYWHERE, oversubscribed) > FEW);
        CHECK(steps(WAIT_APART, oversubscribed) > FEW);
    }
}

static uint32_t spins_over_links(bool preempted, bool memory, bool oversubscribed)
{
    struct acomm_group group = {.size = 2, .oversubscribed = oversubscribed, .hosts.all.place = memory ? TEAM_HOST : TEAM_APART};
    struct acomm_op op = {.group = &group};
    atomic_store(&group.preempted.until, preempted ? INT64_MAX : 0);
    return wait_start_links(&op).spins;
}

/* Whoever sleeps at once does not spin over sockets first: both ranks may be on one core. */
static void test_looks_once_at_sockets_while_others_want_the_core(void)
{
    CHECK_EQUAL(spins_over_links(true, false, false), 1);
    CHECK_EQUAL(spins_over_links(false, false, true), 1);
    CHECK(spins_over_links(false, false, false) > FEW);
    CHECK(spins_over_links(true, true, false) > FEW);
}

/* Where the ranks of a host share no memory, no network is between them all the same if they are all there. */
static void test_counts_the_ranks_of_the_host(void)
{
    int32_t members[] = {0, 1, 2}, apart[] = {0, 1, 2};
    for (int local = 1; local <= 3; local++) {
        acomm_group_options o = {.id = 1, .rank = 1, .size = 3, .local = local, .oversubscribed = local > 2, .members = members,
                                 .hosts = apart, .segment_fd = -1, .connections = 1};
        acomm_group *g = NULL;
        CHECK_EQUAL(acomm_group_open(NULL, &o, &g), 0);
        CHECK_EQUAL(g->oversubscribed, local > 2);
        CHECK_EQUAL(g->loopback, local == 3);
        acomm_group_close(g);
    }
}

/* Long turns are taken for others', unless another rank tells of having had them on our core, where it may copy for as long. */
static void test_a_core_that_another_rank_needs_is_not_preempted(void)
{
    turn = SECOND / 1000;
    CHECK(wait_once((struct waiting){.wait = await_once, .oversubscribed = true}) > 0);
    CHECK_EQUAL(wait_once((struct waiting){.wait = await_once, .oversubscribed = true, .lent = true}), 0);
    turn = 0;
}

/* Of a rest of ours from 100 to 200: what ranks on our processor had of it, one that has not come back yet to its end. */
static void test_lent(void)
{
    const struct { int64_t since, until; int place; int64_t lent; } cases[] = {
        {0, 0, first, 0}, {110, 150, first, 40}, {50, 150, first, 50}, {110, 300, first, 90}, {110, 90, first, 90},
        {50, 40, first, 100}, {20, 60, first, 0}, {250, 90, first, 0}, {110, 150, second, 0},
    };
    struct shared s = open_shared(1);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        atomic_store(&region_of(&s, 3)->cpu, 1 + cases[i].place);
        atomic_store(&region_of(&s, 3)->turn.since, cases[i].since);
        atomic_store(&region_of(&s, 3)->turn.until, cases[i].until);
        CHECK_EQUAL(cpu_lent(&s, 100, 200), cases[i].lent);
    }
    atomic_store(&region_of(&s, 2)->cpu, 1 + first);
    cpu_rest(&s, 150);
    CHECK_EQUAL(cpu_resume(&s, 180), 30); /* our own turns are none of others */
    atomic_store(&region_of(&s, 2)->turn.since, 180);
    atomic_store(&region_of(&s, 2)->turn.until, 190);
    atomic_store(&region_of(&s, 3)->cpu, 1 + first); /* whose turn is still that of the last case */
    CHECK_EQUAL(cpu_lent(&s, 100, 200), 10 + 40);
    CHECK_EQUAL(atomic_load(&region_of(&s, 1)->turn.until), 150);
    CHECK_EQUAL(atomic_load(&region_of(&s, 1)->turn.since), 180);
    shared_close(&s);
}

/* For how long a rank yields that has slept for so many ns. */
static int64_t yields_after(struct acomm_op *op, int64_t slept)
{
    struct wait w = wait_start(op);
    if (op->group->shared.base)
        cpu_rest(&op->group->shared, clock_now() - slept);
    wait_woke(&w);
    return wait_start(op).yield_ns;
}

/* A sleep that was shorter than a wake-up takes would be followed by one of the other rank, and so on. */
static void test_who_slept_shortly_yields_longer(void)
{
    enum { MILLISECOND = 1000000 };
    struct acomm_group group = {.size = 2, .shared = open_shared(0)};
    struct acomm_op op = {.group = &group};
    int64_t usual = wait_start(&op).yield_ns, longest = usual;
    CHECK_EQUAL(yields_after(&op, MILLISECOND), 2 * usual);
    CHECK_EQUAL(yields_after(&op, MILLISECOND), 4 * usual);
    for (int i = 0; i < FEW * FEW; i++)
        longest = yields_after(&op, 0);
    CHECK(longest > 2 * MILLISECOND && longest < 10 * MILLISECOND);
    CHECK_EQUAL(yields_after(&op, 20 * MILLISECOND), usual); /* somebody is late */
    atomic_store(&group.preempted.until, INT64_MAX); /* it sleeps at once, because others than ranks want its core */
    CHECK_EQUAL(yields_after(&op, MILLISECOND), usual);
    atomic_store(&group.preempted.until, 0);
    group.oversubscribed = true;
    int64_t turns = wait_start(&op).yield_ns;
    CHECK_EQUAL(yields_after(&op, MILLISECOND), turns);
    group.oversubscribed = false;
    CHECK_EQUAL(wait_start(&op).yield_ns, usual);
    struct shared shared = group.shared;
    group.shared.base = NULL; /* sockets are slept on by poll() */
    CHECK_EQUAL(yields_after(&op, MILLISECOND), usual);
    shared_close(&shared);
}

int main(void)
{
    TEST(test_yields_at_once_for_a_rank_on_the_same_processor);
    TEST(test_yields_at_once_for_a_message_of_a_rank_on_the_same_processor);
    TEST(test_looks_once_at_sockets_while_others_want_the_core);
    TEST(test_counts_the_ranks_of_the_host);
    TEST(test_a_core_that_another_rank_needs_is_not_preempted);
    TEST(test_lent);
    TEST(test_who_slept_shortly_yields_longer);
    return CHECK_RESULT();
}
