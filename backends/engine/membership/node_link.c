/* One control connection: frames in, frames out, never blocking. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include "base/clock.h"
#include "membership/node_state.h"

struct node_link *node_link_new(int peer, int fd, int64_t now)
{
    struct node_link *link = malloc(sizeof *link);
    char *out = malloc(NODE_LINK_ROOM); /* all of it at once, of which no page is used before it is written: memory that
                                         * were not there later would pass for a peer that does not read */
    if (!link || !out) {
        free(link);
        free(out);
        return NULL;
    }
    *link = (struct node_link){.peer = peer, .fd = fd, .heard = now, .out = out};
    return link;
}

void node_link_free(struct node_link *link)
{
    close(link->fd);
    free(link->out);
    free(link);
}

void node_link_put(struct node_link *link, const struct wire_control *head, const void *payload)
{
    if (link->mute || link->broken)
        return;
    if (link->out_bytes + sizeof *head + head->bytes > NODE_LINK_ROOM) {
        link->broken = "unresponsive (it does not read its control connection)";
        return;
    }
    memcpy(link->out + link->out_bytes, head, sizeof *head);
    if (head->bytes)
        memcpy(link->out + link->out_bytes + sizeof *head, payload, head->bytes);
    link->out_bytes += sizeof *head + head->bytes;
}

void node_link_flush(struct node_link *link)
{
    size_t done = 0;
    while (done < link->out_bytes) {
        ssize_t sent = send(link->fd, link->out + done, link->out_bytes - done, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR)
            continue;
        if (sent < 0 && errno != EAGAIN) {
            /* The reading side decides on the end: a shutdown notice may still be in the socket's buffer. */
            link->mute = true;
            done = link->out_bytes;
        }
        if (sent < 0)
            break;
        done += (size_t)sent;
    }
    link->out_bytes -= done;
    if (link->out_bytes)
        memmove(link->out, link->out + done, link->out_bytes);
}

/* Inside a host only the kernel ends a connection, for a process that has exited. */
static const char *why_broken(int fd, int error)
{
    int family = AF_UNSPEC;
    socklen_t size = sizeof family;
    getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &family, &size);
    if (family == AF_UNIX)
        return "process died (connection closed)";
    if (error == ETIMEDOUT || error == EHOSTUNREACH || error == ENETUNREACH)
        return "unresponsive (the network gave up)";
    return "process died, or the network cut the connection off (it was reset)";
}

/* Reads up to a frame's end, never beyond, so that `in` needs no more room than one frame. */
static bool node_link_fill(struct node_link *link, size_t wanted)
{
    while (link->in_bytes < wanted) {
        ssize_t got = recv(link->fd, link->in + link->in_bytes, wanted - link->in_bytes, MSG_DONTWAIT);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0 && errno == EAGAIN)
            return false;
        if (got <= 0) {
            link->broken = got < 0 ? why_broken(link->fd, errno) : "process died (connection closed)";
            link->given_up = !link->known;
            return false;
        }
        link->in_bytes += (size_t)got;
        link->heard = clock_now();
    }
    return true;
}

int node_link_take(struct node_link *link, int size, struct wire_control *head, const void **payload)
{
    if (link->broken || !node_link_fill(link, sizeof *head))
        return 0;
    memcpy(head, link->in, sizeof *head);
    if (!wire_control_valid(head, size)) {
        link->broken = "it sent an invalid control frame";
        return 0;
    }
    if (!node_link_fill(link, sizeof *head + head->bytes))
        return 0;
    *payload = link->in + sizeof *head;
    link->in_bytes = 0;
    link->known = true;
    return 1;
}
