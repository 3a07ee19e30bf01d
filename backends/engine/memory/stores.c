/* Tries ordinary and streaming stores, and keeps to the quicker ones. */
#include "memory/stores.h"

#include <string.h>

#include "base/clock.h"

#define PATIENCE 64 /* pieces after which a trial is given up that nobody has read: contents may be refused, or lie there unwanted */
#define HALF 32     /* bits of a number */
#define SELDOM 64   /* a worse way comes again after so many tries, 20 ms between near cores: when cores move it is the better one, and
                     * nothing else tells */

#define STRINGS ((uint64_t)1 << 20) /* bytes of a whole from which near cores take them without trials; between far ones 1 MiB took 415 us so at 4
                                     * ranks, past the caches 90 */

static const enum stream_stores WAYS[] = {STREAM_KEPT, STREAM_PAST, STREAM_STRING};
_Static_assert(sizeof WAYS / sizeof *WAYS <= CHOICE_WAYS, "as many as a choice has");

static int ways(void)
{
    return stream_has_strings() ? 3 : 2;
}

/* One that comes for the first time begins with what is known of the next smaller one, but tries all once more: cores may have
 * moved since. */
static struct choice *stores_choice_of(struct stores *s, uint64_t whole)
{
    int class = choice_class(whole / STREAM_MIN);
    struct choice *c = &s->choices[class < STORES_CLASSES ? class : STORES_CLASSES - 1];
    for (const struct choice *known = c; !c->tries && !c->moved && known-- > s->choices;)
        if (known->tries >= (uint32_t)ways() * CHOICE_FIRST) {
            memcpy(c->cost, known->cost, sizeof c->cost);
            c->tries = (uint32_t)ways() * (CHOICE_FIRST - 1);
        }
    return c;
}

/* Whether there is a trial whose reader has not answered yet. */
static bool awaited(struct stores *s, struct stores_talk *talk)
{
    if (!s->trial.of)
        return false;
    uint64_t told = atomic_load_explicit(&talk->told, memory_order_relaxed);
    if (told >> HALF == s->number)
        choice_learn(s->trial.of, s->trial.way, s->trial.bytes, s->trial.ns + (int64_t)(uint32_t)told, false);
    else if (s->trial.passed++ < PATIENCE)
        return true;
    s->trial.of = NULL;
    return false;
}

/* The reader may not have come so far: it takes no other piece for this one, because their bytes of the ring differ. */
static void stores_ask(struct stores *s, struct stores_talk *talk, uint64_t at, size_t bytes)
{
    s->number = s->number == UINT32_MAX ? 1 : s->number + 1;
    atomic_store_explicit(&talk->at, at, memory_order_relaxed);
    atomic_store_explicit(&talk->asked, (uint64_t)s->number << HALF | bytes, memory_order_release);
}

void stores_write(struct stores *s, struct stores_talk *talk, uint64_t at, char *to, const char *from, size_t bytes, uint64_t whole)
{
    if (!talk || bytes < STREAM_MIN) {
        bool strings = whole >= STRINGS && bytes >= STREAM_MIN && stream_has_strings();
        s->alone.near = strings ? STREAM_STRING : STREAM_KEPT;
        stream_fill(&s->alone, to, from, bytes);
        return;
    }
    struct choice *c = stores_choice_of(s, whole);
    bool wait = awaited(s, talk);
    if (!c->moved)
        c->agreed = choice_way(c->tries, bytes, c->cost, ways(), SELDOM);
    if (wait || !choice_counts(c, bytes)) {
        c->moved += bytes;
        stream_store(WAYS[c->agreed], to, from, bytes);
        return;
    }
    stores_ask(s, talk, at, bytes);
    int64_t before = clock_now();
    stream_store(WAYS[c->agreed], to, from, bytes);
    s->trial.ns = clock_now() - before;
    s->trial.of = c;
    s->trial.way = c->agreed;
    s->trial.bytes = bytes;
    s->trial.passed = 0;
}

static void stores_tell(struct stores_reader *r, struct stores_talk *talk, uint64_t asked, uint64_t bytes, int64_t ns)
{
    if (asked != r->asked)
        *r = (struct stores_reader){.asked = asked};
    r->ns += ns;
    r->copied += bytes;
    if (r->copied == (uint32_t)asked)
        atomic_store_explicit(&talk->told, asked >> HALF << HALF | (uint32_t)r->ns, memory_order_relaxed);
}

/* Of `bytes` bytes those that are all of the piece that is asked about, from `offset` on in it, or all no part of it. */
static size_t stores_alike(uint64_t offset, uint64_t length, size_t bytes)
{
    uint64_t most = offset < length ? length - offset : -offset; /* which is 0 where nothing was ever asked */
    return most && most < bytes ? (size_t)most : bytes;
}

void stores_read(struct stores_reader *r, struct stores_talk *talk, uint64_t at, char *to, const char *from, size_t bytes, uint64_t whole)
{
    uint64_t asked = atomic_load_explicit(&talk->asked, memory_order_acquire);
    uint64_t offset = at - atomic_load_explicit(&talk->at, memory_order_relaxed), length = (uint32_t)asked;
    for (size_t n; bytes; bytes -= n, to += n, from += n, offset += n) {
        bool timed = offset < length;
        n = stores_alike(offset, length, bytes);
        int64_t before = timed ? clock_now() : 0;
        stream_long(to, from, n, whole);
        if (timed)
            stores_tell(r, talk, asked, n, clock_now() - before);
    }
}
