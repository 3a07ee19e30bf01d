#include "peer_memory.h"

#include <errno.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/random.h>
#include <sys/uio.h>
#include <unistd.h>

#include "stream.h"

#define PAGE 4096u

/* The upper half is the process id: a forked child draws its own. One word, as threads may open groups at the same time. */
static _Atomic uint64_t self;

struct peer_process peer_memory_self(void)
{
    uint64_t key = atomic_load(&self), pid = (uint64_t)getpid();
    uint32_t fresh = 0;
    if (key >> 32 != pid && getrandom(&fresh, sizeof fresh, GRND_NONBLOCK) == sizeof fresh) {
        uint64_t drawn = pid << 32 | fresh | 1;
        if (atomic_compare_exchange_strong(&self, &key, drawn))
            key = drawn; /* otherwise another thread's */
    }
    return (struct peer_process){(int32_t)pid, key >> 32 == pid ? key : 0, (uint64_t)(uintptr_t)&self};
}

bool peer_memory_reaches(const struct peer_process *process)
{
    uint64_t found = 0;
    return process->key && !peer_memory_read(process->pid, process->key_at, (char *)&found, sizeof found, false)
        && found == process->key;
}

static atomic_flag taken = ATOMIC_FLAG_INIT;

/* PEER_MEMORY_PAST bytes that lie in their page as `at` does in its own. NULL: another thread is there, then go straight. */
static char *take_scratch(uint64_t at)
{
    static _Alignas(PAGE) char scratch[PAGE + PEER_MEMORY_PAST];
    return atomic_flag_test_and_set_explicit(&taken, memory_order_acquire) ? NULL : scratch + at % PAGE;
}

static void give_back(const char *scratch)
{
    if (scratch)
        atomic_flag_clear_explicit(&taken, memory_order_release);
}

static ssize_t read_some(int32_t pid, uint64_t from, char *to, size_t bytes)
{
    struct iovec ours = {to, bytes}, theirs = {(void *)(uintptr_t)from, bytes};
    return process_vm_readv(pid, &ours, 1, &theirs, 1, 0);
}

/* A line further on in the array, and back from there in the cache: scatter of 2 to 8 MiB at 4 ranks takes 0.66 of the time that it takes
 * through 64 KiB of other memory, as a call costs as much as copying those. */
static ssize_t read_aside(int32_t pid, uint64_t from, char *to, size_t bytes)
{
    char rest[STREAM_ASIDE];
    size_t part = bytes < PEER_MEMORY_PAST ? bytes : PEER_MEMORY_PAST, room = part - sizeof rest;
    struct iovec ours[] = {{to + sizeof rest, room}, {rest, sizeof rest}}, theirs = {(void *)(uintptr_t)from, part};
    ssize_t n = process_vm_readv(pid, ours, 2, &theirs, 1, 0);
    if (n <= 0)
        return n;
    size_t inside = (size_t)n < room ? (size_t)n : room;
    memmove(to, to + sizeof rest, inside);
    memcpy(to + inside, rest, (size_t)n - inside);
    return n;
}

/* Through memory in the cache, and past the caches from there: the kernel's own stores would fetch each line of `to` first. */
static ssize_t read_past(int32_t pid, uint64_t from, char *to, size_t bytes)
{
    char *here = take_scratch(from);
    size_t part = bytes < PEER_MEMORY_PAST ? bytes : PEER_MEMORY_PAST;
    ssize_t n = read_some(pid, from, here ? here : to, part);
    if (here && n > 0)
        stream_copy(to, here, (size_t)n);
    give_back(here);
    return n;
}

int peer_memory_read(int32_t pid, uint64_t from, char *to, size_t bytes, bool past)
{
    bool stumbles = stream_stumbles((uint64_t)(uintptr_t)to, from);
    while (bytes) {
        ssize_t n = (past ? read_past : stumbles && bytes >= PAGE ? read_aside : read_some)(pid, from, to, bytes);
        if (n <= 0)
            return n ? errno : EFAULT;
        from += (uint64_t)n;
        to += n;
        bytes -= (size_t)n;
    }
    return 0;
}

static ssize_t write_some(int32_t pid, uint64_t to, const char *from, size_t bytes)
{
    struct iovec ours = {(void *)(uintptr_t)from, bytes}, theirs = {(void *)(uintptr_t)to, bytes};
    return process_vm_writev(pid, &ours, 1, &theirs, 1, 0);
}

/* Through memory in the cache that lies in its page as the other process's does. */
static ssize_t write_by_detour(int32_t pid, uint64_t to, const char *from, size_t bytes)
{
    char *here = take_scratch(to);
    size_t part = bytes < PEER_MEMORY_PAST ? bytes : PEER_MEMORY_PAST;
    if (here)
        stream_keep(here, from, part);
    ssize_t n = write_some(pid, to, here ? here : from, part);
    give_back(here);
    return n;
}

ssize_t peer_memory_write(int32_t pid, uint64_t to, const char *from, size_t bytes)
{
    bool stumbles = bytes >= PAGE && stream_stumbles(to, (uint64_t)(uintptr_t)from);
    return (stumbles ? write_by_detour : write_some)(pid, to, from, bytes);
}
