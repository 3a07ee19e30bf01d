/* Moves bytes over several links at once until all are done: what every algorithm over links is made of.
 *
 * Blocking, with the operation's deadline, the group's poison and Ctrl-C observed. On failure the group's failure
 * names the link's peer. Links that are not connected yet are asked for and awaited. */
#ifndef ACOMM_TRANSFER_H
#define ACOMM_TRANSFER_H
#include "link.h"
#include "op.h"
#include "reduce.h"

struct transfer {
    struct link *link;
    char *data;                 /* where to send from or receive into */
    size_t bytes, done;
    /* optional, receives only: combine what arrives into `partial` as it comes, piece by piece (reduce_combine) */
    const struct reduction *reduction;
    char *partial;              /* same number of elements as data has room for */
    bool swap;
    size_t combined;            /* bytes combined so far */
};

/* A zero-byte transfer is complete from the start. */
int transfer_run(struct acomm_op *op, struct transfer *list, int transfers);
/* The common case. A peer of -1 leaves that half out. */
int transfer_exchange(struct acomm_op *op, int to, const void *send, size_t send_bytes, int from, void *recv,
                      size_t recv_bytes);
#endif
