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
/* A message of the fabric itself, which is under way. */
struct fabric_message {
    int code;                 /* 0, or why it has failed */
    char why[192];            /* the fabric's error text */
};
/* A fabric: a transport other than TCP between ranks that share no memory. */
struct acomm_fabric {
    /* A link to `peer` of this group, which is `world` in the fabric. NULL: out of memory. */
    struct link *(*link)(struct acomm_fabric *fabric, uint64_t group, int peer, int world, bool outgoing);
    /* A collective of the fabric itself, as an algorithm runs it, or FABRIC_CANNOT, on all ranks; and the call that frees the
     * fabric's state for the group. NULL, both: it has none. */
    int (*collective)(struct acomm_op *op);
    void (*leave)(struct acomm_group *group);
    /* Begins the transfer of a message's array on a GPU, at its receiver first: that one chooses *tag, which is 0. end(): whether it
     * has ended, and is freed; else it may have failed. NULL, both: the fabric has no messages. */
    struct fabric_message *(*begin)(struct acomm_op *op, int64_t *tag);
    bool (*end)(struct fabric_message *message);
};
/* In the memory of a link: an array under transfer, of which each side copies the next part until none is left. */
struct link_parts {
    _Alignas(64) _Atomic uint64_t taken; /* (number of the message + 1) << LINK_PARTS_BITS | parts taken; 0: no array */
    _Atomic uint64_t to;                 /* the receiver's array: its address, or where it lies in the receiver's arena, */
    _Atomic uint32_t mapped;             /* which the sender can map */
    _Atomic uint32_t written, broken;    /* parts that the sender has finished; some of which could not be written */
};
#define LINK_PARTS_BITS 24
struct link_ops {
    /* Bytes accepted (0: none now) or a negative code: ACOMM_LOST when the peer is gone, ACOMM_SYSTEM with errno set. more: other
     * bytes follow, so the peer need not be notified of these alone; it is within some 200 ms in any case. No bytes and no more:
     * flushes bytes that wait for more. */
    ssize_t (*send)(struct link *link, const void *data, size_t bytes, bool more);
    ssize_t (*recv)(struct link *link, void *data, size_t bytes);
    /* For poll(); -1 when there is none now and the caller must poll again. NULL: there never is one. */
    int (*descriptor)(struct link *link);
    void (*close)(struct link *link);
    /* Whether recv() would return bytes, for the cost of a load. NULL: only a system call shows that. */
    bool (*waiting)(const struct link *link);
    /* Sends `beside` bytes at head, whole or not at all, then the body's: without copying them together first. Returns the bytes
     * accepted of both. NULL: the link gains nothing by it. recv() returns the head alone. */
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
    const char *why;        /* the fabric's error text after a negative code, or NULL */
    /* Set by the caller before each message: bytes that follow each other, the same on both sides; and bytes of the whole array,
     * see stream_long(). 0: not known. */
    size_t row, whole;
    bool plain;    /* send() fills its ring by ordinary stores */
    bool patient;  /* recv() may wait a microsecond for the next piece of a row: its sender has a CPU of its own */
    _Atomic uint32_t *withdrawn; /* the sender's flag to the receiver in shared memory, never cleared: arrays that it offered may
                                  * change from now on. NULL where the ends share no memory */
    struct link_parts *parts;    /* see p2p/share.c; NULL where the ends share no memory */
    struct doorbell *doorbell; /* rung after changes; NULL: poll the descriptor, or poll again */
    struct doorbell *theirs; /* the other side's, or NULL */
};

static inline int link_descriptor(struct link *link)
{
    return link->ops->descriptor ? link->ops->descriptor(link) : -1;
}

/* The rank that caused a link's negative code: the peer, or none if the fabric itself failed. */
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
/* An exchange buffer behind each ring, as large as such a part of it and a line (link/shm.c): the one behind the ring that a
 * message would go through, or the one behind the ring of the other direction. */
enum link_cell { CELL_NONE, CELL_OURS, CELL_THEIRS, CELLS };
#define LINK_CELL_PART 8
/* Joins both directions of two ends: messages may use the other direction's memory. Before either is used again. */
void link_shm_join(struct link *out, struct link *in);
size_t link_shm_footprint(size_t bytes);         /* memory that a ring of `bytes` takes in the segment */

#endif
