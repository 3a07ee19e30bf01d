#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "memory/arena.h"
#include "group/group.h"
#include "memory/pages.h"
#include "group/shared/seat.h"
#include "group/wait.h"

#define RINGS_BUDGET (64u << 20) /* bytes of all rings of a channel together; they cost memory only once used */
#define RING_MIN (8u << 10)
#define RING_MAX (2u << 20)      /* twice a core's own caches, see link/shm.c */
#define PIECE_MIN (4u << 10)
#define PIECE_MAX (512u << 10)
#define WIDEST 16               /* bytes of the widest element */
#define SEATS_BUDGET (8u << 20) /* bytes of all slots together: a cache that cores share holds them beside the arrays */

uint64_t shared_piece(int ranks, uint64_t wanted)
{
    uint64_t least = 2 * power_below((uint64_t)ranks * WIDEST); /* one element for every rank */
    uint64_t piece = power_below(SEATS_BUDGET / SEAT_AREA_PIECES / (uint64_t)ranks + 1);
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
    return (uint64_t)ranks * (uint64_t)ranks * round_up(link_shm_footprint(ring_size(ranks)), SEAT_PAGE);
}

static uint64_t mapped_bytes(int ranks, uint64_t piece)
{
    return (uint64_t)ranks * seat_bytes(ranks, piece) + 2 * rings_bytes(ranks);
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
    s->seat_bytes = seat_bytes(ranks, piece);
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
    if (pages_reserve(s->fd, (uint64_t)rank * seat_bytes(ranks, piece), seat_bytes(ranks, piece)))
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

uint64_t shared_pair_room(const struct shared *s)
{
    return pair_bytes(s->ranks, s->piece);
}

char *shared_pair(const struct shared *s, int from, int to)
{
    bool own = (s->turns + s->turn) % 2; /* in the next turn the place holds what the other one gives */
    char *end = (char *)seat_of(s, own ? from : to) + s->seat_bytes;
    return end - (uint64_t)(s->ranks - (own ? to : from)) * pair_bytes(s->ranks, s->piece);
}

char *shared_data(const struct shared *s, int rank, uint64_t round, size_t bytes)
{
    struct slot *slot = slot_of(s, rank, round);
    if (bytes <= SHARED_TINY)
        return slot->tiny;
    const struct shared_place *place = rank == s->rank ? &s->posted[round % SHARED_SLOTS] : &slot->place;
    uint32_t at = once(bytes <= SHARED_SHORT ? &place->place : &place->line);
    if (at >= SEAT_CELL && s->ranks == 2 && bytes <= SHARED_CELL) /* whatever a peer says, we stay inside */
        return cell_of(s, at % SHARED_CELLS);
    if (bytes <= SHARED_SHORT)
        return shorts_of(s, rank) + at % SHARED_SHORTS * SHARED_SHORT;
    uint64_t offset = (uint64_t)at * SHARED_LINE, last = area_bytes(s->piece) - bytes;
    return shorts_of(s, rank) + SEAT_SHORTS + (offset < last ? offset : last);
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
    if (!shared_any_open(s))
        s->settled = s->round - 1;
    s->left = s->round;
    op_header(op, &s->called[s->round % SHARED_SLOTS]);
    s->open[s->round % SHARED_SLOTS] = true;
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
        s->open[++s->settled % SHARED_SLOTS] = false;
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
    int32_t here = cpu_tell(s);
    for (; rank <= last; rank++)
        if (atomic_load_explicit(shared_cpu(s, rank), memory_order_relaxed) == here && s->seen[rank] < round
            && stamp_of(s, rank, round) < round)
            return true;
    return false;
}

static int wait_once(struct shared *s, struct wait *w, int rank, int last, uint64_t round)
{
    w->where = in_our_way(s, rank, last, round) ? WAIT_HERE : w->op->group->crowded ? WAIT_APART : WAIT_ANYWHERE;
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

int shared_await_past(struct shared *s, struct acomm_op *op, uint64_t round)
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

void shared_all_came(struct shared *s, uint64_t round)
{
    s->past = round;
}

_Atomic int32_t *shared_cpu(const struct shared *s, int rank)
{
    return &seat_of(s, rank)->cpu;
}

struct cpu_turn *shared_turn(const struct shared *s, int rank)
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
    uint64_t footprint = round_up(link_shm_footprint(s->ring_bytes), SEAT_PAGE);
    uint64_t offset = (uint64_t)s->ranks * s->seat_bytes;
    if (channel == CHANNEL_COLLECTIVE)
        offset += rings_bytes(s->ranks);
    offset += ((uint64_t)from * (uint64_t)s->ranks + (uint64_t)to) * footprint;
    return pages_reserve(s->fd, offset, footprint) ? NULL : (struct link_ring *)(s->base + offset);
}
