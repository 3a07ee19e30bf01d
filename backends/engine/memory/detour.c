#include "memory/detour.h"

#include "base/clock.h"
#include "memory/stream.h"

#define PAGE 4096u
#define SLOW 1.8f  /* times the best: a piece that may have stumbled; out of a cache or another core's, pieces differ by as much as that */
#define WORTH 0.7f /* of the straight way's time: the way around is taken. It costs a tenth more where nothing stumbles */
#define FADING 0.01f

enum detour_way detour_way(struct detour *d, const char *to)
{
    uint64_t track = ((uintptr_t)to - d->received) % PAGE;
    if (track != d->track || d->turns == DETOUR_TURNS) {
        d->way = DETOUR_TRY_STRAIGHT;
        d->turns = 0;
    }
    d->track = track;
    return d->way;
}

static enum detour_way next_way(struct detour *d, float cost)
{
    switch (d->way) {
    case DETOUR_TRY_STRAIGHT:
        d->straight = cost;
        return !d->best || cost > SLOW * d->best ? DETOUR_TRY_AROUND : DETOUR_STRAIGHT;
    case DETOUR_TRY_AROUND:
        return cost < WORTH * d->straight ? DETOUR_AROUND : DETOUR_STRAIGHT;
    case DETOUR_AROUND:
        d->turns++;
        break;
    case DETOUR_STRAIGHT:
        break;
    }
    return d->way;
}

void detour_learn(struct detour *d, size_t bytes, int64_t ns)
{
    float cost = (float)ns / (float)bytes;
    d->way = next_way(d, cost);
    d->best = !d->best || cost < d->best ? cost : d->best + (cost - d->best) * FADING;
}

static size_t detour_at_most(size_t bytes, size_t most)
{
    return bytes < most ? bytes : most;
}

static ssize_t receive_around(detour_recv *recv, void *stream, char *to, size_t bytes)
{
    _Alignas(PAGE) char scratch[PAGE + DETOUR_PIECE];
    char *here = scratch + ((uintptr_t)to + PAGE / 2) % PAGE;
    ssize_t n = recv(stream, here, detour_at_most(bytes, DETOUR_PIECE));
    if (n > 0)
        stream_keep(to, here, (size_t)n);
    return n;
}

ssize_t detour_receive(struct detour *d, detour_recv *recv, void *stream, char *to, size_t bytes)
{
    bool matters = bytes >= DETOUR_LEAST && stream_has_strings();
    enum detour_way way = matters ? detour_way(d, to) : DETOUR_STRAIGHT;
    bool around = way == DETOUR_TRY_AROUND || way == DETOUR_AROUND;
    int64_t before = matters ? clock_now() : 0;
    ssize_t n = around ? receive_around(recv, stream, to, bytes)
                       : recv(stream, to, way == DETOUR_TRY_STRAIGHT ? detour_at_most(bytes, DETOUR_LEAST) : bytes);
    if (n <= 0)
        return n;
    d->received += (uint64_t)n;
    if (matters && (size_t)n >= DETOUR_LEAST)
        detour_learn(d, (size_t)n, clock_now() - before);
    return n;
}
