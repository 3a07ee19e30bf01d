/* Long messages that both sides copy: the receiver reads the sender's array part by part (p2p/offer.c), and the sender, which
 * would only wait meanwhile, writes parts into the receiver's. Each side acquires the next free part, so the side with less time
 * copies less, and a sender that is busy elsewhere copies nothing. With a core for each, 16 MiB take two thirds of the time. From
 * a symmetric array to another one both copy without the kernel; to a private one, which only the kernel could write, the
 * receiver does it alone (1 MiB in 27 us, not 50).
 *
 * The receiver opens its array in the memory of the link, and closes it when the sender has finished its parts. A part is
 * acquired by compare-and-swap of the message's number and the count together, so that no part is acquired of a message that has
 * ended. If the receiver fails, window.h keeps the sender from its memory.
 * Measured on 2 cores, unproved elsewhere (docs/lab/mechanisms.md); ARRAYCOMM_WITHOUT=share switches it off. */
#include "p2p/peer.h"

#define PARTS 16                     /* of 128 KiB and more: system calls hardly show */
#define PART_MAX ((uint64_t)1 << 20) /* between two, other peers progress and failures are checked */
#define SHARE_FROM ((uint64_t)2 << 20) /* bytes; up to here the parts cost more (15 us) than half of the copy */
#define PAGE 4096u
#define INDEX ((UINT64_C(1) << LINK_PARTS_BITS) - 1)

static uint64_t part_bytes(uint64_t bytes)
{
    uint64_t part = bytes / PARTS / PAGE * PAGE;
    return part < PART_MAX ? part : PART_MAX;
}

static uint32_t count_parts(uint64_t bytes)
{
    uint64_t part = part_bytes(bytes);
    return (uint32_t)((bytes + part - 1) / part);
}

/* The acquired part; the last one is shorter. */
static uint64_t share_place(uint64_t bytes, uint64_t index, uint64_t *offset)
{
    uint64_t part = part_bytes(bytes);
    *offset = index * part;
    return bytes - *offset < part ? bytes - *offset : part;
}

/* Whether both sides may copy a message: the receiver checks it before it opens one, the sender before it writes. */
static bool share_fits(const struct p2p_item *item)
{
    return item->bytes > SHARE_FROM && item->bytes / PART_MAX < INDEX;
}

void p2p_share_open(struct p2p *p, struct p2p_peer *peer, struct p2p_item *item)
{
    struct link_parts *parts = peer->from->parts;
    struct direct_place to = direct_place(&p->group->direct, item->op->out, item->bytes);
    bool pays = item->place.how == DIRECT_PRIVATE || to.how == DIRECT_MAPPED;
    bool off = p->group->oversubscribed || p->group->without & ACOMM_NO_SHARE;
    if (!share_fits(item) || item->whole || !parts || !p->group->shared.base || off || !pays)
        return;
    item->shared = p->shares = true;
    item->mine = 0;
    atomic_store_explicit(&parts->to, to.at, memory_order_relaxed);
    atomic_store_explicit(&parts->mapped, to.how == DIRECT_MAPPED, memory_order_relaxed);
    atomic_store_explicit(&parts->written, 0, memory_order_relaxed);
    atomic_store_explicit(&parts->broken, 0, memory_order_relaxed);
    atomic_store_explicit(&parts->taken, (item->id + 1) << LINK_PARTS_BITS, memory_order_release);
    doorbell_ring(peer->from->theirs);
}

bool p2p_share_take(struct p2p_peer *peer, struct p2p_item *item, uint64_t *offset, uint64_t *bytes)
{
    struct link_parts *parts = peer->from->parts;
    uint64_t taken = atomic_load_explicit(&parts->taken, memory_order_relaxed), index;
    do {
        index = taken & INDEX;
        if (index >= count_parts(item->bytes) || item->mine >= count_parts(item->bytes)) /* the peer's count is not trusted */
            return false;
    } while (!atomic_compare_exchange_weak(&parts->taken, &taken, taken + 1));
    item->mine++;
    *bytes = share_place(item->bytes, index, offset);
    return true;
}

void p2p_share_stop(struct p2p_peer *peer, struct p2p_item *item, int errnum)
{
    uint64_t offset, bytes;
    item->errnum = errnum;
    while (p2p_share_take(peer, item, &offset, &bytes))
        ;
}

bool p2p_share_over(struct p2p_peer *peer, struct p2p_item *item)
{
    struct link_parts *parts = peer->from->parts;
    uint32_t written = atomic_load_explicit(&parts->written, memory_order_acquire);
    if ((uint64_t)written + item->mine < count_parts(item->bytes))
        return false;
    item->shared = false;
    item->whole = atomic_load_explicit(&parts->broken, memory_order_relaxed);
    atomic_store_explicit(&parts->taken, 0, memory_order_relaxed);
    return true;
}

/* ---- the sender ---- */

static struct p2p_item *shared_item(const struct p2p_peer *peer, uint64_t taken)
{
    for P2P_EACH (at, &peer->awaiting)
        if (P2P_ITEM(at)->id + 1 == taken >> LINK_PARTS_BITS)
            return share_fits(P2P_ITEM(at)) ? P2P_ITEM(at) : NULL;
    return NULL;
}

/* Copies a part of the item into the receiver's array; whether that succeeded. */
static bool write_part(struct p2p *p, const struct p2p_peer *peer, const struct p2p_item *item, struct direct_place to, uint64_t offset,
                       uint64_t bytes)
{
    int local_rank = p->group->hosts.local_rank[peer->rank];
    const char *from = item->op->in + offset;
    if (to.how == DIRECT_PRIVATE)
        return !window_write(&p->group->shared, local_rank, to.at + offset, from, bytes);
    bool inside = to.at <= ARENA_ROOM && item->bytes <= ARENA_ROOM;
    char *arena = inside ? symmetric_map(p->group, local_rank, to.at + item->bytes) : NULL;
    if (!arena || !window_enter(&p->group->shared, local_rank))
        return false;
    stream_long(arena + to.at + offset, from, bytes, item->bytes);
    window_leave(&p->group->shared);
    return true;
}

bool p2p_share_push(struct p2p *p, struct p2p_peer *peer)
{
    struct link_parts *parts = peer->to ? peer->to->parts : NULL;
    if (!parts || p2p_list_empty(&peer->awaiting))
        return false;
    uint64_t taken = atomic_load_explicit(&parts->taken, memory_order_acquire), offset;
    struct p2p_item *item = taken ? shared_item(peer, taken) : NULL;
    if (!item)
        return false;
    struct direct_place to = {.at = atomic_load_explicit(&parts->to, memory_order_relaxed), /* of this message, if the exchange succeeds */
                              .how = atomic_load_explicit(&parts->mapped, memory_order_relaxed) ? DIRECT_MAPPED : DIRECT_PRIVATE};
    if ((taken & INDEX) >= count_parts(item->bytes))
        return false;
    if (!atomic_compare_exchange_strong(&parts->taken, &taken, taken + 1))
        return true;
    uint64_t bytes = share_place(item->bytes, taken & INDEX, &offset);
    if (!write_part(p, peer, item, to, offset, bytes))
        atomic_store_explicit(&parts->broken, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&parts->written, 1, memory_order_release);
    doorbell_ring(peer->to->theirs);
    p->unseen += bytes;
    return true;
}
