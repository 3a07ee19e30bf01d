/* What the files of the stand-in for NCCL share; see nccl.c. */
#ifndef NCCL_STANDIN_H
#define NCCL_STANDIN_H
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PUBLIC __attribute__((visibility("default")))
#ifndef STANDIN_VERSION
#define STANDIN_VERSION 23203
#endif
#define MAX_RANKS 8
#define MAX_SCALARS 64
#define BOX_BYTES 32768
enum { SUCCESS, CUDA_ERROR, SYSTEM_ERROR, INTERNAL_ERROR, BAD_ARGUMENT, BAD_USAGE, REMOTE_ERROR, IN_PROGRESS };
enum { SUM, PROD, MAX, MIN, AVG, FIRST_SCALAR };

struct box { /* from one rank to another: holds a piece or not */
    _Atomic uint32_t bytes;
    char data[BOX_BYTES];
};

struct shared { /* by the processes of a communicator */
    _Atomic int present[MAX_RANKS], joined, finalized;
    struct box boxes[MAX_RANKS][MAX_RANKS];
};

struct comm {
    char path[256];
    int rank, size;
    struct shared *shared;
    _Atomic int state;       /* what ncclCommGetAsyncError says */
    _Atomic int aborted, tasks, threads;
    int scalars, registered;
    bool blocking;
    double scalar[MAX_SCALARS];
};

enum kind { ALL_REDUCE, REDUCE, REDUCE_SCATTER, BROADCAST, ALL_GATHER, ALL_TO_ALL, GATHER, SCATTER, SEND, RECV };

struct call {
    struct call *next;
    enum kind kind;
    uintptr_t src, dst;
    size_t count;
    int dtype, op, root;     /* root: or the peer */
    double factor;
    struct comm *comm;
    uintptr_t stream;
};

extern _Atomic long slow_ns;
extern _Atomic int block_count; /* operations until one blocks in its call */
extern _Atomic int operators; /* reduction operators that are there */
int answer(const char *function);         /* what a call was told to return */
int later(void);                          /* what a task was told to end with */
int wrong(int code, const char *text);    /* the code; the text for ncclGetLastError */
#define BEGIN int told = answer(__func__); if (told) return told

/* Carries out calls of one communicator together; a result code. Runs on a stream's thread. */
int move(struct comm *comm, struct call *calls);
size_t width_of(int dtype); /* bytes; 0 for a type that is not known */
void nap(long nanoseconds);

/* Of the stand-in for CUDA's runtime. */
int standin_enqueue(uintptr_t stream, void (*run)(void *), void *argument);
void *standin_reach(uintptr_t address, size_t bytes);
int cudaMalloc(uintptr_t *pointer, size_t bytes);
int cudaFree(uintptr_t pointer);
#endif
