/* Callers of the C API, in threads that Python knows nothing of; each function of test_c_api.py's gives 0 or the line that failed. */
#include <arraycomm.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition) do { if (!(condition)) return __LINE__; } while (0)
enum { SECOND = 1000000000 };
static const acomm_api *api;

int begin(const char *path)
{
    void *library = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
    acomm_api_function get = library ? (acomm_api_function)dlsym(library, "arraycomm_api") : NULL;
    CHECK(get && !get(0) && !get(ACOMM_API_VERSION + 1));
    api = get(ACOMM_API_VERSION);
    CHECK(api && api->version >= ACOMM_API_VERSION && api->bytes >= sizeof *api);
    return 0;
}

static int run(int64_t group, acomm_call call)
{
    return api->run(group, &call);
}

#define RUN(kind_, ...) run(group, (acomm_call){.kind = ACOMM_##kind_, .dtype = ACOMM_INT32, __VA_ARGS__})

static int collectives(int64_t group)
{
    int32_t r, n, x[8] = {0}, y[64];
    CHECK(!api->place(group, &r, &n));
    x[0] = r;
    CHECK(!RUN(BARRIER));
    CHECK(!RUN(ALL_REDUCE, .in = x, .out = y, .count = 1, .redop = ACOMM_SUM) && y[0] == n * (n - 1) / 2);
    CHECK(!RUN(ALL_REDUCE, .in = x, .out = y, .count = 1, .redop = ACOMM_PREMUL_SUM, .factor = 2) && y[0] == n * (n - 1));
    CHECK(!RUN(REDUCE, .in = x, .out = r ? NULL : y, .count = 1, .redop = ACOMM_MAX) && (r || y[0] == n - 1));
    CHECK(!RUN(BROADCAST, .in = r == 1 ? x : NULL, .out = y, .count = 1, .root = 1) && y[0] == 1);
    CHECK(!RUN(ALL_GATHER, .in = x, .out = y, .count = 1) && y[0] == 0 && y[n - 1] == n - 1);
    CHECK(!RUN(GATHER, .in = x, .out = r ? NULL : y, .count = 1) && (r || y[n - 1] == n - 1));
    for (int i = 0; i < n; i++)
        y[i] = 10 * i;
    CHECK(!RUN(SCATTER, .in = r ? NULL : y, .out = x, .count = 1) && x[0] == 10 * r);
    CHECK(!RUN(REDUCE_SCATTER, .in = y, .out = x, .count = 1, .redop = ACOMM_SUM) && x[0] == 10 * r * n);
    for (int i = 0; i < n; i++)
        y[i] = 100 * r + i;
    CHECK(!RUN(ALL_TO_ALL, .in = y, .out = x, .count = 1) && x[n - 1] == 100 * (n - 1) + r);
    return 0;
}

static int uneven(int64_t group)
{
    int32_t r, n, x[64], y[64];
    uint64_t counts[16], here[16], each[16];
    CHECK(!api->place(group, &r, &n));
    for (int i = 0; i < n; i++) {
        counts[i] = (uint64_t)i;
        here[i] = (uint64_t)r;
        each[i] = (uint64_t)i;
    }
    for (int i = 0; i < 64; i++)
        x[i] = r;
    CHECK(!RUN(ALL_GATHER, .in = x, .out = y, .counts = counts) && y[0] == 1 && y[n * (n - 1) / 2 - 1] == n - 1);
    CHECK(!RUN(REDUCE_SCATTER, .in = x, .out = y, .counts = counts, .redop = ACOMM_MAX) && (!r || y[r - 1] == n - 1));
    CHECK(!RUN(ALL_TO_ALL, .in = x, .out = y, .counts = here, .receives = each) && y[0] == 1 && y[n * (n - 1) / 2 - 1] == n - 1);
    return 0;
}

static int messages(int64_t group)
{
    int32_t r, n, x = 0, y = -1, source;
    int64_t tag;
    uint64_t bytes;
    acomm_work *work[2];
    CHECK(!api->place(group, &r, &n));
    acomm_call send = {.kind = ACOMM_SEND, .in = &r, .count = 1, .dtype = ACOMM_INT32, .root = (r + 1) % n, .tag = 5};
    acomm_call receive = {.kind = ACOMM_RECV, .out = &y, .count = 1, .dtype = ACOMM_INT32, .root = -1, .tag = -1};
    CHECK(!api->start(group, &receive, &work[0]) && api->received(work[0], &source, &tag, &bytes) == ACOMM_ARGUMENT);
    CHECK(api->wait(work[0], 0) == 1 || y >= 0);
    CHECK(!api->start(group, &send, &work[1]));
    CHECK(!api->wait(work[0], -1) && !api->wait(work[1], -1) && !api->wait(work[0], 0));
    CHECK(y == (r + n - 1) % n && !api->received(work[0], &source, &tag, &bytes) && source == y && tag == 5 && bytes == 4);
    api->free(work[0]);
    api->free(work[1]);
    CHECK(!api->start(group, &receive, &work[0]) && !api->start(group, &send, &work[1]));
    CHECK(!api->finish(work[1]) && !api->finish(work[0]));
    CHECK(!api->exchange(group, &send, &receive) && receive.root == (r + n - 1) % n);
    CHECK(!api->exchange(group, r ? NULL : &send, r == 1 ? &receive : NULL) && !api->exchange(group, NULL, NULL));
    CHECK(!api->start(group, &(acomm_call){.kind = ACOMM_ALL_REDUCE, .in = &r, .out = &x, .count = 1, .dtype = ACOMM_INT32}, &work[0]));
    CHECK(!api->wait(work[0], -1) && x == n * (n - 1) / 2);
    api->free(work[0]);
    return 0;
}

static int groups(int64_t group)
{
    int32_t r, n, size, rank, x = 1, y;
    int64_t part, none;
    CHECK(!api->place(group, &r, &n));
    CHECK(!api->split(group, r < 2 ? 0 : -1, -r, &part) && (part > 0) == (r < 2)); /* in the opposite order */
    CHECK(r >= 2 || (!api->place(part, &rank, &size) && size == 2 && rank == 1 - r));
    CHECK(r >= 2 || (!run(part, (acomm_call){.kind = ACOMM_ALL_REDUCE, .in = &x, .out = &y, .count = 1, .dtype = ACOMM_INT32}) && y == 2));
    CHECK(r >= 2 || (!api->close(part, NULL) && api->close(part, NULL) == ACOMM_CLOSED));
    CHECK(r || (!api->subgroup(group, (int32_t[]){0}, 1, "alone", &none) && none > part));
    CHECK(r || (api->subgroup(group, (int32_t[]){1}, 1, "without me", &none) == ACOMM_PYTHON));
    return 0;
}

static int says(const char *what)
{
    char text[600];
    size_t length = api->error(text, sizeof text, NULL);
    return length == strlen(text) && strstr(text, what) && api->error(NULL, 0, NULL) == length;
}

static int refusals(int64_t group)
{
    int32_t r, n, x = 0;
    CHECK(!api->place(group, &r, &n));
    CHECK(RUN(ALL_REDUCE, .in = &x, .count = 1) == ACOMM_ARGUMENT && says("out is NULL"));
    CHECK(RUN(BROADCAST, .out = &x, .count = 1, .root = r) == ACOMM_ARGUMENT && says("in is NULL"));
    CHECK(RUN(BROADCAST, .out = &x, .count = 1, .root = n) == ACOMM_ARGUMENT && says("root"));
    CHECK(RUN(SEND, .in = &x, .count = 1, .root = -1) == ACOMM_ARGUMENT && says("root"));
    CHECK(RUN(SEND, .in = &x, .count = 1, .tag = -1) == ACOMM_ARGUMENT && says("tag"));
    CHECK(RUN(KINDS) == ACOMM_ARGUMENT && says("kind"));
    CHECK(run(group, (acomm_call){.kind = ACOMM_BARRIER, .dtype = ACOMM_DTYPES}) == ACOMM_ARGUMENT && says("dtype"));
    CHECK(RUN(GATHER, .counts = (uint64_t[16]){0}) == ACOMM_ARGUMENT && says("counts"));
    CHECK(RUN(ALL_TO_ALL, .counts = (uint64_t[16]){0}) == ACOMM_ARGUMENT && says("counts"));
    CHECK(RUN(ALL_GATHER, .receives = (uint64_t[16]){0}) == ACOMM_ARGUMENT && says("receives"));
    CHECK(run(group, (acomm_call){.kind = ACOMM_ALL_REDUCE, .in = &x, .out = &x, .count = 1, .dtype = ACOMM_FLOAT32,
                                  .redop = ACOMM_BAND}) == ACOMM_UNSUPPORTED && says("not defined"));
    CHECK(api->exchange(group, &(acomm_call){.kind = ACOMM_RECV}, NULL) == ACOMM_ARGUMENT && says("exchange"));
    CHECK(api->run(1 << 20, &(acomm_call){.kind = ACOMM_BARRIER}) == ACOMM_ARGUMENT && says("handle"));
    CHECK(api->run(-1, &(acomm_call){.kind = ACOMM_BARRIER}) == ACOMM_ARGUMENT && api->place(0, &r, &n) == ACOMM_ARGUMENT);
    CHECK(api->split(1 << 20, 0, 0, &(int64_t){0}) == ACOMM_ARGUMENT && says("handle"));
    return RUN(BARRIER) ? __LINE__ : 0; /* it can be used as before */
}

static int works(int64_t group)
{
    int (*parts[])(int64_t) = {collectives, uneven, messages, groups, refusals};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        int line = parts[i](group);
        if (line)
            return line;
    }
    return 0;
}

/* Rank 1 leaves with a message of nobody's begun; the others see it go, and ask for a text when their group is closed, too. */
static int leaves(int64_t group)
{
    int32_t r, n, x = 0, left = -1;
    acomm_work *work;
    CHECK(!api->place(group, &r, &n));
    CHECK(!api->start(group, &(acomm_call){.kind = ACOMM_RECV, .out = &x, .count = 1, .dtype = ACOMM_INT32, .tag = 9, .root = 1}, &work));
    CHECK(!RUN(BARRIER));
    if (r == 1) {
        CHECK(!api->close(group, "a reason") && api->wait(work, -1) == ACOMM_CLOSED && says("closed"));
        CHECK(RUN(BARRIER) == ACOMM_CLOSED && says("closed"));
        api->free(work);
        return 0;
    }
    CHECK(RUN(BARRIER) == ACOMM_LOST && api->error(NULL, 0, &left) && left == 1);
    CHECK(says("PeerLost: rank ") && says("a reason") && says("rank 1"));
    CHECK(api->wait(work, -1) == ACOMM_LOST && !api->close(group, NULL) && says("lost"));
    api->free(work);
    return 0;
}

static int aborts(int64_t group)
{
    int32_t r, n, x;
    acomm_work *work;
    CHECK(!api->place(group, &r, &n));
    CHECK(!api->start(group, &(acomm_call){.kind = ACOMM_RECV, .out = &x, .count = 1, .dtype = ACOMM_INT32, .root = -1}, &work));
    api->free(work); /* it goes on */
    CHECK(!RUN(BARRIER));
    if (r == 0)
        CHECK(!api->abort(group, "enough"));
    CHECK(RUN(BARRIER) == ACOMM_ABORTED && says("Aborted: ") && says("enough"));
    return 0;
}

static struct { const char *name; int (*function)(int64_t); } all[] = {{"works", works}, {"leaves", leaves}, {"aborts", aborts}};
struct job { int (*function)(int64_t); int64_t group; int line; };

static void *run_job(void *argument)
{
    struct job *job = argument;
    job->line = job->function(job->group);
    return NULL;
}

int in_a_thread(const char *name, int64_t group)
{
    pthread_t thread;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        struct job job = {all[i].function, group, 0};
        if (strcmp(all[i].name, name))
            continue;
        CHECK(!pthread_create(&thread, NULL, run_job, &job) && !pthread_join(thread, NULL));
        return job.line;
    }
    return __LINE__;
}

/* In the caller's own: 0, or the code. */
int barrier(int64_t group)
{
    return RUN(BARRIER);
}

int close_group(int64_t group)
{
    return api->close(group, NULL);
}

int text(char *to, int bytes)
{
    return (int)api->error(to, (size_t)bytes, NULL);
}
