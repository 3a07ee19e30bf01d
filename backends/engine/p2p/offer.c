/* Long messages that their receiver reads where they lie: out of a symmetric array, which it maps, or out of the sender's memory,
 * where the system permits that and where it costs less than two copies through the ring.
 *
 * The sender stands still until it is told DONE, or writes parts itself (p2p/share.c). If its operation ends before, by a deadline, say, its caller may write
 * into the array again: it withdraws first, and the receiver looks for that after its last byte. What was read without a
 * withdrawal after it is what was sent; after one the receive waits for the failure that is under way. */
#include <errno.h>

#include "base/clock.h"
#include "p2p/peer.h"

#define PART ((uint64_t)1 << 20) /* bytes at a time; between two every peer has its turn and failures are seen */
#define MAPPED_MIN (32u << 10)   /* bytes; an eager message is done sooner below, because nobody waits for DONE, */
#define MAPPED_MIN_OVERSUBSCRIBED (128u << 10) /* for which ranks that share cores need a turn: 32 and 64 KiB take 0.65 and 0.79 of the time at 4 */

enum { STAGED, READ, WAYS };

struct wire_place p2p_offer_place(struct p2p *p, const struct p2p_peer *peer, const struct p2p_item *item)
{
    uint64_t mapped = p->group->oversubscribed ? MAPPED_MIN_OVERSUBSCRIBED : MAPPED_MIN;
    uint64_t least = p->group->direct.arena ? mapped : WIRE_EAGER_NEAR + 1;
    if (item->bytes < least || !peer->to->withdrawn)
        return (struct wire_place){.how = DIRECT_NOTHING};
    struct direct_place place = direct_place(&p->group->direct, item->op->in, item->bytes);
    return (struct wire_place){.at = place.at, .how = place.how};
}

bool p2p_offer_valid(const struct wire_place *place, uint64_t bytes)
{
    if (place->how == DIRECT_MAPPED)
        return place->at <= ARENA_ROOM && bytes <= ARENA_ROOM;
    return place->how == DIRECT_PRIVATE;
}

static struct choice *offer_choice_of(struct p2p *p, const struct p2p_item *item)
{
    return choice_for(p->ways[item->place.how == DIRECT_MAPPED], item->bytes);
}

/* Asked for once. */
static bool reaches(const struct acomm_group *g, struct p2p_peer *peer)
{
    if (!peer->asked)
        peer->unreadable |= !window_reaches(&g->shared, g->hosts.local_rank[peer->rank]);
    peer->asked = true;
    return !peer->unreadable;
}

/* By trials, but for what two copies never cost less: long arrays that are mapped, which lie in no cache of the sender's. */
static int offer_choose(struct p2p *p, struct p2p_peer *peer, const struct p2p_item *item)
{
    bool mapped = item->place.how == DIRECT_MAPPED;
    if (mapped ? !symmetric_map(p->group, p->group->hosts.local_rank[peer->rank], item->place.at + item->bytes) : !reaches(p->group, peer))
        return STAGED;
    if (p->forced)
        return strcmp(p->forced, "read") ? STAGED : READ;
    if (mapped && item->bytes >= STREAM_LONG)
        return READ;
    struct choice *c = offer_choice_of(p, item);
    return choice_way(c->tries, item->bytes, c->cost, WAYS, CHOICE_SELDOM);
}

bool p2p_offer_accept(struct p2p *p, struct p2p_peer *peer, struct p2p_item *item)
{
    if (item->place.how == DIRECT_NOTHING || !peer->from->withdrawn)
        return false;
    item->began = clock_now();
    item->spent = p->group->oversubscribed ? clock_spent() : 0;
    item->copying = 0;
    item->thread = pthread_self();
    item->staged = offer_choose(p, peer, item) == STAGED;
    if (!item->staged)
        p2p_list_move(&peer->reading, &item->here);
    return !item->staged;
}

/* Where ranks take turns on the cores it is the work that counts, of two who copy through a ring: by time a message that is read at
 * once overtakes those that are copied, and would always seem to cost less. In processor time, as a rank is mostly preempted within
 * a long part that the kernel copies. Through a ring the sender copies as much, and both wait for each other again and again: the
 * receiver's part of that counts where it did nothing else. (What a message of 2 and 16 MiB keeps a core busy for, by the kernel and
 * through a ring, in ms: 8 ranks 0.46 and 0.42, 2.3 and 3.2, taken for 0.41 and 0.37, 2.1 and 2.4; 4 ranks 0.38 and 0.35, 2.6 and
 * 2.5, taken for 0.30 and 0.28, 2.4 and 1.8.) */
static int64_t offer_work(const struct p2p_item *item)
{
    if (!item->staged)
        return item->copying;
    bool waited = !item->async && pthread_equal(item->thread, pthread_self());
    return item->copying + (waited ? clock_spent() - item->spent : item->copying);
}

void p2p_offer_learn(struct p2p *p, const struct p2p_item *item)
{
    if (!item->began)
        return;
    struct choice *c = offer_choice_of(p, item);
    bool shares = p->group->oversubscribed;
    choice_learn(c, item->staged ? STAGED : READ, item->bytes, shares ? offer_work(item) : clock_now() - item->began, shares);
}

static int read_part(struct p2p *p, struct p2p_peer *peer, struct p2p_item *item, uint64_t bytes)
{
    char *to = item->op->out + item->moved;
    uint64_t from = item->place.at + item->moved;
    bool timed = p->group->oversubscribed; /* a system call, which short parts would feel */
    int64_t before = timed ? clock_spent() : 0;
    int errnum = 0, local_rank = p->group->hosts.local_rank[peer->rank];
    p->unseen += bytes;
    if (item->place.how == DIRECT_PRIVATE)
        errnum = peer_memory_read(window_process(&p->group->shared, local_rank), from, to, bytes);
    else
        stream_long(to, symmetric_map(p->group, local_rank, from + bytes) + from, bytes, item->bytes);
    if (timed)
        item->copying += clock_spent() - before;
    return errnum;
}

static void offer_reply(struct p2p_peer *peer, struct p2p_item *item, int with)
{
    item->reply = with;
    p2p_list_move(&peer->replies, &item->here);
}

/* It cannot be read, for a reason that may be this array's or, EPERM and ENOSYS, the system's. A process that has gone is
 * found by the node. */
static void ask_for_it(struct p2p_peer *peer, struct p2p_item *item, int errnum)
{
    peer->unreadable |= errnum == EPERM || errnum == ENOSYS || errnum == EACCES;
    item->moved = 0;
    item->began = 0;
    item->staged = true;
    offer_reply(peer, item, P2P_CLEAR);
}

/* All of the data is here. */
static bool offer_complete(struct p2p *p, struct p2p_peer *peer, struct p2p_item *item)
{
    atomic_thread_fence(memory_order_acquire); /* the data was read before this look */
    if (atomic_load_explicit(peer->from->withdrawn, memory_order_relaxed))
        return false;
    p2p_offer_learn(p, item);
    offer_reply(peer, item, P2P_DONE);
    return true;
}

/* The same while the sender writes parts of it; whether anything moved. */
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
    item->moved = 0; /* should the sender have failed to write a part, all is read again */
    if (item->errnum)
        ask_for_it(peer, item, item->errnum);
    return item->errnum || item->whole || offer_complete(p, peer, item);
}

bool p2p_offer_pull(struct p2p *p, struct p2p_peer *peer)
{
    if (p2p_list_empty(&peer->reading) || atomic_load_explicit(peer->from->withdrawn, memory_order_relaxed))
        return false;
    struct p2p_item *item = P2P_ITEM(peer->reading.next);
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
    return part < left || offer_complete(p, peer, item);
}

void p2p_offer_withdraw(struct p2p *p)
{
    for (int i = 0; i < p->opened; i++) {
        const struct link *to = p->peers[p->open[i]]->to;
        if (to && to->withdrawn)
            atomic_store(to->withdrawn, 1);
    }
}
