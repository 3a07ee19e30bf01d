/* engine: link_tcp.c link_shm.c bell.c transfer.c agree.c op.c wait.c reduce.c reduce_portable.c reduce_avx2.c reduce_avx512.c collectives/partials.c collectives/bruck.c collectives/all_reduce_doubling.c collectives/all_reduce_halving.c collectives/all_reduce_pairwise.c collectives/all_reduce_ring.c collectives/reduce_binomial.c collectives/broadcast_tree.c collectives/all_gather_ring.c collectives/gather_binomial.c collectives/gather_linear.c collectives/reduce_scatter_pairwise.c collectives/reduce_scatter_ring.c collectives/all_to_all_pairwise.c collectives/barrier_dissemination.c */
#include "agree.h"
#include "collectives/collectives.h"
#include "fake_group.h"
#include "reduce.h"

struct algorithm_case { const char *name; int kind; int (*run)(struct acomm_op *op); bool checks, uneven; };
static const struct algorithm_case algorithms[] = {
    {"all_reduce_bruck", ACOMM_ALL_REDUCE, all_reduce_bruck, true, false},
    {"all_reduce_doubling", ACOMM_ALL_REDUCE, all_reduce_doubling, false, false},
    {"all_reduce_halving", ACOMM_ALL_REDUCE, all_reduce_halving, false, false},
    {"all_reduce_pairwise", ACOMM_ALL_REDUCE, all_reduce_pairwise, false, false},
    {"all_reduce_ring", ACOMM_ALL_REDUCE, all_reduce_ring, false, false},
    {"reduce_bruck", ACOMM_REDUCE, reduce_bruck, true, false},
    {"reduce_binomial", ACOMM_REDUCE, reduce_binomial, false, false},
    {"reduce_pairwise", ACOMM_REDUCE, reduce_pairwise, false, false},
    {"broadcast_bruck", ACOMM_BROADCAST, broadcast_bruck, true, false},
    {"broadcast_binomial", ACOMM_BROADCAST, broadcast_binomial, false, false},
    {"broadcast_chain", ACOMM_BROADCAST, broadcast_chain, false, false},
    {"all_gather_bruck", ACOMM_ALL_GATHER, all_gather_bruck, true, true},
    {"all_gather_ring", ACOMM_ALL_GATHER, all_gather_ring, false, true},
    {"gather_bruck", ACOMM_GATHER, gather_bruck, true, false},
    {"gather_binomial", ACOMM_GATHER, gather_binomial, false, false},
    {"gather_linear", ACOMM_GATHER, gather_linear, false, false},
    {"scatter_bruck", ACOMM_SCATTER, scatter_bruck, true, false},
    {"scatter_binomial", ACOMM_SCATTER, scatter_binomial, false, false},
    {"scatter_linear", ACOMM_SCATTER, scatter_linear, false, false},
    {"reduce_scatter_bruck", ACOMM_REDUCE_SCATTER, reduce_scatter_bruck, true, true},
    {"reduce_scatter_pairwise", ACOMM_REDUCE_SCATTER, reduce_scatter_pairwise, false, true},
    {"reduce_scatter_ring", ACOMM_REDUCE_SCATTER, reduce_scatter_ring, false, true},
    {"all_to_all_bruck", ACOMM_ALL_TO_ALL, all_to_all_bruck, true, true},
    {"all_to_all_pairwise", ACOMM_ALL_TO_ALL, all_to_all_pairwise, false, true},
    {"barrier_dissemination", ACOMM_BARRIER, barrier_dissemination, true, false},
};
#define ALGORITHMS (sizeof algorithms / sizeof *algorithms)

static const int dtypes[] = {ACOMM_BOOL, ACOMM_INT8, ACOMM_INT32, ACOMM_UINT64, ACOMM_FLOAT16, ACOMM_BFLOAT16,
                             ACOMM_FLOAT32, ACOMM_FLOAT64, ACOMM_COMPLEX64, ACOMM_COMPLEX128, ACOMM_FLOAT8_E4M3FN,
                             ACOMM_FLOAT8_E5M2};
#define DTYPES (sizeof dtypes / sizeof *dtypes)

static struct fake_world world;

/* Writes the integer v, 0..3, as an element. */
static void put(char *place, int dtype, int v)
{
    static const uint16_t f16[] = {0, 0x3c00, 0x4000, 0x4200}, bf16[] = {0, 0x3f80, 0x4000, 0x4040};
    static const uint8_t e4m3[] = {0, 0x38, 0x40, 0x44}, e5m2[] = {0, 0x3c, 0x40, 0x42};
    float f[2] = {(float)v, (float)(3 - v)};
    double d[2] = {v, 3 - v};
    int8_t i8 = (int8_t)(dtype == ACOMM_BOOL ? v & 1 : v);
    int32_t i32 = v;
    uint64_t u64 = (uint64_t)v;
    const void *from = &i8;
    switch (dtype) {
    case ACOMM_INT32: from = &i32; break;
    case ACOMM_UINT64: from = &u64; break;
    case ACOMM_FLOAT16: from = &f16[v]; break;
    case ACOMM_BFLOAT16: from = &bf16[v]; break;
    case ACOMM_FLOAT32: case ACOMM_COMPLEX64: from = f; break;
    case ACOMM_FLOAT64: case ACOMM_COMPLEX128: from = d; break;
    case ACOMM_FLOAT8_E4M3FN: from = &e4m3[v]; break;
    case ACOMM_FLOAT8_E5M2: from = &e5m2[v]; break;
    }
    memcpy(place, from, acomm_dtype_bytes(dtype));
}

/* Elements first .. first + count - 1 of what `rank` gives. Exact in every dtype, so that any order is right. */
static void fill(char *to, int dtype, int rank, uint64_t first, uint64_t count)
{
    size_t width = acomm_dtype_bytes(dtype);
    char elements[4][16];
    for (int v = 0; v < 4; v++)
        put(elements[v], dtype, v);
    for (uint64_t i = first; i < first + count; i++, to += width)
        memcpy(to, elements[((uint64_t)rank * 5 + i * 3 + i / 7) % 4], width);
}

/* ---- one call: what it needs and what it must give ---- */
struct call {
    struct acomm_op op;
    int n, rank;
    uint64_t counts[2][FAKE_RANKS]; /* [sent, received] */
    uint64_t in_count, out_count;
    char *in, *out, *want;
};

static uint64_t uneven_count(uint64_t count, int from, int to)
{
    return (uint64_t)((from * 3 + to * 5) % 4) * count / 2;
}

static void set_counts(struct call *c, bool uneven)
{
    struct acomm_op *op = &c->op;
    for (int i = 0; uneven && i < c->n; i++) {
        bool own = op->kind == ACOMM_ALL_TO_ALL;
        c->counts[0][i] = uneven_count(op->count, own ? c->rank : 1, i);
        c->counts[1][i] = uneven_count(op->count, own ? i : 1, own ? c->rank : i);
    }
    if (!uneven)
        return;
    op->count = 0;
    if (op->kind != ACOMM_ALL_GATHER)
        op->send_counts = c->counts[0];
    if (op->kind != ACOMM_REDUCE_SCATTER)
        op->recv_counts = c->counts[1];
}

static void set_sizes(struct call *c)
{
    const struct acomm_op *op = &c->op;
    bool root = c->rank == op->root;
    uint64_t own = op->recv_counts ? op->recv_counts[c->rank] : op->count, n = (uint64_t)c->n;
    uint64_t sent = op_total(op->send_counts, op->count, c->n, 1), got = op_total(op->recv_counts, op->count, c->n, 1);
    switch (op->kind) {
    case ACOMM_ALL_REDUCE: c->in_count = c->out_count = op->count; break;
    case ACOMM_REDUCE: c->in_count = op->count, c->out_count = root ? op->count : 0; break;
    case ACOMM_BROADCAST: c->in_count = root ? op->count : 0, c->out_count = op->count; break;
    case ACOMM_ALL_GATHER: c->in_count = own, c->out_count = got; break;
    case ACOMM_GATHER: c->in_count = op->count, c->out_count = root ? op->count * n : 0; break;
    case ACOMM_SCATTER: c->in_count = root ? op->count * n : 0, c->out_count = op->count; break;
    case ACOMM_REDUCE_SCATTER:
        c->in_count = sent;
        c->out_count = op->send_counts ? op->send_counts[c->rank] : op->count;
        break;
    case ACOMM_ALL_TO_ALL: c->in_count = sent, c->out_count = got; break;
    }
}

/* The reduction of all ranks' elements from `first` on. */
static void want_reduced(struct call *c, uint64_t first)
{
    const struct acomm_op *op = &c->op;
    char *all = malloc((size_t)c->n * c->out_count * op->width + 1);
    const void *inputs[FAKE_RANKS];
    for (int rank = 0; rank < c->n; rank++) {
        char *part = all + (size_t)rank * c->out_count * op->width;
        fill(part, op->dtype, rank, first, c->out_count);
        inputs[rank] = part;
    }
    struct reduction r = {.dtype = op->dtype, .redop = op->redop, .factor = op->factor, .ranks = c->n};
    if (c->out_count)
        reduce_all(&r, c->want, inputs, c->n, c->out_count);
    free(all);
}

static void want_all_to_all(struct call *c, uint64_t base)
{
    struct acomm_op *op = &c->op;
    for (int from = 0; from < c->n; from++) {
        uint64_t sent[FAKE_RANKS];
        for (int to = 0; to < c->n; to++)
            sent[to] = op->send_counts ? uneven_count(base, from, to) : base;
        struct span source = op_block(sent, 0, c->rank, 1);
        struct span place = op_block(op->recv_counts, op->count, from, op->width);
        fill(c->want + place.offset, op->dtype, from, source.offset, source.bytes);
    }
}

static void set_want(struct call *c, uint64_t base)
{
    struct acomm_op *op = &c->op;
    struct span own = op_block(op->send_counts, op->count, c->rank, 1);
    if (op->kind == ACOMM_ALL_REDUCE || op->kind == ACOMM_REDUCE)
        want_reduced(c, 0);
    else if (op->kind == ACOMM_REDUCE_SCATTER)
        want_reduced(c, own.offset);
    else if (op->kind == ACOMM_BROADCAST)
        fill(c->want, op->dtype, op->root, 0, c->out_count);
    else if (op->kind == ACOMM_SCATTER)
        fill(c->want, op->dtype, op->root, own.offset, c->out_count);
    else if (op->kind == ACOMM_ALL_TO_ALL)
        want_all_to_all(c, base);
    else
        for (int rank = 0; rank < c->n && c->out_count; rank++) {
            struct span block = op_block(op->recv_counts, op->count, rank, op->width);
            fill(c->want + block.offset, op->dtype, rank, 0, block.bytes / op->width);
        }
}

static char *room(uint64_t bytes)
{
    char *data = malloc(bytes ? bytes : 1);
    memset(data, 0xa5, bytes ? bytes : 1);
    return data;
}

/* Where the input lies inside the output when the call is in place; -1 where that is not possible. */
static int64_t place_of_input(const struct call *c)
{
    const struct acomm_op *op = &c->op;
    if (!c->in_count || !c->out_count)
        return -1;
    if (op->kind == ACOMM_ALL_GATHER || op->kind == ACOMM_GATHER)
        return (int64_t)op_block(op->recv_counts, op->count, c->rank, op->width).offset;
    return c->in_count == c->out_count ? 0 : -1;
}

static void open_call(struct call *c, struct acomm_group *g, const struct algorithm_case *a, int dtype, uint64_t count,
                      bool uneven, bool in_place)
{
    *c = (struct call){.op = fake_op(g, a->kind, dtype), .n = g->size, .rank = g->rank};
    struct acomm_op *op = &c->op;
    op->count = count;
    op->factor = 0.5;
    bool rooted = a->kind == ACOMM_REDUCE || a->kind == ACOMM_BROADCAST || a->kind == ACOMM_GATHER
        || a->kind == ACOMM_SCATTER;
    op->root = rooted ? (int)(op->sequence % (uint64_t)g->size) : -1;
    for (int i = 0; op_reduces(op) && i <= ACOMM_REDOPS; i++) {
        op->redop = (int)((op->sequence + (uint64_t)i) % ACOMM_REDOPS);
        if (reduce_supported(dtype, op->redop))
            break;
    }
    set_counts(c, uneven);
    set_sizes(c);
    c->want = room(c->out_count * op->width);
    c->out = room(c->out_count * op->width);
    set_want(c, count);
    c->in = room(c->in_count * op->width);
    fill(c->in, dtype, g->rank, 0, c->in_count);
    op->in = c->in_count ? c->in : NULL;
    op->out = c->out_count ? c->out : NULL;
    int64_t place = in_place ? place_of_input(c) : -1;
    if (place >= 0)
        op->in = memcpy(c->out + place, c->in, c->in_count * op->width);
}

static void close_call(struct call *c)
{
    free(c->in);
    free(c->out);
    free(c->want);
}

/* Bit for bit, but for the sign of zeros in complex products: it depends on the order, which algorithms may choose. */
static bool as_wanted(const struct call *c)
{
    size_t bytes = c->out_count * c->op.width;
    if (!memcmp(c->out, c->want, bytes))
        return true;
    const float *f = (float *)(void *)c->out, *wanted_f = (float *)(void *)c->want;
    const double *d = (double *)(void *)c->out, *wanted_d = (double *)(void *)c->want;
    bool equal = c->op.redop == ACOMM_PRODUCT && (c->op.dtype == ACOMM_COMPLEX64 || c->op.dtype == ACOMM_COMPLEX128);
    for (size_t i = 0; i < c->out_count * 2 && equal; i++)
        equal = c->op.dtype == ACOMM_COMPLEX64 ? f[i] == wanted_f[i] : d[i] == wanted_d[i];
    return equal;
}

static int run_like_group(const struct algorithm_case *a, struct acomm_op *op)
{
    int rc = a->checks ? 0 : agree(op);
    return rc ? rc : a->run(op);
}

static void try_call(struct acomm_group *g, const struct algorithm_case *a, int dtype, uint64_t count, bool uneven,
                     bool in_place)
{
    struct call c;
    open_call(&c, g, a, dtype, count, uneven, in_place);
    int rc = run_like_group(a, &c.op);
    fake_expect(rc == 0, "%s: %d", a->name, rc);
    fake_expect(as_wanted(&c), "%s dtype %d redop %d count %llu uneven %d in place %d root %d rank %d", a->name, dtype,
                c.op.redop, (unsigned long long)count, uneven, in_place, c.op.root, g->rank);
    close_call(&c);
}

/* ---- right results ---- */

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
        if (algorithms[i].run == all_reduce_bruck || algorithms[i].run == all_reduce_pairwise)
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

/* ---- failures ---- */

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
    TEST(small_arrays);
    TEST(all_dtypes);
    TEST(large_arrays);
    TEST(same_bits);
    TEST(mismatches);
    TEST(lost_ranks);
    TEST(all_to_all_counts);
    return CHECK_RESULT();
}
