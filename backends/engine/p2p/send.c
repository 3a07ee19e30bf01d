/* Writes a peer's queued messages to its link, as credit allows. */
#include <errno.h>

#include "p2p/peer.h"

static struct p2p_item *send_first(const struct p2p_list *list)
{
    return p2p_list_empty(list) ? NULL : P2P_ITEM(list->next);
}

bool p2p_send_waits(const struct p2p_peer *peer)
{
    return peer->out.item || !p2p_list_empty(&peer->replies) || !p2p_list_empty(&peer->queue)
        || !p2p_list_empty(&peer->sending);
}

struct acomm_op *p2p_send_first(const struct p2p_peer *peer)
{
    struct p2p_item *item = peer->out.item ? peer->out.item : send_first(&peer->replies);
    item = item ? item : send_first(&peer->queue);
    return (item ? item : send_first(&peer->sending))->op;
}

/* Begins a frame; a small payload goes beside the header, so that it takes one call of the link. */
static void send_begin(struct p2p_peer *peer, struct p2p_item *item, struct wire_frame *frame, const char *payload,
                  uint64_t bytes)
{
    struct p2p_out *o = &peer->out;
    frame->magic = WIRE_MAGIC;
    frame->consumed = peer->consumed;
    wire_put(o->head, frame);
    o->item = item;
    o->kind = frame->kind;
    o->size = sizeof *frame;
    o->sent = 0;
    o->payload = o->left = bytes;
    o->body = payload;
    size_t beside = peer->to->ops->frame ? LINK_BESIDE : sizeof o->head;
    if (bytes && bytes <= beside - sizeof *frame) {
        memcpy(o->head + o->size, payload, bytes);
        o->size += bytes;
        o->left = 0;
    }
}

static void begin_reply(struct p2p_peer *peer, struct p2p_item *item)
{
    struct wire_frame frame = {.kind = item->reply == P2P_DONE ? WIRE_DONE : WIRE_CTS, .id = item->id,
                               .tag = (int64_t)item->place.at};
    if (item->reply == P2P_REFUSE) {
        frame.kind = WIRE_NACK;
        frame.dtype = (uint32_t)item->op->dtype & WIRE_DTYPES;
        frame.count = item->op->count;
    }
    send_begin(peer, item, &frame, NULL, 0);
}

static void begin_message(struct p2p *p, struct p2p_peer *peer, struct p2p_item *item)
{
    const struct acomm_op *op = item->op;
    struct wire_frame frame = {.kind = WIRE_EAGER, .dtype = (uint32_t)op->dtype & WIRE_DTYPES, .tag = op->tag, .count = op->count};
    uint64_t open = peer->charged - peer->credited + wire_charge(item->bytes) + ((uint64_t)op->gpu << 62); /* no credit for a GPU's */
    uint64_t most = peer->to->ops->frame ? WIRE_EAGER_NEAR : WIRE_EAGER_MAX;
    if (item->bytes <= most && open <= p->credit) {
        peer->charged += wire_charge(item->bytes);
        send_begin(peer, item, &frame, op->in, item->bytes);
        return;
    }
    item->place = p2p_offer_place(p, peer, item);
    bool offered = item->place.how != DIRECT_NOTHING;
    frame.kind = offered ? WIRE_OFFER : WIRE_RTS;
    frame.id = item->id = peer->next_id++;
    p2p_listen(p, peer);
    send_begin(peer, item, &frame, (const char *)&item->place, offered ? sizeof item->place : 0);
}

static void begin_data(struct p2p_peer *peer, struct p2p_item *item)
{
    uint64_t left = item->bytes - item->moved;
    uint64_t bytes = left < WIRE_DATA_MAX ? left : WIRE_DATA_MAX;
    struct wire_frame frame = {.kind = WIRE_DATA, .id = item->id, .count = bytes};
    send_begin(peer, item, &frame, item->op->in + item->moved, bytes);
}

/* Answers first, because peers wait for them; then new messages and data alternate. */
static bool begin_next(struct p2p *p, struct p2p_peer *peer)
{
    struct p2p_item *reply = send_first(&peer->replies), *message = send_first(&peer->queue), *data = send_first(&peer->sending);
    if (reply)
        begin_reply(peer, reply);
    else if (data && (!message || peer->data_turn))
        begin_data(peer, data);
    else if (message)
        begin_message(p, peer, message);
    else
        return false;
    if (!reply)
        peer->data_turn = !peer->data_turn;
    return true;
}

/* The frame has been sent: updates its operation. */
static void written(struct p2p *p, struct p2p_peer *peer)
{
    struct p2p_item *item = peer->out.item;
    peer->out.item = NULL;
    switch (peer->out.kind) {
    case WIRE_EAGER:
        p2p_match_received(p, item);
        return;
    case WIRE_RTS:
    case WIRE_OFFER:
        p2p_list_move(&peer->awaiting, &item->here);
        return;
    case WIRE_CTS:
        if (item->bytes)
            p2p_list_move(&peer->receiving, &item->here);
        else
            p2p_match_received(p, item);
        return;
    case WIRE_DONE:
        p2p_match_received(p, item);
        return;
    case WIRE_NACK:
        p2p_match_truncated(p, item, item->dtype, item->count);
        return;
    default:
        item->moved += peer->out.payload;
        if (item->message)
            p2p_match_carry(p, peer, item);
        else if (item->moved == item->bytes)
            p2p_match_received(p, item);
        else
            p2p_list_move(&peer->sending, &item->here);
    }
}

/* `most`: bytes of the payload. */
static ssize_t send_next(struct link *to, const struct p2p_out *o, size_t most)
{
    size_t body = o->left < most ? o->left : most;
    if (o->sent == o->size)
        return to->ops->send(to, o->body, body, body < o->left);
    if (to->ops->frame)
        return to->ops->frame(to, o->head, o->size, o->body, body);
    /* A header that travels alone wakes the receiver for nothing: 20% of the processor time of a long message. */
    return to->ops->send(to, o->head + o->sent, o->size - o->sent, o->left > 0);
}

/* Bytes that the link accepted; 0 when none or when it is broken, which becomes trouble. */
static size_t send_give(struct p2p *p, struct p2p_peer *peer, size_t most)
{
    errno = 0;
    ssize_t n = send_next(peer->to, &peer->out, most);
    if (n >= 0)
        return (size_t)n;
    p2p_trouble(p, peer->out.item->op, (int)n, link_culprit(peer->to, (int)n), p2p_why(peer->to, "the connection broke while sending a message"));
    return 0;
}

/* Whether all of the frame is written; else the link is full, or the turn has ended. */
static bool write_frame(struct p2p *p, struct p2p_peer *peer, size_t *moved)
{
    struct p2p_out *o = &peer->out;
    peer->to->row = o->payload;
    while (o->sent < o->size || o->left) {
        if (*moved >= P2P_TURN)
            return false;
        size_t n = send_give(p, peer, P2P_TURN - *moved), head = o->size - o->sent < n ? o->size - o->sent : n;
        if (!n)
            return false;
        o->sent += head;
        o->left -= n - head;
        o->body = o->left ? o->body + (n - head) : NULL;
        *moved += n;
    }
    return true;
}

static bool send_usable(struct p2p *p, struct p2p_peer *peer)
{
    if (!peer->to) {
        peer->to = group_link(p->group, CHANNEL_P2P, peer->rank, true);
        p->changed = true;
        if (!peer->to)
            p2p_trouble(p, NULL, ACOMM_RESOURCE, p->group->rank, "no link to send a message on");
    }
    return peer->to && p2p_ready(p, peer->to, &peer->to_ready);
}

bool p2p_send_push(struct p2p *p, struct p2p_peer *peer)
{
    size_t moved = 0;
    if (!p2p_send_waits(peer) || !send_usable(p, peer))
        return false;
    while (moved < P2P_TURN && !p->trouble.code && (peer->out.item || begin_next(p, peer))) {
        if (!write_frame(p, peer, &moved)) {
            p->changed = true;
            break;
        }
        written(p, peer);
    }
    p->unseen += moved;
    return moved > 0;
}
