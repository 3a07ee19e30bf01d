/* Reads frames from a peer's link, and the contents of its messages. */
#include <errno.h>

#include "base/clock.h"
#include "p2p/peer.h"

static struct acomm_op *recv_first(const struct p2p_list *list)
{
    return p2p_list_empty(list) ? NULL : P2P_ITEM(list->next)->op;
}

/* What is under way in the fabric needs nothing from the link. */
static struct acomm_op *recv_reading(const struct p2p_peer *peer)
{
    for P2P_EACH(at, &peer->reading)
        if (!P2P_ITEM(at)->message)
            return P2P_ITEM(at)->op;
    return NULL;
}

/* The operation that needs something from the peer, or NULL. */
static struct acomm_op *needs(struct p2p *p, const struct p2p_peer *peer)
{
    struct acomm_op *op = recv_first(&peer->posted);
    op = op ? op : recv_first(&peer->receiving);
    op = op ? op : recv_reading(peer);
    op = op ? op : recv_first(&peer->replies);
    op = op ? op : recv_first(&peer->awaiting);
    op = op || !peer->in.item ? op : peer->in.item->op;
    op = op || !peer->in.message || !peer->in.message->receiver ? op : peer->in.message->receiver->op;
    return op ? op : p2p_match_probing(p, peer->rank);
}

static bool recv_broken(struct p2p *p, struct p2p_peer *peer, const char *text)
{
    p2p_trouble(p, needs(p, peer), ACOMM_PROTOCOL, peer->rank, text);
    return false;
}

static struct p2p_item *recv_find(struct p2p_list *list, uint64_t id)
{
    for P2P_EACH(at, list)
        if (P2P_ITEM(at)->id == id)
            return P2P_ITEM(at);
    return NULL;
}

static void expect(const struct p2p *p, struct p2p_peer *peer, char *to, uint64_t bytes, struct p2p_item *item,
                   struct p2p_message *message)
{
    struct p2p_in *in = &peer->in;
    peer->from->row = bytes;
    peer->from->whole = item ? item->bytes : bytes;
    peer->from->patient = bytes && !p->group->oversubscribed;
    in->to = to;
    in->left = in->payload = bytes;
    in->item = item;
    in->message = message;
    in->open = true;
}

static bool eager(struct p2p *p, struct p2p_peer *peer, const struct wire_frame *f, uint64_t bytes)
{
    if (bytes > WIRE_EAGER_MAX)
        return recv_broken(p, peer, "an eager message is larger than they may be");
    peer->arrived += wire_charge(bytes);
    if (peer->arrived - peer->consumed > p->credit)
        return recv_broken(p, peer, "an eager message was sent without credit");
    struct p2p_item *item = p2p_match_posted(p, peer, f->tag);
    if (!item) {
        struct p2p_message *m = p2p_match_aside(p, peer, f->tag, f->dtype, f->count, bytes);
        if (!m)
            return false;
        m->eager = true;
        expect(p, peer, m->data, bytes, NULL, m);
    } else if (p2p_match_agrees(item, f->dtype, f->count)) {
        expect(p, peer, item->op->out, bytes, item, NULL);
    } else {
        p2p_match_truncated(p, item, f->dtype, f->count);
        expect(p, peer, NULL, bytes, NULL, NULL);
    }
    return true;
}

/* RTS or OFFER. */
static bool recv_request(struct p2p *p, struct p2p_peer *peer, const struct wire_frame *f, uint64_t bytes)
{
    struct p2p_message asked = {.tag = f->tag, .dtype = f->dtype, .count = f->count, .id = f->id};
    if (f->kind == WIRE_OFFER) {
        memcpy(&asked.place, peer->in.buffer + peer->in.begin, sizeof asked.place);
        peer->in.begin += sizeof asked.place;
        if (!p2p_offer_valid(p, &asked.place, bytes))
            return recv_broken(p, peer, "a message lies where none can");
    }
    if (f->id != peer->expected_id)
        return recv_broken(p, peer, "a message has a number out of order");
    peer->expected_id++;
    struct p2p_item *item = p2p_match_posted(p, peer, f->tag);
    if (item) {
        p2p_match_reply(p, peer, item, &asked);
        return true;
    }
    if (++peer->remembered > WIRE_RTS_MAX)
        return recv_broken(p, peer, "more than a million messages wait for their receives");
    struct p2p_message *m = p2p_match_aside(p, peer, f->tag, f->dtype, f->count, 0);
    if (m) {
        m->id = f->id;
        m->place = asked.place;
    }
    return m != NULL;
}

static bool cleared(struct p2p *p, struct p2p_peer *peer, const struct wire_frame *f)
{
    struct p2p_item *item = recv_find(&peer->awaiting, f->id);
    bool read = item && (item->place.how == DIRECT_PRIVATE || item->place.how == DIRECT_MAPPED);
    if (!item || (f->kind == WIRE_DONE && !read))
        return recv_broken(p, peer, "an answer to a message that was not sent");
    if (f->kind == WIRE_CTS && item->place.how == DIRECT_FABRIC)
        p2p_match_begin(p, item, f->tag); /* DATA follows, without contents */
    if (f->kind == WIRE_NACK)
        p2p_match_truncated(p, item, f->dtype, f->count);
    else if (item->bytes && f->kind == WIRE_CTS)
        p2p_list_move(&peer->sending, &item->here);
    else
        p2p_match_received(p, item);
    return true;
}

static bool data(struct p2p *p, struct p2p_peer *peer, const struct wire_frame *f)
{
    struct p2p_item *item = recv_find(&peer->receiving, f->id);
    if (!item)
        return recv_broken(p, peer, "data for a message that was not asked for");
    if (!f->count != (item->message != NULL) || f->count > WIRE_DATA_MAX || f->count > item->bytes - item->moved)
        return recv_broken(p, peer, "more data than the message has");
    if (item->message)
        p2p_match_carry(p, peer, item);
    else
        expect(p, peer, item->op->out + item->moved, f->count, item, NULL);
    return true;
}

/* Starts the first frame; false: trouble. */
static bool recv_begin(struct p2p *p, struct p2p_peer *peer)
{
    struct wire_frame f;
    uint64_t bytes;
    if (!wire_get(peer->in.buffer + peer->in.begin, &f) || f.consumed < peer->credited || f.consumed > peer->charged)
        return recv_broken(p, peer, "a frame that is not one");
    peer->in.begin += sizeof f;
    peer->credited = f.consumed;
    if (f.kind == WIRE_DATA)
        return data(p, peer, &f);
    if (!wire_bytes(f.count, acomm_dtype_bytes(f.dtype), &bytes))
        return recv_broken(p, peer, "a message larger than memory");
    if (f.kind == WIRE_EAGER)
        return eager(p, peer, &f, bytes);
    return f.kind == WIRE_RTS || f.kind == WIRE_OFFER ? recv_request(p, peer, &f, bytes) : cleared(p, peer, &f);
}

/* All of the frame's payload has arrived. */
static void recv_finish(struct p2p *p, struct p2p_peer *peer)
{
    struct p2p_in *in = &peer->in;
    struct p2p_item *item = in->item;
    struct p2p_message *message = in->message;
    in->open = false;
    peer->from->patient = false;
    in->item = NULL;
    in->message = NULL;
    if (message) {
        message->arrived = true;
        p2p_match_deliver(p, peer, message);
        return;
    }
    bool rendezvous = item && !p2p_list_empty(&item->here); /* in receiving */
    if (!rendezvous)
        peer->consumed += wire_charge(in->payload);
    if (item) {
        item->moved += in->payload;
        if (item->moved == item->bytes)
            p2p_match_received(p, item);
    }
}

/* A link in shared memory is read piece by piece: reading ahead saves no call there, and costs a copy. */
static bool in_memory(const struct p2p_peer *peer)
{
    return peer->from->ops->waiting != NULL;
}

/* Bytes from the link; 0 when there are none now, or none any more. */
static size_t recv_take(struct p2p *p, struct p2p_peer *peer, char *to, size_t bytes)
{
    errno = 0;
    ssize_t n = peer->from->ops->recv(peer->from, to, bytes);
    if (n == 0 && peer->left && in_memory(peer)) /* which has no end of file */
        peer->gone = true;
    if (n >= 0)
        return (size_t)n;
    if (n == ACOMM_LOST)
        peer->gone = true; /* trouble only for operations that need it: the peer may have finished and closed in order */
    else
        p2p_trouble(p, needs(p, peer), (int)n, link_culprit(peer->from, (int)n), p2p_why(peer->from, "the connection broke while receiving a message"));
    return 0;
}

/* Reads ahead into the buffer. */
static size_t recv_fill(struct p2p *p, struct p2p_peer *peer)
{
    struct p2p_in *in = &peer->in;
    if (in->begin == in->end) {
        in->begin = in->end = 0;
    } else if (in->begin) {
        memmove(in->buffer, in->buffer + in->begin, in->end - in->begin);
        in->end -= in->begin;
        in->begin = 0;
    }
    size_t room = in_memory(peer) && !in->open ? LINK_BESIDE : sizeof in->buffer;
    size_t n = recv_take(p, peer, in->buffer + in->end, room - in->end);
    in->end += n;
    return n;
}

/* Payload: first from the buffer; a longer rest straight from the link to its target, `most` bytes. */
static size_t payload(struct p2p *p, struct p2p_peer *peer, size_t most)
{
    struct p2p_in *in = &peer->in;
    size_t n = in->end - in->begin;
    if (n) {
        n = n < in->left ? n : in->left;
        if (in->to)
            memcpy(in->to, in->buffer + in->begin, n);
        in->begin += n;
    } else if (in->to && (in_memory(peer) || in->left >= sizeof in->buffer / 2)) {
        n = recv_take(p, peer, in->to, in->left < most ? in->left : most);
    } else {
        return recv_fill(p, peer);
    }
    in->left -= n;
    in->to = in->to ? in->to + n : NULL;
    return n;
}

/* Bytes that must have arrived before a frame is begun. */
static size_t head(const struct p2p_in *in)
{
    const char *frame = in->buffer + in->begin;
    bool offer = in->end - in->begin >= sizeof(struct wire_frame) && frame[offsetof(struct wire_frame, kind)] == WIRE_OFFER;
    return sizeof(struct wire_frame) + (offer ? sizeof(struct wire_place) : 0);
}

/* One step: bytes moved, about `most`; 0 when nothing more can be done now. */
static size_t recv_step(struct p2p *p, struct p2p_peer *peer, size_t most)
{
    struct p2p_in *in = &peer->in;
    if (in->open && !in->left) {
        recv_finish(p, peer);
        return 1;
    }
    if (in->open)
        return payload(p, peer, most);
    if (in->end - in->begin >= head(in))
        return recv_begin(p, peer) ? sizeof(struct wire_frame) : 0;
    return peer->gone ? 0 : recv_fill(p, peer);
}

/* Whether to read on. Data that no operation needs stays in the link: there it costs neither memory nor a second copy. */
static bool wanted(struct p2p *p, const struct p2p_peer *peer, bool full)
{
    return full || peer->in.open || !p2p_list_empty(&p->any) || p2p_match_probing(p, -1) || needs(p, peer);
}

bool p2p_recv_pull(struct p2p *p, struct p2p_peer *peer, bool full)
{
    size_t moved = 0, n = 1;
    bool ready = peer->from && p2p_ready(p, peer->from, &peer->from_ready);
    while (ready && n && moved < P2P_TURN && !p->trouble.code && wanted(p, peer, full)) {
        n = recv_step(p, peer, P2P_TURN - moved);
        moved += n;
    }
    p->unseen += moved;
    if (peer->gone && (!n || !ready) && needs(p, peer))
        p2p_trouble(p, needs(p, peer), ACOMM_LOST, peer->rank, "it left while a message was expected from it");
    return moved > 0;
}
