/* The ranks of one host as threads over one shared segment, each with a group of its own and no node: nobody tells the others
 * of a failure. Pieces are so small that long operations take several rounds. */
#ifndef SHARED_WORLD_H
#define SHARED_WORLD_H
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "acomm.h"
#include "check.h"

#define MAX_RANKS 8
#ifndef PIECE
#define PIECE 8192 /* the least that goes through the regions' areas */
#endif
#define SECOND 1000000000ll

/* `body` runs on every rank; what it returns is the rank's result. */
struct world { int n, fd; uint64_t bytes; int (*body)(acomm_group *g, int rank, int n); int result[MAX_RANKS]; };
struct rank_thread { struct world *world; int rank; };

static inline void *rank_main(void *argument)
{
    struct rank_thread *local_rank = argument;
    struct world *w = local_rank->world;
    int32_t members[MAX_RANKS], hosts[MAX_RANKS] = {0}, processes[MAX_RANKS];
    for (int i = 0; i < w->n; i++) {
        members[i] = i;
        processes[i] = (int32_t)getpid();
    }
    acomm_group_options o = {.id = 1, .rank = local_rank->rank, .size = w->n, .local = w->n, .oversubscribed = w->n > sysconf(_SC_NPROCESSORS_ONLN),
                             .members = members, .hosts = hosts, .processes = processes, .segment_fd = w->fd, .segment_bytes = w->bytes, .piece_bytes = PIECE,
                             .connections = 1, .check = 1, .timeout = 20 * SECOND};
    acomm_group *g = NULL;
    w->result[local_rank->rank] = acomm_group_open(NULL, &o, &g);
    if (!w->result[local_rank->rank]) {
        w->result[local_rank->rank] = w->body(g, local_rank->rank, w->n);
        acomm_group_close(g);
    }
    return NULL;
}

static inline void run(int n, int (*body)(acomm_group *, int, int), int want)
{
    struct world w = {.n = n, .fd = memfd_create("test", MFD_CLOEXEC), .bytes = acomm_segment_bytes(n, PIECE, 1), .body = body};
    CHECK(ftruncate(w.fd, (off_t)w.bytes) == 0);
    pthread_t threads[MAX_RANKS];
    struct rank_thread regions[MAX_RANKS];
    for (int i = 0; i < n; i++) {
        regions[i] = (struct rank_thread){&w, i};
        pthread_create(&threads[i], NULL, rank_main, &regions[i]);
    }
    for (int i = 0; i < n; i++) {
        pthread_join(threads[i], NULL);
        CHECK_MESSAGE(w.result[i] == want, "rank %d of %d: %d, not %d", i, n, w.result[i], want);
    }
    close(w.fd);
}

#define P(pointer) (uintptr_t)(pointer)
/* A call on int32 with the group's timeout, and such a call run. root: -1 where the kind has none. */
#define CALL(kind_, root_, ...) \
    (&(acomm_call){.kind = kind_, .root = root_, .dtype = ACOMM_INT32, .redop = ACOMM_SUM, .timeout = -1, __VA_ARGS__})
#define RUN(g, ...) acomm_run(g, CALL(__VA_ARGS__))
#define RUN_BARRIER(g) acomm_run(g, &(acomm_call){.kind = ACOMM_BARRIER, .root = -1, .timeout = -1})
#endif
