/* engine: link/tcp.c link/shm.c base/doorbell.c memory/stream.c group/transfer.c group/signature.c group/select.c group/op.c group/wait.c base/process.c group/shared/shared.c group/shared/symmetric.c memory/arena.c group/shared/window.c memory/peer_memory.c reduce/ collectives/ */
#include <poll.h>
#include "collective_calls.h"

static void small_calls(struct acomm_group *g)
{
    static const uint64_t counts[] = {0, 1, 3, 7, 501, 3001};
    for (size_t i = 0; i < ALGORITHMS; i++)
        for (size_t j = 0; j < sizeof counts / sizeof *counts; j++)
            for (size_t k = 0; k < 3; k++) {
                int dtype = dtypes[(i + 5 * j + 4 * k + (size_t)g->size + (size_t)fake->transport) % DTYPES];
                try_call(g, &algorithms[i], dtype, counts[j], algorithms[i].uneven && k == 1, k == 2);
            }
}

static void small_arrays(void)
{
    for (int n = 1; n <= FAKE_RANKS; n += n < 5 ? 1 : 2) {
        for (int transport = 0; transport < FAKE_TRANSPORTS; transport += n > 5 ? 2 : 1) {
            fake_open(&world, n, (enum fake_transport)transport);
            fake_run(&world, small_calls);
            fake_close(&world);
        }
    }
}

static void every_dtype(struct acomm_group *g)
{
    for (size_t i = 0; i < ALGORITHMS; i++)
        for (size_t k = 0; k < DTYPES * ACOMM_REDOPS; k++)
            if (k < DTYPES || algorithms[i].kind == ACOMM_ALL_REDUCE)
                try_call(g, &algorithms[i], dtypes[k % DTYPES], 17, false, k % 2);
}

static void all_dtypes(void)
{
    fake_open(&world, 3, FAKE_RINGS);
    fake_run(&world, every_dtype);
    fake_close(&world);
}

/* Arrays of several segments: bfloat16 in wide partials, and elements of 16 bytes. */
static void large_calls(struct acomm_group *g)
{
    for (size_t i = 0; i < ALGORITHMS; i++) {
        const struct algorithm_case *a = &algorithms[i];
        try_call(g, a, ACOMM_BFLOAT16, a->kind == ACOMM_ALL_REDUCE ? 600007 : 300007, false, i % 2);
        try_call(g, a, ACOMM_COMPLEX128, 140001, a->uneven, a->kind == ACOMM_ALL_TO_ALL);
    }
    if (g->size == 2)
        for (size_t i = 2; i < 5; i++)
            try_call(g, &algorithms[i], ACOMM_COMPLEX128, 1100003, false, true);
}

static void large_arrays(void)
{
    for (int n = 2; n <= 3; n++) {
        fake_open(&world, n, n == 2 ? FAKE_STRIPED : FAKE_RINGS);
        fake_run(&world, large_calls);
        fake_close(&world);
    }
}

/* ---- the same bits everywhere and every time ---- */

#define ROUGH 5000
static char rough_results[2][5][FAKE_RANKS][ROUGH * 4];

static uint32_t mix(uint32_t x)
{
    x = (x ^ x >> 16) * 0x45d9f3bu;
    return (x ^ x >> 16) * 0x45d9f3bu;
}

/* Values of very different magnitude, so that every order of summation gives other bits. */
static void rough_fill(char *to, int dtype, int rank)
{
    for (uint32_t i = 0; i < ROUGH; i++) {
        uint32_t random = mix(i * 16 + (uint32_t)rank + 1);
        float value = (float)(int32_t)random * (random & 16 ? 1e-3f : 1e2f);
        uint32_t bits;
        memcpy(&bits, &value, 4);
        uint16_t high = (uint16_t)(bits >> 16);
        memcpy(to + i * acomm_dtype_bytes(dtype), dtype == ACOMM_FLOAT32 ? (void *)&bits : (void *)&high,
               acomm_dtype_bytes(dtype));
    }
}

static int rough_dtype, rough_turn;
static void rough_calls(struct acomm_group *g)
{
    char *in = malloc(ROUGH * 4);
    rough_fill(in, rough_dtype, g->rank);
    for (size_t i = 0; i < 5; i++) {
        struct acomm_op op = fake_op(g, ACOMM_ALL_REDUCE, rough_dtype);
        op.count = ROUGH;
        op.in = in;
        op.out = rough_results[rough_turn][i][g->rank];
        int rc = run_like_group(&algorithms[i], &op);
        fake_expect(rc == 0, "%s: %d", algorithms[i].name, rc);
    }
    free(in);
}

static void rough_compare(int n)
{
    size_t bytes = ROUGH * acomm_dtype_bytes(rough_dtype);
    char *all = malloc((size_t)n * bytes), *want = malloc(bytes);
    const void *inputs[FAKE_RANKS];
    for (int rank = 0; rank < n; rank++) {
        inputs[rank] = all + (size_t)rank * bytes;
        rough_fill(all + (size_t)rank * bytes, rough_dtype, rank);
    }
    struct reduction sum = {.dtype = rough_dtype, .redop = ACOMM_SUM, .ranks = n};
    reduce_all(&sum, want, inputs, n, ROUGH);
    for (size_t i = 0; i < 5; i++) {
        const char *first = rough_results[0][i][0];
        for (int rank = 0; rank < n; rank++)
            for (int turn = 0; turn < 2; turn++)
                CHECK_MESSAGE(!memcmp(rough_results[turn][i][rank], first, bytes), "%s of %d", algorithms[i].name, n);
        if (algorithms[i].run == bruck_run || algorithms[i].run == reduce_pairwise)
            CHECK_MESSAGE(!memcmp(first, want, bytes), "%s of %d: not in rank order", algorithms[i].name, n);
    }
    free(all);
    free(want);
}

static void same_bits(void)
{
    for (int n = 1; n <= FAKE_RANKS; n += n < 4 ? 1 : 3) {
        for (int i = 0; i < 2; i++) {
            rough_dtype = i ? ACOMM_BFLOAT16 : ACOMM_FLOAT32;
            for (rough_turn = 0; rough_turn < 2; rough_turn++) {
                fake_open(&world, n, rough_turn ? FAKE_RINGS : FAKE_SOCKETS);
                fake_run(&world, rough_calls);
                fake_close(&world);
            }
            rough_compare(n);
        }
    }
}

/* Rank 2 comes late. Rank 0 must not wait for its block before sending it the own one. */
static void send_to_late(struct acomm_group *g)
{
    struct acomm_op op = fake_op(g, ACOMM_ALL_TO_ALL, ACOMM_UINT8);
    char in[3] = {(char)g->rank, (char)g->rank, (char)g->rank}, out[3];
    op.count = op.width = 1;
    op.in = in;
    op.out = out;
    g->check = false;
    struct link *from = fake->links[0][2][0];
    struct pollfd here = {.fd = from->ops->descriptor(from), .events = POLLIN};
    if (g->rank == 2)
        fake_expect(poll(&here, 1, 5000) == 1, "rank 0 waits");
    fake_expect(all_to_all_pairwise(&op) == 0 && out[0] == 0 && out[1] == 1 && out[2] == 2, "rank %d", g->rank);
}

static void all_to_all_sends_ahead(void)
{
    fake_open(&world, 3, FAKE_SOCKETS);
    fake_run(&world, send_to_late);
    fake_close(&world);
}

static size_t given; /* bytes that a rank sends whom nobody answers */

static ssize_t swallow(struct link *link, const void *data, size_t bytes, bool more)
{
    (void)link, (void)data, (void)more;
    given += bytes;
    return (ssize_t)bytes;
}

static void reduce_unanswered(struct acomm_group *g)
{
    if (g->rank)
        return;
    struct acomm_op op = fake_op(g, ACOMM_ALL_REDUCE, ACOMM_FLOAT32);
    struct link *to = fake->links[1][0][1];
    const struct link_ops *before = to->ops;
    struct link_ops ops = *before;
    op.count = 4 << 20 >> 2;
    op.in = op.out = calloc(op.count, op.width);
    op.deadline = op.started + FAKE_SECOND / 20;
    ops.send = swallow;
    to->ops = &ops;
    fake_expect(reduce_pairwise(&op) == ACOMM_TIMEOUT, "rank 0");
    to->ops = before;
    free(op.out);
}

/* Between hosts the parts of all of 4 MiB's four segments are sent before the first one's has come; inside a host one's. */
static void all_reduce_sends_ahead(void)
{
    for (int loopback = 0; loopback < 2; loopback++) {
        given = 0;
        fake_open(&world, 2, FAKE_SOCKETS);
        world.group[0]->loopback = loopback;
        fake_run(&world, reduce_unanswered);
        fake_close(&world);
        CHECK_EQUAL(given, sizeof(acomm_header) + (loopback ? 1 << 20 : 2 << 20));
    }
}

int main(void)
{
    TEST(small_arrays);
    TEST(all_dtypes);
    TEST(large_arrays);
    TEST(same_bits);
    TEST(all_to_all_sends_ahead);
    TEST(all_reduce_sends_ahead);
    return CHECK_RESULT();
}
