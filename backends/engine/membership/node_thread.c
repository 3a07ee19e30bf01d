/* The node's thread: heartbeats out, frames in, and the detection of silent peers. */
#include <stdio.h>
#include "base/clock.h"
#include "membership/node_state.h"

#define EVENTS 32
#define SILENT_AT_FIRST 4 /* times the silence until a peer's Python has given the connection to its node */
#define VERDICT_LOOK_NS 50000000 /* how often pending verdicts are looked at */

static int64_t tick(const struct acomm_node *node)
{
    return node->heartbeat < node->silence / 4 ? node->heartbeat : node->silence / 4;
}

static int64_t next_deadline(const struct acomm_node *node, int64_t now)
{
    int64_t deadline = now + tick(node);
    if (node->closing && node->close_by < deadline)
        deadline = node->close_by;
    if (node->verdicts && now + VERDICT_LOOK_NS < deadline)
        deadline = now + VERDICT_LOOK_NS;
    if (node->mend_at && node->mend_at < deadline)
        deadline = node->mend_at;
    if (node->next_beat < deadline)
        deadline = node->next_beat;
    for (const struct node_link *link = node->links; link; link = link->next)
        if (link->heard + node->silence < deadline)
            deadline = link->heard + node->silence;
    return deadline;
}

static void read_link(struct acomm_node *node, struct node_link *link)
{
    struct wire_control head;
    const void *payload;
    while (!node->condemned && node_link_take(link, node->size, &head, &payload))
        node_hear(node, link, &head, payload);
}

/* If links end at about the same time, all of them must be seen, and the frames before their ends must be read. */
static void read_all_if_broken(struct acomm_node *node)
{
    struct node_link *link = node->links;
    while (link && !link->broken)
        link = link->next;
    for (link = link ? node->links : NULL; link; link = link->next)
        read_link(node, link);
}

/* Removes broken links. Starts over after every loss, because it releases the lock and more links may break. */
static void reap(struct acomm_node *node)
{
    read_all_if_broken(node);
    for (struct node_link **at = &node->links; *at;) {
        struct node_link *link = *at;
        if (!link->broken) {
            at = &link->next;
            continue;
        }
        *at = link->next;
        loop_remove(&node->loop, link->fd);
        if (link->given_up)
            node_doubt(node, link->peer, link->broken);
        else
            node_declare_lost(node, NULL, link->peer, link->broken);
        node_link_free(link);
        at = &node->links;
    }
}

static void judge_silence(struct acomm_node *node, int64_t now)
{
    for (struct node_link *link = node->links; link; link = link->next) {
        int64_t silence = link->known ? node->silence : node->silence * SILENT_AT_FIRST;
        if (link->broken || now - link->heard <= silence)
            continue;
        read_link(node, link); /* frames in the socket's buffer were sent in time */
        if (!link->broken && now - link->heard > silence)
            node_declare_lost(node, NULL, link->peer, "unresponsive (stopped or unreachable)");
    }
}

static void judge_refused(struct acomm_node *node, int64_t now)
{
    for (int r = 0; node->verdicts && r < node->size; r++) {
        const struct node_peer *peer = &node->peers[r];
        if (!peer->verdict || peer->verdict > now)
            continue;
        char why[WIRE_TEXT];
        snprintf(why, sizeof why, "%s", peer->text ? peer->text : "it refused a connection");
        node_declare_lost(node, NULL, r, why);
    }
}

static void beat(struct acomm_node *node, int64_t now)
{
    struct wire_control head = {.magic = WIRE_CONTROL_MAGIC, .kind = WIRE_HEARTBEAT, .rank = node->rank};
    if (now < node->next_beat)
        return;
    node->next_beat = now + node->heartbeat;
    for (struct node_link *link = node->links; link; link = link->next)
        if (!link->out_bytes)
            node_link_put(link, &head, NULL);
}

static bool flush_links(struct acomm_node *node)
{
    bool empty = true;
    for (struct node_link *link = node->links; link; link = link->next) {
        node_link_flush(link);
        bool writing = link->out_bytes > 0;
        if (writing != link->writing && !link->broken)
            loop_want(&node->loop, link->fd, link, writing);
        link->writing = writing;
        empty = empty && !writing;
    }
    return empty;
}

/* This thread itself was stopped, or had no CPU: a peer that seems silent was only not read. */
static void forgive(struct acomm_node *node, int64_t now)
{
    for (struct node_link *link = node->links; link; link = link->next)
        link->heard = now;
}

static bool turn(struct acomm_node *node, const struct epoll_event *events, int found)
{
    int64_t now = clock_now(), late = now - node->last_turn;
    node->last_turn = now;
    for (int i = 0; i < found; i++)
        read_link(node, events[i].data.ptr);
    if (late > tick(node) + node->silence / 2)
        forgive(node, now);
    judge_silence(node, now);
    judge_refused(node, now);
    reap(node);
    if (node->mend_at && now >= node->mend_at)
        node_mend_ring(node);
    beat(node, now);
    bool told = flush_links(node);
    return !(node->closing && (told || now >= node->close_by));
}

void *node_run(void *argument)
{
    struct acomm_node *node = argument;
    struct epoll_event events[EVENTS];
    bool going = true;
    pthread_mutex_lock(&node->lock);
    while (going) {
        int64_t deadline = next_deadline(node, clock_now());
        pthread_mutex_unlock(&node->lock);
        int found = loop_wait(&node->loop, deadline, events, EVENTS);
        pthread_mutex_lock(&node->lock);
        going = turn(node, events, found);
    }
    pthread_mutex_unlock(&node->lock);
    return NULL;
}
