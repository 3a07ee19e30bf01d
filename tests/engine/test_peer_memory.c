/* engine: memory/peer_memory.c */
/* Memory of a process, this one's, read and written by the kernel. */
#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/types.h>
#include <unistd.h>
#include "check.h"
#include "memory/peer_memory.h"

#define ROOM ((size_t)4 << 20)
#define GUARD 64

static char source[ROOM], target[ROOM];

static int writes(size_t to, size_t from, size_t bytes)
{
    for (size_t at = 0; at < bytes;) {
        ssize_t n = peer_memory_write(getpid(), (uint64_t)(uintptr_t)target + to + at, source + from + at, bytes - at);
        if (n <= 0)
            return errno;
        at += (size_t)n;
    }
    return 0;
}

static int reads(size_t to, size_t from, size_t bytes)
{
    return peer_memory_read(getpid(), (uint64_t)(uintptr_t)source + from, target + to, bytes);
}

static void moves(int (*way)(size_t, size_t, size_t), size_t to, size_t from, size_t bytes)
{
    memset(target, 7, to + bytes + GUARD);
    CHECK_EQUAL(way(to, from, bytes), 0);
    CHECK_MESSAGE(!memcmp(target + to, source + from, bytes), "%zu bytes from %zu to %zu", bytes, from, to);
    for (size_t i = 1; i <= GUARD; i++)
        CHECK(target[to - i] == 7 && target[to + bytes + i - 1] == 7);
}

static void every_length(int (*way)(size_t, size_t, size_t))
{
    static const size_t LENGTHS[] = {0, 1, 4095, 4096, 4097, 65535, 65536, 65537, 200000, 3 * 65536, 1 << 20, (1 << 20) + 1, (2 << 20) + 4097};
    for (size_t i = 0; i < ROOM; i++)
        source[i] = (char)(i * 2654435761u >> 16);
    for (size_t i = 0; i < sizeof LENGTHS / sizeof *LENGTHS; i++)
        for (size_t apart = 0; apart < 4096; apart += 1361) {
            moves(way, GUARD + apart, 0, LENGTHS[i]);
            moves(way, GUARD, 4095 - apart, LENGTHS[i]);
        }
}

static void what_is_read(void) { every_length(reads); }
static void what_is_written(void) { every_length(writes); }

/* What is there of an array arrives. */
static void what_ends_halfway(void)
{
    enum { THERE = 5 * 4096 };
    char *gone = mmap(NULL, 2 * THERE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memcpy(gone, source, THERE);
    CHECK(!mprotect(gone + THERE, THERE, PROT_NONE));
    for (size_t more = 1; more < 4096; more = more * 3 + 7) {
        memset(target, 7, THERE + 4096 + GUARD);
        CHECK_EQUAL(peer_memory_read(getpid(), (uint64_t)(uintptr_t)gone, target, THERE + more), EFAULT);
        CHECK_MESSAGE(!memcmp(target, source, THERE), "%zu bytes more", more);
        CHECK(target[THERE + more] == 7);
    }
    munmap(gone, 2 * THERE);
}

/* Memory that is not there is no crash of ours. */
static void what_cannot_be_reached(void)
{
    char *gone = mmap(NULL, ROOM, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK_EQUAL(peer_memory_read(getpid(), (uint64_t)(uintptr_t)gone, target, ROOM), EFAULT);
    CHECK_EQUAL(peer_memory_write(getpid(), (uint64_t)(uintptr_t)gone, source, ROOM), -1);
    CHECK_EQUAL(errno, EFAULT);
    munmap(gone, ROOM);
}

int main(void)
{
    TEST(what_is_read);
    TEST(what_is_written);
    TEST(what_ends_halfway);
    TEST(what_cannot_be_reached);
    return CHECK_RESULT();
}
