/* The shared segment of a group's ranks on one host: its layout, the rounds, and where this rank's next contents go in its region
 * (shared.h). */
#include <limits.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "group/group.h"
#include "memory/pages.h"
#include "group/shared/region.h"

#define RINGS_BUDGET (64u << 20) /* bytes of all rings of a channel together; they cost memory only once used */
#define RING_MIN (8u << 10)
#define RING_MAX (2u << 20)      /* twice a core's own caches, see link/shm.c */
#define PIECE_MIN (4u << 10)
#define PIECE_MAX (512u << 10)
#define WIDEST 16               /* bytes of the widest element */
#define REGIONS_BUDGET (8u << 20) /* bytes of all slots together: a cache that cores share holds them beside the arrays */

uint64_t shared_piece(int ranks, uint64_t wanted)
{
    uint64_t least = 2 * power_below((uint64_t)ranks * WIDEST); /* one element for every rank */
    uint64_t piece = power_below(REGIONS_BUDGET / REGION_AREA_PIECES / (uint64_t)ranks + 1);
    piece = wanted ? power_below(wanted) : piece > PIECE_MAX ? PIECE_MAX : piece < PIECE_MIN ? PIECE_MIN : piece;
    return piece < least ? least : piece;
}

static size_t ring_size(int ranks)
{
    uint64_t pairs = ranks > 1 ? (uint64_t)ranks * (uint64_t)(ranks - 1) : 1;
    uint64_t bytes = power_below(RINGS_BUDGET / pairs + 1);
    return bytes > RING_MAX ? RING_MAX : bytes < RING_MIN ? RING_MIN : bytes;
}

static uint64_t rings_bytes(int ranks)
{
    return (uint64_t)ranks * (uint64_t)ranks * round_up(link_shm_footprint(ring_size(ranks)), REGION_PAGE);
}

static uint64_t mapped_bytes(int ranks, uint64_t piece)
{
    return (uint64_t)ranks * region_bytes(ranks, piece) + 2 * rings_bytes(ranks);
}

uint64_t shared_bytes(int ranks, uint64_t piece, bool arenas)
{
    return mapped_bytes(ranks, piece) + (arenas ? (uint64_t)ranks * ARENA_BYTES : 0);
}

uint64_t shared_arena_offset(const struct shared *s, int rank)
{
    return s->bytes + (uint64_t)rank * ARENA_BYTES;
}

int shared_open(struct shared *s, int fd, uint64_t bytes, int rank, int ranks, uint64_t piece)
{
    *s = (struct shared){.fd = -1, .rank = rank, .ranks = ranks, .piece = piece,
                         .bytes = mapped_bytes(ranks, piece)};
    s->ring_bytes = ring_size(ranks);
    s->region_bytes = region_bytes(ranks, piece);
    s->arenas = bytes >= shared_bytes(ranks, piece, true);
    if (bytes < s->bytes)
        return errno = EINVAL, ACOMM_ARGUMENT;
    s->seen = calloc((size_t)ranks, sizeof *s->seen + sizeof *s->processes);
    if (!s->seen)
        return ACOMM_RESOURCE;
    s->processes = (int32_t *)(s->seen + ranks);
    s->fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (s->fd < 0)
        goto fail;
    s->base = mmap(NULL, s->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, s->fd, 0);
    if (s->base == MAP_FAILED) {
        s->base = NULL;
        goto fail;
    }
    madvise(s->base, s->bytes, MADV_DONTDUMP); /* a core dump would bring all of its pages in */
    if (pages_reserve(s->fd, (uint64_t)rank * region_bytes(ranks, piece), region_bytes(ranks, piece)))
        goto fail;
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

acomm_header *shared_header(const struct shared *s, int rank, uint64_t round)
{
    return &slot_of(s, rank, round)->header;
}

/* Two at the end of each region. */
static char *shared_cell_of(const struct shared *s, uint32_t which)
{
    return (char *)region_of(s, (int)(which % 2)) + s->region_bytes - (which / 2 + 1) * (uint64_t)SHARED_CELL;
}

uint64_t shared_pair_room(const struct shared *s)
{
    return pair_bytes(s->ranks, s->piece);
}

char *shared_pair(const struct shared *s, int from, int to)
{
    bool own = (s->turns + s->turn) % 2; /* in the next turn the place holds the other rank's contents */
    char *end = (char *)region_of(s, own ? from : to) + s->region_bytes;
    return end - (uint64_t)(s->ranks - (own ? to : from)) * pair_bytes(s->ranks, s->piece);
}

char *shared_data(const struct shared *s, int rank, uint64_t round, size_t bytes)
{
    struct slot *slot = slot_of(s, rank, round);
    if (bytes <= SHARED_TINY)
        return slot->tiny;
    const struct shared_place *place = rank == s->rank ? &s->posted[round % SHARED_SLOTS] : &slot->place;
    const volatile uint32_t *said = bytes <= SHARED_SHORT ? &place->place : &place->line;
    uint32_t at = *said; /* one look: it may change */
    if (at >= REGION_CELL && s->ranks == 2 && bytes <= SHARED_CELL) /* a peer's value is not trusted: the result stays inside */
        return shared_cell_of(s, at % SHARED_CELLS);
    if (bytes <= SHARED_SHORT)
        return shorts_of(s, rank) + at % SHARED_SHORTS * SHARED_SHORT;
    uint64_t offset = (uint64_t)at * SHARED_LINE, last = area_bytes(s->piece) - bytes;
    return shorts_of(s, rank) + REGION_SHORTS + (offset < last ? offset : last);
}

static uint32_t *futex_word(struct slot *slot)
{
    char *stamp = (char *)&slot->stamp;
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    stamp += 4;
#endif
    return (uint32_t *)stamp;
}

void shared_commit(struct shared *s)
{
    struct slot *slot = slot_of(s, s->rank, ++s->round);
    s->seen[s->rank] = s->round;
    s->turns += s->turn;
    s->turn = false;
    /* Sequentially consistent: a sleeper announces itself before it looks at the stamp once more, so either it sees
     * this stamp or we see it. */
    atomic_store(&slot->stamp, s->round);
    if (atomic_load(&region_of(s, s->rank)->sleepers))
        futex_wake(futex_word(slot), INT_MAX, true);
}

void shared_leave(struct shared *s, const struct acomm_op *op)
{
    if (!shared_any_open(s))
        s->settled = s->round - 1;
    s->left = s->round;
    op_header(op, &s->called[s->round % SHARED_SLOTS]);
    s->open[s->round % SHARED_SLOTS] = true;
}

/* Whether all ranks' calls of a round match. The root's mark is enough: our call was compared with the root's. The root stores
 * the mark after its loads (release), and no slot is filled again before our load (acquire, and SHARED_AHEAD). */
static bool shared_alike_now(const struct shared *s, uint64_t round)
{
    const char *first = (const char *)&slot_of(s, 0, round)->header;
    const acomm_header *mine = &s->called[round % SHARED_SLOTS];
    int root = mine->root;
    if (root != s->rank && atomic_load_explicit(&region_of(s, root)->settled, memory_order_acquire) >= round)
        return true;
    for (int rank = 0; rank < s->ranks; rank++)
        if (rank != s->rank && memcmp(first + (uint64_t)rank * s->region_bytes, mine, sizeof *mine))
            return false;
    return true;
}

bool shared_alike(const struct shared *s, uint64_t last)
{
    for (uint64_t round = s->settled + 1; round <= last; round++)
        if (shared_is_open(s, round) && !shared_alike_now(s, round))
            return false;
    return true;
}

void shared_settle(struct shared *s, uint64_t round)
{
    while (s->settled < round)
        s->open[++s->settled % SHARED_SLOTS] = false;
    atomic_store_explicit(&region_of(s, s->rank)->settled, round, memory_order_release);
}

static void shared_sleep_on(struct shared *s, int rank, uint64_t round)
{
    struct slot *slot = slot_of(s, rank, round);
    struct region *local_rank = region_of(s, rank);
    atomic_fetch_add(&local_rank->sleepers, 1);
    uint64_t stamp = atomic_load(&slot->stamp);
    if (stamp < round)
        futex_sleep(futex_word(slot), (uint32_t)stamp, WAIT_SLEEP_NS, true);
    atomic_fetch_sub(&local_rank->sleepers, 1);
}

static uint64_t stamp_of(const struct shared *s, int rank, uint64_t round)
{
    return atomic_load_explicit(&slot_of(s, rank, round)->stamp, memory_order_acquire);
}

/* Whether a rank from `rank` to `last` that was last seen on our CPU has not arrived. */
static bool in_our_way(struct shared *s, int rank, int last, uint64_t round)
{
    int32_t here = cpu_tell(s);
    for (; rank <= last; rank++)
        if (atomic_load_explicit(&region_of(s, rank)->cpu, memory_order_relaxed) == here && s->seen[rank] < round
            && stamp_of(s, rank, round) < round)
            return true;
    return false;
}

static int wait_once(struct shared *s, struct wait *w, int rank, int last, uint64_t round)
{
    w->where = in_our_way(s, rank, last, round) ? WAIT_HERE : w->op->group->oversubscribed ? WAIT_APART : WAIT_ANYWHERE;
    int rc = wait_step(w);
    if (!rc && w->sleepy) {
        shared_sleep_on(s, rank, round);
        wait_woke(w);
    }
    return rc;
}

/* No rank is further ahead of us, and a slot holds rounds of its own only: any other published round is not trusted, as this rank
 * would then no longer wait for its sender. */
static int note(struct shared *s, struct acomm_op *op, int rank, uint64_t round, uint64_t stamp)
{
    if (stamp > s->round + SHARED_AHEAD || (stamp - round) % SHARED_SLOTS)
        return group_fail_op(op, ACOMM_PROTOCOL, team_member(&op->group->hosts.host, rank), 0,
                             "its part of the shared memory names a round that it cannot have reached");
    s->seen[rank] = stamp;
    return 0;
}

int shared_await(struct shared *s, struct acomm_op *op, int rank, int last, uint64_t round)
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

/* As shared_await(), looking first at a later round: where this rank is ahead of `rank`, that saves most of the looks. */
static int await_far(struct shared *s, struct acomm_op *op, int rank, uint64_t round)
{
    uint64_t far = round + SHARED_AHEAD / 2;
    if (s->seen[rank] >= round)
        return 0;
    far = far < s->round ? far : s->round;
    uint64_t stamp = stamp_of(s, rank, far);
    int rc = stamp >= far ? note(s, op, rank, far, stamp) : 0;
    return rc ? rc : shared_await(s, op, rank, s->ranks - 1, round);
}

/* Waits until all ranks have published `round`, which is no later than this rank's last. */
static int shared_await_past(struct shared *s, struct acomm_op *op, uint64_t round)
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

struct link_ring *shared_ring(struct shared *s, enum channel channel, int from, int to)
{
    uint64_t footprint = round_up(link_shm_footprint(s->ring_bytes), REGION_PAGE);
    uint64_t offset = (uint64_t)s->ranks * s->region_bytes;
    if (channel == CHANNEL_COLLECTIVE)
        offset += rings_bytes(s->ranks);
    offset += ((uint64_t)from * (uint64_t)s->ranks + (uint64_t)to) * footprint;
    return pages_reserve(s->fd, offset, footprint) ? NULL : (struct link_ring *)(s->base + offset);
}

/* ---- where contents are placed ---- */

/* The last round whose contents in this rank's area overlap [from, to) and may be read still; 0: none. */
static uint64_t last_there(const struct shared *s, uint64_t from, uint64_t to)
{
    for (uint64_t round = s->round; round && round + SHARED_AHEAD >= s->round; round--)
        if (s->laid[round % SHARED_SLOTS].from < to && from < s->laid[round % SHARED_SLOTS].to)
            return round;
    return 0;
}

/* Up to which round all ranks have to have come before others' contents may lie where those of `round` do. */
static uint64_t free_after(const struct shared *s, uint64_t round)
{
    return round ? round + 1 + s->laid[round % SHARED_SLOTS].later : 0;
}

/* Waits until this rank may fill `bytes` of its area, and takes them. */
static int take_long(struct shared *s, struct acomm_op *op, uint64_t bytes, bool read_later, uint32_t *line)
{
    uint64_t from = s->next + bytes <= area_bytes(s->piece) ? s->next : 0; /* finds lines that the readers have given back */
    uint64_t next = s->round + 1, until = free_after(s, last_there(s, from, from + bytes));
    int rc = s->past < until ? shared_await_past(s, op, until) : 0;
    if (rc)
        return rc;
    *line = (uint32_t)(from / SHARED_LINE);
    s->laid[next % SHARED_SLOTS].from = from;
    s->laid[next % SHARED_SLOTS].to = from + bytes;
    s->laid[next % SHARED_SLOTS].later = read_later;
    s->next = from + bytes;
    return 0;
}

/* The first place whose contents no rank reads any more: while all ranks advance together that is one of three, which stay in the
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
    if (!seen || seen + 1 < next || seen < s->freed[which]) /* 0: its region may not be there yet */
        return false;
    post_place(s, (struct shared_place){REGION_CELL + which, REGION_CELL + which});
    s->freed[which] = next + 1 + read_later;
    s->laid[next % SHARED_SLOTS].from = s->laid[next % SHARED_SLOTS].to = 0;
    return s->in_cell = true;
}

int shared_acquire(struct shared *s, struct acomm_op *op, size_t bytes, bool read_later)
{
    uint64_t next = s->round + 1;
    uint64_t ahead = shared_ahead(op->group->oversubscribed);
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
