/* Allocates blocks of a rank's arena, and maps the arenas of its peers. */
#include "memory/arena.h"

#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "acomm.h"
#include "memory/pages.h"

#define PAGE (UINT64_C(4) << 10)
#define HUGE (UINT64_C(2) << 20)
#ifndef MADV_POPULATE_WRITE /* Linux 5.14 */
#define MADV_POPULATE_WRITE 23
#endif

struct acomm_block {
    struct arena *arena;
    struct acomm_block *next;    /* by rising offset */
    uint64_t offset, bytes;
};

struct arena {
    pthread_mutex_t lock;
    char *base;
    uint64_t start;              /* of the range in the file */
    int fd;
    pid_t owner;
    bool open;                   /* the group still holds it */
    struct acomm_block *blocks;
};

static char *arena_reserve(int fd, uint64_t offset)
{
    char *base = mmap(NULL, ARENA_BYTES, PROT_NONE, MAP_SHARED | MAP_NORESERVE, fd, (off_t)offset);
    if (base == MAP_FAILED)
        return NULL;
    madvise(base, ARENA_BYTES, MADV_DONTDUMP); /* best effort; a sandbox may forbid it */
    return base;
}

struct arena *arena_open(int fd, uint64_t offset)
{
    struct arena *a = calloc(1, sizeof *a);
    if (!a)
        return NULL;
    a->fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    a->base = a->fd < 0 ? NULL : arena_reserve(a->fd, offset);
    if (!a->base) {
        int saved = errno;
        if (a->fd >= 0)
            close(a->fd);
        free(a);
        errno = saved;
        return NULL;
    }
    pthread_mutex_init(&a->lock, NULL);
    a->start = offset;
    a->owner = getpid();
    a->open = true;
    return a;
}

/* Called with the lock; releases it, and frees the arena after its last use. */
static void arena_leave(struct arena *a)
{
    bool last = !a->open && !a->blocks;
    pthread_mutex_unlock(&a->lock);
    if (!last)
        return;
    munmap(a->base, ARENA_BYTES);
    close(a->fd);
    pthread_mutex_destroy(&a->lock);
    free(a);
}

void arena_close(struct arena *a)
{
    if (!a || getpid() != a->owner)
        return;
    pthread_mutex_lock(&a->lock);
    a->open = false;
    arena_leave(a);
}

/* First fit. With the lock. */
static bool arena_place(struct arena *a, struct acomm_block *block, uint64_t align)
{
    struct acomm_block **at = &a->blocks;
    uint64_t free_from = 0;
    for (; *at && (*at)->offset < free_from + block->bytes; at = &(*at)->next)
        free_from = ((*at)->offset + (*at)->bytes + align - 1) / align * align;
    if (free_from > ARENA_ROOM || block->bytes > ARENA_ROOM - free_from)
        return false;
    block->offset = free_from;
    block->next = *at;
    *at = block;
    return true;
}

/* Opens the addresses, and takes all pages now: writing to them later can then never raise SIGBUS. Huge ones where the system grants them. */
static int populate(const struct arena *a, const struct acomm_block *b)
{
    char *data = a->base + b->offset;
    if (mprotect(data, b->bytes, PROT_READ | PROT_WRITE))
        return errno;
    madvise(data, b->bytes, MADV_DODUMP);
    if (b->bytes >= HUGE)
        madvise(data, b->bytes, MADV_HUGEPAGE); /* best effort */
    if (!madvise(data, b->bytes, MADV_POPULATE_WRITE))
        return 0;
    if (errno != EINVAL && errno != EPERM && errno != EACCES && errno != ENOSYS) /* an older kernel, or a sandbox's filter */
        return errno == EFAULT || errno == EHWPOISON ? ENOMEM : errno;
    return pages_reserve(a->fd, a->start + b->offset, b->bytes);
}

uintptr_t acomm_block_address(const acomm_block *block)
{
    return (uintptr_t)block->arena->base + block->offset;
}

static struct acomm_block *new_block(struct arena *a, uint64_t bytes)
{
    uint64_t align = bytes >= HUGE ? HUGE : PAGE;
    struct acomm_block *block = bytes <= ARENA_ROOM ? calloc(1, sizeof *block) : NULL;
    if (!block)
        return NULL;
    *block = (struct acomm_block){.arena = a, .bytes = bytes ? (bytes + align - 1) / align * align : PAGE};
    pthread_mutex_lock(&a->lock);
    bool placed = arena_place(a, block, align);
    pthread_mutex_unlock(&a->lock);
    if (placed)
        return block;
    free(block);
    return NULL;
}

struct acomm_block *arena_take(struct arena *a, uint64_t bytes)
{
    struct acomm_block *block = new_block(a, bytes);
    int error = block ? populate(a, block) : ENOMEM;
    if (!error)
        return block;
    if (block)
        acomm_block_free(block);
    return errno = error, NULL;
}

void acomm_block_free(acomm_block *block)
{
    struct arena *a = block->arena;
    if (getpid() != a->owner)
        return;
    pthread_mutex_lock(&a->lock);
    struct acomm_block **at = &a->blocks;
    while (*at != block)
        at = &(*at)->next;
    *at = block->next;
    mprotect(a->base + block->offset, block->bytes, PROT_NONE);
    madvise(a->base + block->offset, block->bytes, MADV_DONTDUMP);
    /* Cannot fail in a way that matters: the pages then stay until the file goes. */
    (void)!fallocate(a->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)(a->start + block->offset),
                     (off_t)block->bytes);
    free(block);
    arena_leave(a);
}

bool arena_holds(const struct arena *a, const char *at, uint64_t bytes, uint64_t *offset)
{
    if (!a || at < a->base || bytes > ARENA_ROOM || (uint64_t)(at - a->base) > ARENA_ROOM - bytes)
        return false;
    *offset = (uint64_t)(at - a->base);
    return true;
}

char *arena_view_open(struct arena_view *view, int fd, uint64_t offset, uint64_t upto)
{
    uint64_t end = (upto + HUGE - 1) / HUGE * HUGE;
    if (upto > ARENA_BYTES)
        return errno = ENOMEM, NULL;
    if (!view->base && !(view->base = arena_reserve(fd, offset)))
        return NULL;
    if (end <= view->open)
        return view->base;
    if (mprotect(view->base, end, PROT_READ | PROT_WRITE))
        return NULL;
    view->open = end;
    return view->base;
}

void arena_view_close(struct arena_view *view)
{
    if (view->base)
        munmap(view->base, ARENA_BYTES);
    *view = (struct arena_view){0};
}
