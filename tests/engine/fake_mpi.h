/* An MPI library in this process, for tests of the MPI backend's C half: both ends are here, each with a fabric of its own. */
#ifndef FAKE_MPI_H
#define FAKE_MPI_H
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "check.h"
#include "../../backends/mpi/engine/link_mpi.c"
#include "../../backends/mpi/engine/mpi_fabric.c"
#include "../../backends/mpi/engine/mpi_message.c"
#include "../../backends/mpi/engine/mpi_open.c"

/* ---- the stand-in: the communicator is the rank that calls ---- */

#define REQUESTS 4096
static struct request {
    bool used, receives, waits, done, cancelled; /* waits: its end is that of the receive */
    int from, to, tag, bytes;
    char *data;
} requests[REQUESTS];
static int failing; /* calls until one fails; 0: none does */
static bool rendezvous;

static int start(bool receives, void *data, int bytes, int from, int to, int tag, bool waits, void *out)
{
    if (failing && !--failing)
        return 16;
    uint64_t at = 0;
    while (requests[at].used)
        CHECK(++at < REQUESTS);
    char *kept = data;
    if (!receives)
        kept = memcpy(malloc((size_t)bytes), data, (size_t)bytes); /* else the address sanitizer sees who reads too late */
    requests[at] = (struct request){.used = true, .receives = receives, .waits = waits, .from = from, .to = to, .tag = tag,
                                    .bytes = bytes, .data = kept};
    memcpy(out, &at, sizeof at);
    return 0;
}

static int fake_isend(const void *in, int count, mpi_handle type, int peer, int tag, mpi_handle comm, void *request)
{
    (void)type;
    return start(false, (void *)(uintptr_t)in, count, (int)comm, peer, tag, rendezvous, request);
}

static int fake_issend(const void *in, int count, mpi_handle type, int peer, int tag, mpi_handle comm, void *request)
{
    (void)type;
    return start(false, (void *)(uintptr_t)in, count, (int)comm, peer, tag, true, request);
}

static int fake_irecv(void *out, int count, mpi_handle type, int peer, int tag, mpi_handle comm, void *request)
{
    (void)type;
    return start(true, out, count, peer, (int)comm, tag, true, request);
}

/* Receives and sends meet in the order in which they were posted, which is that of the array: nothing here is freed before the end. */
static void match(void)
{
    for (struct request *r = requests; r < requests + REQUESTS; r++)
        for (struct request *s = requests; s < requests + REQUESTS && r->used && r->receives && !r->done && !r->cancelled; s++)
            if (s->used && !s->receives && s->data && s->from == r->from && s->to == r->to && s->tag == r->tag) {
                CHECK(s->bytes <= r->bytes);
                memcpy(r->data, s->data, (size_t)s->bytes);
                free(s->data);
                s->data = NULL;
                r->done = s->done = true;
            }
}

static int fake_test(void *request, int *flag, void *status)
{
    (void)status;
    uint64_t at;
    memcpy(&at, request, sizeof at);
    match();
    *flag = requests[at].done || requests[at].cancelled || !requests[at].waits;
    return 0;
}

static int fake_cancel(void *request)
{
    uint64_t at;
    memcpy(&at, request, sizeof at);
    requests[at].cancelled = !requests[at].done;
    return 0;
}

static int freed;
static int fake_free(void *comm)
{
    (void)comm;
    freed++;
    return 0;
}

void mpi_words(const acomm_mpi *mpi, int code, char *text)
{
    (void)mpi;
    snprintf(text, 192, "error %d", code);
}

mpi_handle mpi_read(const acomm_mpi *mpi, const void *place)
{
    (void)mpi;
    return *(const mpi_handle *)place;
}

/* tests/conformance has the library's collectives. */
int mpi_collective(struct acomm_op *op) { return op == NULL; }
void mpi_collective_leave(struct acomm_group *group) { (void)group; }

int mpi_code_of(const acomm_mpi *mpi, int code, char *text)
{
    mpi_words(mpi, code, text);
    return code == 75 ? ACOMM_LOST : ACOMM_LIBRARY;
}

static acomm_mpi fake = {.family = {.handle_bytes = sizeof(void *)}, .Isend = fake_isend, .Issend = fake_issend,
                         .Irecv = fake_irecv, .Test = fake_test, .Cancel = fake_cancel, .Comm_free = fake_free};
static struct mpi_fabric *ends[2];

static void forget(void)
{
    for (struct request *r = requests; r < requests + REQUESTS; r++)
        if (r->used && !r->receives)
            free(r->data);
    memset(requests, 0, sizeof requests);
}

static void open_ends(void)
{
    forget();
    for (int i = 0; i < 2; i++) {
        ends[i] = calloc(1, sizeof *ends[i]);
        *ends[i] = (struct mpi_fabric){.mpi = &fake, .comm = (mpi_handle)i, .size = 2, .tags = calloc(2, sizeof(uint16_t)),
                                       .next = all.fabrics};
        all.fabrics = ends[i];
    }
}

/* Both closed, and nothing left of either. */
static void close_ends(void)
{
    int before = freed;
    acomm_fabric_close(&ends[0]->base);
    acomm_fabric_close(&ends[1]->base);
    fabrics_look();
    CHECK_EQUAL(freed, before + 2);
    for (struct request *r = requests; r < requests + REQUESTS; r++)
        CHECK(!r->used || r->done || r->cancelled);
}
#endif
