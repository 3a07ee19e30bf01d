/* A group's first failure, its links, its scratch and its spare operations. */
#include "group/group.h"

#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "membership/node.h"

/* ---- failure ---- */

/* Another rank's operation must not be reported as ours: name_operation(), or a message's own record, names our operation. */
static void heard(acomm_failure *failure)
{
    failure->theirs = failure->mine;
    failure->mine = (acomm_header){.root = -1};
    failure->sequence = 0;
    failure->elapsed = 0;
}

/* True when this was the first failure: only that one is kept and acted on. */
static bool group_record(struct acomm_group *g, const acomm_failure *failure)
{
    pthread_mutex_lock(&g->lock);
    bool first = !g->failed;
    if (first) {
        g->failure = *failure;
        g->failure.writer = 0; /* never taken from a peer */
        if (failure->origin != g->rank && failure->code != ACOMM_MISMATCH)
            heard(&g->failure);
        g->failed = true;
        atomic_store(&g->poisoned, failure->code);
    }
    pthread_mutex_unlock(&g->lock);
    return first;
}

/* Wakes threads that sleep in poll() for this group. */
static void kick(struct acomm_group *g)
{
    (void)!eventfd_write(g->wake_fd, 1); /* fails only when it is readable anyhow */
    doorbell_ring(g->doorbell);
}

int group_fail(struct acomm_group *g, const acomm_failure *failure, bool tell)
{
    if (group_record(g, failure)) {
        kick(g);
        if (g->p2p)
            g->fail_messages(g->p2p);
        if (tell && g->node)
            node_tell(g->node, g, failure);
    }
    return atomic_load(&g->poisoned);
}

/* An external failure, for example a lost peer, does not name the operation under way. */
static void name_operation(const struct acomm_op *op)
{
    struct acomm_group *g = op->group;
    pthread_mutex_lock(&g->lock);
    if (!g->failure.mine.sequence && op->sequence && g->failure.code != ACOMM_MISMATCH) {
        op_header(op, &g->failure.mine);
        g->failure.sequence = op->sequence;
        g->failure.elapsed = op_elapsed(op);
    }
    pthread_mutex_unlock(&g->lock);
}

/* The awaited rank may itself wait for another one: the rank to name is one that has not begun the operation. */
static void find_absent(const struct acomm_op *op, acomm_failure *failure)
{
    uint64_t begun;
    int absent = node_behind(op->group->node, op->group, op->sequence, &begun);
    if (absent < 0)
        return;
    failure->culprit = absent;
    failure->peer_sequence = begun;
}

int group_fail_op(struct acomm_op *op, int code, int culprit, int errnum, const char *text)
{
    struct acomm_group *g = op->group;
    op_release_lock(op);
    int poisoned = atomic_load(&g->poisoned);
    if (poisoned) {
        name_operation(op); /* a wait ended because the group had failed: that failure counts */
        return poisoned;
    }
    if (code == ACOMM_INTERRUPTED)
        culprit = g->rank; /* and not the awaited rank */
    acomm_failure failure = {.code = code, .culprit = culprit, .origin = g->rank, .errnum = errnum,
                             .sequence = op->sequence, .elapsed = op_elapsed(op)};
    op_header(op, &failure.mine);
    strncpy(failure.text, text ? text : "", sizeof failure.text - 1);
    if (code == ACOMM_TIMEOUT && op->sequence && g->node)
        find_absent(op, &failure);
    int kept = group_fail(g, &failure, true);
    name_operation(op); /* another rank's failure may have come first meanwhile */
    return kept;
}

void group_close_window(struct acomm_group *g)
{
    int local_rank = window_close(&g->shared, g->timeout);
    if (local_rank < 0)
        return;
    pthread_mutex_lock(&g->lock);
    g->failure.writer = 1 + team_member(&g->hosts.host, local_rank);
    pthread_mutex_unlock(&g->lock);
}

/* ---- operations ---- */

struct acomm_op *group_new_op(struct acomm_group *g)
{
    struct acomm_op *op = NULL;
    if (!group_forked(g)) { /* a child may have been made while the lock was held, for good */
        pthread_mutex_lock(&g->lock);
        op = g->spare;
        if (op)
            g->spare = op->next;
        pthread_mutex_unlock(&g->lock);
    }
    if (!op)
        op = malloc(sizeof *op);
    if (op)
        *op = (struct acomm_op){.group = g, .peer = -1};
    return op;
}

void group_recycle(struct acomm_group *g, struct acomm_op *op)
{
    if (group_forked(g)) {
        free(op);
        return;
    }
    pthread_mutex_lock(&g->lock);
    op->next = g->spare;
    g->spare = op;
    pthread_mutex_unlock(&g->lock);
}

/* ---- links ---- */

static bool over_memory(const struct acomm_group *g, int rank)
{
    return g->shared.base && g->hosts.of[rank] == g->hosts.of[g->rank];
}

static struct link *make_link(struct acomm_group *g, enum channel channel, int rank, bool outgoing)
{
    if (!over_memory(g, rank))
        return g->fabric ? g->fabric->link(g->fabric, g->id, rank, g->members[rank], outgoing)
                         : link_tcp_new(rank, outgoing, g->connections);
    const int *local_rank = g->hosts.local_rank;
    int from = local_rank[outgoing ? g->rank : rank], to = local_rank[outgoing ? rank : g->rank];
    struct link_ring *ring = shared_ring(&g->shared, channel, from, to);
    struct link *link = ring ? link_shm_new(rank, outgoing, ring, g->shared.ring_bytes, g->doorbell,
                                            &region_of(&g->shared, local_rank[rank])->doorbell) : NULL;
    struct link *reverse = (outgoing ? g->in : g->out)[channel][rank];
    if (link)
        link->plain = g->without & ACOMM_NO_PROBE;
    if (link && reverse && !(g->without & ACOMM_NO_EXCHANGE))
        link_shm_join(outgoing ? link : reverse, outgoing ? reverse : link);
    return link;
}

struct link *group_link(struct acomm_group *g, enum channel channel, int rank, bool outgoing)
{
    struct link **place = &(outgoing ? g->out : g->in)[channel][rank];
    pthread_mutex_lock(&g->lock);
    struct link *link = *place;
    bool fresh = !link;
    if (fresh)
        link = *place = make_link(g, channel, rank, outgoing);
    pthread_mutex_unlock(&g->lock);
    if (fresh && link && outgoing && !over_memory(g, rank))
        for (int i = 0; i < link->connections; i++)
            if (!node_ask(g->node, g->id, g->members[rank], channel, link->first + i))
                return NULL;
    return link;
}

bool group_link_ready(struct acomm_group *g, const struct link *link)
{
    if (!link->ops->complete)
        return true;
    pthread_mutex_lock(&g->lock);
    bool ready = link->ops->complete(link);
    pthread_mutex_unlock(&g->lock);
    return ready;
}

int acomm_group_attach(acomm_group *g, int rank, int channel, int stripe, int outgoing, int fd)
{
    if (rank < 0 || rank >= g->size || channel <= CHANNEL_CONTROL || channel >= CHANNELS || rank == g->rank
        || over_memory(g, rank)) {
        close(fd);
        return ACOMM_ARGUMENT;
    }
    struct link **place = &(outgoing ? g->out : g->in)[channel][rank];
    pthread_mutex_lock(&g->lock);
    if (!*place)
        *place = make_link(g, channel, rank, outgoing != 0);
    int rc = *place ? (*place)->ops->attach(*place, stripe, fd) : ACOMM_RESOURCE;
    pthread_mutex_unlock(&g->lock);
    if (rc)
        close(fd);
    return rc;
}

int acomm_group_expects(acomm_group *g)
{
    int expects = 0;
    pthread_mutex_lock(&g->lock);
    for (int channel = CHANNEL_COLLECTIVE; channel < CHANNELS; channel++)
        for (int rank = 0; rank < g->size; rank++) {
            const struct link *link = g->in[channel][rank];
            expects |= link && link->ops->complete && !link->ops->complete(link);
        }
    pthread_mutex_unlock(&g->lock);
    return expects;
}

void *group_scratch(const struct acomm_op *op, size_t bytes)
{
    struct scratch *scratch = &op->group->scratch[op->whole != NULL];
    if (scratch->bytes >= bytes && scratch->data)
        return scratch->data;
    size_t rounded = (bytes + 4095) / 4096 * 4096;
    void *data = aligned_alloc(64, rounded ? rounded : 4096);
    if (!data)
        return NULL;
    free(scratch->data);
    *scratch = (struct scratch){data, rounded ? rounded : 4096};
    return data;
}

int acomm_group_abort(acomm_group *g, const char *text)
{
    if (group_forked(g))
        return ACOMM_FORKED;
    acomm_failure failure = {.code = ACOMM_ABORTED, .culprit = g->rank, .origin = g->rank, .sequence = g->sequence};
    strncpy(failure.text, text ? text : "", sizeof failure.text - 1);
    group_fail(g, &failure, true);
    return 0;
}

int acomm_group_failure(acomm_group *g, acomm_failure *out)
{
    if (group_forked(g))
        return 0;
    pthread_mutex_lock(&g->lock);
    bool failed = g->failed;
    if (failed)
        *out = g->failure;
    pthread_mutex_unlock(&g->lock);
    return failed;
}
