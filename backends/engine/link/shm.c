/* A link in shared memory: a ring of slots, one cache line each, with long contents beside them. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/doorbell.h"
#include "link/link.h"
#include "memory/stream.h"

#define LINE 64
#define SLOTS 128                  /* pieces under way at most */
#define PIECE ((size_t)32 << 10)   /* of a long message: the receiver copies one out while the sender copies the next one in, */
#define PIECE_MIN ((size_t)8 << 10) /* and of a shorter one a quarter of it, down to here */
#define REST ((size_t)256)         /* bytes at the end of a message that are no piece of their own: another stamp takes longer */
#define CELL_SHIFT 16              /* in a stamp, above the bytes in `data`: which cell they lie in instead, */
#define LAST ((uint64_t)1 << 18)   /* whether they are the last ones there, */
#define UNUSED ((uint64_t)31 << 19)
#define BESIDE_SHIFT 24            /* the bytes beside the stamp, */
#define NUMBER_SHIFT 36            /* and the piece's number */
#define AHEAD 1024                 /* bytes of `data` prefetched while the head is read: 20 to 40 ns of 400 for 1 KiB */
#define CELL_PIECES 16             /* of a message in a cell at most */
#define LAZY (SLOTS / 4)           /* short pieces that the receiver reads per acknowledgement */
#define PATIENT 50                 /* turns of 20 to 40 ns that it waits for a message's next piece: another pass takes longer */

/* One piece of the stream: up to LINK_BESIDE bytes here, then those at the sender's place in `data`. So a short message costs one
 * cache line, and a longer one that and its own. The stamp commits the piece: its number, from 1, above its lengths. Only stamps
 * are ever written where stamps lie. */
struct slot {
    _Alignas(LINE) _Atomic uint64_t stamp;
    char bytes[LINK_BESIDE];
};
_Static_assert(sizeof(struct slot) == LINE, "a slot is one cache line");

/* Starts as zeros. */
struct link_ring {
    _Alignas(2 * LINE) _Atomic uint64_t taken; /* pieces that the receiver has read; written by the receiver only */
    _Alignas(2 * LINE) _Atomic uint32_t withdrawn; /* by the sender, once at most; see link.h */
    struct link_parts parts;
    _Alignas(2 * LINE) struct slot slots[SLOTS];
    /* Longer than a core's own caches (shared.c): the receiver's cache evicted its lines long ago. Between neighbouring cores
     * that makes 28 GB/s of 8. */
    _Alignas(2 * LINE) char data[];
};

/* Each side trusts only the private copy of its own counts, and checks the range of the other side's counts. */
struct link_shm {
    struct link base;
    struct link_ring *ring;
    struct link_shm *reverse; /* the other direction; NULL until there is one */
    int cells;              /* the sender's writable ones; the receiver's, received before the other direction existed */
    int cell;               /* where the last piece lies, */
    size_t cell_place;      /* and the bytes that are used there */
    uint64_t pieces;        /* sent, or read to their end */
    uint64_t place;         /* bytes of `data` ever used; a piece begins on a line */
    size_t size, piece;
    /* the sender's */
    uint64_t taken, freed;  /* `taken` as last seen; the place that the receiver had then */
    uint64_t ends[SLOTS];   /* the place after each piece under way */
    struct stream_path stores;
    /* the receiver's */
    const char *from, *data; /* rest of the part of a piece that is being read; what it has in `data` */
    size_t left, behind;    /* bytes of the one; and of the other, if not read yet */
    size_t used;            /* of `data`, by the whole piece */
    bool beside, last;      /* what is read lies beside the stamp; the piece is the last one in its cell */
    uint64_t told, told_place; /* pieces in ring->taken, and the place after them */
};

/* Cells: an exchange buffer for one message behind each ring, owned by the rank that read it last. Lines in another core's cache
 * are expensive to write (64 KiB 10 us instead of 2), but lines that this core has just read are not: its cache holds them. So a
 * reply uses the request's buffer, and two ranks that exchange messages use the same lines again, in both directions. A message
 * in a cell passes the ownership to the receiver; a sender without a cell uses the ring.
 * Measured on 2 cores, unproved elsewhere (docs/lab/mechanisms.md); ARRAYCOMM_WITHOUT=exchange switches it off. */

static struct link_shm *shm_self(const struct link *link)
{
    return (struct link_shm *)(uintptr_t)link;
}

static size_t lines(size_t bytes)
{
    return (bytes + LINE - 1) / LINE * LINE;
}

static size_t cell_bytes(size_t ring)
{
    return lines(ring / LINK_CELL_PART);
}

static char *shm_cell_of(const struct link_shm *s)
{
    struct link_ring *ring = s->cell == CELL_OURS ? s->ring : s->reverse->ring;
    return ring->data + s->size + s->cell_place;
}

static int shm_broken(void)
{
    errno = EPROTO;
    return ACOMM_PROTOCOL;
}

/* ---- the sender ---- */

/* The receiver's count can only grow, and to at most the number of sent pieces. */
static int refresh(struct link_shm *s)
{
    uint64_t taken = atomic_load_explicit(&s->ring->taken, memory_order_acquire);
    if (taken - s->taken > s->pieces - s->taken)
        return shm_broken();
    if (taken != s->taken)
        s->freed = s->ends[(taken - 1) % SLOTS];
    s->taken = taken;
    return 0;
}

/* Whether there is room for a piece, and for how many of `bytes` in `data`. */
static bool shm_fits(const struct link_shm *s, size_t bytes, size_t *piece)
{
    size_t offset = s->place & (s->size - 1), free = s->size - (size_t)(s->place - s->freed);
    size_t run = s->size - offset < free ? s->size - offset : free;
    size_t quarter = s->base.row / 4 > PIECE_MIN ? s->base.row / 4 / LINE * LINE : PIECE_MIN;
    size_t most = s->base.row && quarter < s->piece ? quarter : s->piece;
    if (s->cell)
        run = bytes;
    bool whole = bytes <= most + REST && bytes <= run;
    run = run < most ? run : most;
    *piece = whole || bytes < run ? bytes : run;
    return s->pieces - s->taken < SLOTS && (*piece || !bytes);
}

/* The same, 1 or 0, after a load of the receiver's count if needed; or a code. */
static int room(struct link_shm *s, size_t bytes, size_t *piece)
{
    if (shm_fits(s, bytes, piece))
        return 1;
    int rc = refresh(s);
    return rc ? rc : shm_fits(s, bytes, piece);
}

/* Whether there are slots for all pieces of a message in a cell. */
static bool has_slots(const struct link_shm *s)
{
    return s->pieces - s->taken < SLOTS - CELL_PIECES;
}

/* The cell for a whole message; the other side's before our own, which this rank has not read lately. */
static int choose_cell(struct link_shm *s, size_t bytes)
{
    if (!bytes || !s->cells || bytes > cell_bytes(s->size))
        return CELL_NONE;
    if (!has_slots(s) && (refresh(s) || !has_slots(s)))
        return CELL_NONE;
    return s->cells & CELL_THEIRS ? CELL_THEIRS : CELL_OURS;
}

static void put_data(struct link_shm *s, const char *from, size_t bytes)
{
    char *data = s->ring->data + (s->place & (s->size - 1));
    if (s->cell) {
        stream_exchange(shm_cell_of(s), from, bytes);
        s->cell_place += lines(bytes);
        return;
    }
    if (s->base.plain)
        stream_exchange(data, from, bytes);
    else
        stream_fill(&s->stores, data, from, bytes);
    s->place += lines(bytes);
}

static void shm_put(struct link_shm *s, const char *head, size_t beside, const char *from, size_t bytes, bool last)
{
    struct slot *slot = &s->ring->slots[s->pieces % SLOTS];
    put_data(s, from, bytes);
    if (beside) /* with the stamp: the receiver polls there and would take the line between the two stores */
        memcpy(slot->bytes, head, beside);
    s->ends[s->pieces % SLOTS] = s->place;
    s->pieces++;
    uint64_t stamp = s->pieces << NUMBER_SHIFT | beside << BESIDE_SHIFT | bytes
        | (uint64_t)s->cell << CELL_SHIFT | (s->cell && last ? LAST : 0);
    atomic_store_explicit(&slot->stamp, stamp, memory_order_release);
}

static ssize_t shm_frame(struct link *link, const void *head, size_t beside, const void *body, size_t bytes)
{
    struct link_shm *s = shm_self(link);
    size_t sent = 0, piece;
    int pieces = 0, rc = 1;
    s->cell = beside && bytes == s->base.row ? choose_cell(s, bytes) : CELL_NONE;
    s->cells &= ~s->cell;
    s->cell_place = 0;
    while ((sent < bytes || !pieces) && (rc = room(s, bytes - sent, &piece)) > 0) {
        shm_put(s, head, pieces ? 0 : beside, bytes ? (const char *)body + sent : NULL, piece, sent + piece == bytes);
        sent += piece;
        /* Once more when all pieces are written, but not after every piece: the fence waits until all stores are visible. */
        if (!pieces++ || sent == bytes)
            doorbell_ring(s->base.theirs);
    }
    if (rc < 0)
        return rc;
    if (pieces > 1 && sent < bytes)
        doorbell_ring(s->base.theirs);
    return pieces ? (ssize_t)(beside + sent) : 0;
}

static ssize_t shm_send(struct link *link, const void *data, size_t bytes, bool more)
{
    (void)more; /* a piece is visible at once: to delay it saves no call */
    return bytes <= LINK_BESIDE ? shm_frame(link, data, bytes, NULL, 0) : shm_frame(link, NULL, 0, data, bytes);
}

/* ---- the receiver ---- */

/* Cells that arrived by link `in` may be used for sending. */
static void shm_hand_over(struct link_shm *in, struct link_shm *out)
{
    out->cells |= (in->cells & CELL_OURS ? CELL_THEIRS : 0) | (in->cells & CELL_THEIRS ? CELL_OURS : 0);
    in->cells = 0;
}

static bool next_is_there(const struct link_shm *s, uint64_t *stamp)
{
    *stamp = atomic_load_explicit(&s->ring->slots[s->pieces % SLOTS].stamp, memory_order_acquire);
    return *stamp >> NUMBER_SHIFT == (s->pieces + 1) << NUMBER_SHIFT >> NUMBER_SHIFT;
}

/* The part of the piece that lies in `data`. */
static void open_data(struct link_shm *s, size_t bytes)
{
    s->from = s->data;
    s->left = bytes;
    s->behind = 0;
    s->beside = false;
}

/* 1: a piece is open, 0: none has arrived, or a code. */
static int open_piece(struct link_shm *s)
{
    uint64_t stamp;
    if (!next_is_there(s, &stamp))
        return 0;
    size_t bytes = stamp & ((1u << CELL_SHIFT) - 1), beside = stamp >> BESIDE_SHIFT & ((1u << (NUMBER_SHIFT - BESIDE_SHIFT)) - 1);
    size_t offset = s->place & (s->size - 1);
    s->cell = stamp >> CELL_SHIFT & (CELL_OURS | CELL_THEIRS);
    s->last = stamp & LAST;
    size_t room = s->cell ? cell_bytes(s->size) - s->cell_place : s->size - offset;
    bool known = (s->cell < CELL_THEIRS || (s->cell == CELL_THEIRS && s->reverse)) && !(stamp & UNUSED);
    if (!(bytes + beside) || beside > LINK_BESIDE || bytes > s->piece + REST || bytes > room || !known)
        return shm_broken();
    s->data = s->cell ? shm_cell_of(s) : s->ring->data + offset;
    open_data(s, bytes);
    s->beside = beside > 0;
    if (beside) {
        for (size_t at = 0; at < bytes && at < AHEAD; at += LINE)
            __builtin_prefetch(s->from + at);
        s->from = s->ring->slots[s->pieces % SLOTS].bytes;
        s->left = beside;
        s->behind = bytes;
    }
    s->used = lines(bytes);
    return 1;
}

/* The cell is ours now; theirs for receiving is ours for sending. */
static void take_cell(struct link_shm *s)
{
    s->cells |= s->cell;
    s->cell_place = 0;
    if (s->reverse)
        shm_hand_over(s, s->reverse);
}

/* The sender may wait for capacity: it gets credit per eighth of the ring, and for short pieces before the slots run out. */
static void close_piece(struct link_shm *s)
{
    s->pieces++;
    if (!s->cell)
        s->place += s->used;
    else if (s->last)
        take_cell(s);
    else
        s->cell_place += s->used;
    if (s->place - s->told_place < s->size / 8 && s->pieces - s->told < LAZY)
        return;
    s->told = s->pieces;
    s->told_place = s->place;
    atomic_store_explicit(&s->ring->taken, s->pieces, memory_order_release);
    doorbell_ring(s->base.theirs);
}

/* The same in the middle of a message, whose sender is copying the next piece. */
static int open_next(struct link_shm *s)
{
    int rc = open_piece(s);
    for (int turn = 0; !rc && s->base.patient && turn < PATIENT; turn++) {
        relax();
        rc = open_piece(s);
    }
    return rc;
}

/* A ring's contents are in a cache: non-temporal stores gain only for the target, and from more bytes on. */
static void copy_out(struct link_shm *s, char *to, size_t bytes)
{
    if (s->beside) {
        memcpy(to, s->from, bytes);
        return;
    }
    stream_long(to, s->from, bytes, s->cell ? bytes : s->base.whole / 2);
}

static ssize_t shm_recv(struct link *link, void *data, size_t bytes)
{
    struct link_shm *s = shm_self(link);
    size_t moved = 0;
    while (moved < bytes) {
        int rc = s->left ? 1 : moved ? open_next(s) : open_piece(s);
        if (rc < 0)
            return rc;
        if (!rc)
            break;
        size_t n = bytes - moved < s->left ? bytes - moved : s->left;
        copy_out(s, (char *)data + moved, n);
        moved += n;
        s->from += n;
        s->left -= n;
        if (s->left)
            break;
        if (s->behind) { /* bytes beside the stamp are returned alone: they tell their reader what follows */
            open_data(s, s->behind);
            break;
        }
        close_piece(s);
    }
    return (ssize_t)moved;
}

static bool shm_waiting(const struct link *link)
{
    const struct link_shm *s = shm_self(link);
    uint64_t stamp;
    return s->left || next_is_there(s, &stamp);
}

/* ---- */

static void shm_close(struct link *link)
{
    free(link); /* the ring belongs to the segment */
}

static const struct link_ops shm_ops = {shm_send, shm_recv, NULL, shm_close, shm_waiting, shm_frame, NULL, NULL};

struct link *link_shm_new(int peer, bool outgoing, struct link_ring *memory, size_t bytes, struct doorbell *ours,
                          struct doorbell *theirs)
{
    struct link_shm *s = calloc(1, sizeof *s);
    if (!s)
        return NULL;
    s->base = (struct link){.ops = &shm_ops, .peer = peer, .outgoing = outgoing, .withdrawn = &memory->withdrawn,
                            .parts = &memory->parts, .doorbell = ours, .theirs = theirs};
    s->ring = memory;
    s->cells = outgoing ? CELL_OURS : CELL_NONE;
    s->size = bytes;
    s->piece = bytes / 4 < PIECE ? bytes / 4 : PIECE;
    return &s->base;
}

void link_shm_join(struct link *out, struct link *in)
{
    shm_self(out)->reverse = shm_self(in);
    shm_self(in)->reverse = shm_self(out);
    shm_hand_over(shm_self(in), shm_self(out));
}

size_t link_shm_footprint(size_t bytes)
{
    return sizeof(struct link_ring) + bytes + cell_bytes(bytes);
}
