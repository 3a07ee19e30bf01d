/* Entry points: record the arguments, run or queue. */
#include <errno.h>

#include "base/clock.h"
#include "base/error.h"
#include "group/group.h"
#include "p2p/p2p.h"
#include "reduce/reduce.h"

#define HELD_BYTES 65536 /* copied in some microseconds */

const char *acomm_code_text(int code)
{
    switch (code) {
#define CASE(name, text) case name: return text;
        ERROR_CODES(CASE)
#undef CASE
    }
    return "unknown error";
}

uint64_t acomm_segment_bytes(int local, uint64_t piece_bytes, int symmetric)
{
    return shared_bytes(local, shared_piece(local, piece_bytes), symmetric);
}

static int api_check(const struct acomm_op *op)
{
    const struct acomm_group *g = op->group;
    if (!op->width || op->root < (op_is_rooted(op->kind) ? 0 : -1) || op->root >= g->size)
        return ACOMM_ARGUMENT;
    if (op_reduces(op) && !reduce_supported(op->dtype, op->redop))
        return ACOMM_UNSUPPORTED;
    if (group_forked(g))
        return ACOMM_FORKED;
    return 0;
}

/* A handle whose operation never started counts as ended, so that it can be freed. */
static int api_refused(acomm_op *handle, int rc)
{
    if (rc && handle) {
        handle->status = rc;
        atomic_store(&handle->done, OP_ENDED);
    }
    return rc;
}

/* The described operation: the caller's own record, or the one in the handle. It also holds the results. */
static struct acomm_op *api_describes(struct acomm_op *described, acomm_op *handle)
{
    struct acomm_op *op = handle ? handle : described;
    if (handle)
        *handle = *described;
    op->width = acomm_dtype_bytes(op->dtype);
    if (op->timeout < 0)
        op->timeout = op->group->timeout;
    return op;
}

/* Runs the described operation in the caller's thread, or hands it to the worker when there is a handle. */
static int submit(struct acomm_op *described, acomm_op *handle)
{
    struct acomm_op *op = api_describes(described, handle);
    int rc = api_check(op);
    if (rc)
        return api_refused(handle, rc);
    if (!handle)
        return group_run(op);
    op_begin(op);
    return api_refused(handle, group_enqueue(op));
}

/* A rank's result of allocating a symmetric array; the minimum of all ranks' counts. */
enum { SHARE_NOTHING, SHARE_NO_ADDRESSES, SHARE_MEMORY };

int acomm_group_share(acomm_group *group, uint64_t bytes, int64_t timeout, acomm_block **out)
{
    if (group_forked(group))
        return ACOMM_FORKED;
    errno = 0;
    if (group->hosts.all.place != TEAM_HOST)
        return ACOMM_UNSUPPORTED;
    acomm_block *block = symmetric_take(group, bytes);
    int saved = errno;
    bool addresses = block || group->direct.arena || (saved != ENOMEM && saved != EAGAIN && saved != EFBIG);
    int32_t held = block ? SHARE_MEMORY : addresses ? SHARE_NOTHING : SHARE_NO_ADDRESSES;
    struct acomm_op op = {.group = group, .kind = ACOMM_ALL_REDUCE, .in = (const char *)&held, .out = (char *)&held,
                          .count = 1, .dtype = ACOMM_INT32, .redop = ACOMM_MIN, .root = -1, .timeout = timeout,
                          .shares = true};
    int rc = submit(&op, NULL);
    if (!rc && held == SHARE_MEMORY) {
        *out = block;
        return 0;
    }
    if (block)
        acomm_block_free(block);
    errno = held == SHARE_NO_ADDRESSES ? ENOMEM : block ? 0 : saved;
    return rc ? rc : held == SHARE_NO_ADDRESSES ? ACOMM_UNSUPPORTED : ACOMM_RESOURCE;
}

/* The same for messages. */
static int api_post(struct acomm_op *described, acomm_op *handle)
{
    struct acomm_op *op = api_describes(described, handle);
    struct acomm_group *g = op->group;
    op->root = -1;
    op->synchronous = !handle;
    int rc = op->peer < -1 || op->peer >= g->size ? ACOMM_ARGUMENT : api_check(op);
    atomic_fetch_add(&g->inside, 1);
    if (!rc)
        rc = atomic_load(&g->poisoned);
    if (!rc)
        rc = p2p_post(g->p2p, op);
    rc = rc || handle ? api_refused(handle, rc) : p2p_wait(g->p2p, op);
    atomic_fetch_sub(&g->inside, 1);
    return rc;
}

/* Which side has uneven counts; all ranks compare `count`. */
static int set_counts(struct acomm_op *op, const acomm_call *c)
{
    int ranks = op->group->size;
    int array = op_array(op);
    bool uneven = (array & ACOMM_EXCHANGES) && !op_is_rooted(op->kind);
    if (!uneven || !c->counts || !c->receives != (array != ACOMM_EXCHANGES))
        return ACOMM_ARGUMENT;
    op->count = c->receives ? op_largest(c->receives, op_largest(c->counts, 0, ranks), ranks) : 0;
    op->send_counts = array & ACOMM_CUTS ? c->counts : NULL;
    op->recv_counts = array == ACOMM_JOINS ? c->counts : c->receives;
    return 0;
}

static int api_describe(struct acomm_op *op, acomm_group *group, const acomm_call *c)
{
    bool message = op_is_message(c->kind);
    memset(op, 0, offsetof(struct acomm_op, failure));
    op->group = group;
    op->kind = c->kind;
    op->in = c->in;
    op->out = c->out;
    op->count = c->count;
    op->dtype = c->dtype;
    op->redop = c->redop % ACOMM_ON_GPU;
    op->gpu = c->redop / ACOMM_ON_GPU;
    op->factor = c->factor;
    op->layout = c->layout;
    op->root = message ? -1 : c->root;
    op->peer = message ? c->root : 0;
    op->tag = c->tag;
    op->timeout = c->timeout;
    return c->counts || c->receives ? set_counts(op, c) : 0;
}

int acomm_run(acomm_group *group, acomm_call *c)
{
    struct acomm_op op;
    int rc = api_describe(&op, group, c);
    op.release_lock = c->release_lock;
    op.lock = c->lock;
    if (!op_is_message(c->kind))
        return rc ? rc : submit(&op, NULL);
    op.failure.code = 0;
    rc = rc ? rc : api_post(&op, NULL);
    c->root = op.peer; /* a message's results stay in the call */
    if (rc && c->failure && op.failure.code == rc)
        *c->failure = op.failure;
    return rc;
}

int acomm_start(acomm_group *group, const acomm_call *c, acomm_op **out)
{
    struct acomm_op op;
    int rc = api_describe(&op, group, c);
    if (rc)
        return rc;
    acomm_op *handle = group_new_op(group);
    if (!handle)
        return ACOMM_RESOURCE;
    rc = op_is_message(op.kind) ? api_post(&op, handle) : submit(&op, handle);
    if (rc)
        acomm_op_free(handle);
    else
        *out = handle;
    return rc;
}

int acomm_operate(acomm_group *group, int kind, uintptr_t in, uintptr_t out, uint64_t count, const uint64_t *counts,
                  const uint64_t *receives, int dtype, int redop, double factor, int root, int64_t tag, uint32_t layout,
                  int64_t timeout, acomm_op **handle)
{
    acomm_call c = {.kind = kind, .in = (const void *)in, .out = (void *)out, .count = count, .counts = counts, .receives = receives,
                    .dtype = dtype, .redop = redop, .factor = factor, .root = root, .tag = tag, .layout = layout, .timeout = timeout};
    return handle ? acomm_start(group, &c, handle) : acomm_run(group, &c);
}

int acomm_probe(acomm_group *g, int source, int64_t tag, int64_t timeout, acomm_message *out)
{
    struct acomm_op op;
    acomm_call c = {.kind = ACOMM_RECV, .root = source, .tag = tag};
    api_describe(&op, g, &c);
    int64_t wait = timeout < 0 ? g->timeout : timeout;
    if (source < -1 || source >= g->size)
        return ACOMM_ARGUMENT;
    atomic_fetch_add(&g->inside, 1);
    int rc = atomic_load(&g->poisoned);
    rc = rc ? rc : p2p_probe(g->p2p, &op, clock_now() + wait);
    atomic_fetch_sub(&g->inside, 1);
    *out = (acomm_message){.count = op.count, .tag = op.tag, .source = op.peer, .dtype = op.dtype};
    return rc;
}

static int source_of(acomm_op *op, int32_t *rank, int64_t *tag, uint64_t *bytes)
{
    if (atomic_load(&op->done) != OP_ENDED)
        return ACOMM_ARGUMENT;
    *rank = op->peer;
    *tag = op->tag;
    *bytes = op->bytes;
    return 0;
}

static int api_failure_of(acomm_op *op, acomm_failure *out)
{
    if (atomic_load(&op->done) != OP_ENDED || op->status >= 0)
        return 0;
    *out = op->failure;
    return 1;
}

const acomm_entries *acomm_lend(void)
{
    static const acomm_entries entries = {.run = acomm_run, .start = acomm_start, .wait = acomm_wait,
                                          .source = source_of, .failure = api_failure_of, .free = acomm_op_free,
                                          .held = HELD_BYTES, .group_failure = acomm_group_failure};
    return &entries;
}

int acomm_wait(acomm_op *op, int64_t timeout)
{
    struct acomm_group *g = op->group;
    int rc;
    if (op_ended(op))
        return op->status;
    if (group_forked(g))
        return ACOMM_FORKED;
    atomic_fetch_add(&g->inside, 1); /* the waiting thread helps */
    if (op_is_message(op->kind))
        rc = p2p_wait_until(g->p2p, op, timeout < 0 ? INT64_MAX : clock_now() + timeout);
    else
        rc = group_wait(op, timeout);
    atomic_fetch_sub(&g->inside, 1);
    return rc;
}

const char *acomm_group_algorithm(acomm_group *group, int kind, uint64_t count, int dtype, int redop)
{
    struct acomm_op op = {.group = group, .team = &group->hosts.all, .kind = kind, .count = count, .dtype = dtype,
                          .redop = redop,
                          .width = acomm_dtype_bytes(dtype)};
    const struct algorithm *a = !op_is_message(kind) ? select_algorithm(group, &op)
                              : group->shared.base ? group->selection.forced[kind] : NULL;
    return group->size == 1 ? "copy" : a ? a->name : "messages";
}
