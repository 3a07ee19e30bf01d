/* See mpi_group.h. Into no memory: MPI tells the receiver, who knows, that it was too short, and the sender that it has ended. */
#include <sched.h>

#include "mpi_group.h"

#define AT_ONCE 64

void drain(struct acomm_group *g)
{
    const acomm_mpi *mpi = g->mpi;
    struct mpi_drain *d = &g->drain;
    int flag = 1;
    if (!atomic_load(&g->poisoned))
        return;
    for (int i = 0; i < AT_ONCE && flag && !d->over; i++) {
        if (!d->listens && mpi->Irecv(NULL, 0, mpi->byte, mpi->any_source, TAG_BLOCKS, g->comm, &d->request))
            d->over = true; /* a rank has died, and the library receives from nobody in particular any more */
        d->listens = !d->over;
        int rc = d->over ? 0 : mpi->Test(&d->request, &flag, mpi->ignore);
        if (rc && mpi_tells_of_death(mpi, rc))
            d->over = true;
        d->listens = !d->over && !rc && !flag;
        flag = flag || rc;
    }
}

void drain_end(struct acomm_group *g)
{
    const acomm_mpi *mpi = g->mpi;
    int flag = !g->drain.listens;
    g->drain.over = true;
    if (!flag)
        mpi->Cancel(&g->drain.request);
    while (!flag && !mpi->Test(&g->drain.request, &flag, mpi->ignore) && !flag)
        sched_yield();
}
