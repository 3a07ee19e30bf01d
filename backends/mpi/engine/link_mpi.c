/* A link over MPI: chunks of the stream, from a ring of buffers to a ring of buffers, by messages between two ranks of the
 * fabric's communicator under a tag of the link's own. The opener chooses the tag; the connection that it asks for tells the
 * other side, and is closed then. Libraries buffer short unreceived messages without limit: every SYNCHRONOUS-th chunk therefore
 * uses a synchronous send, which ends when the chunk is received. A chunk without contents is the stream's end. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "mpi_fabric.h"

#define SLOTS 8
#define CHUNK ((size_t)60 << 10) /* with its head below the 64 KiB of Open MPI's eager messages over TCP */
#define SYNCHRONOUS 32

struct chunk {
    uint64_t group; /* leftovers of an earlier link of this tag are not mistaken for ours */
    uint64_t bytes;
    char data[];
};
struct slot {
    uint64_t request;
    bool busy;
    struct chunk *chunk;
};
struct link_mpi {
    struct link base;
    struct mpi_fabric *fabric;
    struct link_mpi *next, **at;
    uint64_t group;
    int rank, tag;
    _Atomic bool ready;
    bool closed, ended, cancelled;
    int failed;                /* a code: the fabric's thread may have received it */
    unsigned turn, sent;
    size_t moved;              /* bytes of the slot whose turn it is, that are filled or taken */
    struct slot slots[SLOTS];
    struct slot last;          /* the stream's end, of the sender */
    char why[192];
};

static struct link_mpi *link_mpi_self(struct link *link)
{
    return (struct link_mpi *)link;
}

static struct slot *slot_now(struct link_mpi *l)
{
    return &l->slots[l->turn % SLOTS];
}

/* ---- inside ---- */

static int link_failed(struct link_mpi *l, int rc)
{
    l->base.why = l->why;
    l->failed = mpi_code_of(l->fabric->mpi, rc, l->why);
    return l->failed;
}

static int slot_post(struct link_mpi *l, struct slot *slot)
{
    const struct mpi_fabric *f = l->fabric;
    const acomm_mpi *mpi = f->mpi;
    int rc, bytes = (int)(sizeof *slot->chunk + (l->base.outgoing ? slot->chunk->bytes : CHUNK));
    if (l->base.outgoing) {
        int (*send)(const void *, int, mpi_handle, int, int, mpi_handle, void *) = ++l->sent % SYNCHRONOUS ? mpi->Isend : mpi->Issend;
        rc = send(slot->chunk, bytes, mpi->byte, l->rank, l->tag, f->comm, &slot->request);
        fabric_wake();
    } else {
        rc = mpi->Irecv(slot->chunk, bytes, mpi->byte, l->rank, l->tag, f->comm, &slot->request);
    }
    slot->busy = !rc;
    return rc ? link_failed(l, rc) : 0;
}

/* 1: it has ended, 0: it is under way, or a code. */
static int slot_test(struct link_mpi *l, struct slot *slot)
{
    const acomm_mpi *mpi = l->fabric->mpi;
    int flag = 0;
    if (!slot->busy)
        return 1;
    int rc = mpi->Test(&slot->request, &flag, mpi->family.ignore);
    if (!rc && !flag)
        return 0;
    slot->busy = false;
    return rc ? link_failed(l, rc) : 1;
}

static int receives_post(struct link_mpi *l)
{
    int rc = 0;
    for (int i = 0; i < SLOTS && !rc; i++)
        rc = slot_post(l, &l->slots[i]);
    return rc;
}

/* As slot_test() of a chunk of ours, or the stream's end. Others are dropped. */
static int chunk_come(struct link_mpi *l)
{
    struct slot *slot = slot_now(l);
    while (!l->ended) {
        int rc = slot_test(l, slot);
        if (rc <= 0)
            return rc;
        l->ended = slot->chunk->group == l->group && !slot->chunk->bytes;
        if (slot->chunk->group == l->group && slot->chunk->bytes <= CHUNK)
            break;
        if ((rc = slot_post(l, slot)))
            return rc;
        slot = &l->slots[++l->turn % SLOTS];
    }
    return 1;
}

/* Of the sender: sends the slot's contents. */
static int chunk_leave(struct link_mpi *l)
{
    struct slot *slot = slot_now(l);
    if (!l->moved)
        return 0;
    *slot->chunk = (struct chunk){l->group, l->moved};
    l->moved = 0;
    l->turn++;
    return slot_post(l, slot);
}

/* ---- the link's functions ---- */

static ssize_t chunks_send(struct link_mpi *l, const char *data, size_t bytes, bool more)
{
    size_t done = 0;
    while (done < bytes) {
        struct slot *slot = slot_now(l);
        int rc = l->failed ? l->failed : l->moved ? 1 : slot_test(l, slot);
        if (rc <= 0)
            return done ? (ssize_t)done : rc;
        size_t n = bytes - done < CHUNK - l->moved ? bytes - done : CHUNK - l->moved;
        memcpy(slot->chunk->data + l->moved, data + done, n);
        l->moved += n;
        done += n;
        if (l->moved == CHUNK && (rc = chunk_leave(l)) < 0)
            return rc;
    }
    int rc = more || l->failed ? 0 : chunk_leave(l);
    if (l->moved)
        fabric_wake();
    return rc < 0 ? rc : (ssize_t)done;
}

static ssize_t chunks_receive(struct link_mpi *l, char *data, size_t bytes)
{
    size_t done = 0;
    while (done < bytes) {
        int rc = l->failed ? l->failed : l->moved ? 1 : chunk_come(l);
        rc = rc > 0 && l->ended ? ACOMM_LOST : rc;
        if (rc <= 0)
            return done ? (ssize_t)done : rc;
        struct slot *slot = slot_now(l);
        size_t left = slot->chunk->bytes - l->moved, n = bytes - done < left ? bytes - done : left;
        memcpy(data + done, slot->chunk->data + l->moved, n);
        l->moved += n;
        done += n;
        if (l->moved < slot->chunk->bytes)
            break;
        l->moved = 0;
        l->turn++;
        if ((rc = slot_post(l, slot)))
            return rc;
    }
    return (ssize_t)done;
}

static bool mpi_complete(const struct link *link)
{
    return atomic_load_explicit(&link_mpi_self((struct link *)(uintptr_t)link)->ready, memory_order_acquire);
}

static ssize_t chunks_move(struct link *link, char *data, size_t bytes, bool more)
{
    if (!mpi_complete(link))
        return 0;
    bool inside = fabric_enter();
    errno = 0; /* only for codes that have one */
    if (!inside) {
        link->why = "MPI has been finalised";
        return ACOMM_CLOSED;
    }
    struct link_mpi *l = link_mpi_self(link);
    ssize_t n = link->outgoing ? chunks_send(l, data, bytes, more) : chunks_receive(l, data, bytes);
    fabric_leave();
    return n;
}

static ssize_t mpi_send(struct link *link, const void *data, size_t bytes, bool more)
{
    return chunks_move(link, (char *)(uintptr_t)data, bytes, more);
}

static ssize_t mpi_recv(struct link *link, void *data, size_t bytes)
{
    return chunks_move(link, data, bytes, false);
}

/* The other side knows the tag: the receiver learns it from the number of the connection. */
static int mpi_attach(struct link *link, int number, int fd)
{
    struct link_mpi *l = link_mpi_self(link);
    int rc = 0;
    if (number < 1 || mpi_complete(link) || (link->outgoing && number != l->tag))
        return ACOMM_ARGUMENT;
    if (!fabric_enter())
        return ACOMM_CLOSED;
    l->tag = number;
    if (!link->outgoing)
        rc = receives_post(l);
    fabric_leave();
    atomic_store_explicit(&l->ready, !rc, memory_order_release);
    if (!rc)
        close(fd);
    return rc;
}

static void link_free(struct link_mpi *l)
{
    if (l->at)
        *l->at = l->next;
    if (l->next)
        l->next->at = l->at;
    for (int i = 0; i < SLOTS; i++)
        free(l->slots[i].chunk);
    free(l->last.chunk);
    free(l);
}

static void mpi_close(struct link *link)
{
    struct link_mpi *l = link_mpi_self(link);
    if (!l->at) {
        link_free(l);
        return;
    }
    if (!fabric_enter())
        return; /* MPI may still use its memory */
    l->closed = true;
    if (mpi_complete(link) && link->outgoing) {
        chunk_leave(l);
        *l->last.chunk = (struct chunk){l->group, 0};
        slot_post(l, &l->last);
    }
    if (link_mpi_look(l) != LINK_IDLE)
        fabric_wake();
    fabric_leave();
}

static const struct link_ops mpi_ops = {mpi_send, mpi_recv, NULL, mpi_close, NULL, NULL, mpi_attach, mpi_complete};

/* Inside: one of no other link to this rank. */
static int link_tag(const struct mpi_fabric *fabric, int rank)
{
    for (;;) {
        int tag = fabric->tags[rank] = (uint16_t)(fabric->tags[rank] % LINK_TAGS + 1);
        const struct link_mpi *l = fabric->links;
        while (l && !(l->base.outgoing && l->rank == rank && l->tag == tag))
            l = l->next;
        if (!l)
            return tag;
    }
}

/* Inside. */
static void link_join(struct link_mpi *l)
{
    if (l->base.outgoing) {
        l->tag = l->base.first = link_tag(l->fabric, l->rank);
        l->base.connections = 1;
    }
    l->next = l->fabric->links;
    l->at = &l->fabric->links;
    if (l->next)
        l->next->at = &l->next;
    l->fabric->links = l;
}

struct link *link_mpi_new(struct acomm_fabric *fabric, uint64_t group, int peer, int rank, bool outgoing)
{
    struct link_mpi *l = calloc(1, sizeof *l);
    if (!l)
        return NULL;
    *l = (struct link_mpi){.base = {.ops = &mpi_ops, .peer = peer, .outgoing = outgoing}, .fabric = (struct mpi_fabric *)fabric,
                           .group = group, .rank = rank};
    bool whole = (l->last.chunk = malloc(sizeof(struct chunk))) != NULL;
    for (int i = 0; i < SLOTS && whole; i++)
        whole = (l->slots[i].chunk = malloc(sizeof(struct chunk) + CHUNK)) != NULL;
    if (!whole) {
        link_free(l);
        return NULL;
    }
    if (fabric_enter()) {
        link_join(l);
        fabric_leave();
    } else {
        l->ready = true; /* to fail at its first use */
    }
    return &l->base;
}

/* ---- of the fabric ---- */

struct link_mpi *link_mpi_next(const struct link_mpi *l)
{
    return l->next;
}

/* Whether sends or receives are under way. Flushes bytes that wait for more. */
static bool link_busy(struct link_mpi *l)
{
    if (l->base.outgoing && !l->failed)
        chunk_leave(l);
    bool busy = slot_test(l, &l->last) == 0;
    for (int i = 0; i < SLOTS; i++)
        busy |= slot_test(l, &l->slots[i]) == 0;
    return busy;
}

void link_mpi_cancel(struct link_mpi *l)
{
    for (int i = 0; i < SLOTS && !l->base.outgoing && !l->cancelled; i++)
        if (l->slots[i].busy) {
            l->fabric->mpi->Cancel(&l->slots[i].request);
            slot_test(l, &l->slots[i]);
        }
    l->cancelled = true;
}

/* Whether the stream has ended: unwanted contents are dropped, so that their sender can complete. */
static bool stream_ended(struct link_mpi *l)
{
    int rc = 1;
    while (!l->ended && (rc = chunk_come(l)) > 0 && !l->ended) {
        l->moved = 0;
        rc = slot_post(l, slot_now(l));
        l->turn++;
        if (rc)
            break;
    }
    return l->ended || rc < 0;
}

/* Receives of a closed link continue until the stream ends, so that nothing remains for a later link. */
static bool link_drains(struct link_mpi *l)
{
    if (!mpi_complete(&l->base))
        return false;
    if (!stream_ended(l))
        return true;
    link_mpi_cancel(l);
    return link_busy(l);
}

enum link_state link_mpi_look(struct link_mpi *l)
{
    enum link_state state = l->base.outgoing ? (link_busy(l) ? LINK_SENDS : LINK_IDLE)
                          : l->closed && link_drains(l) ? LINK_DRAINS : LINK_IDLE;
    if (l->closed && state == LINK_IDLE)
        link_free(l);
    return state;
}
