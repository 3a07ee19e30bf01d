/* Which ranks of a group are on which host, and the teams that follow from it.
 *
 * A team is a view of the group: some of its ranks, numbered from 0 in rank order. Algorithms know only the operation's team; its
 * numbers become ranks of the group where links are used and failures are reported. An operation of a group over several hosts
 * may consist of operations of teams (select.h): of a host's ranks, which share memory, and of columns, with one rank a host. */
#ifndef ACOMM_HOSTS_H
#define ACOMM_HOSTS_H
#include <stdint.h>

enum team_place {
    TEAM_APART,   /* no two ranks share memory */
    TEAM_HOST,    /* one host's ranks: all share memory */
    TEAM_HOSTS    /* several hosts, of which some have several ranks */
};
struct team {
    int rank, size;          /* this rank's number; 0 ranks: it is in no such team */
    const int *members;      /* ranks of the group; NULL: all of them */
    enum team_place place;
};

struct hosts {
    int count;               /* hosts, numbered in the order of their lowest ranks */
    int least, most;         /* ranks of the smallest and of the largest host */
    int *of;                 /* host of each rank */
    int *local_rank;               /* number of each rank among those of its host */
    int *first;              /* the ranks of host h are ranks[first[h]] to ranks[first[h + 1] - 1] */
    int *ranks;
    struct team all, host;   /* all ranks; the ranks of this host */
    struct team column;      /* the ranks with this one's local rank, one of each host; none where a host has no such local rank */
};

/* `keys`: equal for ranks of one host. 0 or ACOMM_RESOURCE. */
int hosts_open(struct hosts *h, const int32_t *keys, int rank, int size);
void hosts_close(struct hosts *h);

static inline int team_member(const struct team *team, int number)
{
    return team->members && number >= 0 ? team->members[number] : number;
}
/* Rank of the group that has a local rank of a host. */
static inline int hosts_rank(const struct hosts *h, int host, int local_rank) { return h->ranks[h->first[host] + local_rank]; }
static inline int hosts_ranks(const struct hosts *h, int host) { return h->first[host + 1] - h->first[host]; }
#endif
