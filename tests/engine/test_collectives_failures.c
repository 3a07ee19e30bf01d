/* engine: link/tcp.c link/shm.c base/doorbell.c memory/stream.c group/transfer.c group/signature.c group/select.c group/op.c group/wait.c base/process.c group/shared/shared.c group/shared/symmetric.c memory/arena.c group/shared/window.c memory/peer_memory.c reduce/ collectives/ */
#include "collective_calls.h"

static size_t call_of_most, call_of_odd;
static int odd_rank;

static void different_calls(struct acomm_group *g)
{
    bool odd = g->rank == odd_rank;
    const struct algorithm_case *a = &algorithms[odd ? call_of_odd : call_of_most];
    struct call c;
    open_call(&c, g, a, ACOMM_FLOAT32, odd ? 40 : 3, false, false);
    char *before = room(c.out_count * c.op.width);
    int rc = run_like_group(a, &c.op);
    fake_expect(rc == ACOMM_MISMATCH, "%s, odd %s: %d", algorithms[call_of_most].name, algorithms[call_of_odd].name,
                rc);
    fake_expect(!memcmp(before, c.out, c.out_count * c.op.width), "%s wrote", a->name);
    free(before);
    close_call(&c);
}

static void mismatches(void)
{
    size_t last = ALGORITHMS - 1;
    for (call_of_most = 0; call_of_most < ALGORITHMS; call_of_most++) {
        for (call_of_odd = 0; call_of_odd < ALGORITHMS; call_of_odd++) {
            if (call_of_most == last && call_of_odd == last)
                continue; /* two barriers agree */
            int n = 2 + (int)((call_of_most + call_of_odd) % 4);
            odd_rank = (int)(call_of_odd % (size_t)n);
            fake_open(&world, n, (enum fake_transport)(call_of_odd % FAKE_TRANSPORTS));
            fake_run(&world, different_calls);
            fake_close(&world);
        }
    }
}

static void call_and_leave(struct acomm_group *g)
{
    if (g->rank == odd_rank) {
        fake_leave(fake, g->rank);
        return;
    }
    struct call c;
    open_call(&c, g, &algorithms[call_of_most], ACOMM_FLOAT32, 5, false, false);
    int rc = run_like_group(&algorithms[call_of_most], &c.op);
    fake_expect(rc == ACOMM_LOST && g->failure.culprit == odd_rank, "%s: %d, culprit %d",
                algorithms[call_of_most].name, rc, g->failure.culprit);
    close_call(&c);
}

static void lost_ranks(void)
{
    for (call_of_most = 0; call_of_most < ALGORITHMS; call_of_most++) {
        odd_rank = (int)(call_of_most % 4);
        fake_open(&world, 4, FAKE_SOCKETS);
        fake_run(&world, call_and_leave);
        fake_close(&world);
    }
}

static void wrong_counts(struct acomm_group *g)
{
    uint64_t sent[2] = {1, 2}, got[2] = {1, 2}; /* rank 0 sends 2, rank 1 expects 1; rank 1 sends 1, rank 0 expects 2 */
    int64_t in[3] = {1, 2, 3}, out[3] = {7, 7, 7};
    struct acomm_op op = fake_op(g, ACOMM_ALL_TO_ALL, ACOMM_INT64);
    op.send_counts = sent;
    op.recv_counts = got;
    op.in = (char *)in;
    op.out = (char *)out;
    int rc = run_like_group(&algorithms[ALGORITHMS - 2], &op);
    fake_expect(rc == ACOMM_MISMATCH, "%d", rc);
    fake_expect(strstr(g->failure.text, "elements"), "%s", g->failure.text);
    fake_expect(out[0] == 7 && out[1] == 7 && out[2] == 7, "written");
}

static void all_to_all_counts(void)
{
    fake_open(&world, 2, FAKE_SOCKETS);
    fake_run(&world, wrong_counts);
    fake_close(&world);
}

int main(void)
{
    TEST(mismatches);
    TEST(lost_ranks);
    TEST(all_to_all_counts);
    return CHECK_RESULT();
}
