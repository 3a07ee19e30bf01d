/* What the files of the stand-in for CUDA's runtime share; see cudart.c. */
#ifndef CUDART_H
#define CUDART_H
#define _GNU_SOURCE
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PUBLIC __attribute__((visibility("default")))
#define MAX_DEVICES 8
enum { OK = 0, INVALID = 1, NO_MEMORY = 2, BAD_PITCH = 12, BAD_DEVICE = 101, SAME_PROCESS = 201, BAD_HANDLE = 400, NOT_READY = 600, ILLEGAL_ADDRESS = 700, CAPTURED = 900 };

struct block { /* of memory: device (seen and reached under two addresses) or pinned (under one) */
    struct block *next;
    char *seen, *reached;
    size_t bytes;
    int device, fd; /* device -1: pinned */
    bool registered; /* the program's own memory */
};

extern struct block *blocks;
extern pthread_mutex_t lock;    /* over everything */
extern pthread_cond_t changed;  /* anything */
extern uintptr_t captured;      /* stream that is being captured into a graph */
extern __thread int capture_mode; /* 0: such a capture forbids this thread what could disturb it */
extern int sticky;              /* what every call returns from now on */
extern __thread int current;    /* device */
extern int devices;
extern unsigned long contexts;  /* bit d: device d has one */
extern __thread bool serving;   /* this thread is a stream: Python may collect garbage there, and waits for nobody then */

/* Before a call does anything: takes the lock, or gives the code that it returns. Makes a context on the current device. */
int begin(const char *function);
/* As begin(), for calls that need no context. */
int begin_without_context(const char *function);
/* Returns the lock; the code. */
int end(int code);
/* Where bytes lie that programs see at this address, NULL where there is no such memory. Under the lock. */
char *reach(uintptr_t address, size_t bytes, bool *pinned);

/* Device or pinned memory over a file, which it takes over; NULL: none. Under the lock. */
struct block *map_file(int fd, size_t bytes, int device);
void drop_block(struct block **at);

struct stream;
/* The stream of a handle, NULL for none; 0, 1 and 2 are the current device's default streams, which are one here. Under the lock. */
struct stream *stream_of(uintptr_t handle);
/* Has run(argument) called by the stream, in its order. Under the lock. */
void stream_run(struct stream *stream, void (*run)(void *), void *argument);
bool streams_busy(void);

#endif
