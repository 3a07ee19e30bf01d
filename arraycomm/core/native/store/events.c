/* The store server's loop: epoll over its clients. */
#include "events.h"

#include <time.h>

#define POLL_NS 30000
#define MOST_SKIPPED 32

int64_t store_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000ll + t.tv_nsec;
}

static int patience(int64_t end)
{
    if (end == STORE_NEVER)
        return -1;
    int64_t left = (end - store_now() + 999999) / 1000000;
    return left < 0 ? 0 : left > 3600000 ? 3600000 : (int)left;
}

int store_events_await(struct store_events *e, int epoll, int64_t end, struct epoll_event *events, int most)
{
    int found = epoll_wait(epoll, events, most, 0);
    if (found || e->skip > 0) {
        e->skip -= !found;
        return found ? found : epoll_wait(epoll, events, most, patience(end));
    }
    for (int64_t until = store_now() + POLL_NS; !found && store_now() < until;)
        found = epoll_wait(epoll, events, most, 0);
    e->next_skip = found ? 1 : e->next_skip < MOST_SKIPPED ? 2 * e->next_skip : MOST_SKIPPED;
    e->skip = found ? 0 : e->next_skip;
    return found ? found : epoll_wait(epoll, events, most, patience(end));
}
