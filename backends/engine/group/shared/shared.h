/* The shared segment of a group's ranks on one host, and the rounds by which they use it.
 *
 * Every local rank owns a region of SHARED_SLOTS slots, which only it writes (except exchange buffers, "cells"). An operation
 * runs in rounds, numbered over the group's life. In round s a rank fills its slot s % SHARED_SLOTS, publishes it by writing s
 * into the slot's stamp, waits for the stamps of the ranks it reads from, and reads their slots. All ranks go through the same
 * rounds, also those without data to send.
 * Not every rank waits in every round: a rank that only sends may be ahead of the receivers. By SHARED_AHEAD rounds at most
 * (shared_acquire), which is the only flow control: a slot is filled again SHARED_SLOTS rounds later, so its contents may be read
 * in their own round and in the next, and its header for as long as a rank may still be SHARED_AHEAD behind.
 * Why that suffices: what a rank reads of others in a round lies, in its program, before the stamp of its next round, which
 * it stores with release (more, in fact) and which others load with acquire before they write over what was read. So all
 * reads of round s happen before any write that waited for everybody's round s + 1.
 * Stamp, header and tiny contents share a cache line: a small operation costs one line per peer. Short contents lie in places of
 * 4 KiB, always in the first that is free. Long ones go into a circular area of the region that is larger than the caches of one
 * core: lines that the peer read recently are expensive to write, lines read long ago are not (32 KiB by two neighbouring cores:
 * 2.4 us instead of 5). The area holds four of the largest contents; the writer waits for ranks that may still read the old
 * contents.
 *
 * Two ranks that both send and receive use exchange buffers: lines that this core has just read from the other core are the
 * cheapest to write, at any cache distance (64 KiB 2 us; in an own area 3 between cores with a shared LLC and 25 between
 * cross-die ones). So there are cells, filled by both ranks alternately: in one round each fills its own of a pair, in the next
 * the one that it has just read. Contents that are read in the next round too use two such pairs alternately. If the other rank
 * is behind, or still reading, a rank fills its area instead.
 * With more ranks, contents that each pair exchanges in the same round use exchange buffers too: every pair has two places, one
 * in the region of either rank. In one turn each rank fills the place in its own region, in the next the peer's, which it has
 * read by then, whatever other ranks do. All contents of a round lie in no more memory than they are long.
 * Measured on 2 cores, unproved elsewhere (docs/lab/mechanisms.md); ARRAYCOMM_WITHOUT=exchange switches it off.
 *
 * Layout: regions | point-to-point rings | collective rings | arenas (arena.h; not mapped here). A memfd, sealed against
 * shrinking; pages are reserved (fallocate) before first use, so that a full machine is an error and never a SIGBUS. */
#ifndef ACOMM_SHARED_H
#define ACOMM_SHARED_H
#include <string.h>
#include "base/doorbell.h"
#include "link/link.h"
#include "group/op.h"
#include "group/shared/window.h"

#define SHARED_LINE 64
#define SHARED_SLOTS 128
#define SHARED_AHEAD (SHARED_SLOTS / 2) /* rounds: so many calls run without a context switch on a shared core: broadcast of
                                         * 8 B takes 0.7 of the time that it takes with a quarter of them, at 4 and 8 ranks */
#define SHARED_AHEAD_APART 16 /* where each has its own; with more, contents lie in colder lines (64 KiB take 1.05 to 1.16 times as long) */
#define SHARED_TINY 24   /* bytes of data that share the stamp's cache line */
#define SHARED_SHORT 4096 /* bytes of short contents, which lie in one of so many places: */
#define SHARED_SHORTS (SHARED_AHEAD + 2)
#define SHARED_CELLS 4   /* between two ranks, */
#define SHARED_CELL (512u << 10) /* and the bytes of each */

struct shared {
    char *base;
    uint64_t bytes, region_bytes;  /* without the arenas; of one rank's slots */
    int fd, rank, ranks;         /* rank and number among the ranks of this host */
    bool arenas;                 /* the file has room for them */
    uint64_t piece;              /* bytes of data that a slot holds */
    uint64_t round;              /* last round this rank published */
    uint64_t next;               /* where in the area its next long contents go */
    struct { uint64_t from, to; bool later; } laid[SHARED_SLOTS]; /* where those of the last rounds lie; empty for short ones. Read later: in
                                  * the next round too */
    struct shared_place { uint32_t place, line; } posted[SHARED_SLOTS]; /* this rank's contents of them (region.h); the
                                                                         * published copy lies where peers may write */
    uint64_t used[SHARED_SHORTS]; /* the round in which each place of short contents was filled last */
    uint64_t past;               /* all ranks are known to have published it */
    uint64_t turns;              /* published rounds with contents for a cell or pairs: the same on all ranks */
    bool turn, in_cell;          /* whether the next round is one, and whether its contents do, */
    uint64_t freed[SHARED_CELLS]; /* and for each cell the round that the other one has to have published before we fill it again */
    uint64_t settled, left;      /* see shared_leave(): no round up to here is open, nor one after that; */
    bool open[SHARED_SLOTS];     /* between them these are */
    acomm_header called[SHARED_SLOTS]; /* This rank's call signatures of them: peers could change the copy in its slot */
    size_t ring_bytes;
    uint64_t *seen;              /* last round seen of each local rank: avoids cache misses */
    int32_t *processes;          /* of each local rank, as its owner received it; see window.h */
};

/* The last time a rank ran on a CPU, as far as its waits know: from `since` to `until`; it still runs if `until` is the earlier one. */
struct cpu_turn {
    _Atomic int64_t since, until; /* clock_now() */
};
/* The beginning of a rank's region: how many ranks sleep on one of its slots, the doorbell of the links, and the window's state.
 * `cpu`: 1 + the CPU that it was last seen on, see wait.h; 0 not known. */
struct region {
    _Alignas(SHARED_LINE) _Atomic uint32_t sleepers;
    _Atomic int32_t cpu;
    _Atomic uint64_t settled; /* up to here the rank, as root, has compared the others' calls with its own */
    _Alignas(SHARED_LINE) struct cpu_turn turn;
    _Alignas(SHARED_LINE) struct doorbell doorbell;
    struct window window;
};
static inline struct region *region_of(const struct shared *s, int rank)
{
    return (struct region *)(s->base + (uint64_t)rank * s->region_bytes);
}

static inline uint64_t shared_ahead(bool oversubscribed) { return oversubscribed ? SHARED_AHEAD : SHARED_AHEAD_APART; }
/* Of the file, with the arenas of symmetric arrays or without. */
uint64_t shared_bytes(int ranks, uint64_t piece, bool arenas);
/* Bytes of data that a slot holds: about `wanted`, or a default where that is 0; room for an element of every rank. */
uint64_t shared_piece(int ranks, uint64_t wanted);
/* 0, or ACOMM_RESOURCE / ACOMM_SYSTEM with errno set. */
int shared_open(struct shared *s, int fd, uint64_t bytes, int rank, int ranks, uint64_t piece);
void shared_close(struct shared *s);

/* Copies memory that peers may change meanwhile, once: the checked value is then the used value. */
static inline void shared_copy(void *to, const void *from, size_t bytes)
{
    memcpy(to, from, bytes);
    atomic_signal_fence(memory_order_seq_cst); /* the compiler does not load from there again */
}
/* Header and data of a rank's slot of a round. `bytes` is what the slot holds then: where it lies goes by that. */
acomm_header *shared_header(const struct shared *s, int rank, uint64_t round);
char *shared_data(const struct shared *s, int rank, uint64_t round, size_t bytes);
/* Waits until this rank may fill the slot of the next round, with at most `bytes` of data. `read_later`: in the round after it is read too. */
int shared_acquire(struct shared *s, struct acomm_op *op, size_t bytes, bool read_later);
/* Acquires a cell instead, of two ranks, if one is free. Both ranks ask in the same rounds, those in which they send: in any
 * other round the cell's ownership would move without new contents. */
bool shared_take_cell(struct shared *s, bool read_later);
/* Of more than two ranks: the place of contents from `from` to `to` in this turn (s->turn while filling), and its bytes. */
char *shared_pair(const struct shared *s, int from, int to);
uint64_t shared_pair_room(const struct shared *s);
/* The slot of round s->round + 1 is filled: moves to that round and lets the others read it. */
void shared_commit(struct shared *s);
/* This rank continues from its last published round without having compared all call signatures: the round stays open until it
 * has. Other ranks' signatures of a round stay there until this rank publishes the round SHARED_AHEAD later. */
void shared_leave(struct shared *s, const struct acomm_op *op);
static inline bool shared_any_open(const struct shared *s) { return s->left > s->settled; }
static inline bool shared_is_open(const struct shared *s, uint64_t round) { return s->open[round % SHARED_SLOTS]; }
/* Whether the signatures of open rounds up to `last`, at which all ranks have arrived, are the same byte for byte. */
bool shared_alike(const struct shared *s, uint64_t last);
/* No round up to this one is open any more. */
void shared_settle(struct shared *s, uint64_t round);
/* Waits until local `rank` has published `round`. Ranks up to `last` are awaited next. */
int shared_await(struct shared *s, struct acomm_op *op, int rank, int last, uint64_t round);

/* Where the arena of a local rank begins in the file. */
uint64_t shared_arena_offset(const struct shared *s, int rank);

/* Ring memory from local rank `from` to `to` for link/shm.c; reserves its pages. NULL when memory is out. */
struct link_ring *shared_ring(struct shared *s, enum channel channel, int from, int to);
#endif
