/* engine: memory/arena.c */
/* Blocks of a memory file: where they lie, what is freed, and who keeps the mapping. */
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include "acomm.h"
#include "memory/arena.h"
#include "check.h"

#ifndef MADV_POPULATE_WRITE /* Linux 5.14 */
#define MADV_POPULATE_WRITE 23
#endif

#define START (UINT64_C(3) << 20)
#define KiB(n) ((uint64_t)(n) << 10)

static int file(void)
{
    int fd = memfd_create("test", MFD_CLOEXEC);
    CHECK(ftruncate(fd, (off_t)(START + ARENA_BYTES)) == 0);
    return fd;
}

static uint64_t held(int fd)
{
    struct stat status;
    CHECK(fstat(fd, &status) == 0);
    return (uint64_t)status.st_blocks * 512;
}

static void blocks_do_not_overlap(void)
{
    static const uint64_t sizes[] = {0, 1, 4096, 4097, 100000, KiB(3000), 7, KiB(2048)};
    int fd = file();
    struct arena *a = arena_open(fd, START);
    struct acomm_block *blocks[8];
    for (int i = 0; i < 8; i++) {
        blocks[i] = arena_take(a, sizes[i]);
        CHECK(blocks[i] && acomm_block_address(blocks[i]) % (sizes[i] >= KiB(2048) ? KiB(2048) : 4096) == 0);
        memset((char *)acomm_block_address(blocks[i]), i + 1, sizes[i]);
    }
    for (int i = 0; i < 8; i++)
        for (uint64_t k = 0; k < sizes[i]; k += 1013)
            CHECK_MESSAGE(((char *)acomm_block_address(blocks[i]))[k] == i + 1, "block %d at %lu", i, (unsigned long)k);
    for (int i = 0; i < 8; i++)
        acomm_block_free(blocks[i]);
    CHECK_MESSAGE(held(fd) == 0, "%lu bytes stayed", (unsigned long)held(fd));
    arena_close(a);
    close(fd);
}

/* First fit: what lay between two others is used again, and is zeros again. */
static void gaps_are_used(void)
{
    int fd = file();
    struct arena *a = arena_open(fd, START);
    struct acomm_block *first = arena_take(a, KiB(64)), *second = arena_take(a, KiB(64)), *third = arena_take(a, KiB(64));
    char *gap = (char *)acomm_block_address(second);
    memset(gap, 5, KiB(64));
    acomm_block_free(second);
    second = arena_take(a, KiB(32));
    CHECK((char *)acomm_block_address(second) == gap && gap[0] == 0 && gap[KiB(32) - 1] == 0);
    struct acomm_block *large = arena_take(a, KiB(128));
    CHECK((char *)acomm_block_address(large) >= (char *)acomm_block_address(third) + KiB(64));
    struct acomm_block *all[] = {first, second, third, large};
    for (int i = 0; i < 4; i++)
        acomm_block_free(all[i]);
    arena_close(a);
    close(fd);
}

static void places(void)
{
    int fd = file();
    struct arena *a = arena_open(fd, START);
    struct acomm_block *block = arena_take(a, KiB(8));
    const char *at = (char *)acomm_block_address(block);
    uint64_t offset = 1;
    char elsewhere;
    CHECK(arena_holds(a, at + 10, 100, &offset) && offset == 10);
    CHECK(!arena_holds(a, &elsewhere, 1, &offset) && !arena_holds(NULL, at, 1, &offset));
    CHECK(!arena_holds(a, at, ARENA_ROOM + 1, &offset) && !arena_holds(a, at - 1, 1, &offset));
    char *peer = mmap(NULL, KiB(8), PROT_READ, MAP_SHARED, fd, (off_t)START);
    strcpy((char *)acomm_block_address(block), "seen by a peer");
    CHECK(peer != MAP_FAILED && !strcmp(peer, "seen by a peer"));
    munmap(peer, KiB(8));
    acomm_block_free(block);
    arena_close(a);
    close(fd);
}

/* Without a signal where it may not be read. */
static bool accessible(const char *at)
{
    int ends[2];
    CHECK_EQUAL(pipe(ends), 0);
    bool readable = write(ends[1], at, 1) == 1;
    CHECK(readable || errno == EFAULT);
    close(ends[0]);
    close(ends[1]);
    return readable;
}

/* Bytes of the mapping that begins where `at` lies, which a core dump would hold: all, or none. -1: no such mapping. */
static int64_t dumped(const char *at)
{
    char line[512];
    unsigned long begin, end, found = 0;
    int64_t bytes = -1;
    FILE *maps = fopen("/proc/self/smaps", "r");
    CHECK(maps);
    while (maps && fgets(line, sizeof line, maps)) {
        if (sscanf(line, "%lx-%lx ", &begin, &end) == 2)
            found = begin <= (uintptr_t)at && (uintptr_t)at < end ? end - begin : 0;
        else if (found && !strncmp(line, "VmFlags:", 8))
            bytes = strstr(line, " dd") ? 0 : (int64_t)found;
    }
    if (maps)
        fclose(maps);
    return bytes;
}

/* What mlockall() does to all mappings: brings pages in where there may be any. */
static void lock_all(char *base)
{
    madvise(base, ARENA_BYTES, MADV_POPULATE_WRITE);
}

static void owners_reserve_addresses_alone(void)
{
    int fd = file();
    struct arena *a = arena_open(fd, START);
    struct acomm_block *first = arena_take(a, KiB(8)), *second = arena_take(a, KiB(8)), *third = arena_take(a, KiB(8));
    char *base = (char *)acomm_block_address(first), *gap = (char *)acomm_block_address(second), *end = (char *)acomm_block_address(third) + KiB(8);
    acomm_block_free(second);
    CHECK(accessible(base) && accessible(end - 1) && !accessible(gap) && !accessible(end));
    CHECK_EQUAL(dumped(base), KiB(8));
    CHECK_EQUAL(dumped(gap), 0);
    CHECK_EQUAL(dumped(end), 0);
    lock_all(base);
    CHECK_EQUAL(held(fd), KiB(16));
    second = arena_take(a, KiB(4));
    CHECK((char *)acomm_block_address(second) == gap && accessible(gap) && !gap[0]);
    acomm_block_free(first);
    acomm_block_free(second);
    acomm_block_free(third);
    CHECK(!accessible(base));
    arena_close(a);
    close(fd);
}

static void peers_open_what_they_are_told_of(void)
{
    int fd = file();
    struct arena *a = arena_open(fd, START);
    struct acomm_block *block = arena_take(a, KiB(3000));
    struct arena_view view = {0};
    char *base = arena_view_open(&view, fd, START, 0);
    CHECK(base && !accessible(base));
    CHECK(arena_view_open(&view, fd, START, KiB(3000)) == base && accessible(base) && accessible(base + KiB(3000) - 1));
    CHECK(!accessible(base + KiB(8192)));
    CHECK(arena_view_open(&view, fd, START, 1) == base && accessible(base + KiB(3000) - 1)); /* what was opened stays */
    CHECK_EQUAL(dumped(base), 0);
    CHECK_EQUAL(dumped(base + KiB(8192)), 0);
    strcpy((char *)acomm_block_address(block), "seen by a peer");
    CHECK(!strcmp(base, "seen by a peer"));
    lock_all(base);
    CHECK(held(fd) < KiB(5000));
    CHECK(arena_view_open(&view, fd, START, ARENA_BYTES) == base && accessible(base + ARENA_BYTES - 1));
    CHECK(!arena_view_open(&view, fd, START, ARENA_BYTES + 1) && errno == ENOMEM);
    arena_view_close(&view);
    arena_view_close(&view);
    CHECK(!arena_view_open(&view, -1, START, 0) && errno == EBADF);
    acomm_block_free(block);
    arena_close(a);
    close(fd);
}

static void blocks_outlive_the_group(void)
{
    int fd = file();
    struct arena *a = arena_open(fd, START);
    struct acomm_block *one = arena_take(a, 100), *other = arena_take(a, 100);
    arena_close(a);
    close(fd);
    strcpy((char *)acomm_block_address(one), "still here");
    acomm_block_free(other);
    CHECK(!strcmp((char *)acomm_block_address(one), "still here"));
    acomm_block_free(one); /* the mapping goes with it: the leak checker looks */
}

/* The child's copy of an array ends without taking the parent's memory away. */
static void fork_keeps_the_memory(void)
{
    int fd = file(), status = 0;
    struct arena *a = arena_open(fd, START);
    struct acomm_block *block = arena_take(a, 100);
    strcpy((char *)acomm_block_address(block), "the parent's");
    pid_t child = fork();
    if (!child) {
        acomm_block_free(block);
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(!strcmp((char *)acomm_block_address(block), "the parent's"));
    acomm_block_free(block);
    arena_close(a);
    close(fd);
}

static void too_much(void)
{
    int fd = file();
    struct arena *a = arena_open(fd, START);
    CHECK(!arena_take(a, ARENA_ROOM + 1) && errno == ENOMEM);
    arena_close(a);
    close(fd);
    CHECK(!arena_open(-1, 0) && errno == EBADF);
}

static bool ticks; /* signals come so often that only short calls end between two: kernels without MADV_POPULATE_WRITE end others */

int fallocate(int fd, int mode, off_t offset, off_t bytes)
{
    if (!ticks || bytes <= (off_t)KiB(4096))
        return (int)syscall(SYS_fallocate, fd, mode, offset, bytes);
    errno = EINTR;
    return -1;
}

/* As a container's filter does: madvise() is not permitted. */
static void forbid_madvise(void)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_madvise, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof code / sizeof *code, code};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program))
        _exit(2);
}

static void madvise_is_forbidden(void)
{
    int status, fd = file();
    pid_t child = fork();
    if (child == 0) {
        forbid_madvise();
        struct arena *a = arena_open(fd, START);
        struct acomm_block *block = arena_take(a, KiB(3000));
        ticks = true;
        block = block ? arena_take(a, KiB(9000)) : NULL;
        _exit(!block || held(fd) < KiB(12000)); /* all pages are there: no write can end in SIGBUS */
    }
    CHECK(waitpid(child, &status, 0) == child);
    CHECK_MESSAGE(status == 0, "status %d", status);
    close(fd);
}

int main(void)
{
    TEST(blocks_do_not_overlap);
    TEST(gaps_are_used);
    TEST(places);
    TEST(owners_reserve_addresses_alone);
    TEST(peers_open_what_they_are_told_of);
    TEST(blocks_outlive_the_group);
    TEST(fork_keeps_the_memory);
    TEST(too_much);
    TEST(madvise_is_forbidden);
    return CHECK_RESULT();
}
