/* The algorithms over links, and calls of them: what a rank gives, and what it must get. */
#ifndef COLLECTIVE_CALLS_H
#define COLLECTIVE_CALLS_H
#include "group/signature.h"
#include "collectives/collectives.h"
#include "fake_group.h"
#include "reduce/reduce.h"

struct algorithm_case { const char *name; int kind; int (*run)(struct acomm_op *op); bool checks, uneven; };
static const struct algorithm_case algorithms[] = {
    {"all_reduce_bruck", ACOMM_ALL_REDUCE, bruck_run, true, false},
    {"all_reduce_doubling", ACOMM_ALL_REDUCE, all_reduce_doubling, false, false},
    {"all_reduce_halving", ACOMM_ALL_REDUCE, all_reduce_halving, false, false},
    {"all_reduce_pairwise", ACOMM_ALL_REDUCE, reduce_pairwise, true, false},
    {"all_reduce_ring", ACOMM_ALL_REDUCE, all_reduce_ring, false, false},
    {"reduce_bruck", ACOMM_REDUCE, bruck_run, true, false},
    {"reduce_binomial", ACOMM_REDUCE, reduce_binomial, false, false},
    {"reduce_pairwise", ACOMM_REDUCE, reduce_pairwise, true, false},
    {"reduce_halving", ACOMM_REDUCE, all_reduce_halving, false, false},
    {"broadcast_bruck", ACOMM_BROADCAST, bruck_run, true, false},
    {"broadcast_binomial", ACOMM_BROADCAST, broadcast_binomial, false, false},
    {"broadcast_chain", ACOMM_BROADCAST, broadcast_chain, false, false},
    {"all_gather_bruck", ACOMM_ALL_GATHER, bruck_run, true, true},
    {"all_gather_ring", ACOMM_ALL_GATHER, all_gather_ring, false, true},
    {"gather_bruck", ACOMM_GATHER, bruck_run, true, false},
    {"gather_binomial", ACOMM_GATHER, gather_binomial, false, false},
    {"gather_linear", ACOMM_GATHER, gather_linear, false, false},
    {"scatter_bruck", ACOMM_SCATTER, bruck_run, true, false},
    {"scatter_binomial", ACOMM_SCATTER, scatter_binomial, false, false},
    {"scatter_linear", ACOMM_SCATTER, scatter_linear, false, false},
    {"reduce_scatter_bruck", ACOMM_REDUCE_SCATTER, bruck_run, true, true},
    {"reduce_scatter_pairwise", ACOMM_REDUCE_SCATTER, reduce_pairwise, true, true},
    {"reduce_scatter_ring", ACOMM_REDUCE_SCATTER, reduce_scatter_ring, false, true},
    {"reduce_scatter_halving", ACOMM_REDUCE_SCATTER, reduce_scatter_halving, false, true},
    {"all_to_all_bruck", ACOMM_ALL_TO_ALL, bruck_run, true, true},
    {"all_to_all_pairwise", ACOMM_ALL_TO_ALL, all_to_all_pairwise, true, true},
    {"barrier_dissemination", ACOMM_BARRIER, barrier_dissemination, true, false},
};
#define ALGORITHMS (sizeof algorithms / sizeof *algorithms)

static const int dtypes[] = {ACOMM_BOOL, ACOMM_INT8, ACOMM_INT32, ACOMM_UINT64, ACOMM_FLOAT16, ACOMM_BFLOAT16,
                             ACOMM_FLOAT32, ACOMM_FLOAT64, ACOMM_COMPLEX64, ACOMM_COMPLEX128, ACOMM_FLOAT8_E4M3FN,
                             ACOMM_FLOAT8_E5M2};
#define DTYPES (sizeof dtypes / sizeof *dtypes)

static struct fake_world world;

/* Writes the integer v, 0..3, as an element. */
static inline void put(char *place, int dtype, int v)
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
static inline void fill(char *to, int dtype, int rank, uint64_t first, uint64_t count)
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

static inline uint64_t uneven_count(uint64_t count, int from, int to)
{
    return (uint64_t)((from * 3 + to * 5) % 4) * count / 2;
}

static inline void set_counts(struct call *c, bool uneven)
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

static inline void set_sizes(struct call *c)
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
static inline void want_reduced(struct call *c, uint64_t first)
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

static inline void want_all_to_all(struct call *c, uint64_t base)
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

static inline void set_want(struct call *c, uint64_t base)
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

static inline char *room(uint64_t bytes)
{
    char *data = malloc(bytes ? bytes : 1);
    memset(data, 0xa5, bytes ? bytes : 1);
    return data;
}

/* Where the input lies inside the output when the call is in place; -1 where that is not possible. */
static inline int64_t place_of_input(const struct call *c)
{
    const struct acomm_op *op = &c->op;
    if (!c->in_count || !c->out_count || op->kind == ACOMM_ALL_TO_ALL)
        return -1;
    if (op->kind == ACOMM_ALL_GATHER || op->kind == ACOMM_GATHER)
        return (int64_t)op_block(op->recv_counts, op->count, c->rank, op->width).offset;
    return c->in_count == c->out_count ? 0 : -1;
}

static inline void open_call(struct call *c, struct acomm_group *g, const struct algorithm_case *a, int dtype,
                             uint64_t count, bool uneven, bool in_place)
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

static inline void close_call(struct call *c)
{
    free(c->in);
    free(c->out);
    free(c->want);
}

/* Bit for bit, but for the sign of zeros in complex products: it depends on the order, which algorithms may choose. */
static inline bool as_wanted(const struct call *c)
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

static inline int run_like_group(const struct algorithm_case *a, struct acomm_op *op)
{
    const struct algorithm row = {.kind = a->kind, .name = a->name, .run = a->run, .does = a->checks ? CHECKS : 0};
    op->algorithm = &row;
    int rc = a->checks ? 0 : signature_check(op);
    return rc ? rc : a->run(op);
}

static inline void try_call(struct acomm_group *g, const struct algorithm_case *a, int dtype, uint64_t count,
                            bool uneven, bool in_place)
{
    struct call c;
    open_call(&c, g, a, dtype, count, uneven, in_place);
    int rc = run_like_group(a, &c.op);
    fake_expect(rc == 0, "%s: %d", a->name, rc);
    fake_expect(as_wanted(&c), "%s dtype %d redop %d count %llu uneven %d in place %d root %d rank %d", a->name, dtype,
                c.op.redop, (unsigned long long)count, uneven, in_place, c.op.root, g->rank);
    close_call(&c);
}
#endif
