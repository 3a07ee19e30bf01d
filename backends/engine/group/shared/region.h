/* How a rank's region in the shared segment is laid out (shared.h): its state, the heads of its slots, places for short contents,
 * the area for long ones, and at its end the exchange buffers. For shared.c alone. */
#ifndef ACOMM_REGION_H
#define ACOMM_REGION_H
#include "group/shared/shared.h"

#define REGION_PAGE 4096u
#define REGION_AREA_PIECES 4       /* see shared.h */
#define REGION_PAIRS_PIECES 2      /* what the places of a rank's pairs hold together; with 1, 2 and 4 pieces all_to_all and reduce_scatter of
                                  * 512 KiB to 2 MiB take 0.82, 0.77 and 0.77 of the time without at 8 ranks, 0.84, 0.79, 0.82 at 4 */
#define REGION_CELL (UINT32_MAX - (SHARED_CELLS - 1)) /* a place beyond all others: the first of the cells */
#define REGION_HEAD (2 * SHARED_LINE) /* bytes; some processors fetch lines in pairs */
#define REGION_HEADS (SHARED_SLOTS * REGION_HEAD)
#define REGION_SHORTS (SHARED_SHORTS * SHARED_SHORT)

struct slot {
    _Atomic uint64_t stamp;      /* the round whose contents lie here; its low half is the futex */
    acomm_header header;
    union {
        char tiny[SHARED_TINY];
        struct shared_place place; /* of short contents, by number; of long ones, in lines of the region's area; or REGION_CELL + which */
    };
};
_Static_assert(sizeof(struct slot) == SHARED_LINE, "a slot's head is one cache line");

static inline uint64_t round_up(uint64_t value, uint64_t to)
{
    return (value + to - 1) / to * to;
}

static inline uint64_t power_below(uint64_t value)
{
    uint64_t p = 1;
    while (p <= value / 2)
        p *= 2;
    return p;
}

static inline uint64_t area_bytes(uint64_t piece)
{
    return REGION_AREA_PIECES * round_up(piece, SHARED_LINE);
}

/* Of each place of two ranks, one in the region of either (shared_pair). */
static inline uint64_t pair_bytes(int ranks, uint64_t piece)
{
    uint64_t room = REGION_PAIRS_PIECES * piece / (uint64_t)(ranks - 1) / SHARED_LINE * SHARED_LINE;
    return room ? room : SHARED_LINE;
}

/* The exchange buffers, at the end of a region. */
static inline uint64_t hands_bytes(int ranks, uint64_t piece)
{
    uint64_t pairs = ranks > 2 ? (uint64_t)ranks * pair_bytes(ranks, piece) : 0;
    return ranks == 2 ? SHARED_CELLS / 2 * (uint64_t)SHARED_CELL : round_up(pairs, REGION_PAGE);
}

static inline uint64_t region_bytes(int ranks, uint64_t piece)
{
    uint64_t own = sizeof(struct region) + REGION_HEADS + REGION_SHORTS + area_bytes(piece);
    return round_up(own, REGION_PAGE) + hands_bytes(ranks, piece);
}

static inline struct slot *slot_of(const struct shared *s, int rank, uint64_t round)
{
    char *first = (char *)region_of(s, rank) + sizeof(struct region);
    return (struct slot *)(first + round % SHARED_SLOTS * REGION_HEAD);
}

static inline char *shorts_of(const struct shared *s, int rank)
{
    return (char *)region_of(s, rank) + sizeof(struct region) + REGION_HEADS;
}

/* Publishes where this rank's contents of the next round lie. */
static inline void post_place(struct shared *s, struct shared_place place)
{
    s->posted[(s->round + 1) % SHARED_SLOTS] = slot_of(s, s->rank, s->round + 1)->place = place;
}
#endif
