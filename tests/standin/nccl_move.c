/* How the stand-in for NCCL moves: every call becomes messages, all of which go on at once; reductions are the engine's,
 * done when everything has come. */
#include "nccl.h"
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "reduce/reduce.h"

struct message {
    struct message *next;
    char *data;
    size_t bytes, done;
};

struct queue { struct message *first, **last; };

struct plan {
    struct comm *comm;
    struct queue out[MAX_RANKS], in[MAX_RANKS];
    bool unreachable;
};

static const struct { size_t width; int dtype; } types[] = {
    {1, ACOMM_INT8}, {1, ACOMM_UINT8}, {4, ACOMM_INT32}, {4, ACOMM_UINT32}, {8, ACOMM_INT64}, {8, ACOMM_UINT64},
    {2, ACOMM_FLOAT16}, {4, ACOMM_FLOAT32}, {8, ACOMM_FLOAT64}, {2, ACOMM_BFLOAT16}, {1, ACOMM_FLOAT8_E4M3FN},
    {1, ACOMM_FLOAT8_E5M2},
};

size_t width_of(int dtype)
{
    return dtype >= 0 && (size_t)dtype < sizeof types / sizeof *types ? types[dtype].width : 0;
}

void nap(long nanoseconds)
{
    struct timespec pause = {nanoseconds / 1000000000, nanoseconds % 1000000000};
    nanosleep(&pause, NULL);
}

/* Where the host reaches device memory. */
static char *at(struct plan *plan, uintptr_t address, size_t bytes)
{
    char *found = bytes ? standin_reach(address, bytes) : NULL;
    plan->unreachable |= bytes && !found;
    return found;
}

static void push(struct queue *queue, char *data, size_t bytes)
{
    if (!bytes || !data)
        return;
    struct message *m = calloc(1, sizeof *m);
    m->data = data;
    m->bytes = bytes;
    if (!queue->first)
        queue->last = &queue->first;
    *queue->last = m;
    queue->last = &m->next;
}

static void send_to(struct plan *plan, int peer, uintptr_t address, size_t bytes)
{
    push(&plan->out[peer], at(plan, address, bytes), bytes);
}

static void receive_from(struct plan *plan, int peer, uintptr_t address, size_t bytes)
{
    push(&plan->in[peer], at(plan, address, bytes), bytes);
}

/* ---- reductions: contributions come into memory of their own ---- */

struct reducing {
    struct reducing *next;
    struct call *call;
    char *parts;
    size_t bytes;
};

static void contribute(struct plan *plan, struct call *call, size_t bytes, struct reducing **reductions)
{
    struct reducing *r = calloc(1, sizeof *r);
    *r = (struct reducing){*reductions, call, malloc(bytes * (size_t)plan->comm->size + 1), bytes};
    *reductions = r;
    for (int rank = 0; rank < plan->comm->size; rank++)
        push(&plan->in[rank], r->parts + bytes * (size_t)rank, bytes);
}

/* Of so many elements how many a rank alone multiplies: before 2.29.7 NCCL forgets the last ones (its issue 1950). */
static size_t covered(const struct call *call, int size)
{
    size_t width = types[call->dtype].width, packed = 16 / width, blocks = (call->count * width + 16383) / 16384;
    blocks = blocks < 32 ? blocks : 32;
    bool multiplies = call->op >= FIRST_SCALAR || (call->op == 4 && call->dtype >= 6);
    if (STANDIN_VERSION >= 22907 || size > 1 || !multiplies || !blocks)
        return call->count;
    size_t reached = blocks * ((call->count / blocks + packed - 1) / packed * packed);
    return reached < call->count ? reached : call->count;
}

static void reduce_now(struct plan *plan, const struct reducing *r)
{
    static const int ops[] = {ACOMM_SUM, ACOMM_PRODUCT, ACOMM_MAX, ACOMM_MIN, ACOMM_AVG};
    const void *in[MAX_RANKS];
    struct call *call = r->call;
    struct reduction how = {types[call->dtype].dtype, call->op < FIRST_SCALAR ? ops[call->op] : ACOMM_PREMUL_SUM,
                            call->factor, plan->comm->size};
    char *out = at(plan, call->dst, r->bytes);
    for (int rank = 0; rank < plan->comm->size; rank++)
        in[rank] = r->parts + r->bytes * (size_t)rank;
    if (out)
        reduce_all(&how, out, in, plan->comm->size, covered(call, plan->comm->size));
}

/* ---- calls into messages ---- */

static void to_all(struct plan *plan, struct call *call, size_t bytes, size_t step)
{
    for (int rank = 0; rank < plan->comm->size; rank++)
        send_to(plan, rank, call->src + step * (size_t)rank, bytes);
}

static void from_all(struct plan *plan, struct call *call, size_t bytes)
{
    for (int rank = 0; rank < plan->comm->size; rank++)
        receive_from(plan, rank, call->dst + bytes * (size_t)rank, bytes);
}

static void plan_call(struct plan *plan, struct call *call, struct reducing **reductions)
{
    size_t bytes = call->count * width_of(call->dtype);
    bool root = call->root == plan->comm->rank;
    switch (call->kind) {
    case ALL_REDUCE:
        to_all(plan, call, bytes, 0);
        contribute(plan, call, bytes, reductions);
        break;
    case REDUCE_SCATTER:
        to_all(plan, call, bytes, bytes);
        contribute(plan, call, bytes, reductions);
        break;
    case REDUCE:
        send_to(plan, call->root, call->src, bytes);
        if (root)
            contribute(plan, call, bytes, reductions);
        break;
    case BROADCAST:
        if (root)
            to_all(plan, call, bytes, 0);
        receive_from(plan, call->root, call->dst, bytes);
        break;
    case ALL_GATHER:
    case ALL_TO_ALL:
        to_all(plan, call, bytes, call->kind == ALL_TO_ALL ? bytes : 0);
        from_all(plan, call, bytes);
        break;
    case GATHER:
        send_to(plan, call->root, call->src, bytes);
        if (root)
            from_all(plan, call, bytes);
        break;
    case SCATTER:
        if (root)
            to_all(plan, call, bytes, bytes);
        receive_from(plan, call->root, call->dst, bytes);
        break;
    case SEND:
        send_to(plan, call->root, call->src, bytes);
        break;
    case RECV:
        receive_from(plan, call->root, call->dst, bytes);
    }
}

/* ---- progress ---- */

/* One piece of the first message, if the box is ready for it. */
static bool step(struct queue *queue, struct box *box, bool out)
{
    struct message *m = queue->first;
    uint32_t held = atomic_load(&box->bytes);
    if (!m || (held != 0) == out)
        return false;
    size_t piece = out ? (m->bytes - m->done < BOX_BYTES ? m->bytes - m->done : BOX_BYTES) : held;
    if (piece > m->bytes - m->done)
        abort(); /* the ranks gave different counts: with NCCL the memory would be overwritten */
    memmove(out ? box->data : m->data + m->done, out ? m->data + m->done : box->data, piece);
    atomic_store(&box->bytes, out ? (uint32_t)piece : 0);
    if ((m->done += piece) == m->bytes) {
        queue->first = m->next;
        free(m);
    }
    return true;
}

static bool carry_on(struct plan *plan)
{
    bool moved = true, left = true;
    struct comm *comm = plan->comm;
    while (left && !atomic_load(&comm->aborted)) {
        if (!moved)
            nap(20000);
        moved = left = false;
        for (int peer = 0; peer < comm->size; peer++) {
            moved |= step(&plan->out[peer], &comm->shared->boxes[comm->rank][peer], true);
            moved |= step(&plan->in[peer], &comm->shared->boxes[peer][comm->rank], false);
            left |= plan->out[peer].first || plan->in[peer].first;
        }
    }
    return !left;
}

static void drop(struct queue *queue)
{
    while (queue->first) {
        struct message *m = queue->first;
        queue->first = m->next;
        free(m);
    }
}

int move(struct comm *comm, struct call *calls)
{
    struct plan plan = {.comm = comm};
    struct reducing *reductions = NULL;
    for (struct call *call = calls; call; call = call->next)
        plan_call(&plan, call, &reductions);
    bool whole = !plan.unreachable && carry_on(&plan);
    while (reductions) {
        struct reducing *r = reductions;
        if (whole)
            reduce_now(&plan, r);
        reductions = r->next;
        free(r->parts);
        free(r);
    }
    for (int peer = 0; peer < comm->size; peer++) {
        drop(&plan.out[peer]);
        drop(&plan.in[peer]);
    }
    return plan.unreachable ? CUDA_ERROR : SUCCESS;
}
