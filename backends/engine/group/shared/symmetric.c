/* Symmetric arrays of a group: this rank's arena, and where those of its peers are mapped. */
#include "group/shared/symmetric.h"

#include <errno.h>
#include <stdlib.h>

#include "group/group.h"

char *symmetric_map(struct acomm_group *g, int local_rank, uint64_t upto)
{
    struct direct_state *d = &g->direct;
    pthread_mutex_lock(&g->lock);
    if (!d->mapped && g->shared.arenas)
        d->mapped = calloc((size_t)g->size, sizeof *d->mapped);
    char *base = d->mapped ? arena_view_open(&d->mapped[local_rank], g->shared.fd, shared_arena_offset(&g->shared, local_rank), upto) : NULL;
    pthread_mutex_unlock(&g->lock);
    return base;
}

struct acomm_block *symmetric_take(struct acomm_group *g, uint64_t bytes)
{
    pthread_mutex_lock(&g->lock);
    errno = EFBIG;
    if (!g->direct.arena && g->shared.arenas)
        g->direct.arena = arena_open(g->shared.fd, shared_arena_offset(&g->shared, g->rank));
    struct arena *arena = g->direct.arena;
    pthread_mutex_unlock(&g->lock);
    return arena ? arena_take(arena, bytes) : NULL;
}

void symmetric_close(struct acomm_group *g)
{
    struct direct_state *d = &g->direct;
    for (int rank = 0; d->mapped && rank < g->size; rank++)
        arena_view_close(&d->mapped[rank]);
    free(d->mapped);
    free(d->offers);
    arena_close(d->arena);
}
