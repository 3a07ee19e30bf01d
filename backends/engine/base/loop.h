/* Waiting for descriptors with a deadline, and waking that wait from another thread. Linux: epoll and eventfd. */
#ifndef ACOMM_LOOP_H
#define ACOMM_LOOP_H
#include <stdbool.h>
#include <stdint.h>
#include <sys/epoll.h>

struct loop {
    int epoll, wake;
};

int loop_open(struct loop *l); /* 0 or ACOMM_RESOURCE with errno set */
void loop_close(struct loop *l);
/* `tag` comes back in epoll_event.data.ptr and is not NULL. Watched for reading; loop_want adds or drops writing. */
int loop_add(struct loop *l, int fd, void *tag);
void loop_want(struct loop *l, int fd, void *tag, bool writing);
void loop_remove(struct loop *l, int fd);
/* Ends the current or the next loop_wait. Any thread. */
void loop_wake(struct loop *l);
/* Events filled in: 0 at the deadline (clock_now() time), when woken or interrupted. One thread. */
int loop_wait(struct loop *l, int64_t deadline, struct epoll_event *events, int room);
#endif
