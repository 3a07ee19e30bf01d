/* A stand-in for NCCL over the stand-in for CUDA's runtime, between processes of one host. Test material: nothing it does says
 * how fast anything is.
 *
 * What is enqueued runs on its stream's thread, after GroupEnd. A communicator's ranks share a file, whose name is the unique
 * id. Calls that make and end communicators wait for the peers, or go on later where they were asked for with blocking=0, or by
 * NCCL_COMM_BLOCKING=0; then operations are in progress for a while too.
 * It can be told to fail a call (standin_nccl_fail), to be slow (standin_nccl_slow) and to fail later, which
 * ncclCommGetAsyncError then tells (standin_nccl_fail_later), and to block in a call until its communicator is aborted
 * (standin_nccl_block). -DSTANDIN_VERSION=22105 leaves out what that version lacks. */
#include "nccl.h"
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

typedef struct { char internal[128]; } unique_id;
struct config { /* as of 2.29 */
    size_t size;
    unsigned magic, version;
    int blocking, cga_cluster_size, min_ctas, max_ctas;
    const char *net_name;
    int split_share, traffic_class;
    const char *comm_name;
    int collnet_enable, cta_policy, shrink_share, nvls_ctas, rest[4];
};
#define MAGIC 0xcafebeef

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char fail_name[64];
static int fail_count, fail_code, later_count, later_code;
_Atomic long slow_ns;
static char last_error[200] = "";
static _Atomic int communicators, registrations;
_Atomic int block_count;
_Atomic int operators;

/* ---- being told ---- */

PUBLIC void standin_nccl_fail(const char *function, int nth, int code)
{
    pthread_mutex_lock(&lock);
    snprintf(fail_name, sizeof fail_name, "%s", function);
    fail_count = nth;
    fail_code = code;
    pthread_mutex_unlock(&lock);
}

/* The nth task from now: an asynchronous error of its communicator. */
PUBLIC void standin_nccl_fail_later(int nth, int code)
{
    pthread_mutex_lock(&lock);
    later_count = nth;
    later_code = code;
    pthread_mutex_unlock(&lock);
}

PUBLIC void standin_nccl_slow(long nanoseconds)
{
    slow_ns = nanoseconds;
}

/* The nth operation from now blocks in its call. */
PUBLIC void standin_nccl_block(int nth)
{
    atomic_store(&block_count, nth);
}

PUBLIC int standin_nccl_registrations(void)
{
    return atomic_load(&registrations);
}

/* Communicators and reduction operators that are there. */
PUBLIC void standin_nccl_counts(int *comms, int *ops)
{
    *comms = atomic_load(&communicators);
    *ops = atomic_load(&operators);
}

int later(void)
{
    pthread_mutex_lock(&lock);
    int code = later_count && !--later_count ? later_code : SUCCESS;
    pthread_mutex_unlock(&lock);
    return code;
}

int answer(const char *function)
{
    pthread_mutex_lock(&lock);
    int code = fail_count && !strcmp(function, fail_name) && !--fail_count ? fail_code : SUCCESS;
    if (code && code != IN_PROGRESS)
        snprintf(last_error, sizeof last_error, "%s was told to fail", function);
    pthread_mutex_unlock(&lock);
    return code;
}

int wrong(int code, const char *text)
{
    snprintf(last_error, sizeof last_error, "%s", text);
    return code;
}

/* ---- the library ---- */

PUBLIC int ncclGetVersion(int *version)
{
    *version = STANDIN_VERSION;
    return SUCCESS;
}

PUBLIC const char *ncclGetErrorString(int code)
{
    static const char *texts[] = {"no error", "unhandled cuda error", "unhandled system error", "internal error",
                                  "invalid argument", "invalid usage", "remote process exited or there was a network error",
                                  "NCCL operation in progress"};
    return code >= 0 && code <= IN_PROGRESS ? texts[code] : "unknown result code";
}

PUBLIC const char *ncclGetLastError(struct comm *comm)
{
    (void)comm;
    return last_error;
}

PUBLIC int ncclGetUniqueId(unique_id *id)
{
    BEGIN;
    const char *folder = getenv("TMPDIR");
    memset(id, 0, sizeof *id);
    snprintf(id->internal, sizeof id->internal - 16, "%s/standin-nccl-XXXXXX", folder ? folder : "/tmp");
    int fd = mkstemp(id->internal);
    if (fd < 0)
        return wrong(SYSTEM_ERROR, "mkstemp");
    close(fd);
    unlink(id->internal); /* the name is enough, and who joins makes the file again */
    return SUCCESS;
}

/* ---- communicators ---- */

static struct shared *map(const char *path)
{
    int fd = open(path, O_RDWR | O_CREAT, 0600);
    if (fd < 0 || ftruncate(fd, sizeof(struct shared)))
        return NULL;
    struct shared *shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    return shared == MAP_FAILED ? NULL : shared;
}

/* Of what runs beside or within a call: the last use of the communicator. */
static void *end(struct comm *comm, int code)
{
    atomic_store(&comm->state, code);
    atomic_fetch_sub(&comm->threads, 1);
    return (void *)(intptr_t)code;
}

/* Waits for the other ranks. */
static void *join(void *argument)
{
    struct comm *comm = argument;
    nap(1000000);
    struct shared *shared = atomic_load(&comm->aborted) ? NULL : map(comm->path);
    int code = !shared ? SYSTEM_ERROR : atomic_exchange(&shared->present[comm->rank], 1) ? BAD_USAGE : SUCCESS;
    if (!code && atomic_fetch_add(&shared->joined, 1) + 1 == comm->size)
        unlink(comm->path);
    for (int slept = 0; !code && atomic_load(&shared->joined) < comm->size && !atomic_load(&comm->aborted); slept++) {
        nap(100000);
        if (slept == 100000)
            code = SYSTEM_ERROR; /* as NCCL's own connections end some time */
    }
    if (shared && atomic_load(&shared->joined) < comm->size)
        unlink(comm->path); /* it has given up */
    comm->shared = shared;
    return end(comm, code);
}

/* In the caller's thread where the communicator blocks. */
static int start(struct comm *comm, void *(*run)(void *))
{
    pthread_t thread;
    atomic_store(&comm->state, IN_PROGRESS);
    atomic_fetch_add(&comm->threads, 1);
    if (comm->blocking)
        return (int)(intptr_t)run(comm);
    if (pthread_create(&thread, NULL, run, comm))
        abort();
    pthread_detach(thread);
    return IN_PROGRESS;
}

static int check(const struct config *config)
{
    if (!config || config->magic != MAGIC || config->size < 48 || config->size > sizeof *config || config->version > 23203)
        return wrong(BAD_ARGUMENT, "the config is not initialised");
    return SUCCESS;
}

static struct comm *new_comm(const char *path, int rank, int size, const struct config *config)
{
    const char *told = getenv("NCCL_COMM_BLOCKING");
    struct comm *comm = calloc(1, sizeof *comm);
    snprintf(comm->path, sizeof comm->path, "%s", path);
    comm->rank = rank;
    comm->size = size;
    comm->blocking = told ? *told != '0' : !config || config->blocking != 0;
    atomic_fetch_add(&communicators, 1);
    return comm;
}

static void drop(struct comm *comm)
{
    atomic_store(&comm->aborted, 1);
    while (atomic_load(&comm->tasks) || atomic_load(&comm->threads))
        nap(100000);
    if (comm->shared)
        munmap(comm->shared, sizeof *comm->shared);
    atomic_fetch_sub(&communicators, 1);
    free(comm);
}

static int open_comm(struct comm **made, struct comm *comm)
{
    bool blocking = comm->blocking;
    *made = comm;
    int code = start(comm, join);
    if (code && blocking) {
        *made = NULL;
        drop(comm);
    }
    return code;
}

PUBLIC int ncclCommInitRankConfig(struct comm **made, int size, unique_id id, int rank, struct config *config)
{
    BEGIN;
    int code = check(config);
    if (code || size < 1 || size > MAX_RANKS || rank < 0 || rank >= size)
        return code ? code : wrong(BAD_ARGUMENT, "ranks");
    return open_comm(made, new_comm(id.internal, rank, size, config));
}

/* Registrations are counted. */
static int add(struct comm *comm)
{
    comm->registered++;
    atomic_fetch_add(&registrations, 1);
    return comm->blocking ? SUCCESS : IN_PROGRESS;
}

static int take_away(struct comm *comm, uintptr_t handle)
{
    if (!handle || comm->registered < 1 || atomic_load(&comm->tasks))
        return wrong(BAD_USAGE, "no such registration, or in use");
    comm->registered--;
    atomic_fetch_sub(&registrations, 1);
    return SUCCESS;
}

#if STANDIN_VERSION >= 22700
PUBLIC int ncclCommWindowRegister(struct comm *comm, uintptr_t buffer, size_t bytes, uintptr_t *window, int flags)
{
    BEGIN;
    (void)flags;
    *window = buffer;
    if (!standin_reach(buffer, bytes))
        return wrong(BAD_ARGUMENT, "no device memory");
    return add(comm);
}

PUBLIC int ncclCommWindowDeregister(struct comm *comm, uintptr_t window)
{
    BEGIN;
    return take_away(comm, window);
}
#endif

PUBLIC int ncclCommRegister(struct comm *comm, uintptr_t buffer, size_t bytes, uintptr_t *handle)
{
    BEGIN;
    *handle = buffer;
    if (!standin_reach(buffer, bytes))
        return wrong(BAD_ARGUMENT, "no device memory");
    return add(comm);
}

PUBLIC int ncclCommDeregister(struct comm *comm, uintptr_t handle)
{
    BEGIN;
    return take_away(comm, handle);
}

PUBLIC int ncclMemAlloc(uintptr_t *pointer, size_t bytes)
{
    BEGIN;
    return cudaMalloc(pointer, bytes) ? CUDA_ERROR : SUCCESS;
}

PUBLIC int ncclMemFree(uintptr_t pointer)
{
    BEGIN;
    return cudaFree(pointer) ? CUDA_ERROR : SUCCESS;
}

PUBLIC int ncclCommGetAsyncError(struct comm *comm, int *error)
{
    BEGIN;
    *error = atomic_load(&comm->state);
    return SUCCESS;
}

static void *finalize(void *argument)
{
    struct comm *comm = argument;
    while (atomic_load(&comm->tasks) && !atomic_load(&comm->aborted))
        nap(100000);
    atomic_fetch_add(&comm->shared->finalized, 1);
    while (atomic_load(&comm->shared->finalized) < comm->size && !atomic_load(&comm->aborted))
        nap(100000);
    return end(comm, SUCCESS);
}

PUBLIC int ncclCommFinalize(struct comm *comm)
{
    BEGIN;
    if (atomic_load(&comm->state))
        return wrong(BAD_USAGE, "not ready");
    return start(comm, finalize);
}

PUBLIC int ncclCommDestroy(struct comm *comm)
{
    BEGIN;
    if (comm->registered)
        return wrong(BAD_USAGE, "memory is registered");
    drop(comm);
    return SUCCESS;
}

PUBLIC int ncclCommAbort(struct comm *comm)
{
    BEGIN;
    drop(comm);
    return SUCCESS;
}
