/* Moves bytes over several links at once until all are done: what every algorithm over links is made of.
 *
 * Blocking, with the operation's deadline, the group's poison and Ctrl-C observed. On failure the group's failure
 * names the link's peer. Links that are not connected yet take nothing until they are. */
#ifndef ACOMM_TRANSFER_H
#define ACOMM_TRANSFER_H
#include "link/link.h"
#include "group/op.h"
#include "reduce/reduce.h"

#define TRANSFER_PIECE ((size_t)64 << 10) /* bytes combined at a time: they are still in the cache */

struct transfer {
    struct link *link;
    char *data;                 /* source or target memory */
    size_t bytes, done;
    /* optional */
    struct transfer *after;     /* waits until that one is done: for a second message over the same link */
    const struct transfer *behind; /* sends only: forwards the bytes that one has received so far */
    bool more;                  /* sends only: another message follows over the same link at once */
    bool aside;                 /* progresses with the others, but its end is not awaited: it is in a later list again */
    bool checked;               /* receives only: begins with the peer's call signature, compared on arrival */
    bool hears;                 /* receives only: only call signatures of operations that ran ahead (signature.h) */
    bool prompt;                /* sends only: the signature before the contents does not wait for them */
    size_t head;                /* bytes of the signature before the contents that have still to move, */
    acomm_header header;        /* the signature itself */
    /* Receives only: received data is combined into `partial` (reduce_combine). `data` is then just a buffer of TRANSFER_PIECE
     * bytes, and `bytes` is still the whole message. */
    const struct reduction *reduction;
    char *partial;
    bool swap;
    size_t combined;            /* bytes combined so far */
};

/* A message of the operation to or from a rank of its team. */
struct transfer transfer_to(struct acomm_op *op, int peer, const void *data, uint64_t bytes);
struct transfer transfer_from(struct acomm_op *op, int peer, void *data, uint64_t bytes);

/* Until all are done but those aside. A zero-byte transfer is complete from the start. */
int transfer_run(struct acomm_op *op, struct transfer *list, int transfers);
/* The common case. A peer of -1 leaves that half out. */
int transfer_exchange(struct acomm_op *op, int to, const void *send, size_t send_bytes, int from, void *recv,
                      size_t recv_bytes);
#endif
