/* Stores in C: frames, the table of keys and values, the server's thread. No GIL but in store/python.c.
 *
 * A frame is a request, an answer or a line of FileStore's log: u32 length of the rest, u8 code, u32 milliseconds,
 * u32 number of strings, their u32 lengths, the strings. Little-endian. table.py writes and reads the same. */
#ifndef STORE_H
#define STORE_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define STORE_HEAD 13               /* bytes before the lengths */
#define STORE_MAX_KEY (8u << 10)    /* bytes */
#define STORE_MAX_VALUE (8u << 20)
#define STORE_MAX_TOTAL (256ll << 20)
#define STORE_MAX_FRAME (STORE_MAX_TOTAL + (64ll << 20)) /* every key and value at once, and their lengths */
#define STORE_TOLD 512              /* bytes of an answer that is a text, or says what has changed */
#define STORE_POSTED 0x80           /* bit of a request's code: no answer; a failure is told with the next answer */

/* In the order of table.py's Op. SET takes key, value, key, value...; GET, WAIT and CHECK take keys, the others a key first. */
enum store_op {
    STORE_SET, STORE_GET, STORE_ADD, STORE_COMPARE_SET, STORE_APPEND, STORE_DELETE, STORE_WAIT, STORE_CHECK,
    STORE_NUM_KEYS, STORE_LIST_KEYS, STORE_PUSH, STORE_POP, STORE_QUEUE_LEN,
    STORE_OPS
};
#define STORE_WILL 13 /* name, key, value, key, value...: for the server alone, which knows who has gone */
#define STORE_PIPES 14 /* two pipes come with it: requests come through the first from now on, answers go into the second */
/* Codes of answers; the middle two carry a text. CLOSED is said to everybody at the end, whether or not something was asked. */
enum store_code { STORE_OK, STORE_TIMED_OUT, STORE_BAD_REQUEST, STORE_OVER_QUOTA, STORE_CLOSED };

struct store_bytes {
    const char *data;
    uint32_t size;
};

/* ---- store/frame.c ---- */
struct store_frame {
    uint8_t code;
    uint32_t milliseconds, count;
    const char *lengths, *strings;
};
struct store_cursor { /* walks over a frame's strings */
    const struct store_frame *frame;
    uint32_t index;
    const char *at;
};
struct store_buffer {
    char *data;
    size_t size, room;
    bool failed; /* too long for a frame, or memory ran out; whatever was put since is lost */
    bool large;  /* which of these */
};
/* Bytes of the frame that begins so, 0 while that cannot be told, -1 for one that nobody sends. */
int64_t store_frame_size(const char *start, size_t have);
/* A whole frame; false when its lengths do not add up. */
bool store_frame_parse(struct store_frame *frame, const char *data, size_t size);
struct store_cursor store_frame_strings(const struct store_frame *frame);
bool store_frame_next(struct store_cursor *cursor, struct store_bytes *out);
struct store_bytes store_frame_first(const struct store_frame *frame); /* empty where there is none */
/* A frame of `count` strings: begin, then put each in order, then end. The buffer is emptied first. */
void store_frame_begin(struct store_buffer *b, int code, uint32_t milliseconds, uint32_t count);
void store_frame_put(struct store_buffer *b, uint32_t index, const char *data, size_t size);
void store_frame_end(struct store_buffer *b);
/* An answer of one line of text, cut at 400 bytes. */
__attribute__((format(printf, 3, 4)))
void store_frame_text(struct store_buffer *b, int code, const char *format, ...);
/* Room for so much more; false, and failed, where there is none. */
bool store_buffer_reserve(struct store_buffer *b, size_t more);
bool store_buffer_append(struct store_buffer *b, const char *data, size_t size);
void store_buffer_free(struct store_buffer *b);

/* ---- store/table.c, store/requests.c: keys to values, and queues. Not thread-safe. ---- */
struct store_table;
struct store_entry {
    struct store_entry *next;
    uint64_t hash;
    char *value;                  /* NULL: none */
    uint32_t value_size, key_size, queued;
    struct store_item *head, *tail;
    void *first_waiter, *last_waiter; /* the server's */
    char key[];
};
struct store_table *store_table_new(void); /* NULL when memory is out */
void store_table_free(struct store_table *t);
/* Carries a request out, whole or not at all, and puts the answer: nothing is done that could then not be told. True when it has to wait instead: then *missing is
 * the first key that is not there. */
bool store_table_apply(struct store_table *t, const struct store_frame *request, struct store_buffer *answer,
                       struct store_bytes *missing);
/* The entry of a key; NULL when there is none, or no memory to create it. One without value, queue and waiters is to be
 * given back by store_table_tidy(). */
struct store_entry *store_table_entry(struct store_table *t, struct store_bytes key, bool create);
void store_table_tidy(struct store_table *t, struct store_entry *entry);
/* Writes a value where the key has none. False where there is no room, or no memory, for it; then `room` says so. */
bool store_table_leave(struct store_table *t, struct store_bytes key, struct store_bytes value, struct store_buffer *room);


/* ---- inside a table: for store/table.c (its entries) and store/requests.c (what is asked of it) ---- */
struct store_item {
    struct store_item *next;
    uint32_t size;
    char data[];
};

struct store_table {
    struct store_entry **rows;
    size_t count, mask;
    uint64_t point; /* see hash_of() */
    int64_t room;
    uint64_t listed; /* values under keys that are not the store's own */
};

/* Keys of the store's own start with NUL; LIST_KEYS and NUM_KEYS pass over them. */
static inline bool store_listed(const struct store_entry *entry)
{
    return !entry->key_size || entry->key[0];
}

/* ---- store/will.c: what is to be written when a client goes ---- */
struct store_will;
/* Keeps a whole WILL request, or withdraws the will of its name where nothing else is in it; puts the answer. */
void store_will_record(struct store_will **wills, const void *owner, const char *data, size_t size, struct store_buffer *answer);
/* This owner has gone: its wills are due from now on. Whether there are any. */
bool store_will_due(struct store_will *wills, const void *owner);
/* Writes what is due, each key and value by `leave`, which says whether that went well. False where some of it is to be tried again. */
typedef bool store_leave(void *server, struct store_bytes key, struct store_bytes value);
bool store_will_execute(struct store_will **wills, store_leave *leave, void *server);
void store_will_free(struct store_will *wills);

/* ---- store/line.c: a client's end of a connection, for one thread at a time ---- */
struct store_line;
struct store_exchange { /* a request and its answer */
    bool posted;
    int64_t end; /* CLOCK_MONOTONIC, ns */
    struct store_buffer request, answer;
    size_t sent;
};
/* Over a connected, admitted socket, which stays the caller's and must live as long. NULL when memory is out. */
struct store_line *store_line_new(int sock);
/* Asks a server on this host to go over to pipes; where it does not, nothing changes. 0, or an errno after which the
 * connection is of no use. Blocks until `end`, CLOCK_MONOTONIC, ns. */
int store_line_offer(struct store_line *l, int64_t end);
/* Closes its pipes, not the socket. */
void store_line_free(struct store_line *l);
/* A request that is still to be put, and the answer's buffer; what is long of these is given back at the end. */
struct store_exchange *store_line_begin(struct store_line *l, bool posted, int64_t end);
void store_line_end(struct store_line *l);
/* Sends the request and, unless it is posted, waits for its answer. 0, or an errno; after EINTR it is to be called again.
 * shutdown() of the socket, in any thread, ends it. */
int store_line_exchange(struct store_line *l);
/* Sends a short frame where that goes without waiting and the server is there, whole or not at all; otherwise false. */
bool store_line_post(struct store_line *l, const char *data, size_t size);

/* ---- store/torch.c: the protocol of torch.distributed's TCPStore, translated into requests on the table and back. No sockets here.
 *
 * A request is one byte, then keys and values as u64 length and bytes, and numbers as i64; little-endian. It has no errors: what
 * cannot be carried out ends the connection. ---- */
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

/* ---- store/server.c: one thread answers all clients ---- */
struct store_server;
struct store_server *store_server_new(void); /* NULL with errno set */
/* Any thread. Takes the connected, admitted socket, and for a client that speaks torch's protocol its translator, else NULL. 0, or
 * -1 with errno set and both still the caller's. */
int store_server_admit(struct store_server *s, int fd, struct store_torch *torch);
int store_server_waiting(const struct store_server *s); /* requests */
/* Waits up to `linger` ns for the clients to leave, then ends the thread and all connections, and frees the server.
 * In a child made by fork it only closes the child's copies. Blocks. */
void store_server_end(struct store_server *s, int64_t linger);
#endif
