/* Matches arriving messages with posted receives: by source and tag, in the order of their sending. */
#include <errno.h>
#include <stdlib.h>

#include "membership/node.h"
#include "p2p/peer.h"

/* Receives are matched in the order of their posting, messages in the order of their arrival, as MPI defines it (MPI 4.0, 3.5):
 * messages of one tag between two ranks do not overtake. Queues are searched from the front: in practice the first entry fits,
 * and a hash by tag would cost time for every message, and few programs would gain. */

void p2p_match_end(struct p2p *p, struct p2p_item *item, int status)
{
    struct acomm_op *op = item->op;
    bool async = item->async;
    p2p_list_remove(&item->here);
    p2p_list_remove(&item->all);
    item->spare = p->spare;
    p->spare = item;
    op->status = status;
    if (p->followers)
        pthread_cond_broadcast(&p->turn);
    /* No thread sleeps on a synchronous operation's futex, its thread is in p2p_wait(): saves a system call. */
    if (!async) {
        atomic_store_explicit(&op->done, OP_ENDED, memory_order_release);
        return;
    }
    p->async--;
    op_complete(op);
}

void p2p_match_received(struct p2p *p, struct p2p_item *item)
{
    item->op->bytes = item->bytes;
    p2p_match_end(p, item, ACOMM_OK);
}

void p2p_match_truncated(struct p2p *p, struct p2p_item *item, int dtype, uint64_t count)
{
    struct acomm_op *op = item->op;
    acomm_failure *f = &op->failure;
    *f = (acomm_failure){.code = ACOMM_TRUNCATED, .culprit = op->peer, .origin = p->group->rank,
                         .elapsed = op_elapsed(op)};
    op_header(op, &f->mine);
    f->mine.root = -1;
    f->theirs = (acomm_header){.count = count, .dtype = op_header_dtype(dtype), .root = -1,
                               .kind = op->kind == ACOMM_SEND ? ACOMM_RECV : ACOMM_SEND};
    strcpy(f->text, "the message and the receive it met differ in dtype or in the number of elements");
    op->bytes = 0;
    p2p_match_end(p, item, ACOMM_TRUNCATED);
}

bool p2p_match_agrees(const struct p2p_item *item, int dtype, uint64_t count)
{
    return item->op->dtype == dtype && item->op->count == count;
}

/* ---- messages that the fabric moves ---- */

/* Whether it has failed. */
static bool fabric_failed(struct p2p *p, const struct acomm_op *op, const struct fabric_message *message)
{
    errno = 0;
    if (message->code)
        p2p_trouble(p, op, message->code, message->code == ACOMM_LOST ? op->peer : -1, message->why);
    return message->code;
}

void p2p_match_begin(struct p2p *p, struct p2p_item *item, int64_t tag)
{
    item->moved = item->bytes; /* none by the link */
    item->message = p->group->fabric->begin(item->op, &tag);
    item->place.at = (uint64_t)tag;
    fabric_failed(p, item->op, item->message);
}

void p2p_match_carry(struct p2p *p, struct p2p_peer *peer, struct p2p_item *item)
{
    p->carried++;
    p->changed = true;
    item->op->apart = true;
    p2p_list_move(&peer->reading, &item->here);
}

bool p2p_match_carried(struct p2p *p, struct p2p_peer *peer, struct p2p_item *item)
{
    bool ended = p->group->fabric->end(item->message);
    p2p_list_move(&peer->reading, &item->here); /* the next one's turn */
    if (!ended)
        return fabric_failed(p, item->op, item->message);
    p->carried--;
    p2p_match_received(p, item);
    return true;
}

/* ---- receives ---- */

static struct p2p_item *first_with(struct p2p_list *list, int64_t tag)
{
    for P2P_EACH(at, list)
        if (tag_fits(P2P_ITEM(at)->op->tag, tag))
            return P2P_ITEM(at);
    return NULL;
}

struct p2p_item *p2p_match_posted(struct p2p *p, struct p2p_peer *peer, int64_t tag)
{
    struct p2p_item *item = first_with(&peer->posted, tag);
    struct p2p_item *any = first_with(&p->any, tag);
    if (!item || (any && any->order < item->order))
        item = any;
    if (item) {
        p2p_list_remove(&item->here);
        item->op->peer = peer->rank;
        item->op->tag = tag;
    }
    return item;
}

void p2p_match_reply(struct p2p *p, struct p2p_peer *peer, struct p2p_item *item, const struct p2p_message *m)
{
    bool agrees = p2p_match_agrees(item, m->dtype, m->count);
    item->id = m->id;
    item->dtype = m->dtype;
    item->count = m->count;
    item->place = m->place;
    item->reply = agrees ? P2P_CLEAR : P2P_REFUSE;
    if (agrees && item->place.how == DIRECT_FABRIC)
        p2p_match_begin(p, item, 0);
    if (!agrees || !p2p_offer_accept(p, peer, item))
        p2p_list_move(&peer->replies, &item->here);
}

/* ---- receives and probes of any source ---- */

/* Whether all other ranks have closed the group, and all their messages have been read. A server needs no peer. */
static bool alone(const struct p2p *p)
{
    const struct acomm_group *g = p->group;
    for (int rank = 0; rank < g->size; rank++) {
        const struct p2p_peer *peer = p->peers[rank];
        if (rank != g->rank && (!peer || !peer->gone))
            return false;
        if (rank != g->rank && g->node && node_left(g->node, g, rank, UINT64_MAX) < 0)
            return false; /* if it died, the group fails as soon as that is known */
    }
    return g->size > 1 && !p->serves;
}

static void end_alone(struct p2p *p, struct p2p_list *list, const struct acomm_op *awaited)
{
    for (struct p2p_list *at = list->next, *next; at != list; at = next) {
        struct acomm_op *op = P2P_ITEM(at)->op;
        next = at->next;
        if (op->peer >= 0 || (op != awaited && op->tag != TAG_WATCH))
            continue; /* one without a waiter may still match a message of this rank's own */
        op->failure = (acomm_failure){.code = ACOMM_LOST, .culprit = ACOMM_OTHERS, .origin = p->group->rank,
                                      .elapsed = op_elapsed(op), .text = "they have closed the group"};
        op_header(op, &op->failure.mine);
        p2p_match_end(p, P2P_ITEM(at), ACOMM_LOST);
    }
}

void p2p_match_end_alone(struct p2p *p, const struct acomm_op *awaited)
{
    if ((p2p_list_empty(&p->any) && p2p_list_empty(&p->probes)) || !alone(p))
        return;
    end_alone(p, &p->any, awaited);
    end_alone(p, &p->probes, awaited);
}

/* ---- probes ---- */

/* The probe ends: it has found the message, which stays queued. */
static void found(struct p2p *p, struct p2p_item *probe, const struct p2p_peer *peer, const struct p2p_message *m)
{
    struct acomm_op *op = probe->op;
    op->peer = peer->rank;
    op->tag = m->tag;
    op->dtype = m->dtype;
    op->count = m->count;
    p2p_match_end(p, probe, ACOMM_OK);
}

static void tell_probes(struct p2p *p, const struct p2p_peer *peer, const struct p2p_message *m)
{
    for (struct p2p_list *at = p->probes.next, *next; at != &p->probes; at = next) {
        struct p2p_item *probe = P2P_ITEM(at);
        next = at->next;
        if ((probe->op->peer < 0 || probe->op->peer == peer->rank) && tag_fits(probe->op->tag, m->tag))
            found(p, probe, peer, m);
    }
}

struct acomm_op *p2p_match_probing(struct p2p *p, int peer)
{
    for P2P_EACH(at, &p->probes)
        if (P2P_ITEM(at)->op->peer == peer)
            return P2P_ITEM(at)->op;
    return NULL;
}

struct p2p_message *p2p_match_aside(struct p2p *p, struct p2p_peer *peer, int64_t tag, int dtype, uint64_t count,
                                    uint64_t room)
{
    struct p2p_message *m = malloc(sizeof *m + room);
    if (!m) {
        p2p_trouble(p, NULL, ACOMM_RESOURCE, p->group->rank, "no memory for a message that came before its receive");
        return NULL;
    }
    *m = (struct p2p_message){.arrival = p->arrivals++, .tag = tag, .count = count, .dtype = dtype};
    wire_bytes(count, acomm_dtype_bytes(dtype), &m->bytes);
    p2p_list_init(&m->here);
    p2p_list_move(&peer->unexpected, &m->here);
    tell_probes(p, peer, m);
    return m;
}

void p2p_match_deliver(struct p2p *p, struct p2p_peer *peer, struct p2p_message *m)
{
    struct p2p_item *item = m->receiver;
    if (!item || !m->arrived)
        return;
    peer->consumed += wire_charge(m->bytes);
    if (p2p_match_agrees(item, m->dtype, m->count)) {
        if (m->bytes)
            memcpy(item->op->out, m->data, m->bytes);
        p2p_match_received(p, item);
    } else {
        p2p_match_truncated(p, item, m->dtype, m->count);
    }
    free(m);
}

/* Send and receive of this rank meet: one copy. */
static void match_exchange(struct p2p *p, struct p2p_item *from, struct p2p_item *to)
{
    struct acomm_op *sender = from->op, *receiver = to->op;
    if (!p2p_match_agrees(to, sender->dtype, sender->count)) {
        int dtype = receiver->dtype;
        uint64_t count = receiver->count;
        p2p_match_truncated(p, to, sender->dtype, sender->count);
        p2p_match_truncated(p, from, dtype, count);
        return;
    }
    if (from->bytes)
        memmove(receiver->out, sender->in, from->bytes);
    p2p_match_received(p, to);
    p2p_match_received(p, from);
}

/* The receive has this message, which leaves the list. */
static void match_take(struct p2p *p, struct p2p_peer *peer, struct p2p_message *m, struct p2p_item *item)
{
    p2p_list_remove(&m->here);
    item->op->peer = peer->rank;
    item->op->tag = m->tag;
    m->receiver = item;
    if (m->eager) {
        p2p_match_deliver(p, peer, m);
        return;
    }
    if (m->sender) {
        match_exchange(p, m->sender, item);
    } else {
        p2p_match_reply(p, peer, item, m);
        peer->remembered--;
    }
    free(m);
}

static struct p2p_message *first_message(struct p2p_peer *peer, int64_t tag)
{
    if (!peer)
        return NULL;
    for P2P_EACH(at, &peer->unexpected)
        if (tag_fits(tag, P2P_MESSAGE(at)->tag))
            return P2P_MESSAGE(at);
    return NULL;
}

/* The first arrived message that this operation matches; *from: its sender. */
static struct p2p_message *earliest(struct p2p *p, const struct acomm_op *op, struct p2p_peer **from)
{
    struct p2p_message *best = NULL;
    if (op->peer >= 0) {
        *from = p->peers[op->peer];
        return first_message(*from, op->tag);
    }
    for (int i = 0; i < p->opened; i++) {
        struct p2p_peer *peer = p->peers[p->open[i]];
        struct p2p_message *m = first_message(peer, op->tag);
        if (m && (!best || m->arrival < best->arrival)) {
            best = m;
            *from = peer;
        }
    }
    return best;
}

void p2p_match_receive(struct p2p *p, struct p2p_item *item)
{
    int source = item->op->peer;
    struct p2p_peer *peer;
    struct p2p_message *m = earliest(p, item->op, &peer);
    item->order = p->orders++;
    if (m)
        match_take(p, peer, m, item);
    else
        p2p_list_move(source < 0 ? &p->any : &peer->posted, &item->here);
}

void p2p_match_probe(struct p2p *p, struct p2p_item *item)
{
    struct p2p_peer *peer;
    struct p2p_message *m = earliest(p, item->op, &peer);
    if (m)
        found(p, item, peer, m);
    else
        p2p_list_move(&p->probes, &item->here);
}

void p2p_match_self(struct p2p *p, struct p2p_peer *self, struct p2p_item *item)
{
    struct acomm_op *op = item->op;
    struct p2p_item *receiver = p2p_match_posted(p, self, op->tag);
    if (receiver) {
        match_exchange(p, item, receiver);
        return;
    }
    uint64_t open = self->arrived - self->consumed + wire_charge(item->bytes);
    bool copy = item->bytes <= WIRE_EAGER_NEAR && open <= p->credit;
    struct p2p_message *m = p2p_match_aside(p, self, op->tag, op->dtype, op->count, copy ? item->bytes : 0);
    if (!m)
        return;
    m->eager = copy;
    if (!copy) {
        m->sender = item;
        return;
    }
    if (item->bytes)
        memcpy(m->data, op->in, item->bytes);
    m->arrived = true;
    self->arrived += wire_charge(item->bytes);
    p2p_match_received(p, item);
}
