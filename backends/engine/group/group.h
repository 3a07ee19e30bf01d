/* A group: its peers, its queue, its state. Everything that belongs to one communicator. */
#ifndef ACOMM_GROUP_H
#define ACOMM_GROUP_H
#include "base/process.h"
#include "group/hosts.h"
#include "group/select.h"
#include "group/shared/shared.h"
#include "group/shared/symmetric.h"
#include "memory/stream.h"
#include "group/wait.h"

struct p2p;
struct acomm_node;

/* Functions of the layers above a group, called by it. */
struct group_above {
    const struct algorithm *algorithms;           /* the last row has no name */
    int (*settle)(struct acomm_group *g);         /* rounds_settle() */
};

/* Of operations that run ahead, see signature.h. */
#define SIGNATURES 64                               /* open ones at most; a power of two */
#define SIGNATURE_AHEAD_BYTES ((uint64_t)64 << 10)
struct signatures {
    uint64_t called, heard;                         /* operations that ran ahead; bytes of the next rank's headers of those */
    uint64_t compared;                              /* those before the last operation that all ranks compared */
    acomm_header mine[SIGNATURES], theirs[SIGNATURES];
};

struct acomm_group {
    const struct group_above *above;
    struct acomm_node *node;
    uint64_t id;
    int rank, size;
    int *members;                /* world ranks */
    struct hosts hosts;
    bool oversubscribed;                /* the ranks on this host cannot have a core each */
    struct wait_preempted preempted;
    struct shared shared;        /* base NULL when this rank is alone on its host or the transport is TCP */
    struct link **out[CHANNELS], **in[CHANNELS]; /* by rank; NULL until first needed */
    int connections;
    struct acomm_fabric *fabric; /* NULL: TCP */
    void *fabric_own;            /* what the fabric holds for its collectives; NULL until one is asked for */
    bool loopback;               /* all ranks are on this host: where links are sockets, no network is between them */
    bool check;
    int without;                 /* bits of acomm_without */
    int64_t timeout, patience;
    _Atomic uint64_t sequence;   /* collectives begun; written by the thread that has the turn, read by the node */
    struct signatures signatures;
    struct selection selection;  /* which algorithm from how many bytes on */

    _Atomic int poisoned;        /* 0, or the code of the failure; read in every wait */
    acomm_failure failure;       /* first failure; under lock */
    bool failed;
    int wake_fd;                 /* eventfd, readable for good once poisoned: ends a poll() */
    struct doorbell *doorbell;           /* this rank's in the segment, NULL without one */
    pthread_mutex_t lock;        /* never held while calling the node, whose lock comes first */
    /* queue of collectives, see group/queue.c */
    _Atomic int busy;            /* a thread runs a collective; acquired by compare and swap, without the lock */
    _Atomic int claims;          /* threads that wait for the turn */
    _Atomic int inside;          /* threads in a call about an operation: closing waits for them */
    _Atomic int pending;         /* operations in the queue, or run out of it */
    struct acomm_op *head, *tail;
    uint64_t posts, pops;        /* into and out of the queue, ever */
    struct acomm_op *spare;      /* free list */
    unsigned forks;              /* see group_forked */
    pthread_t worker;
    pthread_cond_t work;         /* the worker, and who waits for the turn */
    bool worker_started, stopping;
    bool hurry;                  /* the worker is to run what is queued now */
    bool deep;                   /* it sleeps until it is notified */
    struct p2p *p2p;
    void (*fail_messages)(struct p2p *p2p); /* p2p_fail() */
    struct stream_path *stores;   /* stores for slots outside exchange buffers, per reader (rounds_fill) */
    struct direct_state direct;        /* reading the peers' arrays where they lie */
    struct scratch { char *data; size_t bytes; } scratch[2]; /* of operations and of their parts; kept from call to call */
};

/* acomm_group_open() without what is above. */
int group_open(acomm_node *node, const acomm_group_options *o, const struct group_above *above, acomm_group **out);

/* Records the first failure (later ones are dropped), poisons, wakes all waiters, and notifies the peers through the node unless
 * the failure came from them (`tell` false). Returns the code that is now the group's. */
int group_fail(struct acomm_group *g, const acomm_failure *failure, bool tell);
/* group_fail with the fields that are known to an operation's own wait. */
int group_fail_op(struct acomm_op *op, int code, int culprit, int errnum, const char *text);
/* window_close() with the group's timeout; the failure of a failed group then names the rank that still writes. */
void group_close_window(struct acomm_group *g);

/* The link, created on first use. Asks the node for a connection where one is needed; it may not be complete yet.
 * NULL: out of memory. */
struct link *group_link(struct acomm_group *g, enum channel channel, int rank, bool outgoing);
/* Whether it can be used now (shared memory: always). */
bool group_link_ready(struct acomm_group *g, const struct link *link);

/* Whether this process is a child made by fork after the group: threads and connections stayed with the parent. */
static inline bool group_forked(const struct acomm_group *g) { return forks_now() != g->forks; }

/* Runs the collective now when the group is idle, else after those that are queued. Blocks. */
int group_run(struct acomm_op *op);
/* Begins or queues it; op_complete() ends it. Does not block. */
int group_enqueue(struct acomm_op *op);
/* As op_wait(), and runs what is queued before it where that is shorter than waking the worker. */
int group_wait(struct acomm_op *op, int64_t timeout);

/* An operation for asynchronous use, and back to the free list. */
struct acomm_op *group_new_op(struct acomm_group *g);
void group_recycle(struct acomm_group *g, struct acomm_op *op);

/* At least `bytes` of 64-byte aligned scratch, kept for later calls; NULL when memory is out. One collective at a time
 * runs in a group, so there is one such area, and one for the part under way. Contents are undefined. */
void *group_scratch(const struct acomm_op *op, size_t bytes);
#endif
