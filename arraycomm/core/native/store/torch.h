/* The protocol of torch.distributed's TCPStore, translated into requests on the table and back. No sockets here.
 *
 * A request is one byte, then keys and values as u64 length and bytes, and numbers as i64; little-endian. It has no errors: what
 * cannot be carried out ends the connection. */
#ifndef STORE_TORCH_H
#define STORE_TORCH_H
#include "store.h"

struct store_torch {
    int64_t world_size;        /* at this many workers the store is complete; 0: nobody said */
    int complaints;            /* where the reasons of disconnections are written, a line each */
    uint8_t request;           /* the last one, for its answer */
    bool greeted;
    enum store_op next;        /* see store_torch_next; STORE_OPS: none */
    int64_t barrier;           /* how many ranks are awaited */
    struct store_buffer frame; /* the request on the table */
    /* Of a request that is not whole yet: how often its fields come, how many are there, and where the next one begins. */
    int64_t times, fields;
    size_t reached;
    int64_t read;              /* CLOCK_MONOTONIC, ns: when it was last sent something. The server's */
    struct store_buffer list;  /* of many keys, whose values are sent as they are read; and where the next one stands */
    struct store_frame listed;
    struct store_cursor rest;
    int64_t since;             /* CLOCK_MONOTONIC, ns: when its first byte came; 0: none is under way. The server's */
};

/* Clients are not authenticated. A request has at most so many bytes, as have all that are not whole together, and so much time. */
#define STORE_TORCH_MOST (64u << 20)
#define STORE_TORCH_NS 60000000000ll
#define STORE_TORCH_UNREAD (128u << 20) /* bytes of answers that they have not read, in all */

/* NULL when memory is out. */
struct store_torch *store_torch_new(int64_t world_size, int complaints);
void store_torch_free(struct store_torch *t);
/* Reads one request; what has come of it before is not looked at again. The bytes it had, 0 while it is not whole, -1 for what is none
 * (complained of). Then either t->frame is to be carried out, or it is answered already: t->frame is empty and `answer` is not, or failed. */
int64_t store_torch_read(struct store_torch *t, const char *data, size_t size, struct store_buffer *answer);
/* Says why the client is disconnected. */
__attribute__((format(printf, 2, 3)))
void store_torch_complain(const struct store_torch *t, const char *format, ...);
/* Appends what the client is told when t->frame was answered so; nothing for some requests, and while more is to be carried out. False,
 * after a complaint, where it has to be disconnected. */
bool store_torch_answer(struct store_torch *t, const struct store_buffer *from, struct store_buffer *answer);
/* Whether one more frame belongs to the request: it is in t->frame now. */
bool store_torch_next(struct store_torch *t);
/* The byte of who gives up waiting, and what it is told. */
bool store_torch_cancels(const char *data, size_t size, struct store_buffer *answer);
#endif
