/* Symmetric arrays: memory of one rank that its peers on the host can map, so that collectives read and write it in place.
 *
 * Every local rank owns a range of the group's memory file, of which pages exist only where a block was taken. Owner and peers
 * keep addresses for the whole range when they first need one, and nothing but addresses: such a mapping permits no access and is left
 * out of core dumps, so that neither a dump nor mlockall() brings pages in. The owner opens the addresses of a block while that is taken,
 * a peer those up to the end of what it is told of. The owner's mapping lives as long as the
 * last block, also after the group has been closed: an array never loses its memory under its user. */
#ifndef ACOMM_ARENA_H
#define ACOMM_ARENA_H
#include <stdbool.h>
#include <stdint.h>

#ifdef __SANITIZE_THREAD__
#define ARENA_BYTES (UINT64_C(1) << 30) /* ThreadSanitizer leaves little address space */
#else
#define ARENA_BYTES (UINT64_C(256) << 30) /* of address space and of file length; memory is taken by blocks */
#endif
#define ARENA_ROOM (ARENA_BYTES / 2)      /* where blocks begin and as much as they have: an offset that is checked once */

struct arena;
struct acomm_block;

/* The range of `fd` from `offset` on. NULL with errno set. */
struct arena *arena_open(int fd, uint64_t offset);
/* Releases the group's reference; blocks in use keep the arena. NULL is fine. */
void arena_close(struct arena *arena);
/* A block of zeros, 4 KiB aligned (2 MiB from 2 MiB on), or NULL with errno set. Any thread. It is freed by acomm_block_free(). */
struct acomm_block *arena_take(struct arena *arena, uint64_t bytes);
/* Whether bytes [at, at + bytes) lie in the arena, and where. */
bool arena_holds(const struct arena *arena, const char *at, uint64_t bytes, uint64_t *offset);

/* A peer's arena as this rank sees it; zeros at the beginning. */
struct arena_view {
    char *base;
    uint64_t open;               /* bytes that may be accessed */
};
/* Its base, with at least the first `upto` bytes to be read and written; NULL with errno set. Not by two threads at once; addresses that
 * were opened stay. */
char *arena_view_open(struct arena_view *view, int fd, uint64_t offset, uint64_t upto);
void arena_view_close(struct arena_view *view);
#endif
