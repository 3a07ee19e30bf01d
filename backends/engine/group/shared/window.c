/* Admission of the peers' writes to this rank's memory, and waiting until none is under way. */
#include "group/shared/window.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/clock.h"
#include "group/shared/shared.h"

#define CHUNK ((size_t)1 << 20) /* bytes of one write: tens of microseconds */
#define YIELDS 200      /* then another thread runs on the writer's core, or the writer is stopped */
#define LOOK_NS 1000000

int32_t window_process(const struct shared *s, int rank)
{
    return s->processes[rank];
}

bool window_reaches(const struct shared *s, int rank)
{
    return peer_memory_reaches(window_process(s, rank));
}

bool window_enter(const struct shared *s, int rank)
{
    struct window *ours = &region_of(s, s->rank)->window;
    atomic_store_explicit(&ours->writer, (int32_t)syscall(SYS_gettid), memory_order_relaxed);
    atomic_fetch_add(&ours->writing, 1);
    if (!atomic_load(&region_of(s, rank)->window.closed))
        return true;
    window_leave(s);
    return false;
}

void window_leave(const struct shared *s)
{
    atomic_fetch_sub_explicit(&region_of(s, s->rank)->window.writing, 1, memory_order_release);
}

static ssize_t write_chunk(const struct shared *s, int rank, uint64_t to, const char *from, size_t bytes)
{
    if (!window_enter(s, rank))
        return errno = ECANCELED, -1;
    ssize_t n = peer_memory_write(window_process(s, rank), to, from, bytes);
    window_leave(s);
    return n;
}

int window_write(const struct shared *s, int rank, uint64_t to, const char *from, size_t bytes)
{
    while (bytes) {
        ssize_t n = write_chunk(s, rank, to, from, bytes < CHUNK ? bytes : CHUNK);
        if (n <= 0)
            return n ? errno : EFAULT;
        to += (uint64_t)n;
        from += n;
        bytes -= (size_t)n;
    }
    return 0;
}

/* One line of a thread's file in /proc; false if the thread has exited, or belongs to another process. */
static bool look_up(pid_t process, pid_t thread, const char *name, char *line, size_t room)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/task/%d/%s", (int)process, (int)thread, name);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    ssize_t n = read(fd, line, room - 1);
    close(fd);
    line[n > 0 ? n : 0] = 0;
    return n > 0;
}

/* What of a line of /proc/PID/stat follows the command, whose name may hold anything. */
static const char *after_command(const char *line)
{
    const char *end = strrchr(line, ')');
    return end && end[1] ? end + 2 : "?";
}

/* With all its threads: its last one may still write while the first is a zombie. */
static bool ended(pid_t process)
{
    char line[512], state = '?';
    int threads = 0;
    if (!look_up(process, process, "stat", line, sizeof line))
        return kill(process, 0) && errno == ESRCH;
    sscanf(after_command(line), "%c %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %d", &state, &threads);
    return (state == 'Z' || state == 'X') && threads <= 1;
}

/* A thread that counts itself in, but does not write: a signal stopped it on its way back from the copy.
 * (A stop on the way in shows no system call: that one may still write.) */
static bool harmless(pid_t process, pid_t thread)
{
    char line[512];
    if (!look_up(process, thread, "stat", line, sizeof line))
        return false;
    char state = *after_command(line);
    return (state == 'T' || state == 't') && look_up(process, thread, "syscall", line, sizeof line)
        && strtol(line, NULL, 10) == SYS_process_vm_writev;
}

/* Threads of a process may be in several at once, also when it dies. False where one is in at `until`. */
static bool await_writer(const struct window *w, pid_t process, int64_t until)
{
    struct timespec pause = {0, LOOK_NS};
    for (int turn = 0; atomic_load_explicit(&w->writing, memory_order_acquire); turn++) {
        if (turn < YIELDS) {
            sched_yield();
            continue;
        }
        bool alone = atomic_load(&w->writing) == 1;
        if (ended(process) || (alone && harmless(process, atomic_load(&w->writer))))
            return true;
        if (clock_now() >= until)
            return false;
        nanosleep(&pause, NULL);
    }
    return true;
}

int window_close(const struct shared *s, int64_t timeout)
{
    int64_t now = clock_now(), until = timeout > INT64_MAX - now ? INT64_MAX : now + timeout;
    int writer = -1;
    atomic_store(&region_of(s, s->rank)->window.closed, 1);
    for (int rank = 0; rank < s->ranks; rank++)
        if (rank != s->rank && !await_writer(&region_of(s, rank)->window, window_process(s, rank), until))
            writer = rank;
    return writer;
}
