/* Serves requests for this rank's memory that arrive as messages, where peers cannot access it themselves. */
#include "rma/serve.h"

#include <stdlib.h>

#include "base/clock.h"
#include "p2p/peer.h"
#include "reduce/reduce.h"

_Static_assert(sizeof(struct serve_request) % sizeof(int64_t) == 0, "it is a message of int64");

/* By one rank: signals not consumed yet, fences that it has reached. And answers to it that are under way. */
struct told { uint64_t signals, fences, answers; };

struct answer {
    struct acomm_op op;
    struct acomm_served *served;
};

/* Guarded by p2p.lock. */
struct acomm_served {
    struct acomm_group *group;
    char *data;
    uint64_t count;
    int dtype;
    size_t width;
    enum { LISTENS, HOLDS, TAKES } state; /* for a request; one that waits for answers to the same rank; its elements */
    bool running, came;           /* in step(); what it waits for has come */
    struct acomm_op message;      /* a request, or the elements behind it, */
    int peer;                     /* and whose */
    struct serve_request request;
    char *scratch;                /* elements to be accumulated */
    size_t room;
    struct p2p_list waiting;      /* items of threads that wait for signals and fences */
    struct told told[];
};

static struct p2p *links_of(const struct acomm_served *s)
{
    return s->group->p2p;
}

/* ---- messages ---- */

/* Whether it is under way. If not, others would wait for it forever: the group has failed, or fails now. */
static bool serve_post(struct acomm_served *s, struct acomm_op *op, const struct acomm_op *described, void (*then)(struct acomm_op *))
{
    *op = *described;
    op->group = s->group;
    op->width = acomm_dtype_bytes(op->dtype);
    op->root = -1;
    op->then = then;
    int rc = p2p_post_within(links_of(s), op);
    if (rc && !links_of(s)->code)
        p2p_trouble(links_of(s), NULL, rc, s->group->rank, "no memory for what a window is asked for");
    return !rc;
}

static void serve_step(struct acomm_served *s);

/* The failure that ended a message is the group's, or the message differed from its announcement. */
static bool good(struct acomm_served *s, struct acomm_op *op)
{
    if (op->status == ACOMM_TRUNCATED)
        p2p_trouble(links_of(s), op, ACOMM_PROTOCOL, op->peer, "its request to a window has not the length that it should have");
    return !op->status;
}

/* A request, or the elements behind it. */
static void came(struct acomm_op *op)
{
    struct acomm_served *s = P2P_OF(struct acomm_served, message, op);
    s->came = good(s, op);
    s->peer = op->peer;
    serve_step(s);
}

static void answered(struct acomm_op *op)
{
    struct answer *a = P2P_OF(struct answer, op, op);
    struct acomm_served *s = a->served;
    s->told[op->peer].answers--;
    free(a);
    serve_step(s);
}

static bool listen(struct acomm_served *s)
{
    s->state = LISTENS;
    struct acomm_op described = {.kind = ACOMM_RECV, .out = (char *)&s->request, .count = sizeof s->request / sizeof(int64_t),
                                 .dtype = ACOMM_INT64, .peer = -1, .tag = SERVE_REQUESTS, .timeout = INT64_MAX};
    return serve_post(s, &s->message, &described, came);
}

/* ---- requests ---- */

static char *serve_place(const struct acomm_served *s)
{
    return s->data + (uint64_t)s->request.offset * s->width;
}

static void serve_apply(struct acomm_served *s, char *elements)
{
    uint64_t bytes = (uint64_t)s->request.count * s->width;
    uintptr_t inputs[2] = {(uintptr_t)serve_place(s), (uintptr_t)elements};
    if (s->request.kind == SERVE_ACCUMULATE)
        acomm_reduce_local(inputs[0], inputs, 2, (uint64_t)s->request.count, s->dtype, (int)s->request.detail, 1);
    else if (elements != serve_place(s) && bytes)
        memcpy(serve_place(s), elements, bytes);
}

static bool serve_answer(struct acomm_served *s)
{
    struct answer *a = malloc(sizeof *a);
    struct acomm_op described = {.kind = ACOMM_SEND, .in = serve_place(s), .count = (uint64_t)s->request.count, .dtype = s->dtype,
                                 .peer = s->peer, .tag = SERVE_ANSWERS + s->request.detail, .timeout = -1};
    if (!a) {
        p2p_trouble(links_of(s), &s->message, ACOMM_RESOURCE, s->group->rank, "no memory to answer what a window was asked for");
        return false;
    }
    a->served = s;
    s->told[s->peer].answers++;
    if (serve_post(s, &a->op, &described, answered))
        return listen(s);
    s->told[s->peer].answers--;
    free(a);
    return false;
}

/* Elements behind the request: those of a put go straight to their target. */
static bool serve_take(struct acomm_served *s)
{
    size_t bytes = (size_t)s->request.count * s->width;
    bool puts = s->request.kind == SERVE_PUT;
    if (!puts && bytes > s->room) {
        free(s->scratch);
        s->scratch = malloc(bytes);
        s->room = s->scratch ? bytes : 0;
    }
    if (!puts && bytes > s->room) {
        p2p_trouble(links_of(s), &s->message, ACOMM_RESOURCE, s->group->rank, "no memory for what is to be accumulated in a window");
        return false;
    }
    struct acomm_op described = {.kind = ACOMM_RECV, .out = puts ? serve_place(s) : s->scratch, .count = (uint64_t)s->request.count,
                                 .dtype = s->dtype, .peer = s->peer, .tag = SERVE_ELEMENTS, .timeout = -1};
    s->state = TAKES;
    return serve_post(s, &s->message, &described, came);
}

/* Ends the waits whose condition holds: a signal of their rank, or its fence of the number in op->sequence. */
static bool there(struct acomm_served *s, const struct acomm_op *op)
{
    struct told *told = &s->told[op->peer];
    if (op->sequence)
        return told->fences >= op->sequence;
    if (!told->signals)
        return false;
    told->signals--;
    return true;
}

/* wake: whoever moves things may be asleep; a message came to it. */
static void end_waits(struct acomm_served *s, int rank, bool wake)
{
    for (struct p2p_list *at = s->waiting.next, *next; at != &s->waiting; at = next) {
        struct p2p_item *item = P2P_ITEM(at);
        next = at->next;
        if (item->op->peer == rank && there(s, item->op)) {
            p2p_match_end(links_of(s), item, ACOMM_OK);
            if (wake)
                p2p_progress_wake(links_of(s));
        }
    }
}

static void serve_tell(struct acomm_served *s)
{
    struct told *told = &s->told[s->peer];
    (s->request.kind == SERVE_SIGNAL ? &told->signals : &told->fences)[0]++;
    end_waits(s, s->peer, s->peer == s->group->rank);
}

/* From another rank, so nothing is trusted: NULL, or the error. */
static const char *wrong(const struct acomm_served *s)
{
    const struct serve_request *r = &s->request;
    if (r->kind < SERVE_PUT || r->kind > SERVE_FENCE)
        return "it asked a window for something unknown";
    if (r->kind >= SERVE_SIGNAL)
        return NULL;
    if (r->count < 0 || r->offset < 0 || (uint64_t)r->offset > s->count || (uint64_t)r->count > s->count - (uint64_t)r->offset)
        return "it asked for elements beyond the window";
    if (r->kind == SERVE_ACCUMULATE && (r->detail < 0 || r->detail >= ACOMM_AVG || !reduce_supported(s->dtype, (int)r->detail)))
        return "it asked a window for a reduction that there is not";
    if (r->kind == SERVE_GET && (r->detail < 0 || r->detail > INT64_MAX - SERVE_ANSWERS))
        return "it asked a window to answer under a tag that there is not";
    if (r->bytes >= 0 && (r->bytes > SERVE_INLINE || (uint64_t)r->bytes != (uint64_t)r->count * s->width))
        return "its request to a window has not the length that it should have";
    return NULL;
}

/* Whether there is more to do. Requests other than get take effect after the answers to earlier requests of the same rank. */
static bool serve(struct acomm_served *s)
{
    const char *text = wrong(s);
    if (text) {
        p2p_trouble(links_of(s), &s->message, ACOMM_PROTOCOL, s->peer, text);
        return false;
    }
    if (s->request.kind == SERVE_GET)
        return serve_answer(s);
    if (s->told[s->peer].answers)
        return false;
    if (s->request.kind >= SERVE_SIGNAL)
        serve_tell(s);
    else if (s->request.bytes < 0)
        return serve_take(s);
    else
        serve_apply(s, s->request.elements);
    return listen(s);
}

/* Runs as far as possible now. A loop: a receive posted here may match at once, and calls this again. */
static void serve_step(struct acomm_served *s)
{
    if (s->running)
        return;
    s->running = true;
    for (bool more = true; more;) {
        if (s->state != HOLDS && !s->came)
            break;
        s->came = false;
        if (s->state == TAKES) {
            serve_apply(s, s->request.kind == SERVE_PUT ? serve_place(s) : s->scratch);
            more = listen(s);
        } else {
            s->state = HOLDS;
            more = serve(s);
        }
    }
    s->running = false;
}

/* ---- waiting ---- */

/* op: peer, and sequence for a fence. 0, 1 when `until` has passed, or a code. */
static int serve_await(struct acomm_served *s, struct acomm_op *op, int64_t until)
{
    struct p2p *p = links_of(s);
    struct p2p_item *item = NULL;
    p2p_acquire(p);
    bool found = there(s, op);
    int rc = found ? 0 : p->code ? p->code : until <= clock_now();
    bool waits = !found && !rc;
    if (waits && (item = p2p_new_item(p, op, 0)))
        p2p_list_move(&s->waiting, &item->here);
    p2p_release(p);
    if (!waits)
        return rc;
    if (!item)
        return ACOMM_RESOURCE;
    rc = p2p_wait_until(p, op, until);
    p2p_acquire(p);
    if (!op_ended(op)) {
        p2p_match_end(p, item, ACOMM_TIMEOUT);
    } else if (rc != ACOMM_INTERRUPTED) {
        rc = op->status; /* it may have arrived after the deadline, and is consumed */
    } else if (!op->status && !op->sequence) {
        s->told[op->peer].signals++; /* it is for another waiter, or the next caller */
        end_waits(s, op->peer, true);
    }
    p2p_release(p);
    return rc;
}

static int wait_for(struct acomm_served *s, int rank, uint64_t fence, int64_t until)
{
    struct acomm_group *g = s->group;
    struct acomm_op op = {.group = g, .kind = ACOMM_RECV, .peer = rank, .sequence = fence, .root = -1, .timeout = INT64_MAX};
    if (rank < 0 || rank >= g->size)
        return ACOMM_ARGUMENT;
    if (group_forked(g))
        return ACOMM_FORKED;
    atomic_fetch_add(&g->inside, 1);
    int rc = serve_await(s, &op, until);
    atomic_fetch_sub(&g->inside, 1);
    return rc;
}

static int64_t end_of(int64_t timeout)
{
    int64_t now = clock_now();
    return timeout > INT64_MAX - 1 - now ? INT64_MAX - 1 : now + timeout;
}

int acomm_served_wait(acomm_served *s, int rank, int64_t timeout)
{
    return wait_for(s, rank, 0, end_of(timeout));
}

int acomm_served_fence(acomm_served *s, uint64_t number, int64_t timeout, int32_t *late)
{
    int64_t until = end_of(timeout);
    int rc = 0;
    for (int rank = 0; rank < s->group->size && !rc; rank++) {
        *late = rank;
        rc = wait_for(s, rank, number, until);
    }
    return rc;
}

/* ---- opening ---- */

int acomm_served_open(acomm_group *g, uintptr_t data, uint64_t count, int dtype, acomm_served **out)
{
    struct acomm_served *s = calloc(1, sizeof *s + (size_t)g->size * sizeof s->told[0]);
    if (!s)
        return ACOMM_RESOURCE;
    s->group = g;
    s->data = (char *)data;
    s->count = count;
    s->dtype = dtype;
    s->width = acomm_dtype_bytes(dtype);
    p2p_list_init(&s->waiting);
    struct p2p *p = g->p2p;
    p2p_acquire(p);
    p->serves = true;
    bool listens = listen(s);
    int code = p->code;
    p2p_release(p);
    if (listens) {
        *out = s;
        return 0;
    }
    acomm_served_free(s);
    return code ? code : ACOMM_RESOURCE;
}

void acomm_served_free(acomm_served *s)
{
    free(s->scratch);
    free(s);
}
