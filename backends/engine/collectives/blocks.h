/* Small things about the blocks of an array. */
#ifndef ACOMM_BLOCKS_H
#define ACOMM_BLOCKS_H
#include "memory/stream.h"
#include "group/wait.h"

#define BLOCKS_LOOK ((size_t)8 << 20) /* bytes that are copied in some milliseconds, also into new pages */

/* Nothing to do in place or for nothing; pointers may be NULL then. Otherwise the two do not overlap. */
static inline void blocks_copy(void *to, const void *from, size_t bytes)
{
    if (to != from)
        stream_keep(to, from, bytes);
}

/* blocks_copy() of arrays of any size: Ctrl-C is answered meanwhile. It is a part of a copy of `whole` bytes. */
static inline int blocks_copy_part(struct acomm_op *op, char *to, const char *from, size_t bytes, size_t whole)
{
    int rc = 0;
    for (size_t at = 0; at < bytes && to != from && !rc; at += BLOCKS_LOOK) {
        stream_long(to + at, from + at, bytes - at < BLOCKS_LOOK ? bytes - at : BLOCKS_LOOK, whole);
        rc = bytes > BLOCKS_LOOK ? wait_look(op) : 0;
    }
    return rc;
}

static inline int blocks_copy_all(struct acomm_op *op, char *to, const char *from, size_t bytes)
{
    return blocks_copy_part(op, to, from, bytes, bytes);
}

/* A place in an array, which is NULL where it has no bytes. */
static inline char *blocks_at(const void *array, uint64_t offset)
{
    return array ? (char *)(uintptr_t)array + offset : NULL;
}

/* The part of a block that a segment covers, when segments are `bytes` of each block; may be empty. */
static inline struct span blocks_part(struct span block, uint64_t segment, uint64_t bytes)
{
    uint64_t start = segment * bytes;
    if (start >= block.bytes)
        return (struct span){block.offset, 0};
    return (struct span){block.offset + start, block.bytes - start < bytes ? block.bytes - start : bytes};
}
#endif
