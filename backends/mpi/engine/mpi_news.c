/* See mpi_news.h. */
#include <string.h>

#include "mpi_messages.h"
#include "mpi_news.h"

static void tell(struct acomm_group *g, uint8_t what, const void *contents, size_t bytes)
{
    struct head head = {.group = g->id, .source = g->rank, .what = what, .count = atomic_load(&g->finished)};
    struct mpi_flight *f = atomic_load(&g->messages->silent) ? NULL : flight_new(g, NULL, g->size, sizeof head + bytes);
    if (!f)
        return;
    memcpy(f->memory, &head, sizeof head);
    memcpy(f->memory + sizeof head, contents, bytes);
    for (int rank = 0; rank < g->size; rank++)
        if (rank != g->rank && (!g->messages->left[rank] || what == GOODBYE || what == GOODBYE_CUT)) /* by which who has left frees the group */
            flight_move(g, f, f->memory, sizeof head + bytes, rank, TAG_NEWS, false);
}

void news_spread(struct acomm_group *g, const acomm_failure *failure)
{
    tell(g, FAILURE, failure, sizeof *failure);
}

/* A peer tells what it calls, or asks whether this rank is past it. */
static void hear_call(struct acomm_group *g, const struct head *head, const void *contents)
{
    struct mpi_messages *m = g->messages;
    struct mpi_record theirs, mine;
    memcpy(&theirs, contents, sizeof theirs);
    uint64_t sequence = theirs.header.sequence;
    if (head->what == ASKED && sequence > m->said && sequence > m->asked)
        m->asked = sequence;
    if (ahead_heard(g, head->source, &theirs, &mine) || atomic_load(&g->poisoned))
        return;
    acomm_failure failure = {.code = ACOMM_MISMATCH, .origin = g->rank, .culprit = head->source, .sequence = sequence,
                             .mine = mine.header, .theirs = theirs.header};
    mpi_poison(g, &failure);
    news_spread(g, &failure);
}

void news_hear(struct acomm_group *g, const struct head *head, const void *contents)
{
    struct mpi_messages *m = g->messages;
    if (head->what == FAILURE) {
        acomm_failure failure;
        memcpy(&failure, contents, sizeof failure);
        mpi_poison(g, &failure);
    } else if (head->what == CALLED || head->what == ASKED) {
        hear_call(g, head, contents);
    } else if ((head->what == GOODBYE || head->what == GOODBYE_CUT) && !m->left[head->source]) {
        m->left[head->source] = 1 + head->count;
        m->littered = m->littered || head->what == GOODBYE_CUT;
        m->gone++;
    }
    if (head->what != CALLED && head->count > m->passed[head->source]) /* who goes on after CALLED has not compared its call with ours */
        m->passed[head->source] = head->count;
}

void news_answer(struct acomm_group *g)
{
    struct mpi_messages *m = g->messages;
    uint64_t finished = atomic_load_explicit(&g->finished, memory_order_acquire);
    if (finished < m->asked || atomic_load(&g->poisoned)) /* who asks hears of that instead */
        return;
    m->asked = 0;
    m->said = finished;
    tell(g, PASSED, "", 0);
}

void messages_spread(struct acomm_group *g, const acomm_failure *failure)
{
    if (g->size == 1)
        return;
    pthread_mutex_lock(&g->messages->lock);
    news_spread(g, failure);
    pthread_mutex_unlock(&g->messages->lock);
}

void messages_goodbye(struct acomm_group *g, bool cut)
{
    if (g->size == 1)
        return;
    pthread_mutex_lock(&g->messages->lock);
    tell(g, cut ? GOODBYE_CUT : GOODBYE, "", 0);
    pthread_mutex_unlock(&g->messages->lock);
}

void messages_call(struct acomm_group *g, const struct mpi_record *mine, bool asks)
{
    struct mpi_messages *m = g->messages;
    pthread_mutex_lock(&m->lock);
    if (asks) /* it tells that this rank is past it, too */
        m->said = atomic_load(&g->finished);
    tell(g, asks ? ASKED : CALLED, mine, sizeof *mine);
    pthread_mutex_unlock(&m->lock);
}

int messages_behind(struct acomm_group *g, uint64_t sequence, bool *gone)
{
    const struct mpi_messages *m = g->messages;
    int behind = -1;
    pthread_mutex_lock(&g->messages->lock);
    for (int rank = 0; rank < g->size && !*gone; rank++)
        if (rank != g->rank && m->passed[rank] < sequence && (behind < 0 || m->left[rank])) {
            behind = rank;
            *gone = m->left[rank] != 0;
        }
    pthread_mutex_unlock(&g->messages->lock);
    return behind;
}

int messages_missing(struct acomm_group *g)
{
    messages_progress(g);
    for (int rank = 0; rank < g->size; rank++)
        if (g->messages->left[rank])
            return rank;
    return -1;
}

void messages_left(struct acomm_group *g, uint8_t *left)
{
    messages_progress(g);
    for (int rank = 0; rank < g->size; rank++)
        left[rank] = g->messages->left[rank] != 0;
}
