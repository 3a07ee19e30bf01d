/* The shared segment of a group's ranks on one host, and the steps by which they take turns in it.
 *
 * Every local rank owns a `seat`: a counter line that only it writes, and two halves of staging memory.
 * An operation runs in rounds. In round s (numbered over the group's life) a rank fills half s%2 of its own staging,
 * publishes s, waits until the ranks it reads from have published s, and reads their halves. It may fill the same
 * half again in round s+2, when every rank has published s+1 and so has finished reading s. All ranks go through the
 * same rounds, also those that have nothing to give: one counter per rank is all the synchronisation there is.
 *
 * Layout: header | seats | point-to-point rings | collective rings. memfd, sealed against shrinking; pages are
 * reserved (fallocate) before first use, so that a full machine is an error and never a SIGBUS. */
#ifndef ACOMM_SHARED_H
#define ACOMM_SHARED_H
#include <stdatomic.h>
#include "link.h"
#include "op.h"

#define SHARED_LINE 64
#define SHARED_INLINE 4096 /* bytes that fit beside the header of a half without touching another page's piece */

struct shared_seat;
struct shared {
    char *base;
    uint64_t bytes;
    int fd, rank, ranks;         /* rank and number among the ranks of this host */
    uint64_t piece;              /* bytes of one half's data */
    uint64_t step;               /* last round this rank published */
    size_t ring_bytes;
    int crowded;                 /* more local ranks than cores */
    uint64_t *seen;              /* last step seen of each local rank, saves cache misses */
};

uint64_t shared_bytes(int ranks, uint64_t piece);
int shared_open(struct shared *s, int fd, uint64_t bytes, int rank, int ranks, uint64_t piece);
void shared_close(struct shared *s);

/* Where rank's header and data of the round `step` are. */
acomm_header *shared_header(const struct shared *s, int rank, uint64_t step);
char *shared_data(const struct shared *s, int rank, uint64_t step);
/* Publish that the half of round s->step+1 is filled, and move to that round. */
void shared_publish(struct shared *s);
/* Wait until local `rank` has published `step`. */
int shared_await(struct shared *s, struct acomm_op *op, int rank, uint64_t step);

/* Ring memory from local rank `from` to `to` for link_shm.c; reserves its pages. NULL when memory is out. */
struct link_ring *shared_ring(struct shared *s, enum channel channel, int from, int to);
#endif
