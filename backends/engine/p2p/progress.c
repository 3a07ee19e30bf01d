/* Progress of all peers' messages: by a waiting thread, or by an own thread if none waits. */
#include <sched.h>
#include <stdlib.h>
#include <sys/eventfd.h>

#include "base/clock.h"
#include "membership/node.h"
#include "p2p/peer.h"

/* One thread at a time leads: it progresses all posted operations, of all threads. A thread that waits for an operation is
 * preferred, because its caller does nothing else; our own thread leads when operations are under way and no thread waits. It is
 * not woken for every operation (a wake-up costs more than a small message, and most operations are waited for at once): while
 * work arrives now and then it polls every LIGHT_NS, and sleeps without a timeout after LINGER_NS without work. */

#define LIGHT_NS 500000
#define LINGER_NS 10000000
#define NAP_MIN_NS 50000   /* links in shared memory cannot be polled: sleeps grow from here, about a timer's slack, */
#define NAP_MAX_NS 1000000 /* to here, which costs less than 1% of a core */
#define IDLE_TURNS 20      /* our own thread yields so often before it sleeps */
#define GRACE_NS 1000000000

static void check_deadlines(struct p2p *p, int64_t now)
{
    if (now < p->next_deadline)
        return;
    p->next_deadline = INT64_MAX;
    for P2P_EACH(at, &p->all) {
        struct p2p_item *item = P2P_OF(struct p2p_item, all, at);
        struct acomm_op *op = item->op;
        if (!item->async)
            continue;
        if (now >= op->deadline)
            p2p_trouble(p, op, ACOMM_TIMEOUT, op->peer, p2p_late(op));
        if (op->deadline < p->next_deadline)
            p->next_deadline = op->deadline;
    }
}

/* The node reports ranks that closed the group, where no link does: shared memory has no end of file (its contents are read
 * first), and a connection may never have been made. An existing one is attached within the grace period. */
static void check_peer(struct p2p *p, struct p2p_peer *peer, int64_t now)
{
    const struct acomm_group *g = p->group;
    if (!peer->left && peer->from && g->node && node_left(g->node, g, peer->rank, UINT64_MAX) == peer->rank)
        peer->left = now;
    if (peer->left && !peer->from_ready && now - peer->left > GRACE_NS)
        peer->gone = true;
    if (peer->gone && p2p_send_waits(peer))
        p2p_trouble(p, p2p_send_first(peer), ACOMM_LOST, peer->rank, "it closed the group before it took a message");
}

/* Data that comes elsewhere than by the link. */
static bool progress_read(struct p2p *p, struct p2p_peer *peer)
{
    if (p2p_list_empty(&peer->reading))
        return false;
    struct p2p_item *item = P2P_ITEM(peer->reading.next);
    return item->message ? p2p_match_carried(p, peer, item) : p2p_offer_pull(p, peer, item);
}

bool p2p_progress_pass(struct p2p *p, bool full)
{
    bool moved = false, often = p->passes++ % WAIT_MOVES == 0;
    full |= often;
    for (int i = 0; i < p->opened && !p->code && !p->trouble.code && p->unseen < WAIT_MOVED; i++) {
        struct p2p_peer *peer = p->peers[p->open[(p->passes + (uint32_t)i) % (uint32_t)p->opened]];
        moved |= p2p_recv_pull(p, peer, full);
        moved |= progress_read(p, peer);
        moved |= p2p_share_push(p, peer);
        moved |= p2p_send_push(p, peer);
    }
    p->due = often || p->unseen >= WAIT_MOVED;
    if ((full || p->due) && !p->code) {
        moved |= p->unseen >= WAIT_MOVED; /* not all links were polled: a posting thread may have moved so much that none was */
        p->unseen = 0;
        int64_t now = clock_now();
        for (int i = 0; i < p->opened; i++)
            check_peer(p, p->peers[p->open[i]], now);
        check_deadlines(p, now);
        p2p_match_end_alone(p, NULL);
    }
    return moved;
}

static bool room_for(struct p2p *p, int which)
{
    int need = 2 * p->opened + 1;
    if (p->room[which] >= need)
        return true;
    struct pollfd *fds = realloc(p->fds[which], (size_t)need * sizeof *fds);
    if (!fds)
        return false;
    p->fds[which] = fds;
    p->room[which] = need;
    return true;
}

/* Appends the link's descriptor; false: it has none now and must be polled again. */
static bool progress_watch(struct p2p *p, struct link *link, bool *ready, short events, struct pollfd *fds, int *n)
{
    int fd = link && p2p_ready(p, link, ready) ? link_descriptor(link) : -1;
    if (fd < 0)
        return false;
    fds[(*n)++] = (struct pollfd){.fd = fd, .events = events};
    return true;
}

/* Fills fds and says whether poll() covers all awaited links. */
static bool progress_gather(struct p2p *p, struct pollfd *fds, int *n)
{
    bool sees = true;
    fds[0] = (struct pollfd){.fd = p->wake_fd, .events = POLLIN};
    *n = 1;
    for (int i = 0; i < p->opened; i++) {
        struct p2p_peer *peer = p->peers[p->open[i]];
        if (peer->from && !peer->gone)
            sees &= progress_watch(p, peer->from, &peer->from_ready, POLLIN, fds, n);
        if (p2p_send_waits(peer))
            sees &= progress_watch(p, peer->to, &peer->to_ready, POLLOUT, fds, n);
    }
    return sees;
}

static bool any_blocked(const struct p2p *p)
{
    for (int i = 0; i < p->opened; i++)
        if (p2p_send_waits(p->peers[p->open[i]]))
            return true;
    return false;
}

static int64_t progress_at_most(int64_t ns, int64_t limit)
{
    return limit < 0 ? 0 : limit < ns ? limit : ns;
}

/* Whether all needed links are in shared memory: their doorbell then signals every change. */
static bool progress_doorbell_tells(const struct p2p *p)
{
    for (int i = 0; i < p->opened; i++) {
        const struct p2p_peer *peer = p->peers[p->open[i]];
        bool deaf = (peer->from && !peer->gone && !peer->from->doorbell) || (p2p_send_waits(peer) && !peer->to->doorbell);
        if (deaf)
            return false;
    }
    return p->group->doorbell != NULL && !p->carried;
}

/* With the lock, which is released meanwhile. */
static void progress_sleep_by_doorbell(struct p2p *p, int64_t until)
{
    struct doorbell *doorbell = p->group->doorbell;
    uint32_t seen = doorbell_listen(doorbell);
    p->sleepers++;
    if (!p2p_progress_pass(p, false)) {
        int64_t ns = progress_at_most(WAIT_SLEEP_NS, until - clock_now());
        p->changed = false;
        pthread_mutex_unlock(&p->lock);
        doorbell_sleep(doorbell, seen, ns);
        p2p_acquire(p);
    }
    p->sleepers--;
    doorbell_leave(doorbell);
}

void p2p_progress_sleep(struct p2p *p, int64_t *nap, int64_t until)
{
    int which = p->leader == &p->thread, n = 0;
    if (p->wake_fd < 0)
        p->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    /* Our link may be full because its reader is blocked by a third rank, in a cycle back to us: read all links. */
    if (any_blocked(p))
        p2p_listen_everyone(p);
    if (progress_doorbell_tells(p)) {
        progress_sleep_by_doorbell(p, until);
        return;
    }
    *nap = *nap ? progress_at_most(2 * *nap, NAP_MAX_NS) : NAP_MIN_NS;
    bool sees = room_for(p, which) && progress_gather(p, p->fds[which], &n) && p->wake_fd >= 0 && !p->carried;
    int64_t ns = progress_at_most(sees ? WAIT_SLEEP_NS : *nap, until - clock_now());
    struct timespec t = {0, ns};
    struct pollfd *fds = p->fds[which];
    p->changed = false;
    p->sleepers++;
    pthread_mutex_unlock(&p->lock);
    int events = ppoll(fds, (nfds_t)n, &t, NULL);
    p2p_acquire(p);
    p->sleepers--;
    eventfd_t value;
    if (events > 0 && n && fds[0].revents && !p->code && !p->stopping)
        (void)!eventfd_read(p->wake_fd, &value); /* empty when the other sleeper has read it: just as good */
    if (events > 0)
        *nap = 0;
}

void p2p_progress_wake(struct p2p *p)
{
    if (p->sleepers && p->wake_fd >= 0)
        (void)!eventfd_write(p->wake_fd, 1); /* fails only when it is readable anyhow */
    doorbell_ring(p->group->doorbell);
}

void p2p_progress_hand_over(struct p2p *p)
{
    p->leader = NULL;
    if (p->followers)
        pthread_cond_broadcast(&p->turn);
    else if (p->async && (p->deep || p->serves))
        pthread_cond_signal(&p->work);
    else if (p->async && p->changed)
        p2p_progress_wake(p);
}

/* Until there may be work for us. */
static void progress_rest(struct p2p *p, uint64_t *posts, int64_t *since)
{
    int64_t now = clock_now();
    if (*posts != p->posts) {
        *posts = p->posts;
        *since = now;
    }
    if (now - *since < LINGER_NS) {
        condition_await(&p->work, &p->lock, now + LIGHT_NS);
        return;
    }
    p->deep = true;
    pthread_cond_wait(&p->work, &p->lock);
    p->deep = false;
    *since = clock_now();
}

static void lead(struct p2p *p)
{
    int64_t nap = 0;
    int idle = 0;
    while (p->leader == &p->thread && p->async && !p->stopping && !p->code) {
        bool moved = p2p_progress_pass(p, true);
        p2p_pause(p);
        if (atomic_load(&p->group->poisoned)) {
            p2p_release(p);
            p2p_fail(p);
            p2p_acquire(p);
        } else if (moved) {
            idle = 0;
            nap = 0;
        } else if (++idle > IDLE_TURNS && p->leader == &p->thread) {
            p2p_progress_sleep(p, &nap, p->next_deadline);
        } else {
            sched_yield();
        }
    }
    if (p->leader == &p->thread)
        p2p_progress_hand_over(p);
}

static void *progress_run(void *argument)
{
    struct p2p *p = argument;
    uint64_t posts = 0;
    int64_t since = clock_now();
    p2p_acquire(p);
    while (!p->stopping) {
        if (p->leader || !p->async || p->code) {
            progress_rest(p, &posts, &since);
            continue;
        }
        p->leader = &p->thread;
        lead(p);
        since = clock_now();
    }
    p2p_release(p);
    return NULL;
}

void p2p_progress_attend(struct p2p *p)
{
    p->posts++;
    if (!p->started) {
        p->started = !thread_start(&p->thread, 0, progress_run, p);
        if (!p->started)
            p2p_trouble(p, NULL, ACOMM_RESOURCE, p->group->rank, "no thread for asynchronous messages");
    } else if (p->deep && !p->leader) {
        pthread_cond_signal(&p->work);
    }
    if (p->changed)
        p2p_progress_wake(p);
}
