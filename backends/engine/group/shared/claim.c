/* Where this rank's next contents go in its seat (shared.h). */
#include "group/group.h"
#include "group/shared/seat.h"

#define PLACES 512 /* of the large part of the area, at most */

/* The last round whose contents in this rank's area overlap [from, to) and may be read still; 0: none. */
static uint64_t last_there(const struct shared *s, uint64_t from, uint64_t to)
{
    for (uint64_t round = s->round; round && round + SHARED_AHEAD >= s->round; round--)
        if (s->laid[round % SHARED_SLOTS].from < to && from < s->laid[round % SHARED_SLOTS].to)
            return round;
    return 0;
}

/* Whether contents go to the small part of the area. Not those of a root that runs ahead: it needs room for as
 * many as it may be ahead, each wait for the others costs turns of all. */
static bool lies_near(const struct shared *s, const struct acomm_op *op, uint64_t bytes)
{
    bool one_way = op->kind == ACOMM_BROADCAST || op->kind == ACOMM_SCATTER;
    return op->group->crowded && !one_way && bytes <= s->piece / SHARED_NEAR;
}

/* Up to which round all ranks have to have come before others' contents may lie where those of `round` do. */
static uint64_t free_after(const struct shared *s, uint64_t round)
{
    return round ? round + 1 + s->laid[round % SHARED_SLOTS].later : 0;
}

/* Ranks with a core each go round a part of the area: who fills it finds lines that were given back long ago. */
static uint64_t next_place(const struct shared *s, bool near, uint64_t room, uint64_t bytes)
{
    return s->next[near] + bytes <= room ? s->next[near] : 0;
}

/* Marks the places of the large part of the area, step bytes each, whose contents may be read still. A look at each round, not one for each
 * place: a root may be SHARED_AHEAD rounds ahead (broadcast of 4100 B at 4 ranks takes 0.6 of the time). */
static void mark_taken(const struct shared *s, uint64_t room, uint64_t step, uint64_t *taken)
{
    uint64_t past = s->round;
    for (int rank = 0; rank < s->ranks; rank++)
        past = s->seen[rank] < past ? s->seen[rank] : past;
    for (uint64_t round = s->round; round && round + SHARED_AHEAD >= s->round && round + 2 > past; round--) {
        uint64_t from = s->laid[round % SHARED_SLOTS].from, to = s->laid[round % SHARED_SLOTS].to;
        bool counts = from < room && free_after(s, round) > past;
        for (uint64_t place = from / step; counts && place * step < to; place++)
            taken[place / 64] |= UINT64_C(1) << place % 64;
    }
}

/* Ranks that share cores keep to the first places, which stay in the caches beside their arrays (all_gather of 4 MiB at 4 and 8 ranks takes
 * 0.76 and 0.89 of the time). Contents lie at multiples of a power of two that holds them, so that none is in two quarters. Where nothing is
 * free, the quarter that will be first: those of the last two rounds are in two of them at most, and nobody waits for itself. */
static uint64_t first_place(const struct shared *s, uint64_t room, uint64_t bytes)
{
    uint64_t step = power_below(2 * bytes - 1), least_step = power_below(room / PLACES * 2), first = 0, least = UINT64_MAX;
    uint64_t taken[PLACES / 64] = {0};
    step = step < least_step ? least_step : step;
    mark_taken(s, room, step, taken);
    for (uint64_t at = 0, place = 0; at + bytes <= room; at += step, place++)
        if (!(taken[place / 64] >> place % 64 & 1))
            return at;
    for (uint64_t at = 0; at < room; at += room / SEAT_AREA_PIECES) {
        uint64_t until = free_after(s, last_there(s, at, at + bytes));
        first = until < least ? at : first;
        least = until < least ? until : least;
    }
    return first;
}

/* Waits until this rank may fill `bytes` of its area, and takes them. */
static int take_long(struct shared *s, struct acomm_op *op, uint64_t bytes, bool read_later, uint32_t *line)
{
    bool near = lies_near(s, op, bytes);
    uint64_t part = near ? far_bytes(s->piece) : 0, room = near ? near_bytes(s->piece) : far_bytes(s->piece);
    uint64_t at = op->group->crowded && !near ? first_place(s, room, bytes) : next_place(s, near, room, bytes);
    uint64_t next = s->round + 1, from = part + at, until = free_after(s, last_there(s, from, from + bytes));
    int rc = s->past < until ? shared_await_past(s, op, until) : 0;
    if (rc)
        return rc;
    *line = (uint32_t)(from / SHARED_LINE);
    s->laid[next % SHARED_SLOTS].from = from;
    s->laid[next % SHARED_SLOTS].to = from + bytes;
    s->laid[next % SHARED_SLOTS].later = read_later;
    s->next[near] = at + bytes;
    return 0;
}

/* The first place whose contents nobody reads any more: while all ranks keep step that is one of three, which stay in the
 * caches. */
static uint32_t take_short(struct shared *s)
{
    uint32_t k = 0;
    while (k < SHARED_SHORTS - 1 && s->used[k] && s->used[k] + 2 > s->past)
        k++;
    s->used[k] = s->round + 1;
    return k;
}

bool shared_take_cell(struct shared *s, bool read_later)
{
    uint64_t next = s->round + 1, seen = s->seen[1 - s->rank], turn = s->turns + 1, side = read_later ? turn / 2 : turn;
    uint32_t which = (uint32_t)((side + (uint64_t)s->rank) % 2 + (read_later ? turn % 2 * 2 : 0));
    s->turn = true;
    if (!seen || seen + 1 < next || seen < s->freed[which]) /* 0: its seat may not be there yet */
        return false;
    post_place(s, (struct shared_place){SEAT_CELL + which, SEAT_CELL + which});
    s->freed[which] = next + 1 + read_later;
    s->laid[next % SHARED_SLOTS].from = s->laid[next % SHARED_SLOTS].to = 0;
    return s->in_cell = true;
}

int shared_claim(struct shared *s, struct acomm_op *op, size_t bytes, bool read_later)
{
    uint64_t next = s->round + 1;
    uint64_t ahead = shared_ahead(op->group->crowded);
    int rc = next > s->past + ahead ? shared_await_past(s, op, next - ahead) : 0;
    if (rc)
        return rc;
    s->laid[next % SHARED_SLOTS].from = s->laid[next % SHARED_SLOTS].to = 0;
    s->in_cell = false;
    struct shared_place place = {0};
    rc = bytes > SHARED_SHORT ? take_long(s, op, round_up(bytes, SHARED_LINE), read_later, &place.line) : 0;
    if (rc || bytes <= SHARED_TINY)
        return rc;
    place.place = take_short(s); /* of long ones too: their last piece may be short */
    post_place(s, place);
    return 0;
}
