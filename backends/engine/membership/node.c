/* One node per world and process: its life, and its connections. What groups ask of it is in node_group.c; how it works
 * in node_thread.c and node_gossip.c. */
#include "membership/node.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>
#include "base/clock.h"
#include "group/group.h"
#include "membership/node_state.h"

#define THREAD_STACK (256 * 1024)

/* ---- fork: the child owns copies of the descriptors, which would keep the parent's connections open ---- */

static struct acomm_node *open_nodes;
static pthread_mutex_t open_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t fork_once = PTHREAD_ONCE_INIT;

static void before_fork(void)
{
    pthread_mutex_lock(&open_lock);
    for (struct acomm_node *node = open_nodes; node; node = node->next_open)
        pthread_mutex_lock(&node->lock);
}

static void after_fork_in_parent(void)
{
    for (struct acomm_node *node = open_nodes; node; node = node->next_open)
        pthread_mutex_unlock(&node->lock);
    pthread_mutex_unlock(&open_lock);
}

/* Only close() and unlocking: the child has one thread, and may be about to exec. The memory stays with the child. */
static void after_fork_in_child(void)
{
    for (struct acomm_node *node = open_nodes; node; node = node->next_open) {
        atomic_store(&node->forked, 1);
        for (struct node_link *link = node->links; link; link = link->next)
            close(link->fd);
        close(node->asking);
        loop_close(&node->loop);
        pthread_mutex_unlock(&node->lock);
    }
    open_nodes = NULL;
    pthread_mutex_unlock(&open_lock);
}

static void watch_forks(void)
{
    pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
}

static void enlist(struct acomm_node *node)
{
    pthread_once(&fork_once, watch_forks);
    pthread_mutex_lock(&open_lock);
    node->next_open = open_nodes;
    open_nodes = node;
    pthread_mutex_unlock(&open_lock);
}

static void delist(struct acomm_node *node)
{
    pthread_mutex_lock(&open_lock);
    struct acomm_node **at = &open_nodes;
    while (*at != node)
        at = &(*at)->next_open;
    *at = node->next_open;
    pthread_mutex_unlock(&open_lock);
}

int node_forked(const struct acomm_node *node)
{
    return atomic_load(&node->forked);
}

/* ---- open and close ---- */

static void release_descriptors(struct acomm_node *node)
{
    while (node->links) {
        struct node_link *link = node->links;
        node->links = link->next;
        node_link_free(link);
    }
    loop_close(&node->loop);
    if (node->asking >= 0)
        close(node->asking);
    node->asking = -1;
}

void node_release(struct acomm_node *node)
{
    while (node->requests) {
        struct node_request *request = node->requests;
        node->requests = request->next;
        free(request);
    }
    for (int i = 0; i < NODE_NOTES; i++)
        free(node->notes[i]);
    for (int r = 0; r < node->size; r++)
        free(node->peers[r].text);
    pthread_cond_destroy(&node->returned);
    pthread_mutex_destroy(&node->lock);
    free(node->condemned);
    free(node);
}

static struct acomm_node *node_allocate(int rank, int size, int64_t heartbeat, int64_t silence)
{
    struct acomm_node *node = calloc(1, sizeof *node + (size_t)size * (sizeof node->peers[0] + sizeof *node->gone));
    if (!node)
        return NULL;
    node->gone = (int *)&node->peers[size];
    node->rank = rank;
    node->size = size;
    node->heartbeat = heartbeat;
    node->silence = silence;
    node->last_turn = clock_now();
    node->next_beat = node->last_turn + heartbeat;
    node->requests_end = &node->requests;
    pthread_mutex_init(&node->lock, NULL);
    condition_init(&node->returned);
    return node;
}

int acomm_node_open(int rank, int size, int64_t heartbeat, int64_t silence, acomm_node **out)
{
    *out = NULL;
    if (size < 1 || rank < 0 || rank >= size || heartbeat <= 0 || silence < 2 * heartbeat)
        return ACOMM_ARGUMENT;
    struct acomm_node *node = node_allocate(rank, size, heartbeat, silence);
    if (!node)
        return ACOMM_RESOURCE;
    node->asking = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    node->loop = (struct loop){-1, -1};
    if (node->asking < 0 || loop_open(&node->loop) < 0)
        goto fail;
    enlist(node);
    if (thread_start(&node->thread, THREAD_STACK, node_run, node)) {
        delist(node);
        goto fail;
    }
    *out = node;
    return ACOMM_OK;
fail:;
    int saved = errno;
    release_descriptors(node);
    node_release(node);
    errno = saved;
    return ACOMM_RESOURCE;
}

/* Sends the notices of acomm_group_stop() and _close(), for groups that the program can no longer close. */
static void leave_groups(struct acomm_node *node, const char *why)
{
    for (const struct node_watch *watch = node->watches; watch; watch = watch->next) {
        struct acomm_group *group = watch->group;
        acomm_failure failure = {.code = ACOMM_LOST, .culprit = group->rank, .origin = group->rank};
        snprintf(failure.text, sizeof failure.text, "%s", *why ? why : "exited with an operation under way");
        bool unfinished = *why || atomic_load(&group->busy) || atomic_load(&group->pending);
        if (unfinished && !atomic_load(&group->poisoned)) /* else the peers have received the reason */
            node_spread_fail(node, group, &failure);
        else
            node_spread_left(node, group);
    }
}

/* Ends their operations here, for which threads may wait. The peers have been notified. */
static void end_groups(struct acomm_node *node)
{
    for (struct node_watch *watch = node->watches; watch; watch = watch->next) {
        acomm_failure closed = {.code = ACOMM_CLOSED, .culprit = -1, .origin = watch->group->rank};
        node_fail(node, watch, &closed, false);
    }
}

int acomm_node_close(struct acomm_node *node, const char *text)
{
    if (node_forked(node))
        return ACOMM_FORKED;
    char why[WIRE_TEXT];
    snprintf(why, sizeof why, "%s", text ? text : "");
    pthread_mutex_lock(&node->lock);
    node->closing = true;
    node->close_by = clock_now() + NODE_CLOSE_NS;
    leave_groups(node, why);
    struct wire_control bye = node_frame(node, WIRE_BYE, node->rank, strlen(why));
    bye.sequence = node->ended;
    node_spread(node, NULL, bye, why);
    end_groups(node);
    pthread_mutex_unlock(&node->lock);
    pthread_join(node->thread, NULL);
    delist(node);
    pthread_mutex_lock(&node->lock);
    release_descriptors(node);
    node->closed = true;
    bool used = node->watches != NULL;
    pthread_mutex_unlock(&node->lock);
    if (!used)
        node_release(node);
    return ACOMM_OK;
}

static struct acomm_node *node_exiting(void)
{
    pthread_mutex_lock(&open_lock);
    struct acomm_node *node = open_nodes;
    while (node && !node->exiting)
        node = node->next_open;
    if (node)
        node->exiting = false;
    pthread_mutex_unlock(&open_lock);
    return node;
}

static void close_exiting(unsigned ended)
{
    for (struct acomm_node *node; (node = node_exiting());) {
        node->ended = ended;
        acomm_node_close(node, "");
    }
}

/* The interpreter has gone, and only now the status is known: to glibc. musl does not expose it, so there the others are only
 * notified that the rank has closed the group. */
#ifdef __GLIBC__
static void exits(int status, void *unused)
{
    (void)unused;
    close_exiting(1 + ((unsigned)status & 255));
}

static void watch_exit(void)
{
    on_exit(exits, NULL);
}
#else
static void exits(void)
{
    close_exiting(0);
}

static void watch_exit(void)
{
    atexit(exits);
}
#endif

static bool unfinished(const struct acomm_node *node)
{
    for (const struct node_watch *watch = node->watches; watch; watch = watch->next)
        if (atomic_load(&watch->group->busy) || atomic_load(&watch->group->pending))
            return true;
    return !node->watches;
}

int acomm_node_exit(struct acomm_node *node, const char *text)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    if (node_forked(node))
        return ACOMM_FORKED;
    pthread_mutex_lock(&node->lock);
    bool now = *text || unfinished(node) || node->closing || node->condemned;
    if (!now)
        end_groups(node);
    pthread_mutex_unlock(&node->lock);
    if (now)
        return acomm_node_close(node, text);
    pthread_once(&once, watch_exit);
    pthread_mutex_lock(&open_lock);
    node->exiting = true;
    pthread_mutex_unlock(&open_lock);
    return ACOMM_OK;
}

/* ---- connections ---- */

static int node_admit(struct acomm_node *node, int world_rank, int fd)
{
    if (node->condemned)
        return ACOMM_ABORTED;
    if (node->peers[world_rank].state != PEER_THERE)
        return ACOMM_LOST;
    struct node_link *link = node_link_new(world_rank, fd, clock_now());
    if (!link)
        return ACOMM_RESOURCE;
    if (loop_add(&node->loop, fd, link) < 0) {
        free(link->out);
        free(link);
        return ACOMM_RESOURCE;
    }
    node->peers[world_rank].asked = false;
    node_suspect(node, world_rank, 0, NULL);
    node_brief(node, link);
    struct node_link **end = &node->links;
    while (*end)
        end = &(*end)->next;
    *end = link; /* behind the older ones: of two that end together, one may have been made because the other's peer died */
    loop_wake(&node->loop);
    return ACOMM_OK;
}

/* The peer would mistake the end of the connection for the end of the process. */
static void excuse(const struct acomm_node *node, int fd)
{
    static const char why[] = "it has no memory or descriptors for a control connection";
    char frame[WIRE_CONTROL_FRAME];
    struct wire_control head = node_frame(node, WIRE_LOST, node->rank, sizeof why - 1);
    memcpy(frame, &head, sizeof head);
    memcpy(frame + sizeof head, why, sizeof why - 1);
    if (send(fd, frame, sizeof head + sizeof why - 1, MSG_DONTWAIT | MSG_NOSIGNAL) < 0)
        errno = 0; /* the peer has gone itself */
}

int acomm_node_attach(struct acomm_node *node, int world_rank, int fd)
{
    int rc = ACOMM_ARGUMENT;
    if (node_forked(node))
        rc = ACOMM_FORKED;
    else if (world_rank >= 0 && world_rank < node->size && world_rank != node->rank) {
        pthread_mutex_lock(&node->lock);
        rc = node_admit(node, world_rank, fd);
        pthread_mutex_unlock(&node->lock);
    }
    if (rc == ACOMM_RESOURCE)
        excuse(node, fd);
    if (rc < 0)
        close(fd);
    return rc;
}

int acomm_node_eventfd(struct acomm_node *node)
{
    return node->asking;
}

int acomm_node_request(struct acomm_node *node, acomm_request *out)
{
    if (node_forked(node))
        return 0;
    pthread_mutex_lock(&node->lock);
    struct node_request *item = node->requests;
    if (item) {
        *out = item->request;
        node->requests = item->next;
        if (!item->next)
            node->requests_end = &node->requests;
    }
    uint64_t count;
    if (!node->requests && read(node->asking, &count, sizeof count) < 0)
        errno = 0; /* nothing was asked since the last look */
    pthread_mutex_unlock(&node->lock);
    free(item);
    return item != NULL;
}

/* A refused control connection means a dead process, or one that just sent its shutdown notice: waits for that notice. */
static void doubt(struct acomm_node *node, int rank, const char *text)
{
    struct node_peer *peer = &node->peers[rank];
    peer->asked = false;
    if (peer->state != PEER_THERE || peer->verdict)
        return;
    node_suspect(node, rank, clock_now() + node_patience(node, NODE_VERDICT_NS), peer->text ? peer->text : text);
    loop_wake(&node->loop);
}

/* A rank that died or left refuses a data connection: the control connections have the better reason. */
static void await_word(struct acomm_node *node, int rank)
{
    int64_t end = clock_now() + node_patience(node, NODE_WORD_NS);
    while (node->peers[rank].state == PEER_THERE && clock_now() < end)
        condition_await(&node->returned, &node->lock, end);
}

int acomm_node_refuse(struct acomm_node *node, const acomm_request *request, int code, int errnum, const char *text)
{
    if (node_forked(node))
        return ACOMM_FORKED;
    if (request->peer < 0 || request->peer >= node->size || code >= 0)
        return ACOMM_ARGUMENT;
    pthread_mutex_lock(&node->lock);
    if (request->channel == CHANNEL_CONTROL)
        doubt(node, request->peer, text);
    else if (code == ACOMM_LOST)
        await_word(node, request->peer);
    struct node_watch *watch = request->channel == CHANNEL_CONTROL ? NULL : node_find(node, request->group);
    if (watch) {
        acomm_failure failure = {.code = code, .errnum = errnum, .origin = watch->group->rank,
                                 .culprit = node_group_rank(watch->group, request->peer)};
        snprintf(failure.text, sizeof failure.text, "%s", text ? text : "");
        bool known = node_doomed(node, watch->group, &failure);
        node_fail(node, watch, &failure, !known);
    }
    pthread_mutex_unlock(&node->lock);
    return ACOMM_OK;
}

int acomm_node_peer(struct acomm_node *node, int world_rank, const char **text)
{
    int state;
    const char *why;
    if (node_forked(node) || world_rank < 0 || world_rank >= node->size)
        return node_forked(node) ? ACOMM_FORKED : ACOMM_ARGUMENT;
    pthread_mutex_lock(&node->lock);
    const struct node_peer *peer = &node->peers[world_rank];
    if (world_rank == node->rank) {
        why = node->condemned;
        state = why ? ACOMM_ABORTED : 0;
    } else {
        why = peer->state == PEER_THERE ? NULL : peer->text;
        state = peer->state == PEER_LOST ? ACOMM_LOST : peer->state == PEER_GONE;
    }
    pthread_mutex_unlock(&node->lock);
    *text = why;
    return state;
}

int acomm_node_failed(struct acomm_node *node)
{
    if (node_forked(node))
        return -1;
    pthread_mutex_lock(&node->lock);
    int rank = node->condemned ? node->rank : node_first_failed(node, NULL);
    pthread_mutex_unlock(&node->lock);
    return rank;
}

bool node_ask(struct acomm_node *node, uint64_t group, int world_rank, enum channel channel, int stripe)
{
    pthread_mutex_lock(&node->lock);
    acomm_request request = {.group = group, .peer = world_rank, .channel = channel, .stripe = stripe};
    bool asked = node_ask_locked(node, &request);
    pthread_mutex_unlock(&node->lock);
    return asked;
}

void node_lost(struct acomm_node *node, int world_rank, const char *text)
{
    pthread_mutex_lock(&node->lock);
    node_doubt(node, world_rank, text);
    pthread_mutex_unlock(&node->lock);
}
