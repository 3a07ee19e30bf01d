/* engine: group/shared/window.c memory/peer_memory.c memory/stream.c */
/* Writing to a peer's memory, and keeping its writes out. */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#include "check.h"
#include "group/shared/shared.h"

#define LONG ((int64_t)100 * 1000000000)
#define BYTES ((size_t)1 << 20) /* one write of the system's */

static struct region *regions; /* of rank 0, this process, and rank 1, its child */

static int32_t processes[2]; /* of these ranks */

static struct shared as(int rank)
{
    return (struct shared){.base = (char *)regions, .region_bytes = sizeof *regions, .rank = rank, .ranks = 2,
                           .processes = processes};
}

static _Atomic int *said; /* by the child: writes that it has done, and in how many it was refused */

/* Writes to its parent until it is refused, then says so and stops. */
static void write_on(uint64_t to)
{
    struct shared s = as(1);
    char *data = calloc(1, BYTES);
    for (int i = 0;; i++) {
        memset(data, i, BYTES);
        said[1] = window_write(&s, 0, to, data, BYTES);
        if (said[1])
            _exit(0);
        said[0]++;
    }
}

static pid_t start(char *array)
{
    memset(regions, 0, 2 * sizeof *regions);
    said[0] = said[1] = 0;
    processes[0] = (int32_t)getpid();
    pid_t child = fork();
    if (!child)
        write_on((uint64_t)(uintptr_t)array);
    processes[1] = child;
    while (!said[0])
        usleep(100);
    return child;
}

static void a_closed_window_keeps_writers_out(void)
{
    struct shared s = as(0);
    char *array = calloc(1, BYTES), *copy = malloc(BYTES);
    for (int i = 0; i < 20; i++) {
        pid_t child = start(array);
        CHECK(window_reaches(&s, 1));
        window_close(&s, LONG);
        memcpy(copy, array, BYTES);
        CHECK_EQUAL(waitpid(child, NULL, 0), child);
        CHECK(!memcmp(array, copy, BYTES));
        CHECK_EQUAL(said[1], ECANCELED);
    }
    free(array);
    free(copy);
}

static pid_t stopped;

static void go_on(int signal)
{
    (void)signal;
    if (!stopped)
        _exit(1);
    kill(stopped, SIGCONT);
}

/* It cannot count itself out, and yet nobody has to wait for it until it goes on; unless it was stopped in the few
 * instructions before its copy: then the alarm lets it. */
static void a_stopped_writer_holds_nobody_up(void)
{
    struct shared s = as(0);
    char *array = calloc(1, BYTES), *copy = malloc(BYTES);
    int inside = 0;
    for (int i = 0; i < 40; i++) {
        pid_t child = start(array);
        kill(child, SIGSTOP);
        waitpid(child, NULL, WUNTRACED);
        inside += regions[1].window.writing == 1;
        stopped = child;
        alarm(2);
        window_close(&s, LONG);
        alarm(0);
        memcpy(copy, array, BYTES);
        kill(child, SIGCONT);
        CHECK_EQUAL(waitpid(child, NULL, 0), child);
        CHECK(!memcmp(array, copy, BYTES));
    }
    stopped = 0;
    CHECK_MESSAGE(inside > 0, "no writer was ever stopped in a write");
    free(array);
    free(copy);
}

static void a_dead_writer_holds_nobody_up(void)
{
    struct shared s = as(0);
    char *array = calloc(1, BYTES);
    for (int i = 0; i < 10; i++) {
        pid_t child = start(array);
        kill(child, SIGKILL);
        waitpid(child, NULL, 0);
        window_close(&s, LONG);
        CHECK(!window_reaches(&s, 1));
    }
    free(array);
}

/* Several of its threads were in a write when it was killed, and nobody has waited for it yet. */
static void all_threads_of_a_dead_writer_are_forgotten(void)
{
    struct shared s = as(0);
    char *array = calloc(1, BYTES);
    pid_t child = start(array);
    kill(child, SIGKILL);
    siginfo_t died;
    CHECK_EQUAL(waitid(P_PID, (id_t)child, &died, WEXITED | WNOWAIT), 0);
    regions[1].window.writing = 3;
    alarm(20);
    window_close(&s, LONG);
    alarm(0);
    waitpid(child, NULL, 0);
    free(array);
}

static void *leave_soon(void *unused)
{
    (void)unused;
    usleep(50000);
    regions[1].window.writing = 0;
    return NULL;
}

static void *close_it(void *unused)
{
    struct shared s = as(0);
    window_close(&s, LONG);
    return unused;
}

/* Several operations fail at once, each with an array of its own. */
static void all_who_close_wait(void)
{
    struct shared s = as(0);
    pthread_t first, writer;
    memset(regions, 0, 2 * sizeof *regions);
    processes[1] = regions[1].window.writer = (int32_t)getpid();
    regions[1].window.writing = 1;
    CHECK_EQUAL(pthread_create(&first, NULL, close_it, NULL), 0);
    while (!regions[0].window.closed)
        usleep(100);
    CHECK_EQUAL(pthread_create(&writer, NULL, leave_soon, NULL), 0);
    window_close(&s, LONG);
    CHECK_EQUAL(regions[1].window.writing, 0);
    pthread_join(first, NULL);
    pthread_join(writer, NULL);
}

static void a_thread_that_ended_is_not_the_one_that_writes(void)
{
    struct shared s = as(0);
    pthread_t thread;
    memset(regions, 0, 2 * sizeof *regions);
    pid_t child = fork();
    if (!child)
        _exit(0);
    waitpid(child, NULL, 0);
    processes[1] = (int32_t)getpid();
    regions[1].window.writer = child; /* nobody's number any more */
    regions[1].window.writing = 1;
    CHECK_EQUAL(pthread_create(&thread, NULL, leave_soon, NULL), 0);
    window_close(&s, LONG);
    CHECK_EQUAL(regions[1].window.writing, 0);
    pthread_join(thread, NULL);
}

/* Broken, or stopped in the few instructions before its copy: nobody waits for it for ever. */
static void a_rank_that_writes_for_ever_is_named(void)
{
    struct shared s = as(0);
    memset(regions, 0, 2 * sizeof *regions);
    processes[1] = regions[1].window.writer = (int32_t)getpid();
    regions[1].window.writing = 1;
    stopped = 0;
    alarm(20);
    CHECK_EQUAL(window_close(&s, 10000000), 1);
    alarm(0);
    regions[1].window.writing = 0;
    CHECK_EQUAL(window_close(&s, 0), -1);
}

/* Stopped in a write as a writer may be, but it is another process's thread that the rank's word names. */
static void a_thread_of_another_process_is_not_the_one_that_writes(void)
{
    struct shared s = as(0);
    char *array = calloc(1, BYTES);
    pid_t child = start(array);
    do {
        kill(child, SIGCONT);
        kill(child, SIGSTOP);
        waitpid(child, NULL, WUNTRACED);
    } while (regions[1].window.writing != 1);
    CHECK_EQUAL(regions[1].window.writer, child);
    processes[1] = (int32_t)getpid();
    CHECK_EQUAL(window_close(&s, 10000000), 1);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    free(array);
}

static void who_has_gone_is_not_reached(void)
{
    struct shared s = as(0);
    char *array = calloc(1, BYTES);
    pid_t child = start(array);
    CHECK(window_reaches(&s, 0));
    CHECK(window_reaches(&s, 1));
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    CHECK(!window_reaches(&s, 1));
    CHECK_EQUAL(window_write(&s, 1, (uint64_t)(uintptr_t)array, "x", 1), ESRCH);
    free(array);
}

int main(void)
{
    void *shared = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    regions = shared;
    said = (_Atomic int *)(void *)((char *)shared + 2048);
    signal(SIGALRM, go_on);
    TEST(a_closed_window_keeps_writers_out);
    TEST(a_stopped_writer_holds_nobody_up);
    TEST(a_dead_writer_holds_nobody_up);
    TEST(all_threads_of_a_dead_writer_are_forgotten);
    TEST(all_who_close_wait);
    TEST(a_thread_that_ended_is_not_the_one_that_writes);
    TEST(a_rank_that_writes_for_ever_is_named);
    TEST(a_thread_of_another_process_is_not_the_one_that_writes);
    TEST(who_has_gone_is_not_reached);
    return CHECK_RESULT();
}
