/* engine: link/tcp.c link/shm.c base/doorbell.c memory/stream.c group/transfer.c group/signature.c group/select.c group/op.c group/wait.c base/process.c group/shared/shared.c group/shared/symmetric.c memory/arena.c group/shared/window.c memory/peer_memory.c reduce/ collectives/ */
/* Operations over links that run ahead of the comparison of calls: how far, what arrives, and who is told when the ranks differ. */
#include <sched.h>
#include "group/signature.h"
#include "collectives/collectives.h"
#include "fake_group.h"

#define COUNT 5000

static struct fake_world world;
static _Atomic int stage;

static int run_ahead(struct acomm_group *g, int kind, int (*run)(struct acomm_op *op), int root, int32_t *x, uint64_t count)
{
    struct acomm_op op = fake_op(g, kind, ACOMM_INT32);
    const struct algorithm row = {.kind = kind, .run = run, .does = AHEAD};
    op.algorithm = &row;
    op.root = root;
    op.count = count;
    op.in = root < 0 || root == g->rank ? (const char *)x : NULL;
    op.out = (char *)x;
    op.redop = ACOMM_SUM;
    int rc = signature_ahead(&op);
    return rc ? rc : run(&op);
}

static int meet(struct acomm_group *g)
{
    struct acomm_op op = fake_op(g, ACOMM_BARRIER, ACOMM_UINT8);
    return signature_check(&op);
}

static int settle(struct acomm_group *g)
{
    g->timeout = 60 * FAKE_SECOND;
    return signature_settle(g);
}

static void fill(int32_t *x, int value, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++)
        x[i] = value;
}

static void on_transports(int n, void (*run)(struct acomm_group *g))
{
    for (int transport = 0; transport < FAKE_TRANSPORTS; transport++) {
        fake_open(&world, n, (enum fake_transport)transport);
        fake_run(&world, run);
        fake_close(&world);
    }
}

/* The root has its turns behind it before anybody else begins. */
static void root_first(struct acomm_group *g)
{
    enum { TURNS = SIGNATURES };
    int32_t x[100];
    while (g->rank && !atomic_load(&stage))
        sched_yield();
    for (int turn = 0; turn < TURNS; turn++) {
        fill(x, g->rank ? -1 : turn, 100);
        fake_expect(run_ahead(g, ACOMM_BROADCAST, broadcast_binomial, 0, x, turn % 100u) == 0, "%d", turn);
        for (int i = 0; i < turn % 100; i++)
            fake_expect(x[i] == turn, "turn %d: %d", turn, x[i]);
    }
    atomic_fetch_add(&stage, g->rank == 0);
    fake_expect(meet(g) == 0, "all have called the same");
    fake_expect(settle(g) == 0, "nothing is open");
}
static void ahead_of_all(void)
{
    for (int transport = FAKE_SOCKETS; transport <= FAKE_STRIPED; transport++) { /* rings hold less than that */
        atomic_store(&stage, 0);
        fake_open(&world, 4, (enum fake_transport)transport);
        fake_run(&world, root_first);
        fake_close(&world);
    }
}

/* More than are open at a time, of all roots and lengths, and scans; among others that wait for all. */
static void many(struct acomm_group *g)
{
    static _Thread_local int32_t x[COUNT];
    for (int turn = 0; turn < 5 * SIGNATURES; turn++) {
        uint64_t count = turn % 3 ? 1 + (uint64_t)turn % 7 : COUNT;
        int root = turn / 2 % g->size;
        bool scans = turn % 5 == 4;
        fill(x, scans || root == g->rank ? turn + g->rank : -1, count);
        int rc = scans ? run_ahead(g, ACOMM_SCAN, scan_chain, -1, x, count)
                       : run_ahead(g, ACOMM_BROADCAST, turn % 2 ? broadcast_chain : broadcast_binomial, root, x, count);
        int want = scans ? (g->rank + 1) * turn + g->rank * (g->rank + 1) / 2 : turn + root;
        fake_expect(rc == 0 && x[0] == want && x[count - 1] == want, "turn %d: %d, %d", turn, rc, x[0]);
        if (turn % 50 == 49)
            fake_expect(meet(g) == 0, "turn %d", turn);
    }
    fake_expect(settle(g) == 0, "at the end");
}
static void many_in_turns(void)
{
    for (int n = 2; n <= 5; n++)
        on_transports(n, many);
}

/* Rank 1 calls another root's, count or kind: nobody's array is written by a call that fails, and all fail by the next that waits. */
static int odd_call;
static void one_differs(struct acomm_group *g)
{
    int32_t x[8];
    bool odd = g->rank == 1;
    int root = odd && odd_call == 0 ? 1 : 0;
    fill(x, g->rank == root ? 7 : -1, 8);
    int rc = odd && odd_call == 2 ? meet(g) : run_ahead(g, ACOMM_BROADCAST, broadcast_binomial, root, x, odd && odd_call == 1 ? 3 : 8);
    fake_expect(rc == 0 || x[0] == (g->rank == root ? 7 : -1), "%d written", x[0]);
    rc = rc ? rc : meet(g);
    fake_expect(rc == ACOMM_MISMATCH && g->failure.code == ACOMM_MISMATCH, "%d", rc);
}
static void differences(void)
{
    for (odd_call = 0; odd_call < 3; odd_call++)
        for (int n = 2; n <= 5; n++)
            on_transports(n, one_differs);
}

/* The rank before the one that differs hears of it when it closes. */
static void closes(struct acomm_group *g)
{
    int32_t x[8];
    int rc = run_ahead(g, ACOMM_BROADCAST, broadcast_binomial, 0, x, g->rank == 1 ? 3 : 8);
    rc = rc ? rc : settle(g);
    fake_expect(rc == ACOMM_MISMATCH || (g->rank > 1 && !rc), "%d", rc);
}
static void close_after_a_difference(void)
{
    for (int n = 2; n <= 5; n++)
        on_transports(n, closes);
}

/* Each takes another rank for the root, so that nobody gives. */
static void nobody_gives(struct acomm_group *g)
{
    int32_t x[8];
    int rc = run_ahead(g, ACOMM_BROADCAST, broadcast_binomial, (g->rank + 1) % g->size, x, 8);
    fake_expect(rc == ACOMM_MISMATCH, "%d", rc);
}
static void no_root(void)
{
    for (int n = 2; n <= 5; n++)
        on_transports(n, nobody_gives);
}

/* A rank has left, with nothing of this operation sent. */
static void leave_or_call(struct acomm_group *g)
{
    int32_t x[8];
    if (g->rank == 1) {
        fake_leave(fake, g->rank);
        return;
    }
    int rc = run_ahead(g, ACOMM_BROADCAST, broadcast_binomial, 0, x, 8);
    rc = rc ? rc : meet(g);
    fake_expect(rc == ACOMM_LOST && g->failure.culprit == 1, "%d, culprit %d", rc, g->failure.culprit);
}
static void a_rank_leaves(void)
{
    fake_open(&world, 4, FAKE_SOCKETS);
    fake_run(&world, leave_or_call);
    fake_close(&world);
}

int main(void)
{
    TEST(ahead_of_all);
    TEST(many_in_turns);
    TEST(differences);
    TEST(close_after_a_difference);
    TEST(no_root);
    TEST(a_rank_leaves);
    return CHECK_RESULT();
}
