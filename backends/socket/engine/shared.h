/* The shared segment of a group's ranks on one host, and the rounds by which they take turns in it.
 *
 * Every local rank owns a `seat` of SHARED_SLOTS slots, which only it writes. An operation runs in rounds, numbered over
 * the group's life. In round s a rank fills its slot s % SHARED_SLOTS, publishes it by writing s into the slot's stamp,
 * waits for the stamps of the ranks it reads from, and reads their slots. All ranks go through the same rounds, also
 * those that have nothing to give.
 * A slot is filled again three rounds later. Contents read in their own round only are safe then once every rank has
 * published the next round (shared_claim); contents that are also read one round later (results in two-phase algorithms)
 * are safe when, besides, every round of the operation waits for every rank. The first round of every operation does:
 * there the headers are compared. That is the only flow control.
 * Stamp, header and tiny contents share a cache line: a small operation costs one line per peer. Short contents lie behind
 * it. Long ones go round an area of the seat that is larger than the caches of one core: lines that the peer read a moment
 * ago are dear to write, those it read long ago are not (32 KiB by two neighbouring cores: 2.4 us instead of 5). The area
 * holds four of the largest contents, so that they never lie on those of the two rounds before.
 *
 * Layout: seats | point-to-point rings | collective rings | arenas (arena.h; not mapped here). A memfd, sealed against shrinking; pages are reserved
 * (fallocate) before first use, so that a full machine is an error and never a SIGBUS. */
#ifndef ACOMM_SHARED_H
#define ACOMM_SHARED_H
#include <stdatomic.h>
#include "bell.h"
#include "link.h"
#include "op.h"
#include "window.h"

#define SHARED_LINE 64
#define SHARED_SLOTS 3
#define SHARED_TINY 24   /* bytes of data that share the stamp's cache line */
#define SHARED_SHORT 4096 /* bytes of data that lie behind it */

struct shared {
    char *base;
    uint64_t bytes;              /* without the arenas */
    int fd, rank, ranks;         /* rank and number among the ranks of this host */
    uint64_t piece;              /* bytes of data that a slot holds */
    uint64_t round;              /* last round this rank published */
    uint64_t next;               /* where in the area its next long contents go */
    size_t ring_bytes;
    uint64_t *seen;              /* last round seen of each local rank: saves cache misses */
};

uint64_t shared_bytes(int ranks, uint64_t piece);
/* Bytes of data that a slot holds: about `wanted`, or a default where that is 0; room for an element of every rank. */
uint64_t shared_piece(int ranks, uint64_t wanted);
/* 0, or ACOMM_RESOURCE / ACOMM_SYSTEM with errno set. */
int shared_open(struct shared *s, int fd, uint64_t bytes, int rank, int ranks, uint64_t piece);
void shared_close(struct shared *s);

/* Header and data of a rank's slot of a round. `bytes` is what the slot holds then: where it lies goes by that. */
acomm_header *shared_header(const struct shared *s, int rank, uint64_t round);
char *shared_data(const struct shared *s, int rank, uint64_t round, size_t bytes);
/* Waits until this rank may fill the slot of the next round, with at most `bytes` of data. */
int shared_claim(struct shared *s, struct acomm_op *op, size_t bytes);
/* The slot of round s->round + 1 is filled: moves to that round and lets the others read it. */
void shared_publish(struct shared *s);
/* Waits until local `rank` has published `round`. */
int shared_await(struct shared *s, struct acomm_op *op, int rank, uint64_t round);

/* The arena of a local rank: where it begins in the file, and mapped for reading and writing; NULL with errno set. */
uint64_t shared_arena_offset(const struct shared *s, int rank);
char *shared_map_arena(const struct shared *s, int rank);

/* Ring memory from local rank `from` to `to` for link_shm.c; reserves its pages. NULL when memory is out. */
struct bell *shared_bell(const struct shared *s, int rank);
struct window *shared_window(const struct shared *s, int rank);
struct link_ring *shared_ring(struct shared *s, enum channel channel, int from, int to);
#endif
