/* The narrow transport: one direction of one channel to one peer, as a stream of bytes.
 *
 * A link is one-way: its opener only sends, the other side only receives. Neither call blocks, needs the GIL or
 * keeps a pointer to the caller's memory after it returns. One thread at a time uses a link.
 * Implementations: link/tcp.c (one or several sockets, striped), link/shm.c (a ring in the shared segment), and over a fabric
 * the MPI backend's link_mpi.c. */
#ifndef ACOMM_LINK_H
#define ACOMM_LINK_H
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/types.h>
#include "acomm.h"

#define FABRIC_CANNOT 1
#define LINK_BESIDE 56            /* bytes at most of a frame's head */

enum channel { CHANNEL_CONTROL, CHANNEL_COLLECTIVE, CHANNEL_P2P, CHANNELS };

struct doorbell;
struct link;
/* What carries data between ranks that share no memory, other than TCP. */
struct acomm_fabric {
    /* A link to `peer` of this group, which is `world` in the fabric. NULL: out of memory. */
    struct link *(*link)(struct acomm_fabric *fabric, uint64_t group, int peer, int world, bool outgoing);
    /* A collective by what carries the data, as an algorithm runs it, or FABRIC_CANNOT, on all ranks; and what it holds for the group by
     * then is given back. NULL, both: it has none. */
    int (*collective)(struct acomm_op *op);
    void (*leave)(struct acomm_group *group);
};
/* In the memory of a link: an array on its way, of which each side copies the next part until none is left. */
struct link_parts {
    _Alignas(64) _Atomic uint64_t taken; /* (number of the message + 1) << LINK_PARTS_BITS | parts taken; 0: no array */
    _Atomic uint64_t to;                 /* the receiver's array: its address, or where it lies in the receiver's arena, */
    _Atomic uint32_t mapped;             /* which the sender can map */
    _Atomic uint32_t written, broken;    /* parts that the sender has done with; some of which could not be written */
};
#define LINK_PARTS_BITS 24
struct link_ops {
    /* Bytes taken (0: none just now) or a negative code: ACOMM_LOST when the peer is gone, ACOMM_SYSTEM with errno set.
     * more: other bytes follow, so that the peer need not be told of these alone; it is within some 200 ms all the same. No bytes
     * and no more: what waits for more leaves. */
    ssize_t (*send)(struct link *link, const void *data, size_t bytes, bool more);
    ssize_t (*recv)(struct link *link, void *data, size_t bytes);
    /* For poll(); -1 when there is none and the caller must look again. NULL: there never is. */
    int (*descriptor)(struct link *link);
    void (*close)(struct link *link);
    /* Whether recv() would give something, at the cost of a look into memory. NULL: only a system call can tell. */
    bool (*waiting)(const struct link *link);
    /* Sends `beside` bytes at head, whole or not at all, then the body's: without copying them together first. Returns what
     * it took of both. NULL: the link has no use for it. recv() gives the head alone. */
    ssize_t (*frame)(struct link *link, const void *head, size_t beside, const void *body, size_t bytes);
    /* A connected, authenticated socket with this number (see `first`), which is the link's from then on, or a code. It can be used
     * once that is complete; until then send() and recv() move nothing. NULL, both: it is complete from the beginning. */
    int (*attach)(struct link *link, int number, int fd);
    bool (*complete)(const struct link *link);
};
struct link {
    const struct link_ops *ops;
    int peer;      /* group rank */
    bool outgoing;
    int first, connections; /* numbers of the sockets that its opener is to connect */
    const char *why;        /* the fabric's words after a negative code, or NULL */
    /* Set by who uses it before each message: bytes that come in a row, the same on both sides; and of the array that they
     * are a part of, see stream_long(). 0: not known. */
    size_t row, whole;
    bool plain;    /* send() fills its ring by ordinary stores */
    bool patient;  /* recv() may wait a microsecond for the next piece of a row: its sender has a processor to itself */
    _Atomic uint32_t *withdrawn; /* the sender's word to the receiver in shared memory, set for good: arrays that it offered may
                                  * change from now on. NULL where the ends share no memory */
    struct link_parts *parts;    /* see p2p/share.c; NULL where the ends share no memory */
    struct doorbell *doorbell; /* rung when there may be news; NULL: look at the descriptor, or look again */
    struct doorbell *theirs; /* the other side's, or NULL */
};

static inline int link_descriptor(struct link *link)
{
    return link->ops->descriptor ? link->ops->descriptor(link) : -1;
}

/* Whose doing a link's negative code is: the peer's, or of no rank where the fabric itself failed. */
static inline int link_culprit(const struct link *link, int code)
{
    return code == ACOMM_CLOSED || code == ACOMM_LIBRARY ? -1 : link->peer;
}

/* link/tcp.c: at most 64 `connections`, filled one by one by attach; the stream is spread over them in stripes. */
struct link *link_tcp_new(int peer, bool outgoing, int connections);

/* link/shm.c: single producer, single consumer ring of `bytes` (power of two) at `memory`; see shared.h for where. */
struct link_ring;                                /* layout in the segment */
struct link *link_shm_new(int peer, bool outgoing, struct link_ring *memory, size_t bytes, struct doorbell *ours,
                          struct doorbell *theirs); /* doorbells may be NULL */
/* Memory behind each ring, as large as such a part of it and a line, that changes hands (link/shm.c): the one behind the ring that a
 * message would go through, or the one behind the ring that comes back. */
enum link_cell { CELL_NONE, CELL_OURS, CELL_THEIRS, CELLS };
#define LINK_CELL_PART 8
/* Both ways between the same two ends: messages may go where those of the other way lay. Before either is used again. */
void link_shm_join(struct link *out, struct link *in);
size_t link_shm_footprint(size_t bytes);         /* memory that a ring of `bytes` takes in the segment */

#endif
