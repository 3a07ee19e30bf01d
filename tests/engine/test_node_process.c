/* engine: membership/ base/loop.c base/process.c */
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include "node_world.h"

static void *remove_group(void *group)
{
    struct acomm_group *g = group;
    node_remove(g->node, g);
    atomic_store(&fail_entered, 2);
    return NULL;
}

static void removal_waits_for_a_call(void)
{
    struct world w;
    world_open(&w, 1 << 2, SILENCE);
    struct groups one = {{0}};
    one.of[1] = group_make(w.node[1], 7, 0, (int[]){1, 2}, 2);
    atomic_store(&fail_entered, 0);
    atomic_store(&fail_hold, 1);
    bare_close(&w, 2);
    AWAIT(&w, atomic_load(&fail_entered) == 1);
    pthread_t thread;
    CHECK_EQUAL(pthread_create(&thread, NULL, remove_group, one.of[1]), 0);
    quiet(&w, 50);
    CHECK_EQUAL(atomic_load(&fail_entered), 1);
    atomic_store(&fail_hold, 0);
    pthread_join(thread, NULL);
    CHECK_EQUAL(failed(&one), 1);
    groups_close(&one);
    world_close(&w);
}

static int child_result(pid_t child)
{
    int status = -1;
    CHECK_EQUAL(waitpid(child, &status, 0), child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

static void a_forked_child_has_no_part_in_it(void)
{
    struct world w;
    world_open(&w, 1 << 2, SILENCE);
    struct groups all = groups_open(&w, 7, everybody, RANKS);
    int event = acomm_node_eventfd(w.node[1]);
    pid_t child = fork();
    if (child == 0) {
        acomm_request request;
        int bad = !node_forked(w.node[1]) || fcntl(event, F_GETFD) >= 0 ||
                  acomm_node_attach(w.node[1], 0, open("/dev/null", O_RDONLY)) != ACOMM_FORKED ||
                  acomm_node_request(w.node[1], &request) != 0 || acomm_node_close(w.node[1], "") != ACOMM_FORKED;
        node_remove(w.node[1], all.of[1]);
        pid_t grandchild = fork(); /* nothing of the parent's node is touched twice */
        if (grandchild == 0)
            _exit(fcntl(w.bare[2][0], F_GETFD) < 0);
        int status = 1;
        waitpid(grandchild, &status, 0);
        _exit(bad ? 1 : status ? 2 : 0);
    }
    CHECK_EQUAL(child_result(child), 0);
    quiet(&w, 100);
    CHECK_EQUAL(failed(&all), 0);
    bare_close(&w, 2);
    AWAIT(&w, failed(&all) == 4);
    groups_close(&all);
    world_close(&w);
}

/* Exit status 0 when the group of this process did not fail although it was stopped for longer than the silence. */
static int sleeper(int fd)
{
    acomm_node *node;
    if (acomm_node_open(0, 2, BEAT, 800 * MS, &node) || acomm_node_attach(node, 1, fd))
        return 1;
    struct acomm_group *g = group_make(node, 7, 0, (int[]){0, 1}, 2);
    struct wire_control ready = {.magic = 1};
    if (send(fd, &ready, 1, 0) != 1) /* "running": the test reads one byte more than the heartbeats */
        return 2;
    usleep(1200000);
    int failed_here = atomic_load(&g->poisoned);
    return failed_here ? 10 - failed_here : 0;
}

static void who_overslept_does_not_accuse_others(void)
{
    int fds[2];
    pair_of(fds);
    pid_t child = fork();
    if (child == 0) {
        close(fds[0]);
        _exit(sleeper(fds[1]));
    }
    close(fds[1]);
    char byte;
    CHECK_EQUAL(recv(fds[0], &byte, 1, 0), 1);
    kill(child, SIGSTOP);
    usleep(1800000); /* twice the silence, and nothing is sent meanwhile */
    kill(child, SIGCONT);
    for (int i = 0; i < 80; i++) { /* 1.6 s of heartbeats */
        struct wire_control head = {.magic = WIRE_CONTROL_MAGIC, .kind = WIRE_HEARTBEAT, .rank = 1};
        usleep(20000);
        if (send(fds[0], &head, sizeof head, MSG_NOSIGNAL) < 0)
            break;
    }
    CHECK_EQUAL(child_result(child), 0);
    close(fds[0]);
}

static int entries(const char *path)
{
    int count = 0;
    DIR *dir = opendir(path);
    while (dir && readdir(dir))
        count++;
    closedir(dir);
    return count;
}

static void nothing_is_left(void)
{
    struct world w;
    int before = entries("/proc/self/fd"), threads = entries("/proc/self/task");
    for (int i = 0; i < 20; i++) {
        world_open(&w, i & 1 ? 1 << 3 : 0, SILENCE);
        struct groups all = groups_open(&w, 7, everybody, RANKS);
        if (i & 1) {
            bare_close(&w, 3);
            AWAIT(&w, failed(&all) == 4);
        }
        groups_close(&all);
        world_close(&w);
    }
    CHECK_EQUAL(entries("/proc/self/fd"), before);
    CHECK_EQUAL(entries("/proc/self/task"), threads);
}

int main(void)
{
    TEST(removal_waits_for_a_call);
    TEST(a_forked_child_has_no_part_in_it);
    TEST(who_overslept_does_not_accuse_others);
    TEST(nothing_is_left);
    return CHECK_RESULT();
}
