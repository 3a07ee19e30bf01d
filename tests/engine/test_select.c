/* engine: all */
#include <string.h>
#include "check.h"
#include "collectives/collectives.h"
#include "group/group.h"
#include "group/select.h"

static const struct group_above above = {.algorithms = collectives_table};
static struct acomm_group group;
static char segment[1];

static bool network; /* between the ranks of the next group */

static int open_group(int size, bool one_host, const char *algorithms, const char *tuned, const char *tuned_symmetric)
{
    group = (struct acomm_group){.above = &above, .size = size, .loopback = !network, .shared.base = one_host ? segment : NULL};
    group.hosts.all = (struct team){.size = size, .place = one_host ? TEAM_HOST : TEAM_APART};
    return select_open(&group, algorithms, (const char *[]){tuned, tuned_symmetric});
}

static const char *chosen(int kind, uint64_t bytes, bool symmetric)
{
    struct acomm_op op = {.group = &group, .team = &group.hosts.all, .kind = kind, .count = bytes, .width = 1};
    group.direct.symmetric = symmetric;
    return select_algorithm(&group, &op)->name;
}

#define CHECK_CHOICE(kind, bytes, symmetric, want)                                             \
    do {                                                                                       \
        const char *got_ = chosen(kind, bytes, symmetric);                                     \
        CHECK_MESSAGE(!strcmp(got_, want), "%s for %llu bytes, not %s", got_, (unsigned long long)(bytes), want); \
    } while (0)

static bool fits(const acomm_row *row, int size, bool one_host, bool symmetric, bool dedicated)
{
    static const int memory[] = {[ONE_HOST] = 1, [SYMMETRIC] = 2, [DEDICATED] = 1, [HOSTS] = 3, [EVEN_HOSTS] = 3, [FABRIC] = 3, [DEDICATED_NEAR] = 0};
    bool shares = row->where == DEDICATED || row->where == DEDICATED_NEAR;
    return memory[row->where] <= one_host + symmetric && (dedicated || !shares) && (!row->max_ranks || size <= row->max_ranks);
}

/* Without lists, every group chooses the first row of the table that fits. */
static void table(void)
{
    for (int size = 2; size < 20; size++)
        for (int layout = 0; layout < 4; layout++) {
            bool one_host = layout & 1, dedicated = layout & 2;
            CHECK_EQUAL(open_group(size, one_host, NULL, "", NULL), 0);
            group.oversubscribed = !dedicated;
            select_close(&group.selection);
            CHECK_EQUAL(select_open(&group, NULL, (const char *[]){"", NULL}), 0);
            for (int kind = 0; kind < ACOMM_KINDS; kind++)
                for (int bits = op_is_message(kind) ? 40 : 0; bits < 40; bits++)
                    for (int more = 0; more < 2; more++) {
                        uint64_t bytes = (1ull << bits) + (uint64_t)more;
                        bool symmetric = one_host && bits % 2;
                        const char *want = NULL;
                        acomm_row row;
                        struct acomm_op op = {.group = &group, .team = &group.hosts.all, .kind = kind, .count = bytes, .width = 1};
                        uint64_t total = acomm_operations[kind].array == ACOMM_WHOLE ? bytes : op_total(NULL, op.count, size, 1);
                        for (size_t at = 0; !want && acomm_algorithm((int)at, &row); at++)
                            if (!strcmp(row.kind, acomm_operations[kind].name) && total <= row.up_to
                                && fits(&row, size, one_host, symmetric, dedicated))
                                want = row.name;
                        CHECK_CHOICE(kind, bytes, symmetric, want);
                    }
            select_close(&group.selection);
        }
}

static int collective(struct acomm_op *op)
{
    return op->kind;
}

/* A fabric's own are run where they are asked for, and where there is such a fabric. */
static void library(void)
{
    struct acomm_fabric fabrics[] = {{.collective = collective}, {0}};
    for (int i = 0; i < 3; i++)
        for (int one_host = 0; one_host < 2; one_host++) {
            bool has = !i;
            CHECK_EQUAL(open_group(3, one_host, "all_reduce=library", "reduce=library:100", "reduce=library"), 0);
            CHECK_CHOICE(ACOMM_ALL_REDUCE, 1000, false, one_host ? "whole" : "bruck");
            select_close(&group.selection);
            group.fabric = i < 2 ? &fabrics[i] : NULL;
            CHECK_EQUAL(select_open(&group, "all_reduce=library,barrier=library", (const char *[]){"reduce=library:100", "reduce=library"}), 0);
            CHECK_CHOICE(ACOMM_ALL_REDUCE, 1000, false, has ? "library" : one_host ? "whole" : "bruck");
            CHECK_CHOICE(ACOMM_BARRIER, 0, true, has ? "library" : one_host ? "shared" : "dissemination");
            CHECK_CHOICE(ACOMM_REDUCE, 100, false, has ? "library" : one_host ? "whole" : "bruck");
            CHECK_CHOICE(ACOMM_REDUCE, 101, false, one_host ? "whole" : "bruck");
            CHECK_CHOICE(ACOMM_REDUCE, 101, true, has ? "library" : one_host ? "whole" : "bruck");
            CHECK_CHOICE(ACOMM_SCAN, 1, false, one_host ? "whole" : "chain");
            if (has)
                CHECK_EQUAL(group.selection.first[0][ACOMM_ALL_REDUCE]->algorithm->run(&(struct acomm_op){.group = &group, .kind = 7}), 7);
            select_close(&group.selection);
        }
}

/* The first list goes before the second, both before the table, each up to its limits. */
static void lists(void)
{
    const char *tuned = "all_reduce=ring:10,all_reduce=doubling:30,all_reduce=halving:18446744073709551615,reduce=pairwise";
    CHECK_EQUAL(open_group(2, false, "all_reduce=bruck:20", tuned, "all_reduce=ring"), 0);
    CHECK_CHOICE(ACOMM_ALL_REDUCE, 20, false, "bruck");
    CHECK_CHOICE(ACOMM_ALL_REDUCE, 21, false, "doubling");
    CHECK_CHOICE(ACOMM_ALL_REDUCE, 31, false, "halving");
    CHECK_CHOICE(ACOMM_REDUCE, 0, false, "pairwise");
    CHECK_CHOICE(ACOMM_BROADCAST, 0, false, "binomial");
    CHECK_CHOICE(ACOMM_ALL_REDUCE, 21, true, "ring");
    CHECK(!group.selection.forced[ACOMM_ALL_REDUCE] && !group.selection.forced[ACOMM_REDUCE]);
    select_close(&group.selection);
    CHECK_EQUAL(open_group(2, false, "all_reduce=ring,barrier=shared", tuned, NULL), 0);
    CHECK_CHOICE(ACOMM_ALL_REDUCE, 1, false, "ring");
    CHECK_CHOICE(ACOMM_BARRIER, 0, false, "dissemination"); /* "shared" cannot run here */
    CHECK(group.selection.forced[ACOMM_ALL_REDUCE] && !group.selection.forced[ACOMM_REDUCE]);
    select_close(&group.selection);
    CHECK_EQUAL(open_group(2, true, "all_reduce=direct,barrier=shared", NULL, NULL), 0);
    CHECK_CHOICE(ACOMM_ALL_REDUCE, 1, false, "whole");
    CHECK_CHOICE(ACOMM_ALL_REDUCE, 1, true, "direct");
    CHECK_CHOICE(ACOMM_BARRIER, 0, false, "shared");
    select_close(&group.selection);
}

static const char *chosen_for_part(int size, enum team_place place, int kind, uint64_t bytes)
{
    struct acomm_op whole = {.group = &group, .kind = kind};
    struct team team = {.size = size, .place = place};
    struct acomm_op op = {.group = &group, .team = &team, .whole = &whole, .kind = kind, .count = bytes, .width = 1};
    return select_algorithm(&group, &op)->name;
}

/* Among leaders of more than two hosts bytes cost more than steps; two of them send no more by "bruck". */
static void parts(void)
{
    network = true;
    CHECK_EQUAL(open_group(8, false, NULL, NULL, NULL), 0);
    CHECK(!strcmp(chosen_for_part(4, TEAM_APART, ACOMM_BROADCAST, 256 << 10), "binomial"));
    CHECK(!strcmp(chosen_for_part(4, TEAM_APART, ACOMM_BROADCAST, (256 << 10) + 1), "chain"));
    CHECK(!strcmp(chosen_for_part(4, TEAM_APART, ACOMM_ALL_GATHER, 64 << 10), "bruck"));
    CHECK(!strcmp(chosen_for_part(4, TEAM_APART, ACOMM_ALL_REDUCE, 32 << 10), "doubling"));
    CHECK(!strcmp(chosen_for_part(4, TEAM_APART, ACOMM_ALL_REDUCE, (32 << 10) + 1), "pairwise"));
    CHECK(!strcmp(chosen_for_part(4, TEAM_APART, ACOMM_ALL_GATHER, 16 << 10), "bruck"));
    select_close(&group.selection);
    network = false;
}

/* The same in a group of one rank a host, and otherwise than on loopback; what somebody asks for has no such limits. */
static void between_hosts(void)
{
    for (int over = 0; over < 2; over++) {
        network = over;
        CHECK_EQUAL(open_group(4, false, NULL, NULL, NULL), 0);
        CHECK_CHOICE(ACOMM_ALL_REDUCE, 8 << 10, false, "bruck");
        CHECK_CHOICE(ACOMM_ALL_REDUCE, 32 << 10, false, network ? "doubling" : "bruck");
        CHECK_CHOICE(ACOMM_ALL_REDUCE, 64 << 10, false, network ? "pairwise" : "halving");
        CHECK_CHOICE(ACOMM_BROADCAST, 16 << 10, false, "binomial");
        CHECK_CHOICE(ACOMM_BROADCAST, 1 << 20, false, network ? "chain" : "binomial");
        CHECK_CHOICE(ACOMM_ALL_TO_ALL, (16 << 10) / 4, false, network ? "pairwise" : "bruck");
        CHECK_CHOICE(ACOMM_ALL_GATHER, (16 << 10) / 4, false, "bruck");
        select_close(&group.selection);
        CHECK_EQUAL(open_group(4, false, "all_reduce=bruck:100000", NULL, NULL), 0);
        CHECK_CHOICE(ACOMM_ALL_REDUCE, 64 << 10, false, "bruck");
        select_close(&group.selection);
        CHECK_EQUAL(open_group(2, false, NULL, NULL, NULL), 0);
        CHECK_CHOICE(ACOMM_ALL_REDUCE, 64 << 10, false, "bruck");
        select_close(&group.selection);
    }
    network = false;
}

/* Ranks that share processors have other limits than those that have one each; between hosts it makes no difference. */
static void processors(void)
{
    for (int shares = 0; shares < 2; shares++)
        for (int one_host = 0; one_host < 2; one_host++) {
            CHECK_EQUAL(open_group(8, one_host, NULL, NULL, NULL), 0);
            select_close(&group.selection);
            group.oversubscribed = shares;
            CHECK_EQUAL(select_open(&group, NULL, (const char *[]){NULL, NULL}), 0);
            CHECK_CHOICE(ACOMM_ALL_REDUCE, 2 << 10, false, one_host ? "whole" : "bruck");
            CHECK_CHOICE(ACOMM_ALL_REDUCE, 16 << 10, false, one_host ? "sliced" : shares ? "doubling" : "bruck");
            CHECK_CHOICE(ACOMM_ALL_REDUCE, 4 << 10, false, one_host ? shares ? "whole" : "sliced" : "bruck");
            CHECK_CHOICE(ACOMM_ALL_REDUCE, 64 << 10, false, one_host ? "sliced" : "halving");
            CHECK_CHOICE(ACOMM_ALL_REDUCE, 1 << 20, false, one_host ? "sliced" : shares ? "ring" : "halving");
            CHECK_CHOICE(ACOMM_BROADCAST, 1 << 20, false, one_host ? shares ? "shared" : "direct" : "binomial");
            CHECK_CHOICE(ACOMM_ALL_TO_ALL, (16 << 10) / 8, false, one_host ? "shared" : shares ? "pairwise" : "bruck");
            select_close(&group.selection);
            network = true;
            CHECK_EQUAL(open_group(8, false, NULL, NULL, NULL), 0);
            CHECK_CHOICE(ACOMM_ALL_REDUCE, 64 << 10, false, "pairwise");
            select_close(&group.selection);
            network = false;
        }
}

static void mistakes(void)
{
    const char *const wrong[] = {"all_reduce", "all_reduce=", "all_reduce=rings", "all_reduc=ring", "=ring", "ring", "all_reduce=ring:",
                                 "all_reduce=ring:x", "all_reduce=ring:1x", "all_reduce=ring=", "all_reduce=ring,,", ":", "send=ring"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        CHECK_MESSAGE(open_group(2, true, wrong[i], NULL, NULL) == ACOMM_ARGUMENT, "%s", wrong[i]);
        CHECK_MESSAGE(open_group(2, true, NULL, wrong[i], NULL) == ACOMM_ARGUMENT, "%s", wrong[i]);
        CHECK_MESSAGE(open_group(2, true, NULL, NULL, wrong[i]) == ACOMM_ARGUMENT, "%s", wrong[i]);
        select_close(&group.selection);
    }
}

int main(void)
{
    TEST(table);
    TEST(library);
    TEST(lists);
    TEST(parts);
    TEST(between_hosts);
    TEST(processors);
    TEST(mistakes);
    return CHECK_RESULT();
}
