/* engine: base/process.c */
/* The MPI backend's messages of arrays on GPUs. A GPU's memory is the host's here; its context has to be current for MPI. */
#include "fake_mpi.h"

static int members[2] = {0, 1};
static struct acomm_group groups[2][2]; /* [rank][group] */

/* ---- CUDA's stack of contexts ---- */

static uintptr_t stack[8];
static int depth;

static int push(uintptr_t context)
{
    CHECK(depth < 7);
    stack[++depth] = context;
    return 0;
}

static int pop(uintptr_t *context)
{
    *context = stack[depth--];
    CHECK(depth >= 0);
    return 0;
}

/* An array's own context is current; 0: no array on a GPU. */
static uintptr_t needed;
static int checked_isend(const void *in, int count, mpi_handle type, int peer, int tag, mpi_handle comm, void *request)
{
    CHECK(!needed || stack[depth] == needed);
    return fake_isend(in, count, type, peer, tag, comm, request);
}

static int checked_irecv(void *out, int count, mpi_handle type, int peer, int tag, mpi_handle comm, void *request)
{
    CHECK(!needed || stack[depth] == needed);
    return fake_irecv(out, count, type, peer, tag, comm, request);
}

static uintptr_t context_inside(void)
{
    CHECK(fabric_enter());
    uintptr_t inside = stack[depth];
    fabric_leave();
    return inside;
}

/* ---- messages ---- */

static void open_groups(void)
{
    open_ends();
    all.context = 0;
    acomm_mpi_push = push;
    acomm_mpi_pop = pop;
    fake.Isend = checked_isend;
    fake.Irecv = checked_irecv;
    for (int i = 0; i < 4; i++)
        groups[i / 2][i % 2] = (struct acomm_group){.fabric = &ends[i / 2]->base, .members = members, .rank = i / 2, .size = 2};
}

static struct acomm_op operation(int rank, int group, acomm_gpu_array *array, char *host, uint64_t count)
{
    return (struct acomm_op){.group = &groups[rank][group], .kind = rank ? ACOMM_RECV : ACOMM_SEND, .peer = 1 - rank, .gpu = array != NULL,
                             .in = rank ? (char *)array : NULL, .out = rank ? host : (char *)array, .count = count, .width = 1};
}

static struct fabric_message *begin(struct acomm_op *op, int64_t *tag)
{
    const acomm_gpu_array *array = op->kind == ACOMM_SEND ? (acomm_gpu_array *)op->out : (acomm_gpu_array *)op->in;
    needed = array ? array->context : 0;
    return mpi_message_begin(op, tag);
}

static void test_arrays(void)
{
    for (int host = 0; host < 2; host++) {
        char data[8] = "message", got[8] = "", pinned[8] = "";
        acomm_gpu_array from = {(uintptr_t)data, 11, 0}, to = {(uintptr_t)got, 12, 0};
        open_groups();
        rendezvous = true;
        struct acomm_op send = operation(0, 0, &from, NULL, 8), receive = operation(1, 0, host ? NULL : &to, host ? got : pinned, 8);
        int64_t tag = 0;
        struct fabric_message *in = begin(&receive, &tag);
        CHECK(!mpi_message_end(in) && !in->code);
        CHECK_EQUAL(context_inside(), host ? 0u : 12u);
        struct fabric_message *out = begin(&send, &tag);
        CHECK(from.state == ACOMM_GPU_GIVEN && (host || to.state == ACOMM_GPU_GIVEN));
        CHECK_EQUAL(context_inside(), 11u);
        CHECK(mpi_message_end(out));
        CHECK(mpi_message_end(in));
        CHECK(from.state == ACOMM_GPU_ENDED && (host || to.state == ACOMM_GPU_ENDED));
        CHECK(!strcmp(got, "message") && !*pinned);
        CHECK_EQUAL(depth, 0);
        rendezvous = false;
        close_ends();
    }
}

/* Each receive under way has a tag of its own, whatever the order of their sends. */
static void test_tags(void)
{
    static char data[3][4] = {"one", "two", "3"}, got[3][4];
    struct fabric_message *in[3];
    struct acomm_op receives[3];
    int64_t tags[3] = {0};
    open_groups();
    ends[1]->received = LINK_TAGS - 1;
    for (int i = 0; i < 3; i++) {
        receives[i] = operation(1, i / 2, NULL, got[i], 4);
        in[i] = begin(&receives[i], &tags[i]);
    }
    CHECK(tags[0] == 2 * LINK_TAGS && tags[1] == LINK_TAGS + 1 && tags[2] == LINK_TAGS + 2);
    for (int i = 2; i >= 0; i--) {
        acomm_gpu_array array = {(uintptr_t)data[i], 11, 0};
        struct acomm_op send = operation(0, i / 2, &array, NULL, 4);
        CHECK(mpi_message_end(begin(&send, &tags[i])));
    }
    for (int i = 0; i < 3; i++) {
        CHECK(mpi_message_end(in[i]));
        CHECK(!strcmp(got[i], data[i]));
    }
    close_ends();
}

/* A receive that does not end, as of a failed group, keeps its tag from all others, and its fabric. */
static void test_tags_of_failed_groups(void)
{
    static char kept[4], got[4], data[4] = "new";
    int64_t left = 0, tag = 0;
    acomm_gpu_array to = {(uintptr_t)kept, 12, 0}, from = {(uintptr_t)data, 12, 0};
    open_groups();
    struct acomm_op lost = operation(1, 0, &to, got, 4), receive = operation(1, 0, NULL, got, 4), send = operation(0, 0, &from, NULL, 4);
    struct fabric_message *stays = begin(&lost, &left);
    ends[1]->received = LINK_TAGS; /* they have come round */
    struct fabric_message *in = begin(&receive, &tag);
    CHECK(left == LINK_TAGS + 1 && tag == LINK_TAGS + 2);
    CHECK(mpi_message_end(begin(&send, &tag)));
    CHECK(mpi_message_end(in));
    CHECK(!strcmp(got, "new") && !*kept && to.state == ACOMM_GPU_GIVEN);
    ends[1]->closed = true;
    fabrics_look();
    CHECK(all.fabrics == ends[1]);
    CHECK(mpi_message_end(begin(&send, &left)));
    CHECK(mpi_message_end(stays));
    close_ends();
}

/* No tag is left, or the library could not count the elements: nothing has begun. */
static void test_refused(void)
{
    static struct mpi_message used[LINK_TAGS];
    static char got[4];
    int64_t tag = 0;
    open_groups();
    struct acomm_op receive = operation(1, 0, NULL, got, (uint64_t)1 << 30);
    struct fabric_message *refused = begin(&receive, &tag);
    CHECK_EQUAL(refused->code, ACOMM_RESOURCE);
    free(refused);
    for (int i = 0; i < LINK_TAGS; i++)
        used[i] = (struct mpi_message){.next = i ? &used[i - 1] : NULL, .tag = LINK_TAGS + 1 + i};
    ends[1]->receives = &used[LINK_TAGS - 1];
    receive.count = 4;
    refused = begin(&receive, &tag);
    CHECK_EQUAL(refused->code, ACOMM_RESOURCE);
    free(refused);
    ends[1]->receives = NULL;
    CHECK(!requests[0].used);
    close_ends();
}

static void test_errors(void)
{
    char data[4];
    acomm_gpu_array array = {(uintptr_t)data, 11, 0};
    int64_t tag = LINK_TAGS + 1;
    open_groups();
    struct acomm_op send = operation(0, 0, &array, NULL, 4);
    failing = 1;
    struct fabric_message *out = begin(&send, &tag);
    CHECK_EQUAL(out->code, ACOMM_LIBRARY);
    CHECK(!strcmp(out->why, "error 16"));
    free(out);
    close_ends();
}

/* After the end of MPI nothing is under way, and nothing begins. */
static void test_end(void)
{
    static char got[4];
    acomm_gpu_array array = {(uintptr_t)got, 11, 0};
    int64_t tag = 0;
    open_groups();
    struct acomm_op receive = operation(1, 0, &array, got, 4);
    struct fabric_message *in = begin(&receive, &tag);
    fabrics_let_go();
    CHECK(requests[0].cancelled);
    CHECK(!mpi_message_end(in) && in->code == ACOMM_CLOSED);
    struct fabric_message *late = begin(&receive, &tag);
    CHECK_EQUAL(late->code, ACOMM_CLOSED);
    CHECK_EQUAL(depth, 0);
    free(late);
}

int main(void)
{
    TEST(test_arrays);
    TEST(test_tags);
    TEST(test_tags_of_failed_groups);
    TEST(test_refused);
    TEST(test_errors);
    TEST(test_end);
    forget();
    return CHECK_RESULT();
}
