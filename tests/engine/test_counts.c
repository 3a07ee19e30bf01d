/* engine: link/tcp.c link/shm.c base/doorbell.c memory/stream.c group/signature.c group/select.c group/op.c group/wait.c base/process.c group/shared/shared.c group/shared/symmetric.c memory/arena.c group/shared/window.c memory/peer_memory.c reduce/ collectives/ */
/* Messages and bytes of each rank in groups of up to 4,096 hosts of one rank: the algorithms themselves are run, one rank after the
 * other, over transfers that are counted and not made. docs/lab/messages.md has the table, which the argument "table" prints. */
#include <stdlib.h>
#include <string.h>
#include "check.h"
#include "collectives/collectives.h"
#include "fake_node.h"
#include "group/group.h"
#include "group/transfer.h"

#define LONGEST ((uint64_t)16 << 20) /* bytes of the whole array */
#define WIDTH 4

struct count { uint64_t sent, got, sent_bytes, got_bytes; };
static struct count now;
static struct link out_link = {.outgoing = true}, in_link;
static struct scratch kept[2];
static char *input, *output;

struct transfer transfer_to(struct acomm_op *op, int peer, const void *data, uint64_t bytes)
{
    CHECK(peer >= 0 && peer < op->team->size && peer != op->team->rank);
    return (struct transfer){.link = &out_link, .data = (char *)(uintptr_t)data, .bytes = bytes};
}

struct transfer transfer_from(struct acomm_op *op, int peer, void *data, uint64_t bytes)
{
    struct transfer t = transfer_to(op, peer, data, bytes);
    t.link = &in_link;
    return t;
}

struct link *group_link(struct acomm_group *g, enum channel channel, int rank, bool outgoing)
{
    CHECK(channel == CHANNEL_COLLECTIVE && rank >= 0 && rank < g->size);
    return outgoing ? &out_link : &in_link;
}

int transfer_run(struct acomm_op *op, struct transfer *list, int transfers)
{
    (void)op;
    for (struct transfer *t = list; t < list + transfers; t++) {
        if (t->done == t->bytes)
            continue;
        t->done = t->combined = t->bytes;
        *(t->link->outgoing ? &now.sent : &now.got) += 1;
        *(t->link->outgoing ? &now.sent_bytes : &now.got_bytes) += t->bytes;
    }
    return 0;
}

int transfer_exchange(struct acomm_op *op, int to, const void *send, size_t send_bytes, int from, void *recv, size_t recv_bytes)
{
    struct transfer list[2] = {{0}};
    if (to >= 0)
        list[0] = transfer_to(op, to, send, send_bytes);
    if (from >= 0)
        list[1] = transfer_from(op, from, recv, recv_bytes);
    return transfer_run(op, list, 2);
}

void *group_scratch(const struct acomm_op *op, size_t bytes)
{
    struct scratch *scratch = &kept[op->whole != NULL];
    if (scratch->bytes < bytes) {
        free(scratch->data);
        *scratch = (struct scratch){aligned_alloc(64, (bytes + 63) / 64 * 64), bytes};
    }
    return scratch->data;
}


/* Nothing fails here, and nobody is waited for. */
int group_fail(struct acomm_group *g, const acomm_failure *failure, bool tell)
{
    (void)g, (void)tell;
    CHECK_EQUAL(failure->code, 0);
    return failure->code;
}

int group_fail_op(struct acomm_op *op, int code, int culprit, int errnum, const char *text)
{
    (void)op, (void)culprit, (void)errnum, (void)text;
    CHECK_EQUAL(code, 0);
    return code;
}

void group_close_window(struct acomm_group *g) { (void)g; }
void group_recycle(struct acomm_group *g, struct acomm_op *op) { (void)g, (void)op; }
void node_ask_members(struct acomm_node *node, const struct acomm_group *group) { (void)node, (void)group; }

int node_left(struct acomm_node *node, const struct acomm_group *group, int rank, uint64_t sequence)
{
    (void)node, (void)group, (void)rank, (void)sequence;
    return -1;
}

static uint64_t larger(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* The most that a rank has to do with a whole array of so many bytes. */
static struct count most(struct acomm_group *g, int kind, uint64_t bytes, const char **name)
{
    int n = g->size, picked[] = {0, 1, 2, 3, n / 3, n / 2, n / 2 + 1, n - 2, n - 1};
    struct count found = {0};
    uint64_t blocks = acomm_operations[kind].array == ACOMM_WHOLE ? 1 : (uint64_t)n;
    for (size_t i = 0; i < sizeof picked / sizeof *picked; i++) {
        g->rank = g->hosts.all.rank = picked[i];
        struct acomm_op op = {.group = g, .team = &g->hosts.all, .kind = kind, .dtype = ACOMM_FLOAT32, .width = WIDTH, .root = -1,
                              .count = kind == ACOMM_BARRIER ? 0 : larger(1, bytes / WIDTH / blocks), .in = input, .out = output};
        op.root = op_is_rooted(kind) ? 0 : -1;
        op.in = acomm_operations[kind].gives == ACOMM_ROOT && g->rank ? NULL : input;
        op.out = acomm_operations[kind].gets == ACOMM_ROOT && g->rank ? NULL : output;
        now = (struct count){0};
        CHECK_EQUAL(select_run(&op), 0);
        *name = op.algorithm->name;
        found = (struct count){larger(found.sent, now.sent), larger(found.got, now.got), larger(found.sent_bytes, now.sent_bytes),
                               larger(found.got_bytes, now.got_bytes)};
    }
    return found;
}

static int logarithm(int n)
{
    int bits = 0;
    while (1 << bits < n)
        bits++;
    return bits;
}

static bool shown;
static const struct group_above above = {.algorithms = collectives_table};

static void check_counts(struct acomm_group *g, int kind, uint64_t bytes)
{
    const char *name = "";
    uint64_t n = (uint64_t)g->size, log = (uint64_t)logarithm(g->size), wide = bytes;
    const acomm_operation *o = &acomm_operations[kind];
    if (o->array != ACOMM_WHOLE)
        wide = larger(1, bytes / WIDTH / n) * WIDTH * n;
    struct count c = most(g, kind, bytes, &name);
    bool to_each = !o->reduces && o->array != ACOMM_WHOLE; /* somebody has something of its own for or from everybody */
    uint64_t messages = 6 * log + wide / (64 << 10) + (to_each ? n : 0);
    uint64_t moved = 4 * wide + (log + 1) * (wide < 256 << 10 ? wide : 256 << 10) + 300 * n;
    if (shown)
        printf("| %s | %llu | %llu | %s | %llu | %llu | %llu | %llu |\n", o->name, (unsigned long long)n, (unsigned long long)wide, name,
               (unsigned long long)c.sent, (unsigned long long)c.got, (unsigned long long)c.sent_bytes, (unsigned long long)c.got_bytes);
    if (n > 64)
        CHECK_MESSAGE(c.sent <= messages && c.got <= messages && c.sent_bytes <= moved && c.got_bytes <= moved,
                      "%s of %llu bytes by %s, %llu ranks: %llu and %llu messages, %llu and %llu bytes", o->name, (unsigned long long)wide,
                      name, (unsigned long long)n, (unsigned long long)c.sent, (unsigned long long)c.got,
                      (unsigned long long)c.sent_bytes, (unsigned long long)c.got_bytes);
    CHECK(c.sent >= 1 && c.got >= 1);
}

static void counts(void)
{
    static const int sizes[] = {8, 64, 65, 512, 700, 4096};
    static const uint64_t lengths[] = {8, 1 << 10, 64 << 10, 1 << 20, LONGEST};
    input = calloc(1, LONGEST + (64 << 10));
    output = calloc(1, LONGEST + (64 << 10));
    for (int kind = 0; kind < ACOMM_KINDS; kind++)
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes && !op_is_message(kind); i++) {
            struct acomm_group g = {.above = &above, .size = sizes[i], .check = true};
            g.hosts.all = (struct team){.size = g.size, .place = TEAM_APART};
            CHECK_EQUAL(select_open(&g, NULL, (const char *[]){NULL, NULL}), 0);
            for (size_t j = 0; j < (kind == ACOMM_BARRIER ? 1 : sizeof lengths / sizeof *lengths); j++)
                check_counts(&g, kind, kind == ACOMM_BARRIER ? 0 : lengths[j]);
            select_close(&g.selection);
        }
    free(input);
    free(output);
    for (int i = 0; i < 2; i++)
        free(kept[i].data);
}

int main(int arguments, char **argument)
{
    shown = arguments > 1 && !strcmp(argument[1], "table");
    TEST(counts);
    return CHECK_RESULT();
}
