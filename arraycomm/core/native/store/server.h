/* The server's parts: for store/client.c (its end of a connection), store/server.c (its thread) and store/owner.c (whoever made it). */
#ifndef STORE_SERVER_H
#define STORE_SERVER_H
#include <pthread.h>
#include <sys/types.h>
#include "store.h"

#define STORE_CHUNK (256 << 10) /* bytes taken from one client before the others get a turn */
#define STORE_NEVER INT64_MAX

/* A client as its server sees it: where its requests come from and its answers go. Of the server's thread alone. */
struct store_client {
    struct store_client *next, **link;   /* all clients; under the server's lock */
    int epoll;                           /* -1: not to be touched, in a child made by fork */
    int sock, from, to;                  /* the two are the socket, or pipes */
    int offered[2];                      /* pipes that came and are not adopted; -1: none */
    struct store_buffer in, out;         /* a request's beginning, or the one that waits; the rest of an answer */
    size_t sent;                         /* of `out` */
    struct store_buffer late;            /* the failure of a posted request */
    struct store_entry *at;              /* waits for this key; NULL: does not wait */
    struct store_client *before, *after; /* of those that wait for it, oldest first */
    int64_t end;                         /* of the waiting */
    struct store_torch *torch;           /* what it speaks; NULL: frames */
    bool broken;
};

/* NULL with errno set, and the socket and the translator still the caller's. */
struct store_client *store_client_new(int epoll, int sock, struct store_torch *torch);
void store_client_free(struct store_client *c);
/* As recv(); never blocks. Descriptors that come along are kept, as an offer. */
ssize_t store_client_receive(struct store_client *c, char *data, size_t room);
/* Answers over the socket whether requests and answers go through the pipes that were offered from here on. */
void store_client_adopt(struct store_client *c);
/* Sends an answer, now or as soon as the client reads. */
void store_client_answer(struct store_client *c, const struct store_buffer *answer);
void store_client_flush(struct store_client *c);
/* The last of those that wait for this entry's key; and no longer one of them. */
void store_client_list(struct store_client *c, struct store_entry *entry);
void store_client_unlist(struct store_client *c);
/* After bytes of a client of torch's kind: breaks with it where requests that are not whole hold too much in all, of which short ones
 * are free. Until when its own must be whole. */
int64_t store_client_limit(struct store_client *c, const struct store_client *all, size_t short_one);
/* Breaks with one of torch's kind whose time is over. Until when its request must be whole; STORE_NEVER. */
int64_t store_client_due(struct store_client *c, int64_t now);
/* Breaks with those of torch's kind that have read nothing for longest, until the others leave no more than STORE_TORCH_UNREAD bytes
 * of their answers unread. */
void store_client_unread(struct store_client *all);
/* It is to be dropped; an event will tell. */
void store_client_break(struct store_client *c);

struct store_server {
    struct store_table *table;
    int epoll, wake;
    pid_t pid;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t left;
    struct store_client *clients;
    int count;
    _Atomic int waiting;
    int64_t next_end;      /* no request that waits has an earlier deadline */
    int skip, next_skip;   /* how often looks before sleeping are left out: see store_server_await() */
    _Atomic bool lingering, stopping;
    struct store_will *wills;
    bool due;              /* wills of clients that have gone are to be written */
    struct store_buffer answer, told; /* on the table, and what that is for a client of torch's kind */
    char chunk[STORE_CHUNK];
};

/* The thread, with all signals blocked. */
void *store_server_run(void *server);
void store_server_drop(struct store_server *s, struct store_client *c);
#endif
