#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "arena.h"
#include "group.h"
#include "pages.h"
#include "shared.h"
#include "wait.h"

#define PAGE 4096u
#define RINGS_BUDGET (64u << 20) /* bytes of all rings of a channel together; they cost memory only once used */
#define RING_MIN (8u << 10)
#define RING_MAX (2u << 20)      /* twice a core's own caches, see link_shm.c */
#define PIECE_MIN (4u << 10)
#define PIECE_MAX (512u << 10)
#define AREA_PIECES 4            /* see shared.h */
#define CELL (UINT32_MAX - (SHARED_CELLS - 1)) /* a place beyond all others: the first of the cells */
#define WIDEST 16               /* bytes of the widest element */
#define SEATS_BUDGET (8u << 20) /* bytes of all slots together: a cache that cores share holds them beside the arrays */

struct slot {
    _Atomic uint64_t stamp;      /* the round whose contents lie here; its low half is the futex */
    acomm_header header;
    union {
        char tiny[SHARED_TINY];
        struct { uint32_t place, line; }; /* of short contents, by number; of long ones, in lines of the seat's area; or CELL + which */
    };
};
_Static_assert(sizeof(struct slot) == SHARED_LINE, "a slot's head is one cache line");
_Static_assert(SHARED_SLOTS == 32, "struct shared has a bit for each");

/* The beginning of a seat: how many ranks sleep on one of its slots, the bell of the links, and who writes where.
 * `place`: see places.h; 0 not known. */
struct seat {
    _Alignas(SHARED_LINE) _Atomic uint32_t sleepers;
    _Atomic int32_t place;
    _Atomic uint64_t settled; /* up to here the rank has compared what others called with what it called as their root */
    _Alignas(SHARED_LINE) struct core_turn turn;
    _Alignas(SHARED_LINE) struct bell bell;
    struct window window;
};

static uint64_t round_up(uint64_t value, uint64_t to)
{
    return (value + to - 1) / to * to;
}

static uint64_t power_below(uint64_t value)
{
    uint64_t p = 1;
    while (p <= value / 2)
        p *= 2;
    return p;
}

uint64_t shared_piece(int ranks, uint64_t wanted)
{
    uint64_t least = 2 * power_below((uint64_t)ranks * WIDEST); /* one element for every rank */
    uint64_t piece = power_below(SEATS_BUDGET / AREA_PIECES / (uint64_t)ranks + 1);
    piece = wanted ? power_below(wanted) : piece > PIECE_MAX ? PIECE_MAX : piece < PIECE_MIN ? PIECE_MIN : piece;
    return piece < least ? least : piece;
}

static size_t ring_size(int ranks)
{
    uint64_t pairs = ranks > 1 ? (uint64_t)ranks * (uint64_t)(ranks - 1) : 1;
    uint64_t bytes = power_below(RINGS_BUDGET / pairs + 1);
    return bytes > RING_MAX ? RING_MAX : bytes < RING_MIN ? RING_MIN : bytes;
}

#define HEAD_BYTES (2 * SHARED_LINE) /* some processors fetch lines in pairs */
#define HEADS_BYTES (SHARED_SLOTS * HEAD_BYTES)
#define SHORTS_BYTES (SHARED_SHORTS * SHARED_SHORT)

static uint64_t far_bytes(uint64_t piece)
{
    return AREA_PIECES * round_up(piece, SHARED_LINE);
}

/* Ranks that share cores leave more than their contents in the caches: those of up to a fraction of a piece have a small part
 * of the area to themselves, behind the large one. */
static uint64_t near_bytes(uint64_t piece)
{
    return AREA_PIECES * round_up(piece / SHARED_NEAR, SHARED_LINE);
}

static uint64_t area_bytes(uint64_t piece)
{
    return far_bytes(piece) + near_bytes(piece);
}

static uint64_t seat_bytes(int ranks, uint64_t piece)
{
    uint64_t cells = ranks == 2 ? SHARED_CELLS / 2 * (uint64_t)SHARED_CELL : 0;
    return round_up(sizeof(struct seat) + HEADS_BYTES + SHORTS_BYTES + area_bytes(piece), PAGE) + cells;
}

static uint64_t rings_bytes(int ranks)
{
    return (uint64_t)ranks * (uint64_t)ranks * round_up(link_shm_footprint(ring_size(ranks)), PAGE);
}

static uint64_t mapped_bytes(int ranks, uint64_t piece)
{
    return (uint64_t)ranks * seat_bytes(ranks, piece) + 2 * rings_bytes(ranks);
}

uint64_t shared_bytes(int ranks, uint64_t piece)
{
    return mapped_bytes(ranks, piece) + (uint64_t)ranks * ARENA_BYTES;
}

uint64_t shared_arena_offset(const struct shared *s, int rank)
{
    return s->bytes + (uint64_t)rank * ARENA_BYTES;
}

char *shared_map_arena(const struct shared *s, int rank)
{
    void *at = mmap(NULL, ARENA_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, s->fd, (off_t)shared_arena_offset(s, rank));
    return at == MAP_FAILED ? NULL : at;
}

int shared_open(struct shared *s, int fd, uint64_t bytes, int rank, int ranks, uint64_t piece)
{
    *s = (struct shared){.fd = -1, .rank = rank, .ranks = ranks, .piece = piece,
                         .bytes = mapped_bytes(ranks, piece)};
    s->ring_bytes = ring_size(ranks);
    s->seat_bytes = seat_bytes(ranks, piece);
    if (bytes < shared_bytes(ranks, piece))
        return errno = EINVAL, ACOMM_ARGUMENT;
    s->seen = calloc((size_t)ranks, sizeof *s->seen + sizeof *s->processes);
    if (!s->seen)
        return ACOMM_RESOURCE;
    s->processes = (_Atomic int32_t *)(s->seen + ranks);
    s->fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (s->fd < 0)
        goto fail;
    s->base = mmap(NULL, s->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, s->fd, 0);
    if (s->base == MAP_FAILED) {
        s->base = NULL;
        goto fail;
    }
    if (pages_reserve(s->fd, (uint64_t)rank * seat_bytes(ranks, piece), seat_bytes(ranks, piece)))
        goto fail;
    window_open(s);
    return 0;
fail:;
    int saved = errno;
    shared_close(s);
    errno = saved;
    return ACOMM_RESOURCE;
}

void shared_close(struct shared *s)
{
    if (s->base)
        munmap(s->base, s->bytes);
    if (s->fd >= 0)
        close(s->fd);
    free(s->seen);
    *s = (struct shared){.fd = -1};
}

static struct seat *seat_of(const struct shared *s, int rank)
{
    return (struct seat *)(s->base + (uint64_t)rank * s->seat_bytes);
}

static struct slot *slot_of(const struct shared *s, int rank, uint64_t round)
{
    char *first = (char *)seat_of(s, rank) + sizeof(struct seat);
    return (struct slot *)(first + round % SHARED_SLOTS * HEAD_BYTES);
}

static char *shorts_of(const struct shared *s, int rank)
{
    return (char *)seat_of(s, rank) + sizeof(struct seat) + HEADS_BYTES;
}

acomm_header *shared_header(const struct shared *s, int rank, uint64_t round)
{
    return &slot_of(s, rank, round)->header;
}

/* Two at the end of each seat. */
static char *cell_of(const struct shared *s, uint32_t which)
{
    return (char *)seat_of(s, (int)(which % 2)) + s->seat_bytes - (which / 2 + 1) * (uint64_t)SHARED_CELL;
}

/* What may change between two looks is looked at once. */
static uint32_t once(const uint32_t *at)
{
    return *(const volatile uint32_t *)at;
}

char *shared_data(const struct shared *s, int rank, uint64_t round, size_t bytes)
{
    struct slot *slot = slot_of(s, rank, round);
    if (bytes <= SHARED_TINY)
        return slot->tiny;
    uint32_t at = once(bytes <= SHARED_SHORT ? &slot->place : &slot->line);
    if (at >= CELL && s->ranks == 2) /* whatever a peer says, we stay inside */
        return cell_of(s, at % SHARED_CELLS);
    if (bytes <= SHARED_SHORT)
        return shorts_of(s, rank) + at % SHARED_SHORTS * SHARED_SHORT;
    uint64_t offset = (uint64_t)at * SHARED_LINE, last = area_bytes(s->piece) - bytes;
    return shorts_of(s, rank) + SHORTS_BYTES + (offset < last ? offset : last);
}

static uint32_t *futex_word(struct slot *slot)
{
    char *stamp = (char *)&slot->stamp;
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    stamp += 4;
#endif
    return (uint32_t *)stamp;
}

void shared_publish(struct shared *s)
{
    struct slot *slot = slot_of(s, s->rank, ++s->round);
    s->seen[s->rank] = s->round;
    s->turns += s->turn;
    s->turn = false;
    /* Sequentially consistent: a sleeper announces itself before it looks at the stamp once more, so either it sees
     * this stamp or we see it. */
    atomic_store(&slot->stamp, s->round);
    if (atomic_load(&seat_of(s, s->rank)->sleepers))
        syscall(SYS_futex, futex_word(slot), FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

void shared_leave(struct shared *s, const struct acomm_op *op)
{
    if (!s->open)
        s->settled = s->round - 1;
    op_header(op, &s->called[s->round % SHARED_SLOTS]);
    s->open |= 1u << s->round % SHARED_SLOTS;
}

/* Whether all ranks called the same in a round. Its root's word is enough: ours was compared with the root's. The word comes
 * after its looks (release), and the slots are not filled again before ours (acquire, and SHARED_AHEAD). */
static bool alike(const struct shared *s, uint64_t round)
{
    const char *first = (const char *)&slot_of(s, 0, round)->header;
    const acomm_header *mine = &s->called[round % SHARED_SLOTS];
    int root = mine->root;
    if (root != s->rank && atomic_load_explicit(&seat_of(s, root)->settled, memory_order_acquire) >= round)
        return true;
    for (int rank = 0; rank < s->ranks; rank++)
        if (rank != s->rank && memcmp(first + (uint64_t)rank * s->seat_bytes, mine, sizeof *mine))
            return false;
    return true;
}

bool shared_alike(const struct shared *s, uint64_t last)
{
    for (uint64_t round = s->settled + 1; round <= last; round++)
        if (shared_is_open(s, round) && !alike(s, round))
            return false;
    return true;
}

void shared_settle(struct shared *s, uint64_t round)
{
    while (s->settled < round)
        s->open &= ~(1u << ++s->settled % SHARED_SLOTS);
    atomic_store_explicit(&seat_of(s, s->rank)->settled, round, memory_order_release);
}

static void sleep_on(struct shared *s, int rank, uint64_t round)
{
    struct slot *slot = slot_of(s, rank, round);
    struct timespec t = {0, WAIT_SLEEP_NS};
    struct seat *seat = seat_of(s, rank);
    atomic_fetch_add(&seat->sleepers, 1);
    uint64_t stamp = atomic_load(&slot->stamp);
    if (stamp < round)
        syscall(SYS_futex, futex_word(slot), FUTEX_WAIT, (uint32_t)stamp, &t, NULL, 0);
    atomic_fetch_sub(&seat->sleepers, 1);
}

static uint64_t stamp_of(const struct shared *s, int rank, uint64_t round)
{
    return atomic_load_explicit(&slot_of(s, rank, round)->stamp, memory_order_acquire);
}

/* Whether a rank from `rank` to `last` has not come that was last seen on our processor. */
static bool in_our_way(struct shared *s, int rank, int last, uint64_t round)
{
    int32_t here = places_say(s);
    for (; rank <= last; rank++)
        if (atomic_load_explicit(shared_place(s, rank), memory_order_relaxed) == here && s->seen[rank] < round
            && stamp_of(s, rank, round) < round)
            return true;
    return false;
}

static int wait_once(struct shared *s, struct wait *w, int rank, int last, uint64_t round)
{
    bool crowded = w->op->group->crowded;
    if (crowded)
        w->where = in_our_way(s, rank, last, round) ? WAIT_HERE : WAIT_APART;
    if ((crowded || wait_spun(w)) && places_spread(&s->places, s))
        wait_moved(w);
    int rc = wait_step(w);
    if (!rc && w->sleepy) {
        sleep_on(s, rank, round);
        wait_woke(w);
    }
    return rc;
}

/* Nobody is further ahead of us, and a slot holds rounds of its own only: what else a rank says it has come to is not believed,
 * as we would not wait for it any more. */
static int note(struct shared *s, struct acomm_op *op, int rank, uint64_t round, uint64_t stamp)
{
    if (stamp > s->round + SHARED_AHEAD || (stamp - round) % SHARED_SLOTS)
        return group_fail_op(op, ACOMM_PROTOCOL, team_member(&op->group->hosts.host, rank), 0,
                             "its part of the shared memory tells of a round that it cannot have come to");
    s->seen[rank] = stamp;
    return 0;
}

/* Ranks up to `last` are awaited next. */
static int await(struct shared *s, struct acomm_op *op, int rank, int last, uint64_t round)
{
    if (s->seen[rank] >= round)
        return 0;
    uint64_t stamp = stamp_of(s, rank, round);
    struct wait w = {0};
    while (stamp < round) {
        if (!w.op)
            w = wait_start(op);
        int rc = wait_once(s, &w, rank, last, round);
        if (rc)
            return rc == WAIT_LEAVE ? rc : group_fail_op(op, rc, team_member(&op->group->hosts.host, rank), 0, NULL);
        stamp = stamp_of(s, rank, round);
    }
    return note(s, op, rank, round, stamp);
}

int shared_await(struct shared *s, struct acomm_op *op, int rank, uint64_t round)
{
    return await(s, op, rank, rank, round);
}

int shared_await_on(struct shared *s, struct acomm_op *op, int rank, uint64_t round)
{
    return await(s, op, rank, s->ranks - 1, round);
}

/* As shared_await(), looking first at a later round: where this rank is ahead of `rank`, that saves most of the looks. */
static int await_far(struct shared *s, struct acomm_op *op, int rank, uint64_t round)
{
    uint64_t far = round + SHARED_AHEAD / 2;
    if (s->seen[rank] >= round)
        return 0;
    far = far < s->round ? far : s->round;
    uint64_t stamp = stamp_of(s, rank, far);
    int rc = stamp >= far ? note(s, op, rank, far, stamp) : 0;
    return rc ? rc : shared_await_on(s, op, rank, round);
}

static int await_past(struct shared *s, struct acomm_op *op, uint64_t round)
{
    uint64_t least = s->round;
    for (int rank = 0; rank < s->ranks; rank++) {
        int rc = await_far(s, op, rank, round);
        if (rc)
            return rc;
        least = s->seen[rank] < least ? s->seen[rank] : least;
    }
    s->past = least;
    return 0;
}

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

/* Waits until this rank may fill `bytes` of its area, and takes them. */
static int take_long(struct shared *s, struct acomm_op *op, uint64_t bytes)
{
    bool near = lies_near(s, op, bytes);
    uint64_t part = near ? far_bytes(s->piece) : 0, room = near ? near_bytes(s->piece) : far_bytes(s->piece);
    uint64_t next = s->round + 1, from = part + (s->next[near] + bytes <= room ? s->next[near] : 0);
    uint64_t there = last_there(s, from, from + bytes);
    int rc = there && s->past < there + 2 ? await_past(s, op, there + 2) : 0;
    if (rc)
        return rc;
    slot_of(s, s->rank, next)->line = (uint32_t)(from / SHARED_LINE);
    s->laid[next % SHARED_SLOTS].from = from;
    s->laid[next % SHARED_SLOTS].to = from + bytes;
    s->next[near] = from - part + bytes;
    return 0;
}

/* The first place whose contents nobody reads any more: while all ranks keep step that is one of three, which stay in the
 * caches. */
static void take_short(struct shared *s)
{
    uint64_t next = s->round + 1;
    int k = 0;
    while (k < SHARED_SHORTS - 1 && s->used[k] && s->used[k] + 2 > s->past)
        k++;
    s->used[k] = next;
    slot_of(s, s->rank, next)->place = (uint32_t)k;
}

bool shared_take_cell(struct shared *s, bool read_later)
{
    uint64_t next = s->round + 1, seen = s->seen[1 - s->rank], turn = s->turns + 1, side = read_later ? turn / 2 : turn;
    uint32_t which = (uint32_t)((side + (uint64_t)s->rank) % 2 + (read_later ? turn % 2 * 2 : 0));
    s->turn = true;
    if (!seen || seen + 1 < next || seen < s->freed[which]) /* 0: its seat may not be there yet */
        return false;
    struct slot *slot = slot_of(s, s->rank, next);
    slot->place = slot->line = CELL + which;
    s->freed[which] = next + 1 + read_later;
    s->laid[next % SHARED_SLOTS].from = s->laid[next % SHARED_SLOTS].to = 0;
    return s->in_cell = true;
}

int shared_claim(struct shared *s, struct acomm_op *op, size_t bytes)
{
    uint64_t next = s->round + 1;
    int rc = next > s->past + SHARED_AHEAD ? await_past(s, op, next - SHARED_AHEAD) : 0;
    if (rc)
        return rc;
    s->laid[next % SHARED_SLOTS].from = s->laid[next % SHARED_SLOTS].to = 0;
    s->in_cell = false;
    if (bytes > SHARED_SHORT)
        places_say(s); /* others may wait for us while we copy */
    rc = bytes > SHARED_SHORT ? take_long(s, op, round_up(bytes, SHARED_LINE)) : 0;
    if (!rc && bytes > SHARED_TINY)
        take_short(s); /* long ones too: their last piece may be short */
    return rc;
}

void shared_all_came(struct shared *s, uint64_t round)
{
    s->past = round;
}

_Atomic int32_t *shared_place(const struct shared *s, int rank)
{
    return &seat_of(s, rank)->place;
}

struct core_turn *shared_turn(const struct shared *s, int rank)
{
    return &seat_of(s, rank)->turn;
}

struct bell *shared_bell(const struct shared *s, int rank)
{
    return &seat_of(s, rank)->bell;
}

struct window *shared_window(const struct shared *s, int rank)
{
    return &seat_of(s, rank)->window;
}

struct link_ring *shared_ring(struct shared *s, enum channel channel, int from, int to)
{
    uint64_t footprint = round_up(link_shm_footprint(s->ring_bytes), PAGE);
    uint64_t offset = (uint64_t)s->ranks * s->seat_bytes;
    if (channel == CHANNEL_COLLECTIVE)
        offset += rings_bytes(s->ranks);
    offset += ((uint64_t)from * (uint64_t)s->ranks + (uint64_t)to) * footprint;
    return pages_reserve(s->fd, offset, footprint) ? NULL : (struct link_ring *)(s->base + offset);
}
