/* The engine's interface for this package; what it has in common with the public one stands in arraycomm.h. cffi reads both.
 *
 * Conventions, for every function below:
 * - It returns 0 (ACOMM_OK) or a negative code of `enum acomm_code`; the failure is then in acomm_group_failure() (the first
 *   failure of a group is kept, because it poisons the group).
 * - Buffers belong to the caller and stay valid until the operation has ended.
 * - Counts are in elements, sizes in bytes, times in nanoseconds. A timeout below 0 means the group's own.
 * - Ranks are ranks of the group unless "world rank" stands.
 * - No function needs the GIL; those that may block say so.
 *
 * Only plain C declarations here: cffi's parser reads this file after dropping the lines that start with '#'.
 */
#ifndef ACOMM_H
#define ACOMM_H
#include "arraycomm_backend.h"

typedef struct acomm_node acomm_node;
typedef struct acomm_fabric acomm_fabric; /* see link.h */

extern const acomm_operation acomm_operations[ACOMM_KINDS];

typedef struct acomm_group_options {
    uint64_t id;              /* equal on all members, unique among the node's open groups */
    int32_t rank, size;
    const int32_t *members;   /* world rank of each rank */
    const int32_t *hosts;     /* host number of each rank: equal numbers share memory */
    const int32_t *processes; /* process of each rank on this host; of other ranks any number */
    int32_t local;            /* ranks on this one's host, itself included, whether or not they share memory */
    int32_t oversubscribed;          /* 1: more ranks than CPUs, so a waiting rank must not spin long */
    int32_t segment_fd;       /* sealed memfd of the ranks on this host, or -1; the engine duplicates it */
    int32_t connections;      /* TCP connections per pair and direction, >= 1 */
    acomm_fabric *fabric;     /* what carries data between hosts; NULL: TCP. It outlives the group */
    int32_t check;            /* 1: check call signatures before every collective (default) */
    int32_t without;          /* bits of acomm_without: mechanisms that are switched off, the same on all ranks */
    uint64_t segment_bytes;   /* acomm_segment_bytes() of the same ranks, with symmetric arrays or without */
    uint64_t piece_bytes;     /* staging piece, power of two; 0 = default */
    int64_t timeout;          /* ns, the group's default */
    int64_t patience;         /* ns of waiting before acomm_node_late() reports an operation, then six times as long; 0: never */
    /* Entries that precede the table, or NULL: "all_reduce=whole:4096,all_reduce=ring,barrier=..." is whole up to 4096 bytes,
     * ring beyond. `algorithms` goes first. A pick that cannot run in this group is left out. */
    const char *algorithms, *tuned, *tuned_symmetric;
} acomm_group_options;
/* In the order of ARRAYCOMM_WITHOUT's names (core/base/settings.py): exchange buffers, copies by both sides, roots that run
 * ahead, and the choice of stores by write time. */
enum acomm_without { ACOMM_NO_EXCHANGE = 1, ACOMM_NO_SHARE = 2, ACOMM_NO_AHEAD = 4, ACOMM_NO_PROBE = 8 };

/* ---- node: one per world and process. Watches the peers from a C thread, over the control connections. ---- */
/* `size` world ranks, this is `rank`. Silence of `silence` ns on a control connection means unresponsive. */
int acomm_node_open(int rank, int size, int64_t heartbeat, int64_t silence, acomm_node **out);
/* Hands over an authenticated, connected control socket to `world_rank` (either side may have connected). */
int acomm_node_attach(acomm_node *node, int world_rank, int fd);
/* Readable when acomm_node_request() has a request for the caller. */
int acomm_node_eventfd(acomm_node *node);
typedef struct acomm_request {
    uint64_t group;    /* group id; 0: a control connection */
    int32_t peer;      /* world rank to connect to */
    int32_t channel;   /* 0 control, 1 collective, 2 point to point */
    int32_t stripe;    /* which of the pair's connections */
} acomm_request;
/* 1 and *out filled, or 0 when there is no request. */
int acomm_node_request(acomm_node *node, acomm_request *out);
/* The answer when a requested connection could not be made: the operations that wait for it fail. */
int acomm_node_refuse(acomm_node *node, const acomm_request *request, int code, int errnum, const char *text);
/* An operation that has waited for long, see acomm_group_options.patience. */
typedef struct acomm_late {
    uint64_t group;
    int64_t waited;      /* ns */
    int32_t peer;        /* rank of a message that is awaited, -1: any, or a collective */
    int32_t all;         /* 1: all ranks, as in a collective */
    acomm_header mine;
} acomm_late;
/* 1 and *out filled, or 0 when there is none. begun[rank]: how many collectives each rank of the group has begun, UINT64_MAX where it
 * has not answered; with room for the world. The eventfd says when to look. */
int acomm_node_late(acomm_node *node, acomm_late *out, uint64_t *begun);
/* State of a world rank: 0 present, 1 it sent a shutdown notice, ACOMM_LOST; of this one ACOMM_ABORTED when the others declared
 * it lost. *text: why, or NULL; valid until the node is closed. A change makes the eventfd readable too. */
int acomm_node_peer(acomm_node *node, int world_rank, const char **text);
/* The world rank that failed first: this one, if the others declared it lost; one that died; or the first one known to have left
 * with an error. -1: none has. */
int acomm_node_failed(acomm_node *node);
/* Sends the peers a shutdown notice (`text`: why, e.g. an exception's type; empty without an error), stops the thread. Blocks < 1
 * s. Groups are to be closed first. When a process exits with groups open, the peers are notified, and the node's memory stays
 * until the last of them is closed. */
int acomm_node_close(acomm_node *node, const char *text);
/* The same for an interpreter that ends, directly before its process does. Without a text, and with idle groups open, those end
 * here, and exit() notifies the peers, with its status. */
int acomm_node_exit(acomm_node *node, const char *text);

/* ---- groups ---- */
/* Length of the memory file that `local` ranks on one host need; symmetric: with addresses for symmetric arrays, which take no memory. */
uint64_t acomm_segment_bytes(int local, uint64_t piece_bytes, int symmetric);
int acomm_group_open(acomm_node *node, const acomm_group_options *options, acomm_group **out);
/* A connected, authenticated data socket. outgoing=1: this rank opened it and will only send on it. Takes the descriptor. */
int acomm_group_attach(acomm_group *group, int rank, int channel, int stripe, int outgoing, int fd);
/* 1 while an operation waits for a peer to connect. */
int acomm_group_expects(acomm_group *group);
/* Poisons the group here and on its peers; wakes all waiters. Idempotent, any thread. In a child made by fork this call and those
 * that end a group do nothing: ACOMM_FORKED. */
int acomm_group_abort(acomm_group *group, const char *text);
/* 1 and *out filled when the group has failed, else 0. */
int acomm_group_failure(acomm_group *group, acomm_failure *out);
/* Collectives that this rank has called, including those that wait for their turn. */
uint64_t acomm_group_calls(acomm_group *group);
/* Whether a rank is known to have closed the group. */
int acomm_group_left(acomm_group *group, int rank);
/* Name of the algorithm the table picks, for logs, tests and the benchmark. */
const char *acomm_group_algorithm(acomm_group *group, int kind, uint64_t count, int dtype, int redop);
/* A row of the algorithm table: the first of a kind that fits wins. */
typedef struct acomm_row {
    const char *kind, *name, *function;
    int32_t where;      /* counts 0: anywhere, 1: where all ranks share memory, 2: there, once symmetric arrays have been used,
                           3: on several hosts of several ranks, 4: of as many each, 5: on one host, or of two ranks,
                           6: where a fabric carries the data that has collectives of its own, 7: where all ranks share memory and
                           each can have a processor of its own, 8: on one host where each can */
    int32_t max_ranks;  /* 0: any number */
    uint64_t up_to;     /* bytes; UINT64_MAX: any number */
    int32_t checks;     /* 1: it compares the ranks' call signatures itself */
    int32_t ahead;      /* 1: a root that sends need not wait for the comparison */
    int32_t ordered;    /* 1: it reduces each element in the order of the ranks */
} acomm_row;
/* The rows one by one from 0: 1 and *out filled, or 0 past the end. */
int acomm_algorithm(int row, acomm_row *out);
/* Ends all operations with ACOMM_CLOSED and waits until no thread is in one (< 1 s). Their handles may be freed then.
 * why (e.g. an exception's type), unless it is NULL or empty: this is no orderly end, so the group fails on the peers at once. In
 * an orderly end it waits before that, as an operation does, until the others have entered broadcasts and scatters that this rank
 * began as their root: returns 0, or the failure of this wait. The group is stopped either way. */
int acomm_group_stop(acomm_group *group, const char *why);
/* Stops, then frees everything. The caller must not use the group, or handles of it, afterwards. */
int acomm_group_close(acomm_group *group);

/* ---- operations ---- */
/* acomm_call's last fields: `failure` is filled where a message has failed after it was begun, and may be NULL; `release_lock` is
 * called once, before any wait, if the caller holds a lock (Python's); otherwise it is NULL. A timeout of 0 expires at once. */
/* Added to a collective's redop as many times as 1 + the device, where the arrays are on a GPU: the fabric's own collective gets them.
 * Added to a message's redop once: the fabric gets the array, and the call has an acomm_gpu_array: as `out` of a send; as `in` of a
 * receive, whose `out` is host memory for a message from such memory. */
enum { ACOMM_ON_GPU = 256 };
enum acomm_gpu_state { ACOMM_GPU_UNUSED, ACOMM_GPU_GIVEN, ACOMM_GPU_ENDED };
typedef struct acomm_gpu_array {
    uintptr_t address, context; /* CUDA's */
    int32_t state;              /* GIVEN: the fabric has it, after a failure for ever; ENDED: and has sent it, or written to it */
} acomm_gpu_array;
/* Blocks until the end. */
int acomm_run(acomm_group *group, acomm_call *call);
/* Returns at once with a handle, which is to be freed; acomm_wait() returns the result. */
int acomm_start(acomm_group *group, const acomm_call *call, acomm_op **out);
/* An arrived message that no receive has matched yet. */
typedef struct acomm_message { uint64_t count; int64_t tag; int32_t source, dtype; } acomm_message;
/* Probes for a message of this source and tag: 0 and *out, or 1 when none arrived within `timeout` (0: polls once). Blocks. */
int acomm_probe(acomm_group *group, int source, int64_t tag, int64_t timeout, acomm_message *out);
/* The same for callers that have to convert each argument: as acomm_start(), or where `handle` is NULL as acomm_run(). */
int acomm_operate(acomm_group *group, int kind, uintptr_t in, uintptr_t out, uint64_t count, const uint64_t *counts,
                  const uint64_t *receives, int dtype, int redop, double factor, int root, int64_t tag, uint32_t layout,
                  int64_t timeout, acomm_op **handle);
/* 0 or a failure code when ended within `timeout` (0: polls once), 1 when not. Blocks. */
int acomm_wait(acomm_op *op, int64_t timeout);
void acomm_op_free(acomm_op *op); /* now, or at its end */
const acomm_entries *acomm_lend(void);

/* ---- symmetric arrays: memory of this rank that collectives of its peers on the host read and write in place ---- */
typedef struct acomm_block acomm_block;
/* `bytes` of zeros, 4 KiB aligned. A collective call: either every rank gets its memory or none does (ACOMM_RESOURCE; errno 0
 * when it was another rank's that failed). ACOMM_UNSUPPORTED where not all ranks share memory (errno 0) or have address space for
 * it (ENOMEM): callers then use ordinary memory.
 * A block is valid until it is freed, also after the group has been closed. */
int acomm_group_share(acomm_group *group, uint64_t bytes, int64_t timeout, acomm_block **out);
uintptr_t acomm_block_address(const acomm_block *block);
/* Any thread; after the group's end too. In a child made by fork nothing happens: memory and lock are the parent's. */
void acomm_block_free(acomm_block *block);

/* ---- windows: memory of every rank that the others read and write by messages (serve.h), which are served from C ---- */
typedef struct acomm_served acomm_served;
/* `count` elements at `data` from now on until the group stops. */
int acomm_served_open(acomm_group *group, uintptr_t data, uint64_t count, int dtype, acomm_served **out);
/* Consumes a signal of the rank: 0, or 1 when none came within `timeout` (ns; 0: polls once). */
int acomm_served_wait(acomm_served *served, int rank, int64_t timeout);
/* 0 when all ranks have asked for their fence of this number (from 1), 1 when rank *late has not within `timeout`. */
int acomm_served_fence(acomm_served *served, uint64_t number, int64_t timeout, int32_t *late);
/* After the group has been closed. */
void acomm_served_free(acomm_served *served);

/* ---- small things ---- */
const char *acomm_code_text(int code);
uint64_t acomm_dtype_bytes(int dtype);
/* 1 where the kernel table can reduce this dtype with this operation. */
int acomm_can_reduce(int dtype, int redop);
/* out[i] = reduction over k of in[k][i], in rank order, accumulated in float32 where narrower, rounded once. For tests and bench. */
int acomm_reduce_local(uintptr_t out, const uintptr_t *in, int inputs, uint64_t count, int dtype, int redop, double factor);
/* out[i] = own[i] is extreme[i], the result of a min or max of all ranks' own (NaN is NaN) ? index[i] : INT64_MAX. index 0: `rank`. */
int acomm_locate(uintptr_t out, uintptr_t own, uintptr_t extreme, uintptr_t index, int64_t rank, uint64_t count, int dtype);
/* "avx512", "avx2", "neon" or "portable": the CPU level of the chosen kernels. */
const char *acomm_cpu(void);
/* Called from waiting threads about every 50 ms; non-zero ends the operation with ACOMM_INTERRUPTED. */
void acomm_set_interrupt(int (*check)(void));

#endif
