/* Receives through a bounce buffer in the cache where direct receives take longer than usual (4 KiB aliasing). */
#include "memory/bounce.h"

#include "base/clock.h"
#include "memory/stream.h"

#define PAGE 4096u
#define SLOW 1.8f  /* times the best: a piece with possible aliasing; between caches, pieces differ by as much */
#define WORTH 0.7f /* of the direct path's time: the bounce copy is used. It costs a tenth more without aliasing */
#define FADING 0.01f

enum bounce_way bounce_way(struct bounce *d, const char *to)
{
    uint64_t track = ((uintptr_t)to - d->received) % PAGE;
    if (track != d->track || d->turns == BOUNCE_TURNS) {
        d->way = BOUNCE_TRY_STRAIGHT;
        d->turns = 0;
    }
    d->track = track;
    return d->way;
}

static enum bounce_way next_way(struct bounce *d, float cost)
{
    switch (d->way) {
    case BOUNCE_TRY_STRAIGHT:
        d->straight = cost;
        return !d->best || cost > SLOW * d->best ? BOUNCE_TRY_AROUND : BOUNCE_STRAIGHT;
    case BOUNCE_TRY_AROUND:
        return cost < WORTH * d->straight ? BOUNCE_AROUND : BOUNCE_STRAIGHT;
    case BOUNCE_AROUND:
        d->turns++;
        break;
    case BOUNCE_STRAIGHT:
        break;
    }
    return d->way;
}

void bounce_learn(struct bounce *d, size_t bytes, int64_t ns)
{
    float cost = (float)ns / (float)bytes;
    d->way = next_way(d, cost);
    d->best = !d->best || cost < d->best ? cost : d->best + (cost - d->best) * FADING;
}

static size_t bounce_at_most(size_t bytes, size_t most)
{
    return bytes < most ? bytes : most;
}

static ssize_t receive_around(bounce_recv *recv, void *stream, char *to, size_t bytes)
{
    _Alignas(PAGE) char scratch[PAGE + BOUNCE_PIECE];
    char *here = scratch + ((uintptr_t)to + PAGE / 2) % PAGE;
    ssize_t n = recv(stream, here, bounce_at_most(bytes, BOUNCE_PIECE));
    if (n > 0)
        stream_keep(to, here, (size_t)n);
    return n;
}

ssize_t bounce_receive(struct bounce *d, bounce_recv *recv, void *stream, char *to, size_t bytes)
{
    bool matters = bytes >= BOUNCE_LEAST && stream_has_strings();
    enum bounce_way way = matters ? bounce_way(d, to) : BOUNCE_STRAIGHT;
    bool around = way == BOUNCE_TRY_AROUND || way == BOUNCE_AROUND;
    int64_t before = matters ? clock_now() : 0;
    ssize_t n = around ? receive_around(recv, stream, to, bytes)
                       : recv(stream, to, way == BOUNCE_TRY_STRAIGHT ? bounce_at_most(bytes, BOUNCE_LEAST) : bytes);
    if (n <= 0)
        return n;
    d->received += (uint64_t)n;
    if (matters && (size_t)n >= BOUNCE_LEAST)
        bounce_learn(d, (size_t)n, clock_now() - before);
    return n;
}
