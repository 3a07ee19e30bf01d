/* The beginning and the end of a group. */
#include <errno.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "group/group.h"
#include "membership/node.h"
#include "p2p/p2p.h"

static int copy_places(struct acomm_group *g, const acomm_group_options *o)
{
    size_t n = (size_t)o->size;
    g->members = malloc(n * sizeof *g->members);
    g->stores = calloc(n, sizeof *g->stores);
    for (int c = 0; c < CHANNELS; c++) {
        g->out[c] = calloc(n, sizeof(struct link *));
        g->in[c] = calloc(n, sizeof(struct link *));
        if (!g->out[c] || !g->in[c])
            return ACOMM_RESOURCE;
    }
    if (!g->members || !g->stores)
        return ACOMM_RESOURCE;
    memcpy(g->members, o->members, n * sizeof *g->members);
    return hosts_open(&g->hosts, o->hosts, o->rank, o->size);
}

static int open_shared(struct acomm_group *g, const acomm_group_options *o)
{
    const struct team *host = &g->hosts.host;
    g->oversubscribed = o->oversubscribed;
    if (host->size < 2)
        return 0;
    uint64_t piece = shared_piece(host->size, o->piece_bytes);
    int rc = shared_open(&g->shared, o->segment_fd, o->segment_bytes, host->rank, host->size, piece);
    if (rc)
        return rc;
    for (int local_rank = 0; local_rank < host->size; local_rank++)
        g->shared.processes[local_rank] = o->processes[team_member(host, local_rank)];
    g->doorbell = &region_of(&g->shared, host->rank)->doorbell;
    return 0;
}

static int init_locks(struct acomm_group *g)
{
    pthread_mutex_init(&g->lock, NULL);
    condition_init(&g->work);
    g->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    return g->wake_fd < 0 ? ACOMM_RESOURCE : 0;
}

static void free_links(struct acomm_group *g)
{
    for (int c = 0; c < CHANNELS; c++) {
        for (int rank = 0; rank < g->size; rank++) {
            if (g->out[c] && g->out[c][rank])
                g->out[c][rank]->ops->close(g->out[c][rank]);
            if (g->in[c] && g->in[c][rank])
                g->in[c][rank]->ops->close(g->in[c][rank]);
        }
        free(g->out[c]);
        free(g->in[c]);
    }
}

static void free_group(struct acomm_group *g)
{
    p2p_close(g->p2p);
    free_links(g);
    if (g->fabric_own)
        g->fabric->leave(g);
    symmetric_close(g);
    shared_close(&g->shared);
    select_close(&g->selection);
    while (g->spare) {
        struct acomm_op *op = g->spare;
        g->spare = op->next;
        free(op);
    }
    if (g->wake_fd >= 0)
        close(g->wake_fd);
    pthread_cond_destroy(&g->work);
    pthread_mutex_destroy(&g->lock);
    for (int i = 0; i < 2; i++)
        free(g->scratch[i].data);
    free(g->members);
    free(g->stores);
    hosts_close(&g->hosts);
    free(g);
}

int group_open(acomm_node *node, const acomm_group_options *o, const struct group_above *above, acomm_group **out)
{
    struct acomm_group *g = calloc(1, sizeof *g);
    if (!g)
        return ACOMM_RESOURCE;
    forks_watch();
    *g = (struct acomm_group){.above = above, .forks = forks_now(), .node = node, .id = o->id, .rank = o->rank, .size = o->size, .shared.fd = -1,
                              .connections = o->connections, .fabric = o->fabric, .loopback = o->local == o->size, .check = o->check != 0,
                              .without = o->without, .timeout = o->timeout, .patience = o->patience};
    int rc = init_locks(g);
    if (!rc)
        rc = copy_places(g, o);
    if (!rc)
        rc = open_shared(g, o);
    if (!rc)
        rc = select_open(g, o->algorithms, (const char *[]){o->tuned, o->tuned_symmetric});
    if (!rc && !(g->p2p = p2p_open(g)))
        rc = ACOMM_RESOURCE;
    if (!rc && node)
        rc = node_add(node, g, group_fail);
    if (rc) {
        int saved = errno;
        free_group(g);
        errno = saved;
        return rc;
    }
    *out = g;
    return 0;
}

int acomm_group_close(acomm_group *g)
{
    if (group_forked(g))
        return ACOMM_FORKED; /* the memory stays with the child */
    if (!g->stopping)
        acomm_group_stop(g, NULL);
    if (g->node)
        node_remove(g->node, g);
    free_group(g);
    return 0;
}
