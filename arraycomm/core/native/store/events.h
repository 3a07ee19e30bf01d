/* How a server's thread waits for its clients' events. */
#ifndef STORE_EVENTS_H
#define STORE_EVENTS_H
#include <stdint.h>
#include <sys/epoll.h>

#define STORE_NEVER INT64_MAX

/* Zeros at the beginning: how often the next looks are left out, see store_events_await(). */
struct store_events {
    int skip, next_skip;
};

/* CLOCK_MONOTONIC, ns. */
int64_t store_now(void);
/* As epoll_wait(), until `end`. Looks on for a moment before it sleeps, if that has been worth it lately: being woken costs more
 * than a request. */
int store_events_await(struct store_events *e, int epoll, int64_t end, struct epoll_event *events, int most);
#endif
