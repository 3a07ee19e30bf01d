/* The ranks' first meetings: they duplicate a communicator for a world, whose groups have links and the library's collectives
 * over it, and exchange each rank's description of itself. */
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/process.h"
#include "mpi_fabric.h"

#define EAGER_NS 1000000      /* how long a waiting thread yields before it sleeps */
#define NAP_NS 500000

static int library_failed(const acomm_mpi *mpi, int rc, char *text)
{
    mpi_words(mpi, rc, text);
    return ACOMM_LIBRARY;
}

/* Until the request has ended. */
static int request_wait(const acomm_mpi *mpi, uint64_t *request, int64_t timeout, char *text)
{
    int64_t began = clock_now();
    for (int flag = 0;;) {
        if (!fabric_enter())
            return ACOMM_CLOSED;
        int rc = mpi->Test(request, &flag, mpi->family.ignore);
        fabric_leave();
        if (rc)
            return library_failed(mpi, rc, text);
        int64_t waited = clock_now() - began;
        if (flag)
            return 0;
        if (waited > timeout)
            return ACOMM_TIMEOUT;
        if (interrupt_pending())
            return ACOMM_INTERRUPTED;
        if (waited < EAGER_NS)
            sched_yield();
        else
            nanosleep(&(struct timespec){0, NAP_NS}, NULL);
    }
}

static int fabric_duplicate(struct mpi_fabric *fabric, mpi_handle comm, int64_t timeout, char *text)
{
    const acomm_mpi *mpi = fabric->mpi;
    struct { uint64_t made, request; } *meeting = calloc(1, sizeof *meeting); /* MPI keeps it after a failure */
    if (!meeting || !fabric_enter()) {
        free(meeting);
        return meeting ? ACOMM_CLOSED : ACOMM_RESOURCE;
    }
    if (comm == mpi->world)
        mpi->Comm_set_errhandler(comm, mpi->errors_return);
    int rc = mpi->Comm_idup(comm, &meeting->made, &meeting->request);
    fabric_leave();
    rc = rc ? library_failed(mpi, rc, text) : request_wait(mpi, &meeting->request, timeout, text);
    if (rc)
        return rc;
    fabric->comm = mpi_read(mpi, &meeting->made);
    free(meeting);
    rc = mpi->Comm_set_errhandler(fabric->comm, mpi->errors_return);
    rc = rc ? rc : mpi->Comm_size(fabric->comm, &fabric->size);
    return rc ? library_failed(mpi, rc, text) : 0;
}

int acomm_fabric_open(acomm_mpi *mpi, uintptr_t comm, int64_t timeout, acomm_fabric **out, char *text)
{
    struct mpi_fabric *fabric = calloc(1, sizeof *fabric);
    if (!fabric)
        return ACOMM_RESOURCE;
    *fabric = (struct mpi_fabric){.base = {link_mpi_new, mpi_collective, mpi_collective_leave, mpi_message_begin, mpi_message_end},
                                  .mpi = mpi};
    int rc = fabric_duplicate(fabric, comm, timeout, text);
    if (!rc && !(fabric->tags = calloc((size_t)fabric->size, sizeof *fabric->tags)))
        rc = ACOMM_RESOURCE;
    rc = rc ? rc : fabric_begin(fabric);
    if (rc) {
        free(fabric->tags);
        free(fabric);
        return rc;
    }
    *out = &fabric->base;
    return 0;
}

int acomm_fabric_gather(acomm_fabric *base, const void *mine, void *every, int bytes, int64_t timeout, char *text)
{
    struct mpi_fabric *fabric = (struct mpi_fabric *)base;
    const acomm_mpi *mpi = fabric->mpi;
    size_t size = (size_t)fabric->size, each = (size_t)bytes;
    struct { uint64_t request; char memory[]; } *meeting = calloc(1, sizeof *meeting + (size + 1) * each);
    if (!meeting || !fabric_enter()) {
        free(meeting);
        return meeting ? ACOMM_CLOSED : ACOMM_RESOURCE;
    }
    char *got = meeting->memory + each;
    memcpy(meeting->memory, mine, each);
    int rc = mpi->Iallgather(meeting->memory, bytes, mpi->byte, got, bytes, mpi->byte, fabric->comm, &meeting->request);
    fabric_leave();
    rc = rc ? library_failed(mpi, rc, text) : request_wait(mpi, &meeting->request, timeout, text);
    if (rc)
        return rc; /* MPI keeps the memory: it cannot cancel a collective */
    memcpy(every, got, size * each);
    free(meeting);
    return 0;
}
