/* Gossip: the state of ranks and groups, and how it spreads. A node forwards each new notice over all of its other links. In a
 * ring with one dead rank every rank gets it from one side; notices missed while the ring is cut twice are resent when it is
 * repaired (node_brief). */
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include "base/clock.h"
#include "group/group.h"
#include "membership/node_state.h"

int node_group_rank(const struct acomm_group *group, int world_rank)
{
    for (int r = 0; r < group->size; r++)
        if (group->members[r] == world_rank)
            return r;
    return -1;
}

struct node_watch *node_find(struct acomm_node *node, uint64_t group)
{
    struct node_watch *watch = node->watches;
    while (watch && watch->group->id != group)
        watch = watch->next;
    return watch;
}

void node_spread(struct acomm_node *node, const struct node_link *from, struct wire_control head, const void *payload)
{
    if (head.hops-- == 0)
        return;
    for (struct node_link *link = node->links; link; link = link->next)
        if (link != from)
            node_link_put(link, &head, payload);
    loop_wake(&node->loop);
}

static bool same_news(const struct wire_control *a, const struct wire_control *b)
{
    /* All ranks may detect a group's failure at once; the first notice of it is enough. */
    return a->kind == b->kind && a->group == b->group && (a->kind == WIRE_FAIL || a->rank == b->rank);
}

static bool node_gossip_remember(struct acomm_node *node, const struct wire_control *head, const void *payload)
{
    for (int i = 0; i < NODE_NOTES; i++)
        if (node->notes[i] && same_news(&node->notes[i]->head, head)) {
            bool newer = (int8_t)(head->number - node->notes[i]->head.number) > 0;
            if (newer)
                node->notes[i]->head = *head;
            return newer;
        }
    struct node_note *note = malloc(sizeof *note + head->bytes);
    if (!note)
        return true; /* forwarded twice at worst */
    note->head = *head;
    if (payload)
        memcpy(note->payload, payload, head->bytes);
    free(node->notes[node->notes_next]);
    node->notes[node->notes_next] = note;
    node->notes_next = (node->notes_next + 1) % NODE_NOTES;
    return true;
}

/* A LEFT or FAIL frame, or a question how far the ranks are, and its answers: passed on unless it is known already. */
static bool node_gossip_news(struct acomm_node *node, const struct node_link *from, const struct wire_control *head, const void *payload)
{
    bool fresh = node_gossip_remember(node, head, payload);
    if (fresh)
        node_spread(node, from, *head, payload);
    return fresh;
}

struct wire_control node_frame(const struct acomm_node *node, int kind, int rank, size_t bytes)
{
    return (struct wire_control){.magic = WIRE_CONTROL_MAGIC, .kind = (uint8_t)kind, .rank = rank,
                                 .hops = (uint16_t)(node->size < UINT16_MAX ? node->size : UINT16_MAX),
                                 .bytes = (uint32_t)bytes};
}

void node_spread_left(struct acomm_node *node, const struct acomm_group *group)
{
    struct wire_control head = node_frame(node, WIRE_LEFT, node->rank, 0);
    head.group = group->id;
    head.sequence = group->sequence;
    if (group->size > 1)
        node_gossip_news(node, NULL, &head, NULL);
}

void node_spread_fail(struct acomm_node *node, const struct acomm_group *group, const acomm_failure *failure)
{
    struct wire_control head = node_frame(node, WIRE_FAIL, node->rank, sizeof *failure);
    head.group = group->id;
    if (group->size > 1)
        node_gossip_news(node, NULL, &head, failure);
}

static void spread_begun(struct acomm_node *node, int kind, struct node_watch *watch)
{
    struct wire_control head = node_frame(node, kind, node->rank, 0);
    head.group = watch->group->id;
    head.sequence = watch->group->sequence;
    head.number = ++watch->told;
    node_gossip_news(node, NULL, &head, NULL);
}

/* What was answered to an earlier question does not count any more. */
static void begin_round(struct node_watch *watch, int64_t now)
{
    watch->asked = now;
    for (int r = 0; r < watch->group->size; r++)
        watch->members[r].begun = NODE_SILENT;
}

void node_ask_begun(struct acomm_node *node, struct node_watch *watch)
{
    int64_t now = clock_now();
    if (now - watch->asked < NODE_ANSWER_NS)
        return;
    begin_round(watch, now);
    spread_begun(node, WIRE_ASK, watch);
}

/* A frame of this kind for each matching rank, as received by this rank. */
static void brief_of(const struct acomm_node *node, struct node_link *link, int kind)
{
    for (int i = 0; i < node->gone_count; i++) {
        const struct node_peer *peer = &node->peers[node->gone[i]];
        if (peer->state != (kind == WIRE_LOST ? PEER_LOST : PEER_GONE))
            continue;
        struct wire_control head = node_frame(node, kind, node->gone[i], peer->text ? strlen(peer->text) : 0);
        head.sequence = peer->ended;
        node_link_put(link, &head, peer->text);
    }
}

/* Causes before their effects: ranks fail their groups and leave because others were lost. */
void node_brief(struct acomm_node *node, struct node_link *link)
{
    struct wire_control hello = node_frame(node, WIRE_HEARTBEAT, node->rank, 0);
    node_link_put(link, &hello, NULL);
    brief_of(node, link, WIRE_LOST);
    for (int i = 0; i < NODE_NOTES; i++) {
        const struct node_note *note = node->notes[(node->notes_next + (unsigned)i) % NODE_NOTES];
        if (note)
            node_link_put(link, &note->head, note->payload);
    }
    /* After the notes: a rank that has left is assumed to have joined only the collectives known by then. */
    brief_of(node, link, WIRE_BYE);
}

static void flush_all(struct acomm_node *node)
{
    for (struct node_link *link = node->links; link; link = link->next)
        node_link_flush(link);
}

void node_fail(struct acomm_node *node, struct node_watch *watch, const acomm_failure *failure, bool tell)
{
    flush_all(node); /* the failure may end this process, and its end must not reach the neighbours before its cause */
    watch->calls++;
    pthread_mutex_unlock(&node->lock);
    watch->fail(watch->group, failure, tell);
    pthread_mutex_lock(&node->lock);
    if (--watch->calls == 0)
        pthread_cond_broadcast(&node->returned);
}

static acomm_failure node_gossip_failure_of(const struct acomm_group *group, int code, int culprit, const char *text)
{
    acomm_failure failure = {.code = code, .culprit = culprit, .origin = group->rank};
    snprintf(failure.text, sizeof failure.text, "%s", text ? text : "");
    return failure;
}

int node_first_failed(const struct acomm_node *node, const struct acomm_group *group)
{
    int left = -1;
    for (int i = 0; i < node->gone_count; i++) {
        int rank = node->gone[i];
        if (group && node_group_rank(group, rank) < 0)
            continue;
        if (node->peers[rank].state == PEER_LOST)
            return rank;
        if (node->peers[rank].text && left < 0)
            left = rank;
    }
    return left;
}

bool node_doomed(struct acomm_node *node, const struct acomm_group *group, acomm_failure *out)
{
    if (node->condemned) {
        *out = node_gossip_failure_of(group, ACOMM_ABORTED, -1, node->condemned);
        return true;
    }
    int first = node_first_failed(node, group);
    if (first >= 0) {
        *out = node_gossip_failure_of(group, ACOMM_LOST, node_group_rank(group, first), node->peers[first].text);
        return true;
    }
    for (int i = 0; i < NODE_NOTES; i++) {
        const struct node_note *note = node->notes[i];
        if (!note || note->head.kind != WIRE_FAIL || note->head.group != group->id)
            continue;
        memcpy(out, note->payload, sizeof *out);
        return wire_failure_valid(out, group->size);
    }
    return false;
}

/* A watch whose call is under way stays in the list, so the walk may go on from it. */
static void fail_doomed(struct acomm_node *node)
{
    acomm_failure failure;
    for (struct node_watch *watch = node->watches; watch; watch = watch->next)
        if (node_doomed(node, watch->group, &failure))
            node_fail(node, watch, &failure, false);
}

void node_call(struct acomm_node *node)
{
    (void)!eventfd_write(node->asking, 1); /* fails only when it is readable anyhow */
}

void node_suspect(struct acomm_node *node, int rank, int64_t verdict, const char *text)
{
    struct node_peer *peer = &node->peers[rank];
    char *copy = text && *text ? strdup(text) : NULL;
    free(peer->text);
    peer->text = copy;
    node->verdicts += (verdict != 0) - (peer->verdict != 0);
    peer->verdict = verdict;
}

static void node_gossip_settle(struct acomm_node *node, int rank, int state, const char *text)
{
    node_suspect(node, rank, 0, text);
    node->peers[rank].state = state;
    node->gone[node->gone_count++] = rank;
    atomic_fetch_add(&node->departures, 1);
    pthread_cond_broadcast(&node->returned);
    node_call(node);
}

static void condemn(struct acomm_node *node, const char *text)
{
    char why[WIRE_TEXT];
    if (node->condemned)
        return;
    snprintf(why, sizeof why, "this rank was declared lost by the others: %.140s", text);
    node->condemned = strdup(why);
    for (struct node_link *link = node->links; link; link = link->next)
        link->broken = "";
    node_call(node);
    fail_doomed(node);
}

void node_declare_lost(struct acomm_node *node, const struct node_link *from, int rank, const char *text)
{
    if (node->condemned || node->peers[rank].state != PEER_THERE)
        return;
    /* Also to itself: a rank that was only stopped learns from it, when it resumes, that it was excluded. */
    node_spread(node, from, node_frame(node, WIRE_LOST, rank, strlen(text)), text);
    if (rank == node->rank) {
        flush_all(node);
        condemn(node, text);
        return;
    }
    node_gossip_settle(node, rank, PEER_LOST, text);
    for (struct node_link *link = node->links; link; link = link->next)
        if (link->peer == rank && !link->broken) {
            node_link_flush(link);
            link->broken = "lost";
        }
    fail_doomed(node);
    node_mend_ring(node);
}

static void hear_bye(struct acomm_node *node, const struct node_link *link, const struct wire_control *head,
                     const char *text)
{
    if (head->rank == node->rank || node->peers[head->rank].state != PEER_THERE)
        return;
    node_gossip_settle(node, head->rank, PEER_GONE, text);
    node->peers[head->rank].ended = head->sequence <= 256 ? (unsigned)head->sequence : 0;
    node_spread(node, link, *head, text);
    if (*text)
        fail_doomed(node);
    if (!node->mend_at) /* in a shutdown all leave together, and need no new ring */
        node->mend_at = clock_now() + NODE_CALM_NS;
}

static void hear_left(struct acomm_node *node, const struct wire_control *head)
{
    atomic_fetch_add(&node->departures, 1);
    struct node_watch *watch = node_find(node, head->group);
    int rank = watch ? node_group_rank(watch->group, head->rank) : -1;
    if (rank >= 0)
        watch->members[rank].left = head->sequence;
    pthread_cond_broadcast(&node->returned);
}

/* Many ranks may ask at once: one answer is for all of them. They ask again after twice the interval checked here, because they
 * may have received the first question earlier than this rank. */
static void node_gossip_answer(struct acomm_node *node, struct node_watch *watch)
{
    int64_t now = clock_now();
    if (now - watch->asked < NODE_ANSWER_NS / 2)
        return;
    begin_round(watch, now);
    spread_begun(node, WIRE_BEGUN, watch);
}

static void hear_begun(struct acomm_node *node, const struct wire_control *head)
{
    struct node_watch *watch = node_find(node, head->group);
    if (head->kind == WIRE_ASK && watch)
        node_gossip_answer(node, watch);
    int rank = watch ? node_group_rank(watch->group, head->rank) : -1;
    if (rank >= 0)
        watch->members[rank].begun = head->sequence;
    pthread_cond_broadcast(&node->returned);
}

static void hear_fail(struct acomm_node *node, const struct wire_control *head, const void *payload)
{
    acomm_failure failure;
    memcpy(&failure, payload, sizeof failure);
    struct node_watch *watch = node_find(node, head->group);
    if (watch && wire_failure_valid(&failure, watch->group->size))
        node_fail(node, watch, &failure, false);
}

void node_hear(struct acomm_node *node, struct node_link *link, const struct wire_control *head, const void *payload)
{
    char text[WIRE_TEXT] = "";
    if (head->kind >= WIRE_LEFT && !node_gossip_news(node, link, head, payload))
        return;
    switch (head->kind) {
    case WIRE_LOST:
    case WIRE_BYE:
        memcpy(text, payload, head->bytes);
        if (head->kind == WIRE_LOST)
            node_declare_lost(node, link, head->rank, text);
        else
            hear_bye(node, link, head, text);
        break;
    case WIRE_LEFT:
        hear_left(node, head);
        break;
    case WIRE_FAIL:
        hear_fail(node, head, payload);
        break;
    case WIRE_ASK:
    case WIRE_BEGUN:
        hear_begun(node, head);
        break;
    default: /* a heartbeat needs no more than its arrival */
        break;
    }
}

bool node_ask_locked(struct acomm_node *node, const acomm_request *request)
{
    struct node_request *item = malloc(sizeof *item);
    if (!item)
        return false;
    *item = (struct node_request){.request = *request};
    *node->requests_end = item;
    node->requests_end = &item->next;
    node_call(node);
    return true;
}

void node_connect(struct acomm_node *node, int rank)
{
    if (node->closing || node->condemned || node->peers[rank].asked)
        return;
    for (const struct node_link *link = node->links; link; link = link->next)
        if (link->peer == rank && !link->broken)
            return;
    node->peers[rank].asked = node_ask_locked(node, &(acomm_request){.peer = rank, .channel = CHANNEL_CONTROL});
}

void node_doubt(struct acomm_node *node, int rank, const char *text)
{
    const struct node_peer *peer = &node->peers[rank];
    if (peer->state != PEER_THERE || peer->verdict)
        return;
    node_suspect(node, rank, 0, text);
    node_connect(node, rank);
}

void node_mend_ring(struct acomm_node *node)
{
    int next = (node->rank + 1) % node->size;
    while (next != node->rank && node->peers[next].state != PEER_THERE)
        next = (next + 1) % node->size;
    node->mend_at = 0;
    if (next != node->rank)
        node_connect(node, next);
}
