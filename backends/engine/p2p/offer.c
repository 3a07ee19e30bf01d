/* Single copy of long messages by the receiver: out of a symmetric array, which it maps, or out of the sender's memory (CMA),
 * where the system permits that. Two copies through the ring cost more (2 to 16 MiB at 4 and 8 ranks on 2 cores 1.02 to 2 times
 * as much).
 *
 * The sender waits until it receives DONE, or writes parts itself (p2p/share.c). If its operation ends before, for example by a
 * deadline, its caller may write into the array again: the sender withdraws the offer first, and the receiver checks for that
 * after its last byte. Without a withdrawal the data is valid; after one the receive waits for the failure that is under way.
 *
 * An array on a GPU is offered to be moved by the fabric (p2p/match.c), on hosts and between them. */
#include <errno.h>

#include "p2p/peer.h"

#define PART ((uint64_t)1 << 20) /* bytes at a time; between two, other peers progress and failures are checked */

struct wire_place p2p_offer_place(struct p2p *p, const struct p2p_peer *peer, const struct p2p_item *item)
{
    if (item->op->gpu && !item->op->in && item->bytes)
        return (struct wire_place){.how = DIRECT_FABRIC};
    if (item->bytes <= WIRE_EAGER_NEAR || !peer->to->withdrawn)
        return (struct wire_place){.how = DIRECT_NOTHING};
    struct direct_place place = direct_place(&p->group->direct, item->op->in, item->bytes);
    return (struct wire_place){.at = place.at, .how = place.how};
}

bool p2p_offer_valid(const struct p2p *p, const struct wire_place *place, uint64_t bytes)
{
    if (place->how == DIRECT_FABRIC)
        return bytes && !place->at && p->group->fabric && p->group->fabric->begin;
    if (place->how == DIRECT_MAPPED)
        return place->at <= ARENA_ROOM && bytes <= ARENA_ROOM;
    return place->how == DIRECT_PRIVATE;
}

/* Queried once. */
static bool reaches(const struct acomm_group *g, struct p2p_peer *peer)
{
    if (!peer->asked)
        peer->unreadable |= !window_reaches(&g->shared, g->hosts.local_rank[peer->rank]);
    peer->asked = true;
    return !peer->unreadable;
}

static bool offer_reads(struct p2p *p, struct p2p_peer *peer, const struct wire_place *place, uint64_t bytes)
{
    if (p->forced && strcmp(p->forced, "read"))
        return false;
    return place->how == DIRECT_MAPPED ? symmetric_map(p->group, p->group->hosts.local_rank[peer->rank], place->at + bytes) != NULL
                                       : reaches(p->group, peer);
}

bool p2p_offer_accept(struct p2p *p, struct p2p_peer *peer, struct p2p_item *item)
{
    if (item->place.how == DIRECT_NOTHING || item->place.how == DIRECT_FABRIC || !peer->from->withdrawn)
        return false;
    bool reads = offer_reads(p, peer, &item->place, item->bytes);
    if (reads)
        p2p_list_move(&peer->reading, &item->here);
    return reads;
}

static int read_part(struct p2p *p, struct p2p_peer *peer, struct p2p_item *item, uint64_t bytes)
{
    char *to = item->op->out + item->moved;
    uint64_t from = item->place.at + item->moved;
    int errnum = 0, local_rank = p->group->hosts.local_rank[peer->rank];
    p->unseen += bytes;
    if (item->place.how == DIRECT_PRIVATE)
        errnum = peer_memory_read(window_process(&p->group->shared, local_rank), from, to, bytes);
    else
        stream_long(to, symmetric_map(p->group, local_rank, from + bytes) + from, bytes, item->bytes);
    return errnum;
}

static void offer_reply(struct p2p_peer *peer, struct p2p_item *item, int with)
{
    item->reply = with;
    p2p_list_move(&peer->replies, &item->here);
}

/* It cannot be read, for a reason that may be this array's or, EPERM and ENOSYS, the system's. The node detects its end. */
static void ask_for_it(struct p2p_peer *peer, struct p2p_item *item, int errnum)
{
    peer->unreadable |= errnum == EPERM || errnum == ENOSYS || errnum == EACCES;
    item->moved = 0;
    offer_reply(peer, item, P2P_CLEAR);
}

/* All of the data has arrived. */
static bool offer_complete(struct p2p_peer *peer, struct p2p_item *item)
{
    atomic_thread_fence(memory_order_acquire); /* the data was read before this load */
    if (atomic_load_explicit(peer->from->withdrawn, memory_order_relaxed))
        return false;
    offer_reply(peer, item, P2P_DONE);
    return true;
}

/* The same while the sender writes parts of it; whether it made progress. */
static bool pull_part(struct p2p *p, struct p2p_peer *peer, struct p2p_item *item)
{
    uint64_t bytes;
    if (p2p_share_take(peer, item, &item->moved, &bytes)) {
        int errnum = read_part(p, peer, item, bytes);
        if (errnum)
            p2p_share_stop(peer, item, errnum);
        return true;
    }
    if (!p2p_share_over(peer, item))
        return false;
    item->moved = 0; /* if the sender failed to write a part, all is read again */
    if (item->errnum)
        ask_for_it(peer, item, item->errnum);
    return item->errnum || item->whole || offer_complete(peer, item);
}

bool p2p_offer_pull(struct p2p *p, struct p2p_peer *peer, struct p2p_item *item)
{
    if (atomic_load_explicit(peer->from->withdrawn, memory_order_relaxed))
        return false;
    if (!item->moved && !item->shared)
        p2p_share_open(p, peer, item);
    if (item->shared)
        return pull_part(p, peer, item);
    uint64_t left = item->bytes - item->moved, part = left < PART ? left : PART;
    int errnum = read_part(p, peer, item, part);
    if (errnum) {
        ask_for_it(peer, item, errnum);
        return true;
    }
    item->moved += part;
    return part < left || offer_complete(peer, item);
}

void p2p_offer_withdraw(struct p2p *p)
{
    for (int i = 0; i < p->opened; i++) {
        const struct link *to = p->peers[p->open[i]]->to;
        if (to && to->withdrawn)
            atomic_store(to->withdrawn, 1);
    }
}
