/* Collectives of the ranks of one host that read each other's arrays where they lie, instead of through slots.
 *
 * In the first round every rank offers the address of its arrays. A symmetric array (arena.h) is mapped by the peers; any
 * other is read or written by the kernel (window.h), where the system permits that among all ranks. A last round tells that
 * everybody has done with the others' arrays.
 * One copy is not always cheaper than two: the kernel is slow on small pages, and its stores fetch what they overwrite. So trials
 * choose, per kind and size (trial.h). Where slots
 * were better everywhere (broadcast, short arrays, all_gather of many), only symmetric arrays come here. An array that only its
 * owner can reach, which shows when it is copied, sends all private ones through slots from then on. */
#ifndef ACOMM_DIRECT_H
#define ACOMM_DIRECT_H
#include "memory/arena.h"
#include "group/op.h"

struct acomm_group;
struct rounds;

/* Bytes of the whole array beyond which private arrays come here in all_to_all, and in all_gather of two ranks. Below, slots win: of two,
 * what lies there changes hands (1 MiB: 40 us, 52 by the kernel); more of them mostly share cores, and to meet twice takes turns of them
 * all (4 and 8 ranks on 2 cores, 256 KiB to 2 MiB: 1.8 to 2.4 times as long as by slots). all_gather of more than two does not come: a
 * slot that all have read came from memory once. */
#define DIRECT_FROM ((uint64_t)2 << 20)

enum direct_how { DIRECT_NOTHING, DIRECT_PRIVATE, DIRECT_MAPPED };
struct direct_place { uint64_t at; enum direct_how how; };

/* What a rank says in the first round. */
struct direct_offer {
    struct direct_place in, out;
    uint32_t pushes;             /* see struct direct_plan; no bool, which a peer could give a third value */
};

/* Part of a group; zeros at the beginning. */
struct direct_state {
    struct arena *arena;         /* of this rank; NULL until something was taken */
    bool symmetric;              /* every rank has taken something: the same on all, in the order of collectives */
    struct arena_view *mapped;   /* arenas of local ranks; NULL until one was met */
    struct direct_offer *offers; /* of the operation under way, by rank */
    enum { WAY_UNKNOWN, WAY_OPEN, WAY_CLOSED } reach, map; /* agreed by all ranks when first needed */
    bool repeats, barred;        /* the operation under way may be repeated; the system refused an array of its */
};

struct direct_plan {
    uint64_t bytes;              /* that the choice between the two goes by; no offered array is larger */
    uint64_t offered;            /* bytes at `in` and at `out` that peers may touch; 0: none */
    uint64_t offered_out;
    bool pushed;                 /* peers may write to `out` */
    bool repeats;                /* nothing is written that is read: it can be done by slots after a part of it failed */
    bool pushes;                 /* told to all: this rank has time to do part of the others' copying */
    bool shared;                 /* private arrays beside symmetric ones go through slots: results are written past the caches */
    int (*staged)(struct acomm_op *op);
    int (*move)(struct rounds *r); /* reads what others offer and writes the result */
};
int direct_run(struct acomm_op *op, const struct direct_plan *plan);
/* Copies from a peer's array, or to it; what is read as a part of `whole` bytes (stream_long). Blocks; 0 or the group's failure. */
int direct_read(struct rounds *r, int rank, struct direct_place from, uint64_t offset, char *to, size_t bytes, size_t whole);
int direct_write(struct rounds *r, int rank, struct direct_place to, uint64_t offset, const char *from, size_t bytes);
/* The arena of the rank that has a seat of this host, of which the first `upto` bytes can be read and written. NULL with errno set. Any
 * thread. */
char *direct_map(struct acomm_group *g, int seat, uint64_t upto);
/* How peers can get at an array of this rank. */
static inline struct direct_place direct_place(const struct direct_state *d, const char *data, uint64_t bytes)
{
    struct direct_place place = {.at = (uint64_t)(uintptr_t)data, .how = DIRECT_NOTHING};
    if (data && bytes)
        place.how = arena_holds(d->arena, data, bytes, &place.at) ? DIRECT_MAPPED : DIRECT_PRIVATE;
    return place;
}
/* Where the peer's array is mapped, or NULL. */
char *direct_mapped(const struct rounds *r, int rank, struct direct_place place);
const struct direct_offer *direct_offer(const struct rounds *r, int rank);

/* A block of this rank's arena, which is made when first needed; NULL with errno set. */
struct acomm_block *direct_take(struct acomm_group *g, uint64_t bytes);
/* Frees what belongs to the group; the arena stays as long as arrays in it. */
void direct_close(struct acomm_group *g);
#endif
