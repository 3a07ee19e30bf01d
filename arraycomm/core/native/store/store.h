/* Stores in C: the table of keys and values, requests on it, the server's thread. No GIL but in store/python.c.
 *
 * Requests are those of torch.distributed's TCPStore, and two more: one byte, then keys and values as u64 length and bytes, and
 * numbers as i64; little-endian. Torch's protocol has no errors: a failed request ends the connection. Answers to our own
 * clients, the members, begin with a status byte. */
#ifndef STORE_H
#define STORE_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define STORE_MAX_KEY (8u << 10) /* bytes, without the slash that users' keys begin with */
#define STORE_MAX_VALUE (8u << 20)
#define STORE_MAX_TOTAL (256ll << 20)
#define STORE_MAX_ANSWER (STORE_MAX_TOTAL + (64ll << 20)) /* every key and value at once, and their lengths */
#define STORE_OVERHEAD 160 /* bytes that an entry costs beyond key and value */
#define STORE_TEXT 400

/* Torch's up to BARRIER. As table.py's Op. */
enum store_op {
    STORE_VALIDATE, STORE_SET, STORE_COMPARE_SET, STORE_GET, STORE_ADD, STORE_CHECK, STORE_WAIT, STORE_NUM_KEYS, STORE_DELETE,
    STORE_APPEND, STORE_MULTI_GET, STORE_MULTI_SET, STORE_CANCEL, STORE_PING, STORE_PUSH, STORE_POP, STORE_QUEUE_LEN,
    STORE_LIST_KEYS, STORE_BARRIER,
    STORE_AWAIT_VALUES, /* MULTI_GET that waits for the keys */
    STORE_WILL,         /* MULTI_SET at the client's disconnection, of keys missing then; first key: the last will's name */
    STORE_OPS
};
/* Statuses; BAD_REQUEST and OVER_QUOTA carry a text. CLOSED is sent to every member at the end, with or without a request. */
enum store_status { STORE_OK, STORE_CANCELLED, STORE_BAD_REQUEST, STORE_OVER_QUOTA, STORE_CLOSED };

struct store_bytes {
    const char *data;
    size_t size;
};

/* ---- store/table.c: keys to values, and queues. Not thread-safe. ---- */
struct store_buffer {
    char *data;
    size_t size, room;
    bool failed; /* memory ran out, or it is longer than any answer may be: later data is lost */
};
/* Reserves capacity for so much more; false, and failed, if there is none. */
bool store_buffer_reserve(struct store_buffer *b, size_t more);
bool store_buffer_append(struct store_buffer *b, const void *data, size_t size);
void store_buffer_free(struct store_buffer *b);

struct store_item {
    struct store_item *next;
    uint32_t size;
    char data[];
};
struct store_entry {
    struct store_bytes key; /* first: a node of the tree */
    struct store_entry *next, **link;
    char *value;            /* NULL: none */
    uint32_t value_size, queued, waiters;
    bool brought;           /* new data that waiters have not checked */
    struct store_item *head, *tail;
    char text[];
};
struct store_table {
    void *tree; /* of tsearch(), which is balanced for any keys */
    struct store_entry *entries;
    int64_t room;
    uint64_t listed; /* values under users' keys */
    bool brought;    /* an entry was */
};
struct store_table *store_table_new(void); /* NULL when memory is out */
void store_table_free(struct store_table *t);
/* The entry of a key; NULL when there is none, or no memory to create it. One without value, queue and waiters must be freed by
 * store_table_tidy(). */
struct store_entry *store_table_entry(struct store_table *t, struct store_bytes key, bool create);
void store_table_tidy(struct store_table *t, struct store_entry *entry);

bool store_entry_listed(const struct store_entry *entry); /* its key is a user's */
struct store_bytes store_entry_value(const struct store_entry *entry); /* without data if there is none */
struct store_bytes store_key_shown(struct store_bytes key); /* as its user knows it, for a text */
/* Its waiters must check it again. */
void store_table_bring(struct store_table *t, struct store_entry *entry);
struct store_request;
/* Whether an entry of this key and value may be written and the store grow by `grows` bytes; otherwise the request has failed. */
bool store_table_fits(struct store_table *t, struct store_request *r, struct store_bytes key, uint64_t value, int64_t grows);
/* The value of a key becomes a, then b. False if there is no capacity: the request has failed. */
bool store_table_write(struct store_table *t, struct store_request *r, struct store_bytes key, struct store_bytes a,
                       struct store_bytes b);
/* The same in two steps: the first is without consequences, and false without memory. */
struct store_made {
    struct store_entry *entry;
    char *value;
    uint32_t size;
};
bool store_table_make(struct store_table *t, struct store_bytes key, struct store_bytes a, struct store_bytes b,
                      struct store_made *made);
void store_table_keep(struct store_table *t, const struct store_made *made);

/* ---- store/requests.c ---- */
struct store_request { /* zeroed: nothing of it has arrived */
    bool member;       /* of one */
    uint8_t op;
    int64_t times;     /* how often its fields come */
    int64_t left;      /* fields that have not arrived */
    size_t first;      /* where they begin */
    size_t size;       /* of the arrived part; in the end the request's */
    size_t at;         /* the next field to be used */
    int64_t rest;      /* how many values are still to be answered with */
    bool more;         /* some were answered with already */
    bool counted;      /* a barrier, among those that arrived */
    int status;        /* of a failed one */
    char text[STORE_TEXT];
};
enum store_result { STORE_DONE, STORE_WAITS, STORE_MORE, STORE_FAILED };
/* Parses the arrived bytes, each only once. 1 once the request is complete, 0 before, -1, with a text, for an invalid one. */
int store_request_read(struct store_request *r, const char *data, size_t size);
/* Carries a whole request out, all of it or nothing, and appends the answer: nothing is done without capacity for its answer.
 * WAITS: nothing is appended, `missing` must exist before a retry. MORE: another call appends the next values. FAILED: the text
 * has the reason; a member gets it as its answer, and its request is DONE, where memory allows that. */
enum store_result store_request_run(struct store_table *t, struct store_request *r, const char *data,
                                    struct store_buffer *answer, struct store_bytes *missing);

/* ---- store/will.c: last wills: values to be written when a client disconnects ---- */
struct store_will;
/* Keeps a complete WILL request, or withdraws the last will of its name if the request has nothing else. Otherwise the request
 * has failed. */
void store_will_record(struct store_will **wills, const void *owner, struct store_request *r, const char *data);
/* This owner has disconnected: its last wills are due from now on. Whether there are any. */
bool store_will_due(struct store_will *wills, const void *owner);
/* Writes due last wills, if their keys are missing. False if some must be retried: there was no memory. */
bool store_will_execute(struct store_will **wills, struct store_table *t);
void store_will_free(struct store_will *wills);

struct store_bytes store_request_bytes(struct store_request *r, const char *data); /* the next field */
/* FAILED, for this reason. */
__attribute__((format(printf, 3, 4)))
enum store_result store_request_fail(struct store_request *r, int status, const char *format, ...);
enum store_result store_request_no_memory(struct store_request *r);

/* ---- store/server.c: one thread answers all clients ---- */
#define STORE_MEMBER (-1)
struct store_server;
struct store_server *store_server_new(void); /* NULL with errno set */
/* Any thread. Takes the connected socket of a member, or of a client of torch's kind, whose disconnection is explained by a line
 * written to `complaints`. 0, or -1 with errno set and the socket still the caller's. */
int store_server_admit(struct store_server *s, int fd, int complaints);
/* Waits up to `linger` ns for the clients to leave, then ends the thread and all connections, and frees the server.
 * In a child made by fork it only closes the child's copies. Blocks. */
void store_server_end(struct store_server *s, int64_t linger);
#endif
