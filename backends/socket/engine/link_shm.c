#include <errno.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "acomm.h"
#include "bell.h"
#include "link.h"

#define LINE 128 /* bytes: two cache lines, because processors fetch them in pairs */
#define PUBLISH ((size_t)32 << 10) /* the other side may start on a long message while we still copy */

/* Bytes ever written and ever read; their difference is what lies in the ring. Starts as zeros. */
struct link_ring {
    _Alignas(LINE) _Atomic uint64_t written; /* by the sender only */
    _Alignas(LINE) _Atomic uint64_t read;    /* by the receiver only */
    _Alignas(LINE) char data[];
};

/* Each side trusts its own index only in its private memory, and the other side's only within the ring's size. */
struct link_shm {
    struct link base;
    struct link_ring *ring;
    struct bell *theirs;
    uint64_t own, other; /* own index; the other side's as last seen */
    size_t size, publish;
};

static struct link_shm *self(struct link *link)
{
    return (struct link_shm *)link;
}

/* Bytes that can be moved now: free ones for the sender, filled ones for the receiver. */
static uint64_t available(const struct link_shm *s)
{
    return s->base.outgoing ? s->size - (s->own - s->other) : s->other - s->own;
}

/* The other side can only have gone on, and at most through all that it had before it. */
static int refresh(struct link_shm *s)
{
    uint64_t other = atomic_load_explicit(s->base.outgoing ? &s->ring->read : &s->ring->written, memory_order_acquire);
    if (other - s->other > s->size - available(s)) {
        errno = EPROTO;
        return ACOMM_PROTOCOL;
    }
    s->other = other;
    return 0;
}

static void publish(struct link_shm *s, size_t bytes)
{
    s->own += bytes;
    atomic_store_explicit(s->base.outgoing ? &s->ring->written : &s->ring->read, s->own, memory_order_release);
    bell_ring(s->theirs);
}

/* The bytes from the own index to the end of the memory, at most one publication's worth. */
static size_t run_length(const struct link_shm *s, size_t bytes)
{
    size_t to_end = s->size - (s->own & (s->size - 1));
    size_t run = bytes < s->publish ? bytes : s->publish;
    return run < to_end ? run : to_end;
}

static ssize_t move(struct link *link, char *to, const char *from, size_t bytes)
{
    struct link_shm *s = self(link);
    if (available(s) < bytes) {
        int rc = refresh(s);
        if (rc)
            return rc;
    }
    if (bytes > available(s))
        bytes = available(s);
    for (size_t moved = 0; moved < bytes;) {
        size_t run = run_length(s, bytes - moved);
        char *place = s->ring->data + (s->own & (s->size - 1));
        memcpy(to ? to + moved : place, from ? from + moved : place, run);
        publish(s, run);
        moved += run;
    }
    return (ssize_t)bytes;
}

static ssize_t shm_send(struct link *link, const void *data, size_t bytes)
{
    return move(link, NULL, data, bytes);
}

static ssize_t shm_recv(struct link *link, void *data, size_t bytes)
{
    return move(link, data, NULL, bytes);
}

static int shm_descriptor(struct link *link)
{
    (void)link;
    return -1;
}

static void shm_close(struct link *link)
{
    free(link); /* the ring belongs to the segment */
}

static const struct link_ops shm_ops = {shm_send, shm_recv, shm_descriptor, shm_close};

struct link *link_shm_new(int peer, bool outgoing, struct link_ring *memory, size_t bytes, struct bell *ours,
                          struct bell *theirs)
{
    struct link_shm *s = calloc(1, sizeof *s);
    if (!s)
        return NULL;
    s->base = (struct link){.ops = &shm_ops, .peer = peer, .outgoing = outgoing, .bell = ours};
    s->theirs = theirs;
    s->ring = memory;
    s->size = bytes;
    s->publish = bytes / 4 < PUBLISH ? bytes / 4 : PUBLISH;
    return &s->base;
}

size_t link_shm_footprint(size_t bytes)
{
    return sizeof(struct link_ring) + bytes;
}
