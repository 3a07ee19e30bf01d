/* What was asked of an operation, and where its blocks lie. */
#include "group/op.h"

#include <string.h>

#include "base/clock.h"

const acomm_operation acomm_operations[ACOMM_KINDS] = {
#define OPERATION(kind, name, gives, gets, array, reduces) {name, gives, gets, array, reduces},
#include "operations.def"
#undef OPERATION
};

void op_begin(struct acomm_op *op)
{
    if (op->started)
        return;
    op->started = clock_now();
    op->deadline = op->timeout > INT64_MAX - op->started ? INT64_MAX : op->started + op->timeout;
}

int64_t op_elapsed(const struct acomm_op *op)
{
    return op->started ? clock_now() - op->started : 0;
}

struct span op_block(const uint64_t *counts, uint64_t count, int rank, size_t width)
{
    if (!counts)
        return (struct span){count * width * (uint64_t)rank, count * width};
    return (struct span){op_total(counts, 0, rank, width), counts[rank] * width};
}

static struct span placed(const struct acomm_op *op, const uint64_t *counts, int rank)
{
    if (op->places)
        return (struct span){op->places[rank] * op->width, counts[rank] * op->width};
    if (op->stride)
        return (struct span){op->stride * (uint64_t)rank * op->width, op->count * op->width};
    return op_block(counts, op->count, rank, op->width);
}

struct span op_gathered(const struct acomm_op *op, int rank)
{
    return placed(op, op->recv_counts, rank);
}

struct span op_scattered(const struct acomm_op *op, int rank)
{
    return placed(op, op->send_counts, rank);
}

uint64_t op_total(const uint64_t *counts, uint64_t count, int ranks, size_t width)
{
    if (!counts)
        return count * width * (uint64_t)ranks;
    uint64_t total = 0;
    for (int i = 0; i < ranks; i++)
        total += counts[i];
    return total * width;
}

uint64_t op_largest(const uint64_t *counts, uint64_t count, int ranks)
{
    for (int i = 0; counts && i < ranks; i++)
        if (counts[i] > count)
            count = counts[i];
    return count;
}

/* FNV-1a: any difference between two factors must show in 32 bits; nothing here is adversarial. */
static uint32_t hash(const void *data, size_t bytes)
{
    const unsigned char *p = data;
    uint32_t h = 2166136261u;
    while (bytes--)
        h = (h ^ *p++) * 16777619u;
    return h;
}

void op_header(const struct acomm_op *op, acomm_header *out)
{
    while (op->whole)
        op = op->whole;
    out->sequence = op->sequence;
    out->count = op->count;
    out->layout = op->layout;
    bool opaque = op->dtype >= ACOMM_OPAQUE;
    out->factor = opaque ? (uint32_t)op->dtype : op->redop == ACOMM_PREMUL_SUM ? hash(&op->factor, sizeof op->factor) : 0;
    out->kind = (uint8_t)op->kind;
    out->dtype = op_header_dtype(op->dtype);
    out->redop = (uint8_t)op->redop;
    out->flags = op_array(op) == ACOMM_EXCHANGES && op->send_counts ? OP_UNEVEN : op->shares ? OP_SHARES : 0;
    out->root = op->root;
}

bool op_agrees(const acomm_header *a, const acomm_header *b)
{
    if (!memcmp(a, b, sizeof *a))
        return true;
    bool uneven = (a->flags & b->flags & OP_UNEVEN) != 0; /* each rank's own counts: they differ rightly */
    bool layouts = a->layout == b->layout || !a->layout || !b->layout;
    return a->sequence == b->sequence && (uneven || a->count == b->count) && layouts && a->factor == b->factor
        && a->kind == b->kind && a->dtype == b->dtype && a->redop == b->redop && a->flags == b->flags
        && a->root == b->root;
}
