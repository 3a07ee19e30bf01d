/* Point to point of a group: opening, closing, failing, posting sends and receives, and looking for a message without receiving it. */
#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/clock.h"
#include "membership/node.h"
#include "p2p/peer.h"

void p2p_acquire(struct p2p *p)
{
    if (!pthread_mutex_trylock(&p->lock))
        return;
    atomic_fetch_add(&p->wanted, 1);
    pthread_mutex_lock(&p->lock);
    atomic_fetch_sub(&p->wanted, 1);
}

void p2p_acquire_for(struct p2p *p, struct acomm_op *op)
{
    if (!pthread_mutex_trylock(&p->lock))
        return;
    op_release_lock(op);
    p2p_acquire(p);
}

void p2p_release_for(struct p2p *p, struct acomm_op *op)
{
    if (p->trouble.code)
        op_release_lock(op);
    p2p_release(p);
}

void p2p_release(struct p2p *p)
{
    if (!p->trouble.code || p->trouble.reported) {
        pthread_mutex_unlock(&p->lock);
        return;
    }
    p->trouble.reported = true;
    struct p2p_trouble t = p->trouble;
    pthread_mutex_unlock(&p->lock);
    struct acomm_group *g = p->group;
    if (t.code == ACOMM_LOST && t.culprit >= 0 && wait_news(g, t.culprit) && node_exit_status(g->node, g, t.culprit) >= 0)
        t.text = wait_closed(g, t.culprit);
    if (t.code == ACOMM_LOST && t.culprit >= 0)
        node_lost(g->node, g->members[t.culprit], t.text);
    group_fail_op(&t.op, t.code, t.culprit, t.errnum, t.text);
    p2p_fail(p);
}

void p2p_pause(struct p2p *p)
{
    p2p_release(p);
    while (atomic_load_explicit(&p->wanted, memory_order_relaxed))
        sched_yield();
    p2p_acquire(p);
}

void p2p_trouble(struct p2p *p, const struct acomm_op *op, int code, int culprit, const char *text)
{
    struct p2p_trouble *t = &p->trouble;
    int saved = errno;
    if (t->code)
        return;
    *t = (struct p2p_trouble){.code = code, .culprit = culprit, .text = text};
    if (code == ACOMM_SYSTEM || code == ACOMM_RESOURCE || code == ACOMM_LOST)
        t->errnum = saved;
    int64_t now = op ? 0 : clock_now();
    t->op = op ? *op : (struct acomm_op){.group = p->group, .kind = ACOMM_RECV, .peer = culprit, .root = -1, .started = now,
                                         .deadline = now};
    t->op.release_lock = NULL; /* only its caller may release the caller's lock, once */
}

const char *p2p_late(const struct acomm_op *op)
{
    return op->kind == ACOMM_SEND ? "the peer did not receive the message" : "no message with this tag arrived";
}

bool p2p_ready(struct p2p *p, const struct link *link, bool *ready)
{
    if (!*ready)
        *ready = group_link_ready(p->group, link);
    return *ready;
}

struct p2p_peer *p2p_peer_of(struct p2p *p, int rank)
{
    struct p2p_peer *peer = p->peers[rank];
    if (peer)
        return peer;
    peer = calloc(1, sizeof *peer);
    if (!peer)
        return NULL;
    peer->rank = rank;
    struct p2p_list *lists[] = {&peer->queue, &peer->awaiting, &peer->sending, &peer->posted, &peer->replies,
                                &peer->receiving, &peer->reading, &peer->unexpected};
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++)
        p2p_list_init(lists[i]);
    p->peers[rank] = peer;
    p->open[p->opened++] = rank;
    p->changed = true;
    return peer;
}

void p2p_listen(struct p2p *p, struct p2p_peer *peer)
{
    if (!peer)
        p2p_listen_everyone(p);
    if (!peer || peer->from || peer->rank == p->group->rank)
        return;
    errno = 0;
    peer->from = group_link(p->group, CHANNEL_P2P, peer->rank, false);
    p->changed = true;
    if (!peer->from)
        p2p_trouble(p, NULL, ACOMM_RESOURCE, p->group->rank, "no link to receive messages from");
}

void p2p_listen_everyone(struct p2p *p)
{
    for (int rank = 0; rank < p->group->size && !p->everyone; rank++) {
        struct p2p_peer *peer = p2p_peer_of(p, rank);
        if (!peer) {
            p2p_trouble(p, NULL, ACOMM_RESOURCE, p->group->rank, "no memory to receive messages");
            return;
        }
        p2p_listen(p, peer);
    }
    p->everyone = true;
}

struct p2p *p2p_open(struct acomm_group *group)
{
    struct p2p *p = calloc(1, sizeof *p);
    if (!p)
        return NULL;
    p->group = group;
    group->fail_messages = p2p_fail;
    p->wake_fd = -1;
    p->credit = wire_credit(group->size);
    p->next_deadline = INT64_MAX;
    p->forced = group->selection.forced[ACOMM_RECV] ? group->selection.forced[ACOMM_RECV]->name : NULL;
    p2p_list_init(&p->any);
    p2p_list_init(&p->probes);
    p2p_list_init(&p->all);
    p->peers = calloc((size_t)group->size, sizeof(struct p2p_peer *));
    p->open = calloc((size_t)group->size, sizeof *p->open);
    if (!p->peers || !p->open) {
        free(p->peers);
        free(p->open);
        free(p);
        return NULL;
    }
    condition_init(&p->turn);
    condition_init(&p->work);
    pthread_mutex_init(&p->lock, NULL);
    return p;
}

struct p2p_item *p2p_new_item(struct p2p *p, struct acomm_op *op, uint64_t bytes)
{
    struct p2p_item *item = p->spare;
    if (item)
        p->spare = item->spare;
    else
        item = malloc(sizeof *item);
    if (!item)
        return NULL;
    *item = (struct p2p_item){.op = op, .bytes = bytes};
    p2p_list_init(&item->here);
    p2p_list_init(&item->all);
    p2p_list_move(&p->all, &item->all);
    return item;
}

static bool valid(const struct p2p *p, const struct acomm_op *op, uint64_t *bytes)
{
    int least = op->kind == ACOMM_RECV ? -1 : 0;
    return (op->kind == ACOMM_SEND || op->kind == ACOMM_RECV) && op->peer >= least && op->peer < p->group->size
        && wire_bytes(op->count, op->width, bytes);
}

/* A synchronous operation's thread checks its deadline itself, see p2p/wait.c. */
static void set_deadline(struct p2p *p, struct acomm_op *op)
{
    if (op->timeout < 0)
        op->timeout = p->group->timeout;
    op->started = op->deadline = 0;
    if (op->synchronous)
        return;
    op_begin(op);
    if (op->deadline < p->next_deadline)
        p->next_deadline = op->deadline;
}

static void post_send(struct p2p *p, struct p2p_peer *peer, struct p2p_item *item)
{
    if (peer->rank == p->group->rank) {
        p2p_match_self(p, peer, item);
        return;
    }
    p2p_list_move(&peer->queue, &item->here);
    p2p_send_push(p, peer);
}

static void post_receive(struct p2p *p, struct p2p_peer *peer, struct p2p_item *item)
{
    p2p_listen(p, peer);
    p2p_match_receive(p, item);
    if (peer)
        p2p_send_push(p, peer); /* the answer to an RTS that was here before */
}

/* With the lock. */
static int p2p_post_item(struct p2p *p, struct acomm_op *op, uint64_t bytes)
{
    struct p2p_peer *peer = op->peer < 0 ? NULL : p2p_peer_of(p, op->peer);
    if (op->peer >= 0 && !peer)
        return ACOMM_RESOURCE;
    struct p2p_item *item = p2p_new_item(p, op, bytes);
    if (!item)
        return ACOMM_RESOURCE;
    bool async = item->async = !op->synchronous;
    p->async += async;
    set_deadline(p, op);
    if (op->kind == ACOMM_SEND)
        post_send(p, peer, item);
    else
        post_receive(p, peer, item);
    if (async && p->async)
        p2p_progress_attend(p);
    return 0;
}

int p2p_post_within(struct p2p *p, struct acomm_op *op)
{
    uint64_t bytes;
    return !valid(p, op, &bytes) ? ACOMM_ARGUMENT : p->code ? p->code : p2p_post_item(p, op, bytes);
}

int p2p_post(struct p2p *p, struct acomm_op *op)
{
    p2p_acquire_for(p, op);
    int rc = p2p_post_within(p, op);
    p2p_release_for(p, op);
    return rc;
}

/* ---- probes ---- */

/* A probe is an operation that waits like a receive. Its waiter cancels it if no message arrives: without a deadline it fails no
 * group. */

static struct p2p_item *probe_begin(struct p2p *p, struct acomm_op *op)
{
    struct p2p_peer *peer = op->peer < 0 ? NULL : p2p_peer_of(p, op->peer);
    struct p2p_item *item = op->peer < 0 || peer ? p2p_new_item(p, op, 0) : NULL;
    if (!item)
        return NULL;
    p2p_listen(p, peer);
    p2p_match_probe(p, item);
    return item;
}

int p2p_probe(struct p2p *p, struct acomm_op *op, int64_t until)
{
    op->timeout = INT64_MAX / 4;
    p2p_acquire(p);
    struct p2p_item *item = p->code ? NULL : probe_begin(p, op);
    int rc = p->code ? p->code : item ? 1 : ACOMM_RESOURCE;
    p2p_release(p);
    if (item)
        rc = p2p_wait_until(p, op, until);
    p2p_acquire(p);
    if (item && !op_ended(op))
        p2p_match_end(p, item, rc);
    p2p_release(p);
    return rc;
}

/* ---- the end ---- */

/* The group's failure ended this operation, even if the failed operation was another one. */
static void name_message(struct acomm_op *op)
{
    op_header(op, &op->failure.mine);
    op->failure.sequence = 0;
    op->failure.elapsed = op_elapsed(op);
}

static acomm_failure p2p_failure_of(struct acomm_group *g)
{
    pthread_mutex_lock(&g->lock);
    acomm_failure failure = g->failure;
    if (!g->failed)
        failure = (acomm_failure){.code = ACOMM_CLOSED, .culprit = -1, .origin = g->rank};
    pthread_mutex_unlock(&g->lock);
    return failure;
}

void p2p_fail(struct p2p *p)
{
    p2p_acquire(p);
    acomm_failure failure = p2p_failure_of(p->group);
    if (!p->code)
        p->code = failure.code;
    p2p_offer_withdraw(p);
    if (p->shares) {
        group_close_window(p->group); /* the arrays of receives may be freed when these end */
        failure = p2p_failure_of(p->group);
    }
    while (!p2p_list_empty(&p->all)) {
        struct p2p_item *item = P2P_OF(struct p2p_item, all, p->all.next);
        item->op->failure = failure;
        if (failure.code != ACOMM_MISMATCH)
            name_message(item->op);
        p2p_match_end(p, item, failure.code);
    }
    pthread_cond_broadcast(&p->turn);
    pthread_cond_broadcast(&p->work);
    p2p_progress_wake(p);
    pthread_mutex_unlock(&p->lock);
}

static void free_peer(struct p2p_peer *peer)
{
    if (!peer)
        return;
    while (!p2p_list_empty(&peer->unexpected)) {
        struct p2p_list *node = peer->unexpected.next;
        p2p_list_remove(node);
        if (peer->in.message == P2P_MESSAGE(node))
            peer->in.message = NULL;
        free(P2P_MESSAGE(node));
    }
    free(peer->in.message); /* matched while it arrived, so in no list */
    free(peer);
}

static void stop_thread(struct p2p *p)
{
    p2p_acquire(p);
    p->stopping = true;
    pthread_cond_broadcast(&p->work);
    p2p_progress_wake(p);
    bool started = p->started;
    pthread_mutex_unlock(&p->lock);
    if (started)
        pthread_join(p->thread, NULL);
}

void p2p_close(struct p2p *p)
{
    if (!p)
        return;
    stop_thread(p);
    p2p_fail(p);
    for (int rank = 0; rank < p->group->size; rank++)
        free_peer(p->peers[rank]);
    while (p->spare) {
        struct p2p_item *item = p->spare;
        p->spare = item->spare;
        free(item);
    }
    if (p->wake_fd >= 0)
        close(p->wake_fd);
    free(p->fds[0]);
    free(p->fds[1]);
    free(p->peers);
    free(p->open);
    pthread_cond_destroy(&p->turn);
    pthread_cond_destroy(&p->work);
    pthread_mutex_destroy(&p->lock);
    free(p);
}
