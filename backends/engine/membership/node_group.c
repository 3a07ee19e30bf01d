/* The node's services for groups: notices of losses, reports of failures, and which ranks have left. */
#include <stdlib.h>
#include "base/clock.h"
#include "group/group.h"
#include "membership/node_state.h"

static struct node_watch *watch_new(struct acomm_node *node, struct acomm_group *group, node_fail_group *fail)
{
    struct node_watch *watch = calloc(1, sizeof *watch + (size_t)group->size * sizeof watch->members[0]);
    if (!watch)
        return NULL;
    watch->group = group;
    watch->fail = fail;
    for (int r = 0; r < group->size; r++)
        watch->members[r] = (struct node_member){NODE_PRESENT, NODE_SILENT};
    for (int i = 0; i < NODE_NOTES; i++) {
        const struct node_note *note = node->notes[i];
        int rank = note && note->head.kind == WIRE_LEFT && note->head.group == group->id
                       ? node_group_rank(group, note->head.rank) : -1;
        if (rank >= 0)
            watch->members[rank].left = note->head.sequence;
        if (note && note->head.number && note->head.rank == node->rank && note->head.group == group->id)
            watch->told = note->head.number; /* of an earlier group of this name; the two kinds differ little */
    }
    return watch;
}

int node_add(struct acomm_node *node, struct acomm_group *group, node_fail_group *fail)
{
    acomm_failure failure;
    if (node_forked(node))
        return ACOMM_FORKED;
    for (int r = 0; r < group->size; r++)
        if (group->members[r] < 0 || group->members[r] >= node->size)
            return ACOMM_ARGUMENT;
    pthread_mutex_lock(&node->lock);
    struct node_watch *watch = node_find(node, group->id) ? NULL : watch_new(node, group, fail);
    if (watch) {
        watch->next = node->watches;
        node->watches = watch;
        if (node_doomed(node, group, &failure))
            node_fail(node, watch, &failure, false);
    }
    bool taken = !watch && node_find(node, group->id);
    pthread_mutex_unlock(&node->lock);
    return watch ? ACOMM_OK : taken ? ACOMM_ARGUMENT : ACOMM_RESOURCE;
}

void node_remove(struct acomm_node *node, struct acomm_group *group)
{
    if (node_forked(node))
        return;
    pthread_mutex_lock(&node->lock);
    struct node_watch **at = &node->watches;
    while (*at && (*at)->group != group)
        at = &(*at)->next;
    struct node_watch *watch = *at;
    while (watch && watch->calls)
        pthread_cond_wait(&node->returned, &node->lock);
    if (watch) {
        for (at = &node->watches; *at != watch; at = &(*at)->next)
            ;
        *at = watch->next;
        free(watch);
        node_spread_left(node, group);
    }
    bool last = node->closed && !node->watches;
    pthread_mutex_unlock(&node->lock);
    if (last)
        node_release(node);
}

void node_tell(struct acomm_node *node, const struct acomm_group *group, const acomm_failure *failure)
{
    if (node_forked(node))
        return;
    pthread_mutex_lock(&node->lock);
    node_spread_fail(node, group, failure);
    pthread_mutex_unlock(&node->lock);
}

int node_left(struct acomm_node *node, const struct acomm_group *group, int rank, uint64_t sequence)
{
    int found = -1;
    if (!atomic_load_explicit(&node->departures, memory_order_relaxed) || node_forked(node))
        return -1;
    pthread_mutex_lock(&node->lock);
    const struct node_watch *watch = node_find(node, group->id);
    for (int r = 0; watch && found < 0 && r < group->size; r++) {
        uint64_t left = watch->members[r].left;
        const struct node_peer *peer = &node->peers[group->members[r]];
        if (left == NODE_PRESENT && peer->state == PEER_GONE && !peer->text)
            left = 0; /* for a worse end the group is just being failed, with the reason */
        if ((rank < 0 || rank == r) && left < sequence)
            found = r;
    }
    pthread_mutex_unlock(&node->lock);
    return found;
}

static bool others_there(const struct acomm_node *node, const struct node_watch *watch)
{
    const struct acomm_group *group = watch->group;
    for (int r = 0; r < group->size; r++)
        if (r != group->rank && watch->members[r].left == NODE_PRESENT && node->peers[group->members[r]].state == PEER_THERE)
            return true;
    return false;
}

/* The group's, with the lock; NULL: there is none, and no lock is held. */
static struct node_watch *watch_enter(struct acomm_node *node, const struct acomm_group *group)
{
    if (node_forked(node))
        return NULL;
    pthread_mutex_lock(&node->lock);
    struct node_watch *watch = node_find(node, group->id);
    if (!watch)
        pthread_mutex_unlock(&node->lock);
    return watch;
}

void node_leave(struct acomm_node *node, const struct acomm_group *group, int64_t until)
{
    struct node_watch *watch = watch_enter(node, group);
    if (!watch)
        return;
    node_spread_left(node, group);
    watch->calls++; /* keeps it where it is */
    while (others_there(node, watch) && clock_now() < until && !atomic_load(&group->poisoned))
        condition_await(&node->returned, &node->lock, until);
    watch->calls--;
    pthread_cond_broadcast(&node->returned);
    pthread_mutex_unlock(&node->lock);
}

int64_t node_patience(const struct acomm_node *node, int64_t base)
{
    return node ? base + node->size * NODE_HOP_NS : base;
}

int node_exit_status(struct acomm_node *node, const struct acomm_group *group, int rank)
{
    pthread_mutex_lock(&node->lock);
    int status = (int)node->peers[group->members[rank]].ended - 1;
    pthread_mutex_unlock(&node->lock);
    return status;
}

/* A rank that has begun fewer collectives; failing that one that has not answered; -1. */
static int first_behind(const struct node_watch *watch, uint64_t sequence)
{
    const struct acomm_group *group = watch->group;
    int silent = -1;
    for (int r = group->size - 1; r >= 0; r--)
        if (r != group->rank && watch->members[r].begun == NODE_SILENT)
            silent = r;
    for (int r = 0; r < group->size; r++)
        if (r != group->rank && watch->members[r].begun < sequence)
            return r;
    return silent;
}

static bool all_answered(const struct node_watch *watch)
{
    for (int r = 0; r < watch->group->size; r++)
        if (r != watch->group->rank && watch->members[r].begun == NODE_SILENT)
            return false;
    return true;
}

int node_behind(struct acomm_node *node, const struct acomm_group *group, uint64_t sequence, uint64_t *begun)
{
    int64_t end = clock_now() + NODE_ANSWER_NS;
    struct node_watch *watch = watch_enter(node, group);
    *begun = 0;
    if (!watch)
        return -1;
    node_ask_begun(node, watch);
    watch->calls++; /* keeps it where it is */
    while (!all_answered(watch) && clock_now() < end && !atomic_load(&group->poisoned))
        condition_await(&node->returned, &node->lock, end);
    watch->calls--;
    pthread_cond_broadcast(&node->returned);
    int rank = first_behind(watch, sequence);
    if (rank >= 0 && watch->members[rank].begun != NODE_SILENT)
        *begun = watch->members[rank].begun;
    pthread_mutex_unlock(&node->lock);
    return rank;
}

void node_ask_members(struct acomm_node *node, const struct acomm_group *group)
{
    struct node_watch *watch = watch_enter(node, group);
    if (!watch)
        return;
    node_ask_begun(node, watch);
    pthread_mutex_unlock(&node->lock);
}

void node_waits(struct acomm_node *node, const struct acomm_group *group, const acomm_late *late)
{
    struct node_watch *watch = watch_enter(node, group);
    if (!watch)
        return;
    watch->late = *late;
    watch->waits = true;
    node_call(node);
    pthread_mutex_unlock(&node->lock);
}

int acomm_node_late(struct acomm_node *node, acomm_late *out, uint64_t *begun)
{
    if (node_forked(node))
        return 0;
    pthread_mutex_lock(&node->lock);
    struct node_watch *watch = node->watches;
    while (watch && !watch->waits)
        watch = watch->next;
    if (watch) {
        watch->waits = false;
        *out = watch->late;
        for (int r = 0; r < watch->group->size; r++)
            begun[r] = r == watch->group->rank ? watch->group->sequence : watch->members[r].begun;
    }
    pthread_mutex_unlock(&node->lock);
    return watch != NULL;
}
