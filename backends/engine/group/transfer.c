/* Moves bytes over several links at once, polling all of them in turn until each is done. */
#include "group/transfer.h"

#include <errno.h>
#include <poll.h>

#include "group/signature.h"
#include "base/clock.h"
#include "base/pattern.h"
#include "membership/node.h"

#define TURN_MOST ((size_t)1 << 20) /* bytes per turn, so that a long one does not delay the others */
#define HEADED ((size_t)16 << 10) /* contents that move together with a call signature */
#define HEADS (SIGNATURES * sizeof(acomm_header))
#define POLLED 64       /* descriptors that one sleep watches; with more transfers it is a short one */
#define NAP_MIN_NS 50000 /* first and longest sleep where no descriptor says that a ring has moved */
#define NAP_MAX_NS 1000000
                         /* sleeps for a pending connection grow, to at most the time it has taken so far */

enum turn { TURN_DONE, TURN_MOVED, TURN_IDLE };

/* The next rank's call signature precedes all other data from it, and this rank's goes to the rank before: once an operation. */
static void add_head(struct acomm_op *op, struct transfer *t, bool once, bool due)
{
    t->head = op->ahead && t->bytes && (!once || due) ? sizeof t->header : 0;
    if (t->head)
        op_header(op, &t->header);
}

struct transfer transfer_to(struct acomm_op *op, int peer, const void *data, uint64_t bytes)
{
    struct link *link = bytes ? group_link(op->group, CHANNEL_COLLECTIVE, team_member(op->team, peer), true) : NULL;
    struct transfer t = {.link = link, .data = (char *)(uintptr_t)data, .bytes = bytes};
    t.prompt = bytes && peer == pattern_prev(op->team->rank, op->team->size);
    add_head(op, &t, t.prompt, op->owes);
    op->owes &= !(t.prompt && t.head);
    return t;
}

struct transfer transfer_from(struct acomm_op *op, int peer, void *data, uint64_t bytes)
{
    struct link *link = bytes ? group_link(op->group, CHANNEL_COLLECTIVE, team_member(op->team, peer), false) : NULL;
    struct transfer t = {.link = link, .data = data, .bytes = bytes};
    add_head(op, &t, peer == pattern_next(op->team->rank, op->team->size), false);
    return t;
}

/* Combines the complete elements in the buffer; the rest of one moves to its front. */
static void combine(struct transfer *t)
{
    size_t width = acomm_dtype_bytes(reduce_partial_dtype(t->reduction->dtype));
    size_t filled = t->done - t->combined, whole = filled - filled % width;
    reduce_combine(t->reduction, t->partial + t->combined, t->data, whole / width, t->swap);
    memmove(t->data, t->data + whole, filled - whole);
    t->combined += whole;
}

static size_t transfer_at_most(size_t bytes, size_t most)
{
    return bytes < most ? bytes : most;
}

static ssize_t transfer_receive(struct transfer *t)
{
    size_t left = t->bytes - t->done;
    t->link->row = t->bytes;
    t->link->whole = t->reduction ? 0 : t->bytes;
    if (!t->reduction)
        return t->link->ops->recv(t->link, t->data + t->done, transfer_at_most(left, TURN_MOST));
    size_t filled = t->done - t->combined, room = TRANSFER_PIECE - filled;
    return t->link->ops->recv(t->link, t->data + filled, transfer_at_most(left, room));
}

/* Bytes that a send may pass to its link now. */
static size_t ready(const struct transfer *t)
{
    return (t->behind ? t->behind->done : t->bytes) - t->done;
}

static ssize_t transfer_give(struct transfer *t)
{
    size_t left = ready(t);
    if (!left)
        return 0;
    t->link->row = t->bytes;
    return t->link->ops->send(t->link, t->data + t->done, transfer_at_most(left, TURN_MOST), t->more);
}

/* Network errors mean a lost host. A closed connection does not: the node detects the end of a process, and a process that only
 * closed this group is alive in others. */
static bool unreachable(int errnum)
{
    return errnum == ETIMEDOUT || errnum == EHOSTUNREACH || errnum == ENETUNREACH || errnum == EHOSTDOWN;
}

static int fail_link(struct acomm_op *op, const struct link *link, int code, int errnum)
{
    struct acomm_group *g = op->group;
    const char *text = code != ACOMM_LOST ? link->why
        : wait_news(g, link->peer) ? wait_closed(g, link->peer) : errnum ? "the connection broke" : "the connection was closed by the peer";
    int rc = group_fail_op(op, code, link_culprit(link, code), errnum, text);
    if (code == ACOMM_LOST && unreachable(errnum))
        node_lost(g->node, g->members[link->peer], "the network does not reach it");
    return rc;
}

static bool transfer_finished(const struct transfer *t)
{
    return t->done == t->bytes;
}

/* ---- call signatures before the contents ---- */

/* Together with short contents: two system calls cost more than the copy. */
static ssize_t headed_give(struct acomm_op *op, struct transfer *t)
{
    char both[sizeof t->header + HEADED];
    size_t body = ready(t), head = t->head;
    if (!body && !t->prompt)
        return 0;
    body = body > HEADED ? 0 : body;
    memcpy(both, (char *)(&t->header + 1) - head, head);
    if (body)
        memcpy(both + head, t->data + t->done, body);
    ssize_t n = t->link->ops->send(t->link, both, head + body, t->more || t->done + body < t->bytes);
    if (n < 0)
        return fail_link(op, t->link, (int)n, errno);
    t->head -= transfer_at_most((size_t)n, head);
    return (size_t)n > head ? n - (ssize_t)head : 0;
}

/* So many bytes of call signatures have arrived. */
static int headed_compare(struct acomm_op *op, struct transfer *t, const char *data, size_t bytes)
{
    if (signature_awaited(op, t->link->peer))
        return signature_heard(op, data, bytes);
    memcpy((char *)(&t->header + 1) - t->head, data, bytes);
    t->head -= bytes;
    return t->head ? 0 : op_compare(op, t->link->peer, &t->header);
}

static ssize_t headed_receive(struct acomm_op *op, struct transfer *t, size_t heads)
{
    char both[HEADS + HEADED];
    size_t left = t->bytes - t->done, body = t->hears || t->reduction || left > HEADED ? 0 : left;
    heads = transfer_at_most(heads, t->hears ? left : HEADS);
    ssize_t n = t->link->ops->recv(t->link, both, heads + (heads < HEADS ? body : 0));
    if (n <= 0)
        return n ? fail_link(op, t->link, (int)n, errno) : 0;
    size_t come = transfer_at_most((size_t)n, heads);
    int rc = headed_compare(op, t, both, come);
    if (rc || t->hears)
        return rc ? rc : n;
    if ((size_t)n > come)
        memcpy(t->data + t->done, both + come, (size_t)n - come);
    return n - (ssize_t)come;
}

/* Call signatures move first. */
static size_t headed(const struct acomm_op *op, const struct transfer *t)
{
    return t->head || t->link->outgoing ? t->head : signature_awaited(op, t->link->peer);
}

static ssize_t transfer_move(struct acomm_op *op, struct transfer *t)
{
    size_t heads = headed(op, t);
    if (heads)
        return t->link->outgoing ? headed_give(op, t) : headed_receive(op, t, heads);
    ssize_t n = t->link->outgoing ? transfer_give(t) : transfer_receive(t);
    return n < 0 ? fail_link(op, t->link, (int)n, errno) : n;
}

/* Bytes moved, or the group's failure. */
static ssize_t advance(struct acomm_op *op, struct transfer *t)
{
    if (!t->link)
        return group_fail_op(op, ACOMM_RESOURCE, -1, ENOMEM, NULL);
    size_t before = t->done;
    ssize_t n = transfer_move(op, t);
    if (n < 0)
        return n;
    t->done += (size_t)n;
    op->waits.unseen += (size_t)n;
    if (n && t->reduction)
        combine(t);
    if (t->checked && before < sizeof(acomm_header) && t->done >= sizeof(acomm_header)) {
        int rc = op_compare(op, t->link->peer, t->data);
        if (rc)
            return rc;
    }
    return n;
}

static int transfer_take_turn(struct acomm_op *op, struct transfer *list, int transfers)
{
    int state = TURN_DONE;
    for (struct transfer *t = list; t < list + transfers; t++) {
        if (transfer_finished(t))
            continue;
        if (state == TURN_DONE && !t->aside)
            state = TURN_IDLE;
        if (t->after && !transfer_finished(t->after))
            continue;
        ssize_t n = advance(op, t);
        if (n < 0)
            return (int)n;
        if (n > 0)
            state = TURN_MOVED;
    }
    return state;
}

/* Whether it can go on as soon as its link can. */
static bool waits_for_link(const struct transfer *t)
{
    return !transfer_finished(t) && !(t->after && !transfer_finished(t->after)) && (!t->link->outgoing || ready(t));
}

/* An awaited peer; -1 if all is done. */
static int awaited_peer(const struct transfer *list, int transfers)
{
    for (const struct transfer *t = list; t < list + transfers; t++)
        if (!transfer_finished(t) && !t->aside)
            return t->link->peer;
    return -1;
}

/* Sleeps until a descriptor is ready, the group is poisoned, or the deadline has passed. */
static void transfer_sleep_on(const struct acomm_op *op, const struct transfer *list, int transfers, int64_t *nap)
{
    struct pollfd fds[1 + POLLED] = {{.fd = op->group->wake_fd, .events = POLLIN}};
    nfds_t n = 1;
    bool blind = false, unconnected = false;
    for (const struct transfer *t = list; t < list + transfers; t++) {
        if (!waits_for_link(t))
            continue;
        int fd = link_descriptor(t->link);
        if (fd < 0 && t->link->ops->complete && !t->link->ops->complete(t->link))
            unconnected = true;
        else if (fd < 0 || n > POLLED)
            blind = true;
        else
            fds[n++] = (struct pollfd){.fd = fd, .events = t->link->outgoing ? POLLOUT : POLLIN};
    }
    int64_t longest = blind ? NAP_MAX_NS : WAIT_SLEEP_NS, left = op->deadline - clock_now();
    int64_t most = blind || unconnected ? *nap : WAIT_SLEEP_NS;
    struct timespec time = {0, left < 0 ? 0 : left < most ? left : most};
    ppoll(fds, n, &time, NULL);
    *nap = *nap * 2 < longest ? *nap * 2 : longest;
}

/* Whether all awaited links are in shared memory. */
static bool transfer_doorbell_tells(const struct acomm_op *op, const struct transfer *list, int transfers)
{
    for (const struct transfer *t = list; t < list + transfers; t++)
        if (waits_for_link(t) && !t->link->doorbell)
            return false;
    return op->group->doorbell != NULL;
}

/* The state of one more turn, or TURN_IDLE after a sleep. */
static int transfer_sleep_by_doorbell(struct acomm_op *op, struct transfer *list, int transfers)
{
    struct doorbell *doorbell = op->group->doorbell;
    uint32_t seen = doorbell_listen(doorbell);
    int state = transfer_take_turn(op, list, transfers);
    if (state == TURN_IDLE) {
        int64_t left = op->deadline - clock_now();
        doorbell_sleep(doorbell, seen, left < WAIT_SLEEP_NS ? left : WAIT_SLEEP_NS);
    }
    doorbell_leave(doorbell);
    return state;
}

/* While an operation that ran ahead waits, possibly for another rank than the next one: whether the next rank's call differs. */
static int hear_next(struct acomm_op *op)
{
    int next = pattern_next(op->group->rank, op->group->size);
    struct transfer heads = {.bytes = signature_awaited(op, next), .hears = true};
    if (!heads.bytes)
        return 0;
    heads.link = group_link(op->group, CHANNEL_COLLECTIVE, next, false);
    ssize_t n = advance(op, &heads);
    return n < 0 ? (int)n : 0;
}

/* After a turn that moved something. */
static bool look_is_due(struct acomm_op *op)
{
    if (++op->waits.moves % WAIT_MOVES && op->waits.unseen < WAIT_MOVED)
        return false;
    op->waits.unseen = 0;
    return true;
}

int transfer_run(struct acomm_op *op, struct transfer *list, int transfers)
{
    struct wait w = wait_start_links(op);
    int64_t nap = NAP_MIN_NS;
    int rc = op->owes ? signature_send(op) : 0;
    while (!rc) {
        int state = transfer_take_turn(op, list, transfers);
        if (state < 0 || state == TURN_DONE)
            return state;
        if (state == TURN_MOVED) {
            wait_reset(&w);
            nap = NAP_MIN_NS;
            if (look_is_due(op))
                w.turns = w.spins; /* the next step checks everything, despite progress */
        }
        rc = wait_step(&w);
        if (rc)
            return group_fail_op(op, rc, rc == ACOMM_TIMEOUT ? awaited_peer(list, transfers) : -1, 0, NULL);
        if (!w.sleepy || state != TURN_IDLE)
            continue;
        if (!list->hears && (rc = hear_next(op)))
            break;
        if (!transfer_doorbell_tells(op, list, transfers))
            transfer_sleep_on(op, list, transfers, &nap);
        else if ((state = transfer_sleep_by_doorbell(op, list, transfers)) < 0 || state == TURN_DONE)
            return state;
        wait_woke(&w);
    }
    return rc;
}

int transfer_exchange(struct acomm_op *op, int to, const void *send, size_t send_bytes, int from, void *recv,
                      size_t recv_bytes)
{
    struct transfer list[2] = {{0}};
    if (to >= 0)
        list[0] = transfer_to(op, to, send, send_bytes);
    if (from >= 0)
        list[1] = transfer_from(op, from, recv, recv_bytes);
    return transfer_run(op, list, 2);
}
