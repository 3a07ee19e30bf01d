/* Calls of the C API: checked, completed, run. */
#include "c_api.h"

static int call_refuse(const struct visit *v, const char *why)
{
    return c_api_say(v->number, ACOMM_ARGUMENT, why);
}

static bool call_has_part(const struct visit *v, int ranks)
{
    return ranks == ACOMM_ALL || (ranks == ACOMM_ROOT && v->call.root == v->handle->rank);
}

static uint64_t call_total(const struct visit *v, const uint64_t *counts)
{
    uint64_t sum = 0;
    for (int i = 0; counts && i < v->handle->size; i++)
        sum += counts[i];
    return counts ? sum : v->call.count * (uint64_t)v->handle->size;
}

/* Elements that this rank sends and receives. */
static void call_extent(const struct visit *v, uint64_t *in, uint64_t *out)
{
    const acomm_call *c = &v->call;
    const acomm_operation *about = &acomm_operations[c->kind];
    bool exchanges = about->array == ACOMM_EXCHANGES;
    uint64_t one = c->counts && !exchanges ? c->counts[v->handle->rank] : c->count;
    *in = !call_has_part(v, about->gives) ? 0 : about->array & ACOMM_CUTS ? call_total(v, c->counts) : one;
    *out = !call_has_part(v, about->gets) ? 0 : exchanges ? call_total(v, c->receives)
         : about->array == ACOMM_JOINS ? call_total(v, c->counts) : one;
}

static const char *call_wrong_counts(const acomm_call *c)
{
    const acomm_operation *about = &acomm_operations[c->kind];
    bool both = about->array == ACOMM_EXCHANGES, rooted = about->gives == ACOMM_ROOT || about->gets == ACOMM_ROOT;
    if (!c->counts)
        return c->receives ? "receives are for an all_to_all with counts" : NULL;
    return (about->array & ACOMM_EXCHANGES) && !rooted && !c->receives != both
         ? NULL : "counts are for all_gather and reduce_scatter, and with receives for all_to_all";
}

static int call_check(struct visit *v)
{
    acomm_call *c = &v->call;
    if (c->kind < 0 || c->kind >= ACOMM_KINDS)
        return call_refuse(v, "there is no such kind of operation");
    if (!acomm_dtype_bytes(c->dtype))
        return call_refuse(v, "there is no such dtype");
    const acomm_operation *about = &acomm_operations[c->kind];
    bool receives = c->kind == ACOMM_RECV;
    bool names = about->array == ACOMM_MESSAGE || about->gives == ACOMM_ROOT || about->gets == ACOMM_ROOT;
    c->root = names ? c->root : -1;
    if (names && (c->root < (receives ? -1 : 0) || c->root >= v->handle->size))
        return call_refuse(v, "root is no rank of the group");
    if (c->tag < (receives ? -1 : 0))
        return call_refuse(v, "a tag is 0 or more, and -1 only of a receive");
    if (call_wrong_counts(c))
        return call_refuse(v, call_wrong_counts(c));
    uint64_t in, out;
    call_extent(v, &in, &out);
    if (in && !c->in)
        return call_refuse(v, "in is NULL on a rank that gives something");
    return out && !c->out ? call_refuse(v, "out is NULL on a rank that gets something") : 0;
}

int c_api_enter(struct visit *v, int64_t number, const acomm_call *call)
{
    v->number = number;
    v->handle = handle_enter(number, &v->group);
    if (!v->handle)
        return c_api_say(number, ACOMM_ARGUMENT, "no group of this process has this handle");
    v->call = *call;
    v->call.timeout = call->timeout > 0 ? call->timeout : -1;
    v->call.failure = NULL;
    int code = v->group ? call_check(v) : c_api_say(number, ACOMM_CLOSED, "the group is closed");
    if (!code && interrupt_between())
        code = c_api_fail(number, ACOMM_INTERRUPTED, &(acomm_failure){0});
    if (code)
        handle_leave(v->handle);
    return code;
}

int c_api_leave(const struct visit *v, int code, acomm_failure *failure)
{
    if (code && !failure->code && !v->handle->entries->group_failure(v->group, failure))
        failure->code = 0;
    if (code)
        c_api_fail(v->number, code, failure);
    handle_leave(v->handle);
    return code;
}

int c_api_run(int64_t number, acomm_call *call)
{
    struct visit v;
    acomm_failure failure;
    int code = c_api_enter(&v, number, call);
    if (code)
        return code;
    failure.code = 0;
    v.call.failure = &failure;
    code = v.handle->entries->run(v.group, &v.call);
    if (call->kind == ACOMM_RECV)
        call->root = v.call.root;
    return c_api_leave(&v, code, &failure);
}
