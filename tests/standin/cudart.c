/* A stand-in for CUDA's runtime library over host memory, so that the code that uses it runs without a GPU. Test material:
 * nothing it does says how fast anything is.
 *
 * Streams are threads that carry out what is enqueued, some time later, so that missing order shows. Device memory is mapped
 * twice: under the address that programs see nobody may read or write it, so that host code which touches it dies at once;
 * the streams reach it under another one (standin_reach). Copies take pinned host memory only. Fresh memory holds garbage.
 * It can be told to fail a call (standin_fail), to be slow (standin_slow), and to fail later, when a copy is carried out
 * (standin_fail_later): as in CUDA, every call fails from then on. Device memory is shareable: standin_share gives the file. */
#include "cudart.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { HOST_TO_DEVICE = 1, DEVICE_TO_HOST, DEVICE_TO_DEVICE };

pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
struct block *blocks;
int sticky;
static int fail_code, fail_count, later_code, later_count;
static char fail_name[64];
static size_t copies_ended[4];
static long slow_ns = 50000, slower_ns[4];
__thread bool serving;
static __thread int last_error;

/* ---- being told ---- */

PUBLIC void standin_fail(const char *function, int nth, int code)
{
    pthread_mutex_lock(&lock);
    snprintf(fail_name, sizeof fail_name, "%s", function);
    fail_count = nth;
    fail_code = code;
    pthread_mutex_unlock(&lock);
}

PUBLIC void standin_fail_later(int nth_copy, int code)
{
    pthread_mutex_lock(&lock);
    later_count = nth_copy;
    later_code = code;
    pthread_mutex_unlock(&lock);
}

PUBLIC void standin_slow(long nanoseconds)
{
    slow_ns = nanoseconds;
}

/* Copies of one kind take longer still. */
PUBLIC void standin_slow_kind(size_t kind, long nanoseconds)
{
    slower_ns[kind] = nanoseconds;
}

/* As if the process were a new one, but for its memory and streams. */
PUBLIC void standin_reset(int device_count)
{
    pthread_mutex_lock(&lock);
    devices = device_count;
    captured = contexts = 0;
    sticky = fail_count = later_count = 0;
    slow_ns = 50000;
    memset(slower_ns, 0, sizeof slower_ns);
    pthread_mutex_unlock(&lock);
}

/* What a call returns: its own code, unless an earlier one has broken everything or it was told to fail. */
static int answer(const char *function, int code)
{
    if (sticky)
        code = sticky;
    else if (fail_count && !strcmp(function, fail_name) && !--fail_count)
        code = fail_code;
    if (code)
        last_error = code;
    return code;
}

int begin_without_context(const char *function)
{
    pthread_mutex_lock(&lock);
    int code = answer(function, OK);
    if (code)
        pthread_mutex_unlock(&lock);
    return code;
}

int begin(const char *function)
{
    int code = begin_without_context(function);
    if (!code && !serving && strncmp(function, "standin", 7))
        contexts |= 1ul << current;
    return code;
}

int end(int code)
{
    pthread_mutex_unlock(&lock);
    if (code)
        last_error = code;
    return code;
}

/* ---- memory; under the lock ---- */

static struct block *find(uintptr_t address, size_t bytes)
{
    for (struct block *b = blocks; b; b = b->next)
        if (address >= (uintptr_t)b->seen && address + bytes <= (uintptr_t)b->seen + b->bytes)
            return b;
    return NULL;
}

char *reach(uintptr_t address, size_t bytes, bool *pinned)
{
    struct block *b = find(address, bytes);
    *pinned = b && b->device < 0;
    return b ? b->reached + (address - (uintptr_t)b->seen) : NULL;
}

void drop_block(struct block **at)
{
    struct block *b = *at;
    *at = b->next;
    if (b->seen != b->reached)
        munmap(b->seen, b->bytes);
    if (!b->registered)
        munmap(b->reached, b->bytes);
    if (b->fd >= 0)
        close(b->fd);
    free(b);
}

struct block *map_file(int fd, size_t bytes, int device)
{
    struct block *b = calloc(1, sizeof *b);
    b->bytes = bytes;
    b->device = device;
    b->fd = fd;
    b->reached = mmap(NULL, b->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, b->fd, 0);
    if (b->reached == MAP_FAILED) {
        close(b->fd);
        free(b);
        return NULL;
    }
    b->seen = device < 0 ? b->reached : mmap(NULL, b->bytes, PROT_NONE, MAP_SHARED, b->fd, 0);
    b->next = blocks;
    blocks = b;
    return b;
}

static struct block *map(size_t bytes, int device)
{
    bytes = (bytes + 4095) / 4096 * 4096;
    int fd = memfd_create("standin", MFD_CLOEXEC);
    struct block *b = fd >= 0 && !ftruncate(fd, (off_t)bytes) ? map_file(fd, bytes, device) : NULL;
    if (b)
        memset(b->reached, 0xA5, bytes < 65536 ? bytes : 65536);
    return b;
}

static int allocate(const char *function, uintptr_t *pointer, size_t bytes, int device)
{
    int code = begin(function);
    if (code)
        return code;
    if (captured && !capture_mode)
        return end(CAPTURED);
    struct block *b = bytes ? map(bytes, device) : NULL;
    *pointer = b ? (uintptr_t)b->seen : 0;
    return end(bytes && !b ? NO_MEMORY : OK);
}

/* Device memory goes when the device is idle, as in CUDA; pinned memory at once, which is stricter. */
static int release(const char *function, uintptr_t pointer, bool device)
{
    int code = begin(function);
    if (code)
        return code;
    if (captured && !capture_mode && *function == 'c')
        return end(CAPTURED);
    while (device && pointer && !serving && streams_busy())
        pthread_cond_wait(&changed, &lock);
    for (struct block **at = &blocks; pointer && *at; at = &(*at)->next)
        if ((uintptr_t)(*at)->seen == pointer && ((*at)->device >= 0) == device) {
            drop_block(at);
            return end(OK);
        }
    return end(pointer ? INVALID : OK);
}

PUBLIC int cudaMalloc(uintptr_t *pointer, size_t bytes)
{
    return allocate("cudaMalloc", pointer, bytes, current);
}

PUBLIC int cudaFree(uintptr_t pointer)
{
    return release("cudaFree", pointer, true);
}

PUBLIC int cudaDeviceSynchronize(void)
{
    int code = begin("cudaDeviceSynchronize");
    if (code)
        return code;
    if (captured)
        return end(CAPTURED);
    while (streams_busy())
        pthread_cond_wait(&changed, &lock);
    return end(OK);
}

/* As a library that keeps memory to itself would: no device need be current. */
PUBLIC int standin_free(uintptr_t pointer)
{
    return release("standin_free", pointer, true);
}

PUBLIC int cudaHostAlloc(uintptr_t *pointer, size_t bytes, unsigned flags)
{
    (void)flags;
    return allocate("cudaHostAlloc", pointer, bytes, -1);
}

PUBLIC int cudaFreeHost(uintptr_t pointer)
{
    return release("cudaFreeHost", pointer, false);
}

PUBLIC int cudaHostRegister(uintptr_t pointer, size_t bytes, unsigned flags)
{
    int code = begin("cudaHostRegister");
    if (code)
        return code;
    if (flags != 1 || !bytes || find(pointer, bytes))
        return end(INVALID);
    struct block *b = calloc(1, sizeof *b);
    *b = (struct block){.next = blocks, .seen = (char *)pointer, .reached = (char *)pointer, .bytes = bytes, .device = -1,
                        .fd = -1, .registered = true};
    blocks = b;
    return end(OK);
}

PUBLIC int cudaHostUnregister(uintptr_t pointer)
{
    struct block *b = find(pointer, 1);
    return b && b->registered ? release("cudaHostUnregister", pointer, false) : answer("cudaHostUnregister", INVALID);
}

struct attributes { int type, device; uintptr_t device_pointer, host_pointer; };

PUBLIC int cudaPointerGetAttributes(struct attributes *out, uintptr_t pointer)
{
    int code = begin("cudaPointerGetAttributes");
    if (code)
        return code;
    struct block *b = find(pointer, 1);
    *out = (struct attributes){.type = !b ? 0 : b->device < 0 ? 1 : 2, .device = b && b->device >= 0 ? b->device : 0,
                               .device_pointer = b ? pointer : 0, .host_pointer = b && b->device < 0 ? pointer : 0};
    return end(OK);
}

/* Where the test may read and write what lies at a device address; NULL when nothing does. */
PUBLIC void *standin_reach(uintptr_t address, size_t bytes)
{
    bool pinned;
    pthread_mutex_lock(&lock);
    char *reached = reach(address, bytes, &pinned);
    pthread_mutex_unlock(&lock);
    return reached;
}

/* The file behind device memory and the offset in it; -1 when there is none. The descriptor stays the stand-in's. */
PUBLIC int standin_share(uintptr_t address, size_t bytes, size_t *offset)
{
    pthread_mutex_lock(&lock);
    struct block *b = find(address, bytes);
    int fd = b && b->device >= 0 ? b->fd : -1;
    *offset = b ? address - (uintptr_t)b->seen : 0;
    pthread_mutex_unlock(&lock);
    return fd;
}

/* Blocks of device memory, and pinned ones. */
PUBLIC void standin_memory(long counts[2])
{
    pthread_mutex_lock(&lock);
    memset(counts, 0, 2 * sizeof *counts);
    for (struct block *b = blocks; b; b = b->next)
        counts[b->device < 0]++;
    pthread_mutex_unlock(&lock);
}

/* ---- copies ---- */

struct copy {
    uintptr_t to, from;
    size_t to_pitch, from_pitch, width, rows;
    int kind;
};

/* Copies of a kind that have been carried out since the start. */
PUBLIC size_t standin_copies(size_t kind)
{
    pthread_mutex_lock(&lock);
    size_t ended = copies_ended[kind];
    pthread_mutex_unlock(&lock);
    return ended;
}

static bool due(int *count)
{
    return *count && !--*count;
}

/* Carried out by a stream. Memory that has been freed meanwhile, or is of the wrong kind, breaks everything as in CUDA. */
static void carry_out(void *argument)
{
    struct copy *c = argument;
    bool to_pinned, from_pinned;
    pthread_mutex_lock(&lock);
    long wait = slow_ns + slower_ns[c->kind];
    struct timespec pause = {wait / 1000000000, wait % 1000000000};
    pthread_mutex_unlock(&lock);
    nanosleep(&pause, NULL);
    pthread_mutex_lock(&lock);
    for (size_t row = 0; row < c->rows && !sticky; row++) {
        char *to = reach(c->to + row * c->to_pitch, c->width, &to_pinned);
        char *from = reach(c->from + row * c->from_pitch, c->width, &from_pinned);
        if (!to || !from || to_pinned != (c->kind == DEVICE_TO_HOST) || from_pinned != (c->kind == HOST_TO_DEVICE))
            sticky = ILLEGAL_ADDRESS;
        else
            memcpy(to, from, c->width);
    }
    if (due(&later_count))
        sticky = later_code;
    copies_ended[c->kind]++;
    pthread_mutex_unlock(&lock);
    free(c);
}

static int enqueue(const char *function, struct copy copy, uintptr_t handle)
{
    int code = begin(function);
    if (code)
        return code;
    struct stream *s = stream_of(handle);
    if (!s)
        return end(BAD_HANDLE);
    if (copy.kind < HOST_TO_DEVICE || copy.kind > DEVICE_TO_DEVICE || copy.width > copy.to_pitch || copy.width > copy.from_pitch)
        return end(INVALID);
    if (copy.width && copy.rows) {
        struct copy *c = malloc(sizeof *c);
        *c = copy;
        stream_run(s, carry_out, c);
    }
    return end(OK);
}

PUBLIC int cudaMemcpyAsync(uintptr_t to, uintptr_t from, size_t bytes, int kind, uintptr_t stream)
{
    return enqueue("cudaMemcpyAsync", (struct copy){to, from, bytes, bytes, bytes, 1, kind}, stream);
}

PUBLIC int cudaMemcpy2DAsync(uintptr_t to, size_t to_pitch, uintptr_t from, size_t from_pitch, size_t width, size_t rows,
                             int kind, uintptr_t stream)
{
    if (to_pitch > INT32_MAX || from_pitch > INT32_MAX)
        return BAD_PITCH;
    return enqueue("cudaMemcpy2DAsync", (struct copy){to, from, to_pitch, from_pitch, width, rows, kind}, stream);
}

/* ---- errors ---- */

PUBLIC int cudaGetLastError(void)
{
    int code = last_error;
    last_error = OK;
    return code;
}

PUBLIC const char *cudaGetErrorName(int code)
{
    return code == NO_MEMORY ? "cudaErrorMemoryAllocation" : code == ILLEGAL_ADDRESS ? "cudaErrorIllegalAddress"
         : code == BAD_HANDLE ? "cudaErrorInvalidResourceHandle" : "cudaErrorOfTheStandIn";
}

PUBLIC const char *cudaGetErrorString(int code)
{
    return code == NO_MEMORY ? "out of memory" : "the stand-in was told to, or its rules were broken";
}
