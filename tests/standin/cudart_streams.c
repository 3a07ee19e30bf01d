/* Streams and events of the stand-in for CUDA's runtime. A stream is a thread. */
#include "cudart.h"
#include <stdlib.h>

struct mark { /* one recording of an event */
    int references;
    bool came;
};

struct event {
    int device;
    struct mark *mark;
};

struct task {
    struct task *next;
    void (*run)(void *argument);
    void *argument;
    struct mark *awaited, *recorded;
};

struct stream {
    int device;
    struct task *first, **last;
    bool busy, ended, gone; /* gone: so is its thread */
};

static struct stream *defaults[MAX_DEVICES], *streams[256];
static int streams_made;
static long events_alive, streams_alive;
uintptr_t captured;
__thread int capture_mode;

/* ---- streams ---- */

static void drop_mark(struct mark *mark)
{
    if (mark && !--mark->references)
        free(mark);
}

static void *serve(void *argument)
{
    struct stream *s = argument;
    serving = true;
    pthread_mutex_lock(&lock);
    for (;;) {
        while (!s->first && !s->ended)
            pthread_cond_wait(&changed, &lock);
        struct task *task = s->first;
        if (!task)
            break;
        while (task->awaited && !task->awaited->came)
            pthread_cond_wait(&changed, &lock);
        s->busy = true;
        s->first = task->next;
        if (!s->first)
            s->last = &s->first;
        pthread_mutex_unlock(&lock);
        if (task->run)
            task->run(task->argument);
        pthread_mutex_lock(&lock);
        if (task->recorded)
            task->recorded->came = true;
        drop_mark(task->recorded);
        drop_mark(task->awaited);
        s->busy = false;
        free(task);
        pthread_cond_broadcast(&changed);
    }
    s->gone = true;
    pthread_mutex_unlock(&lock);
    return NULL;
}

static struct stream *new_stream(int device)
{
    struct stream *s = calloc(1, sizeof *s);
    pthread_t thread;
    s->device = device;
    s->last = &s->first;
    int place = 0;
    while (place < streams_made && !streams[place]->gone)
        place++;
    if (place < streams_made)
        free(streams[place]);
    else
        streams_made++;
    streams[place] = s;
    if (streams_made == sizeof streams / sizeof *streams || pthread_create(&thread, NULL, serve, s))
        abort(); /* a test that makes streams without end */
    pthread_detach(thread);
    return s;
}

struct stream *stream_of(uintptr_t handle)
{
    if (handle > 2) {
        for (int i = 0; i < streams_made; i++)
            if ((uintptr_t)streams[i] == handle && !streams[i]->ended)
                return streams[i];
        return NULL;
    }
    if (!defaults[current])
        defaults[current] = new_stream(current);
    return defaults[current];
}

static void push(struct stream *s, struct task task)
{
    struct task *t = malloc(sizeof *t);
    *t = task;
    t->next = NULL;
    *s->last = t;
    s->last = &t->next;
    pthread_cond_broadcast(&changed);
}

void stream_run(struct stream *s, void (*run)(void *), void *argument)
{
    push(s, (struct task){.run = run, .argument = argument});
}

bool streams_busy(void)
{
    for (int i = 0; i < streams_made; i++)
        if (streams[i]->first || streams[i]->busy)
            return true;
    return false;
}

static int create(const char *function, uintptr_t *stream)
{
    int code = begin(function);
    if (code)
        return code;
    *stream = (uintptr_t)new_stream(current);
    streams_alive++;
    return end(OK);
}

PUBLIC int cudaStreamCreateWithFlags(uintptr_t *stream, unsigned flags)
{
    (void)flags;
    return create("cudaStreamCreateWithFlags", stream);
}

PUBLIC int cudaStreamCreateWithPriority(uintptr_t *stream, unsigned flags, int priority)
{
    (void)flags, (void)priority;
    return create("cudaStreamCreateWithPriority", stream);
}

PUBLIC int cudaStreamDestroy(uintptr_t handle)
{
    int code = begin("cudaStreamDestroy");
    if (code)
        return code;
    struct stream *s = handle > 2 ? stream_of(handle) : NULL;
    if (s) {
        s->ended = true; /* what is enqueued is carried out */
        streams_alive--;
    }
    pthread_cond_broadcast(&changed);
    return end(s ? OK : BAD_HANDLE);
}

PUBLIC int cudaStreamSynchronize(uintptr_t handle)
{
    int code = begin("cudaStreamSynchronize");
    if (code)
        return code;
    struct stream *s = stream_of(handle);
    while (s && (s->first || s->busy))
        pthread_cond_wait(&changed, &lock);
    code = s ? sticky : BAD_HANDLE;
    return end(code);
}

/* From now on this stream is captured into a graph by some thread; 0: none is. */
PUBLIC void standin_capture(uintptr_t stream)
{
    pthread_mutex_lock(&lock);
    captured = stream;
    pthread_mutex_unlock(&lock);
}

PUBLIC int cudaStreamIsCapturing(uintptr_t handle, int *status)
{
    int code = begin("cudaStreamIsCapturing");
    if (code)
        return code;
    *status = handle && handle == captured;
    return end(stream_of(handle) ? OK : BAD_HANDLE);
}

PUBLIC int cudaThreadExchangeStreamCaptureMode(int *mode)
{
    pthread_mutex_lock(&lock);
    contexts |= serving ? 0 : 1ul << current; /* whether CUDA needs one for this nobody says */
    pthread_mutex_unlock(&lock);
    int before = capture_mode;
    capture_mode = *mode;
    *mode = before;
    return OK;
}

PUBLIC int cudaStreamWaitEvent(uintptr_t handle, uintptr_t event, unsigned flags)
{
    (void)flags;
    int code = begin("cudaStreamWaitEvent");
    if (code)
        return code;
    struct stream *s = stream_of(handle);
    struct mark *mark = event ? ((struct event *)event)->mark : NULL;
    if (s && mark) {
        mark->references++;
        push(s, (struct task){.awaited = mark});
    }
    return end(s && event ? OK : BAD_HANDLE);
}

/* Runs a function on a stream, in its order: a kernel. */
PUBLIC int standin_enqueue(uintptr_t handle, void (*run)(void *), void *argument)
{
    int code = begin("standin_enqueue");
    if (code)
        return code;
    struct stream *s = stream_of(handle);
    if (s)
        stream_run(s, run, argument);
    return end(s ? OK : BAD_HANDLE);
}

/* ---- events ---- */

PUBLIC int cudaEventCreateWithFlags(uintptr_t *event, unsigned flags)
{
    (void)flags;
    int code = begin("cudaEventCreateWithFlags");
    if (code)
        return code;
    struct event *e = calloc(1, sizeof *e);
    e->device = current;
    *event = (uintptr_t)e;
    events_alive++;
    return end(OK);
}

PUBLIC int cudaEventRecord(uintptr_t event, uintptr_t handle)
{
    int code = begin("cudaEventRecord");
    if (code)
        return code;
    struct stream *s = stream_of(handle);
    struct event *e = (struct event *)event;
    if (!s || !e || s->device != e->device)
        return end(BAD_HANDLE);
    drop_mark(e->mark);
    e->mark = calloc(1, sizeof *e->mark);
    e->mark->references = 2;
    push(s, (struct task){.recorded = e->mark});
    return end(OK);
}

PUBLIC int cudaEventQuery(uintptr_t event)
{
    int code = begin("cudaEventQuery");
    if (code)
        return code;
    if (captured && !capture_mode)
        return end(CAPTURED);
    struct mark *mark = ((struct event *)event)->mark;
    return end(!mark || mark->came ? OK : NOT_READY);
}

PUBLIC int cudaEventSynchronize(uintptr_t event)
{
    int code = begin("cudaEventSynchronize");
    if (code)
        return code;
    struct mark *mark = ((struct event *)event)->mark;
    while (mark && !mark->came)
        pthread_cond_wait(&changed, &lock);
    return end(sticky);
}

PUBLIC int cudaEventDestroy(uintptr_t event)
{
    int code = begin("cudaEventDestroy");
    if (code)
        return code;
    drop_mark(((struct event *)event)->mark);
    free((struct event *)event);
    events_alive--;
    return end(OK);
}

/* What is there of each: streams that were made, events. */
PUBLIC void standin_alive(long counts[2])
{
    pthread_mutex_lock(&lock);
    counts[0] = streams_alive;
    counts[1] = events_alive;
    pthread_mutex_unlock(&lock);
}
