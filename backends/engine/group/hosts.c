/* Finds the teams of a group: the ranks of this host, and the ranks of all hosts with this one's local rank. */
#include "group/hosts.h"

#include <stdbool.h>
#include <stdlib.h>

#include "acomm.h"

/* Host of a rank, found by the ranks before it. */
static int number_host(const struct hosts *h, const int32_t *keys, int rank)
{
    for (int before = 0; before < rank; before++)
        if (keys[before] == keys[rank])
            return h->of[before];
    return h->count;
}

/* Host by host, in rank order, which also tells the smallest and the largest. */
static void sort_ranks(struct hosts *h, int size)
{
    int filled = 0;
    for (int host = 0; host < h->count; host++) {
        h->first[host] = filled;
        for (int rank = 0; rank < size; rank++) {
            if (h->of[rank] != host)
                continue;
            h->local_rank[rank] = filled - h->first[host];
            h->ranks[filled++] = rank;
        }
        int ranks = filled - h->first[host];
        h->least = host && h->least < ranks ? h->least : ranks;
        h->most = ranks > h->most ? ranks : h->most;
    }
    h->first[h->count] = filled;
}

static int hosts_allocate(struct hosts *h, size_t size)
{
    int *memory = malloc((5 * size + 1) * sizeof *memory);
    if (!memory)
        return ACOMM_RESOURCE;
    h->of = memory;
    h->local_rank = memory + size;
    h->ranks = memory + 2 * size;
    h->first = memory + 3 * size; /* one more than hosts */
    return 0;
}

static void make_teams(struct hosts *h, int rank, int size)
{
    int own = h->of[rank], local_rank = h->local_rank[rank], *column = h->first + size + 1;
    bool alone = h->most == 1;
    h->all = (struct team){.rank = rank, .size = size,
                           .place = alone ? TEAM_APART : h->count > 1 ? TEAM_HOSTS : TEAM_HOST};
    h->host = (struct team){.rank = local_rank, .size = hosts_ranks(h, own), .members = h->ranks + h->first[own],
                            .place = TEAM_HOST};
    for (int host = 0; local_rank < h->least && host < h->count; host++)
        column[host] = hosts_rank(h, host, local_rank);
    h->column = (struct team){.rank = own, .size = local_rank < h->least ? h->count : 0, .members = column,
                              .place = TEAM_APART};
}

int hosts_open(struct hosts *h, const int32_t *keys, int rank, int size)
{
    int rc = hosts_allocate(h, (size_t)size);
    if (rc)
        return rc;
    for (int i = 0; i < size; i++) {
        h->of[i] = number_host(h, keys, i);
        h->count += h->of[i] == h->count;
    }
    sort_ranks(h, size);
    make_teams(h, rank, size);
    return 0;
}

void hosts_close(struct hosts *h)
{
    free(h->of);
    *h = (struct hosts){0};
}
