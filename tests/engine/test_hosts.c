/* engine: group/hosts.c */
#include "check.h"
#include "group/hosts.h"

static void check_team(const struct team *team, int rank, int size, const int *members)
{
    CHECK_EQUAL(team->rank, rank);
    CHECK_EQUAL(team->size, size);
    for (int i = 0; i < size; i++)
        CHECK_EQUAL(team_member(team, i), members[i]);
}

/* 3 ranks on one host, 2 on another, in turns; the keys are any numbers. */
static void uneven_hosts(void)
{
    static const int32_t keys[] = {7, 2, 7, 2, 7};
    static const int hosts[2][3] = {{0, 2, 4}, {1, 3}}, columns[2][2] = {{0, 1}, {2, 3}};
    for (int rank = 0; rank < 5; rank++) {
        struct hosts h = {0};
        CHECK_EQUAL(hosts_open(&h, keys, rank, 5), 0);
        CHECK_EQUAL(h.count, 2);
        CHECK_EQUAL(h.least, 2);
        CHECK_EQUAL(h.most, 3);
        CHECK_EQUAL(h.of[rank], rank % 2);
        CHECK_EQUAL(h.local_rank[rank], rank / 2);
        CHECK_EQUAL(hosts_rank(&h, rank % 2, rank / 2), rank);
        check_team(&h.all, rank, 5, (const int[]){0, 1, 2, 3, 4});
        check_team(&h.host, rank / 2, hosts_ranks(&h, rank % 2), hosts[rank % 2]);
        CHECK_EQUAL(h.all.place, TEAM_HOSTS);
        if (rank < 4)
            check_team(&h.column, rank % 2, 2, columns[rank / 2]);
        else
            CHECK_EQUAL(h.column.size, 0);
        hosts_close(&h);
    }
}

static int place_of(const int32_t *keys, int size)
{
    struct hosts h = {0};
    CHECK_EQUAL(hosts_open(&h, keys, size - 1, size), 0);
    int place = h.all.place;
    hosts_close(&h);
    return place;
}

static void places(void)
{
    CHECK_EQUAL(place_of((const int32_t[]){3, 3, 3}, 3), TEAM_HOST);
    CHECK_EQUAL(place_of((const int32_t[]){0, 1, 2}, 3), TEAM_APART);
    CHECK_EQUAL(place_of((const int32_t[]){0, 1, 1}, 3), TEAM_HOSTS);
    CHECK_EQUAL(place_of((const int32_t[]){0}, 1), TEAM_APART);
}

int main(void)
{
    TEST(uneven_hosts);
    TEST(places);
    return CHECK_RESULT();
}
