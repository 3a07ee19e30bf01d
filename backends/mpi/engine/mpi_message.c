/* Messages of arrays on GPUs between two ranks: one MPI_Isend and one MPI_Irecv. The engine matches them (p2p/offer.c); the receiver
 * posts its receive under a tag of its own, and then the sender learns the tag. After a failure the receive may stay posted for
 * ever: nothing else uses its tag, and MPI keeps its memory, which is the array on the GPU, or a buffer for one in host memory. */
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "group/group.h"
#include "mpi_fabric.h"

struct mpi_message {
    struct fabric_message base;
    struct mpi_message *next;    /* receives: of the fabric's */
    struct mpi_fabric *fabric;
    const struct acomm_op *op;
    acomm_gpu_array *array;      /* NULL: in host memory */
    uint64_t request;
    int rank, tag;               /* its peer in the fabric */
    char buffer[];               /* in the place of an array in host memory */
};

struct mpi_type mpi_type_moved(const acomm_mpi *mpi, size_t width)
{
    int unit = width % 8 == 0 ? 8 : width % 4 == 0 ? 4 : 1;
    return (struct mpi_type){unit == 1 ? mpi->byte : mpi->types[unit == 8 ? ACOMM_UINT64 : ACOMM_UINT32], 0, (int)width / unit};
}

/* Inside. 0: none is left. */
static int message_tag(struct mpi_fabric *f, int rank)
{
    for (int tries = 0; tries < LINK_TAGS; tries++) {
        int tag = LINK_TAGS + (f->received = (uint16_t)(f->received % LINK_TAGS + 1));
        const struct mpi_message *m = f->receives;
        while (m && (m->rank != rank || m->tag != tag))
            m = m->next;
        if (!m)
            return tag;
    }
    return 0;
}

/* Inside. */
static int message_start(struct mpi_message *m)
{
    struct mpi_fabric *f = m->fabric;
    struct mpi_type type = mpi_type_moved(f->mpi, m->op->width);
    int count = (int)m->op->count * type.each;
    void *data = m->buffer;
    fabric_wake();
    if (m->array) {
        fabric_use(m->array->context);
        m->array->state = ACOMM_GPU_GIVEN;
        data = (void *)m->array->address;
    }
    if (m->op->kind == ACOMM_SEND)
        return f->mpi->Isend(data, count, type.type, m->rank, m->tag, f->comm, &m->request);
    m->next = f->receives;
    f->receives = m;
    return f->mpi->Irecv(data, count, type.type, m->rank, m->tag, f->comm, &m->request);
}

/* After a call of MPI that returned this code. */
static void message_leave(struct mpi_message *m, int rc)
{
    if (rc)
        m->base.code = mpi_code_of(m->fabric->mpi, rc, m->base.why);
    fabric_leave();
}

struct fabric_message *mpi_message_begin(struct acomm_op *op, int64_t *tag)
{
    static struct fabric_message none = {.code = ACOMM_RESOURCE, .why = "no memory for a message from a GPU"};
    bool sends = op->kind == ACOMM_SEND;
    const char *array = sends ? op->out : op->gpu ? op->in : NULL;
    struct mpi_message *m = calloc(1, sizeof *m + (array ? 0 : op->count * op->width));
    if (!m)
        return &none;
    m->base.code = ACOMM_CLOSED;
    m->fabric = (struct mpi_fabric *)op->group->fabric;
    m->op = op;
    m->array = (acomm_gpu_array *)(uintptr_t)array;
    m->rank = op->group->members[op->peer];
    if (!fabric_enter())
        return &m->base;
    *tag = m->tag = sends ? (int)*tag : message_tag(m->fabric, m->rank);
    m->base.code = m->tag && op->count <= INT_MAX / 2 ? 0 : ACOMM_RESOURCE; /* callers send no more */
    message_leave(m, m->base.code ? 0 : message_start(m));
    return &m->base;
}

/* Inside. */
static void message_ended(struct mpi_message *m)
{
    struct mpi_message **at = &m->fabric->receives;
    fabric_wake(); /* what MPI has still to send for it */
    while (*at && *at != m)
        at = &(*at)->next;
    if (*at)
        *at = m->next;
    if (m->array)
        m->array->state = ACOMM_GPU_ENDED;
    else
        memcpy(m->op->out, m->buffer, m->op->count * m->op->width);
}

bool mpi_message_end(struct fabric_message *message)
{
    struct mpi_message *m = (struct mpi_message *)message;
    int ended = 0;
    if (!fabric_enter()) {
        m->base.code = ACOMM_CLOSED;
        return false;
    }
    int rc = m->fabric->mpi->Test(&m->request, &ended, m->fabric->mpi->family.ignore);
    ended &= !rc;
    if (ended)
        message_ended(m);
    message_leave(m, rc);
    if (ended)
        free(m);
    return ended;
}

void mpi_message_cancel(const struct mpi_fabric *fabric)
{
    int ended;
    for (struct mpi_message *m = fabric->receives; m; m = m->next) {
        fabric->mpi->Cancel(&m->request);
        fabric->mpi->Test(&m->request, &ended, fabric->mpi->family.ignore);
    }
}
