/* The server's parts, for store/server.c (its thread) and store/owner.c (whoever made it). */
#ifndef STORE_SERVER_H
#define STORE_SERVER_H
#include <pthread.h>
#include <sys/types.h>
#include "client.h"
#include "events.h"

#define STORE_CHUNK (256 << 10) /* bytes taken from one client before the others get a turn */

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
    struct store_events events;
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
