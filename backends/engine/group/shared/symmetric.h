/* How the ranks of a host access each other's arrays: symmetric arrays (arena.h) are mapped, others go through the kernel
 * (window.h). */
#ifndef ACOMM_SYMMETRIC_H
#define ACOMM_SYMMETRIC_H
#include "memory/arena.h"

struct acomm_group;

enum direct_how { DIRECT_NOTHING, DIRECT_PRIVATE, DIRECT_MAPPED, DIRECT_FABRIC }; /* FABRIC: of messages only, see p2p/offer.c */
struct direct_place { uint64_t at; enum direct_how how; };

/* A rank's message of the first round. */
struct direct_offer {
    struct direct_place in, out;
    uint32_t pushes;             /* see struct direct_plan; no bool, to which a peer could write a third value */
};

/* Part of a group; zeros at the beginning. */
struct direct_state {
    struct arena *arena;         /* of this rank; NULL until something was taken */
    bool symmetric;              /* every rank has taken something: the same on all, in the order of collectives */
    struct arena_view *mapped;   /* arenas of local ranks; NULL until one was met */
    struct direct_offer *offers; /* of the operation under way, by rank */
    enum { PATH_UNKNOWN, PATH_OPEN, PATH_CLOSED } reach, map; /* agreed by all ranks when first needed */
    bool repeats, barred;        /* the operation under way may be repeated; the system refused an array of its */
};

/* The arena of a rank of this host, of which the first `upto` bytes can be read and written. NULL with errno set. Any
 * thread. */
char *symmetric_map(struct acomm_group *g, int local_rank, uint64_t upto);
/* How peers can access an array of this rank. */
static inline struct direct_place direct_place(const struct direct_state *d, const char *data, uint64_t bytes)
{
    struct direct_place place = {.at = (uint64_t)(uintptr_t)data, .how = DIRECT_NOTHING};
    if (data && bytes)
        place.how = arena_holds(d->arena, data, bytes, &place.at) ? DIRECT_MAPPED : DIRECT_PRIVATE;
    return place;
}
/* A block of this rank's arena, which is made when first needed; NULL with errno set. */
struct acomm_block *symmetric_take(struct acomm_group *g, uint64_t bytes);
/* Frees what belongs to the group; the arena stays as long as arrays in it. */
void symmetric_close(struct acomm_group *g);
#endif
