/* Waiting for descriptors: epoll, and an eventfd that wakes the wait. */
#include "base/loop.h"
#include <errno.h>
#include <sys/eventfd.h>
#include <unistd.h>
#include "acomm.h"
#include "base/clock.h"

int loop_open(struct loop *l)
{
    l->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    l->epoll = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = NULL};
    if (l->wake < 0 || l->epoll < 0 || epoll_ctl(l->epoll, EPOLL_CTL_ADD, l->wake, &event) < 0)
        goto fail;
    return ACOMM_OK;
fail:;
    int saved = errno;
    loop_close(l);
    errno = saved;
    return ACOMM_RESOURCE;
}

void loop_close(struct loop *l)
{
    if (l->epoll >= 0)
        close(l->epoll);
    if (l->wake >= 0)
        close(l->wake);
    l->epoll = l->wake = -1;
}

int loop_add(struct loop *l, int fd, void *tag)
{
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = tag};
    return epoll_ctl(l->epoll, EPOLL_CTL_ADD, fd, &event) < 0 ? ACOMM_RESOURCE : ACOMM_OK;
}

void loop_want(struct loop *l, int fd, void *tag, bool writing)
{
    struct epoll_event event = {.events = EPOLLIN | (writing ? (uint32_t)EPOLLOUT : 0), .data.ptr = tag};
    epoll_ctl(l->epoll, EPOLL_CTL_MOD, fd, &event);
}

void loop_remove(struct loop *l, int fd)
{
    epoll_ctl(l->epoll, EPOLL_CTL_DEL, fd, NULL);
}

void loop_wake(struct loop *l)
{
    (void)!eventfd_write(l->wake, 1); /* fails only when the counter is full, so the loop is awake anyway */
}

static int milliseconds_until(int64_t deadline)
{
    int64_t left = deadline - clock_now();
    if (left <= 0)
        return 0;
    /* Rounded up: rounding down would turn the last millisecond into a busy loop. */
    int64_t ms = (left + 999999) / 1000000;
    return ms > 3600000 ? 3600000 : (int)ms;
}

int loop_wait(struct loop *l, int64_t deadline, struct epoll_event *events, int room)
{
    int found = epoll_wait(l->epoll, events, room, milliseconds_until(deadline));
    int kept = 0;
    for (int i = 0; i < found; i++) {
        eventfd_t count;
        if (events[i].data.ptr)
            events[kept++] = events[i];
        else
            (void)!eventfd_read(l->wake, &count);
    }
    return kept;
}
