/* engine: all */
/* Two ranks that exchange long messages share a processor, those that exchange short ones do not, where there are more ranks than
 * processors; and who waits for a peer without a core. */
#include "fake_processors.h"
#include "group.h"
#include "p2p_peer.h"
#include "stream.h"

#define COUNTED 31  /* waits that do not count yet */
#define FEW 3       /* messages in a row that make no partners yet */
#define ATTEMPTS 100 /* a wait does not come so far each time on a busy machine */
#define MIDDLE ((16 << 10) + 1) /* bytes for which one processor may be as good as two */
#define LONG (256 << 10)

static void works_lately(struct shared *s, int rank, int place)
{
    atomic_store(shared_place(s, rank), 1 + place);
    atomic_store(&shared_turn(s, rank)->since, clock_now());
}

/* Rank 0, on the first processor, joins rank 1 on the second? So many others work on either. */
static bool joins(int here, int there)
{
    struct shared s = open_shared(0);
    struct places places = {0};
    start_on_first(second);
    atomic_store(shared_place(&s, 1), 1 + second);
    for (int rank = 2; rank < 2 + here + there; rank++)
        works_lately(&s, rank, rank < 2 + here ? first : second);
    bool joined = places_join(&places, &s, 1);
    CHECK_EQUAL(moves, joined);
    CHECK_EQUAL(atomic_load(shared_place(&s, 0)), 1 + (joined ? second : first));
    shared_close(&s);
    return joined;
}

static void test_joins_where_both_processors_go_on_working(void)
{
    CHECK(joins(1, 0));
    CHECK(joins(1, 1)); /* somebody of theirs may have a partner here, who comes then */
    CHECK(joins(2, 1));
    CHECK(!joins(0, 0));
    CHECK(!joins(0, 1));
    CHECK(!joins(1, 2));
}

static void test_joins_no_rank_that_it_cannot(void)
{
    struct shared s = open_shared(0);
    struct places places = {0};
    start_on_first(second);
    atomic_store(shared_place(&s, 2), 1 + first); /* idle: it has not waited for anybody */
    CHECK(!places_join(&places, &s, 1)); /* nobody knows where that is */
    atomic_store(shared_place(&s, 1), 1 + second);
    CHECK(!places_join(&places, &s, 1));
    works_lately(&s, 2, first);
    start_on_first(first); /* we may not be anywhere else */
    CHECK(!places_join(&places, &s, 1));
    start_on_first(second);
    places = (struct places){0};
    refuses = true;
    CHECK(!places_join(&places, &s, 1));
    CHECK_EQUAL(atomic_load(shared_place(&s, 0)), 1 + first);
    refuses = false;
    CHECK(!places_join(&places, &s, 1)); /* not again so soon */
    places = (struct places){0};
    atomic_store(shared_place(&s, 1), 1 + first);
    CHECK(!places_join(&places, &s, 1));
    CHECK_EQUAL(moves, 0);
    atomic_store(shared_place(&s, 1), 1 + second);
    CHECK(places_join(&places, &s, 1));
    atomic_store(shared_place(&s, 1), 1 + first);
    works_lately(&s, 2, second);
    CHECK(!places_join(&places, &s, 1)); /* who fights with the kernel gives in */
    shared_close(&s);
}

/* Message by message, from rank 0: after how many it has joined the receiver, or 0. Every `each`-th one goes to another rank. */
static int joins_after(uint64_t bytes, bool crowded, int each)
{
    struct acomm_group group = {.rank = 0, .size = RANKS, .crowded = crowded, .shared = open_shared(0)};
    int seats[RANKS] = {0, 1, 2, 3, 4};
    group.hosts.seat = seats;
    _Atomic uint32_t withdrawn = 0;
    struct link link = {.withdrawn = &withdrawn};
    struct p2p p = {.group = &group};
    struct p2p_peer peers[] = {{.rank = 1, .to = &link}, {.rank = 2, .to = &link}};
    struct acomm_op op = {.group = &group, .in = ""};
    struct p2p_item item = {.op = &op, .bytes = bytes};
    start_on_first(second);
    atomic_store(shared_place(&group.shared, 1), 1 + second);
    works_lately(&group.shared, 2, first);
    int sent = 0;
    while (!moves && sent++ < FEW * FEW)
        CHECK_EQUAL(p2p_offer_place(&p, &peers[sent % each == 0], &item).how, DIRECT_PRIVATE);
    shared_close(&group.shared);
    return moves ? sent : 0;
}

static void test_joins_whom_it_exchanges_long_messages_with(void)
{
    int after = joins_after(STREAM_LONG, true, 100);
    CHECK(after > 2);
    CHECK_EQUAL(joins_after(STREAM_LONG - 1, true, 100), 0);
    CHECK_EQUAL(joins_after(STREAM_LONG, false, 100), 0);
    CHECK_EQUAL(joins_after(STREAM_LONG, true, 2), 0);
    CHECK_EQUAL(joins_after(STREAM_LONG, true, 3), 0);
}

/* Rank `own`, on the first processor, leaves the other one of ranks 0 and 1? So many others work here and there. */
static bool leaves(int own, int here, int there)
{
    struct shared s = open_shared(own);
    struct places places = {0};
    start_on_first(second);
    for (int rank = 0; rank < RANKS; rank++)
        atomic_store(shared_place(&s, rank), 1 + (rank < 2 ? first : second));
    for (int rank = 2; rank < 2 + here + there; rank++)
        works_lately(&s, rank, rank < 2 + here ? first : second);
    bool left = places_leave(&places, &s, 1 - own);
    CHECK_EQUAL(moves, left);
    CHECK_EQUAL(atomic_load(shared_place(&s, own)), 1 + (left ? second : first));
    processor = first;
    atomic_store(shared_place(&s, own), 1 + first);
    CHECK(!places_leave(&places, &s, 1 - own)); /* not again so soon */
    places = (struct places){0};
    atomic_store(shared_place(&s, 1 - own), 1 + second);
    CHECK(!places_leave(&places, &s, 1 - own)); /* they are apart */
    shared_close(&s);
    return left;
}

static void test_leaves_for_where_no_more_work(void)
{
    CHECK(leaves(1, 0, 0));
    CHECK(leaves(1, 0, 2));
    CHECK(leaves(1, 1, 2));
    CHECK(!leaves(1, 0, 3));
    CHECK(!leaves(0, 0, 0)); /* of two, one has to be who moves */
}

/* Rank 1 of three, which is on the first processor. */
static acomm_group *open_group(acomm_group_options *o)
{
    static const int32_t members[] = {0, 1, 2}, hosts[] = {0, 0, 0};
    acomm_group *g = NULL;
    *o = (acomm_group_options){.id = 1, .rank = 1, .size = 3, .local = 3, .crowded = true, .members = members, .hosts = hosts,
                               .piece_bytes = PIECE, .segment_fd = memfd_create("test", MFD_CLOEXEC),
                               .segment_bytes = acomm_segment_bytes(3, PIECE), .connections = 1, .check = 1, .timeout = 20 * SECOND};
    start_on_first(second);
    CHECK(ftruncate(o->segment_fd, (off_t)o->segment_bytes) == 0);
    CHECK_EQUAL(acomm_group_open(NULL, o, &g), 0);
    return g;
}

static struct acomm_op message(acomm_group *g, int kind, int peer, uint64_t bytes)
{
    static char data[LONG];
    return (struct acomm_op){.group = g, .kind = kind, .in = data, .out = data, .count = bytes, .dtype = ACOMM_UINT8, .width = 1,
                             .peer = peer, .root = -1, .timeout = SECOND / 20, .synchronous = true};
}

/* Whom it says that it talks to, and to nobody else: 1 + the rank. */
static void test_says_whom_it_talks_to(void)
{
    acomm_group_options o;
    acomm_group *g = open_group(&o);
    struct acomm_op receive = message(g, ACOMM_RECV, 0, 1), other = message(g, ACOMM_RECV, 2, 1);
    int sent = 0;
    for (; sent < FEW * FEW + FEW && !atomic_load(&g->bell->partner); sent++) {
        struct acomm_op send = message(g, ACOMM_SEND, 2, 1);
        CHECK_EQUAL(p2p_post(g->p2p, &send), 0);
        CHECK(op_ended(&send));
    }
    CHECK(sent > FEW);
    CHECK_EQUAL(atomic_load(&g->bell->partner), 1 + 2);
    CHECK_EQUAL(p2p_post(g->p2p, &other), 0);
    CHECK_EQUAL(atomic_load(&g->bell->partner), 1 + 2);
    CHECK_EQUAL(p2p_post(g->p2p, &receive), 0);
    CHECK_EQUAL(atomic_load(&g->bell->partner), 0);
    acomm_group_close(g);
    close(o.segment_fd);
}

/* A wait of rank 1 for a message of rank 0; rank 2 is on the first processor. It fails by its deadline. */
struct waiting {
    uint64_t bytes;
    int peer_at;             /* the processor of rank 0, */
    bool away, asleep;       /* which has none now, or wants none */
    bool talks, alone;       /* it exchanges messages with rank 0 alone, and that with it */
    bool (*look)(const struct link *link); /* for what has come; NULL: the link's own */
    int64_t took;            /* ns of all its waits but one that count together; 0: none are counted yet */
};

static void wait_for(const struct waiting *t)
{
    acomm_group_options o;
    acomm_group *g = open_group(&o);
    atomic_store(shared_place(&g->shared, 0), 1 + t->peer_at);
    works_lately(&g->shared, 2, t->peer_at == first ? second : first);
    struct acomm_op op = message(g, ACOMM_RECV, 0, t->bytes);
    CHECK_EQUAL(p2p_post(g->p2p, &op), 0);
    struct link *from = g->p2p->peers[0]->from;
    const struct link_ops *before = from->ops;
    struct link_ops ops = *before;
    ops.waiting = t->look ? t->look : ops.waiting;
    from->ops = &ops;
    atomic_store(&from->theirs->away, t->away);
    atomic_store(&from->theirs->listeners, t->asleep);
    atomic_store(&from->theirs->partner, t->alone ? 1 + 1 : 0);
    g->p2p->addressee = g->p2p->peers[0];
    g->p2p->talk = t->talks ? P2P_TALK : 0;
    g->p2p->waits = t->took ? COUNTED : 0;
    g->p2p->waited = clock_now() - t->took;
    CHECK_EQUAL(p2p_wait(g->p2p, &op), ACOMM_TIMEOUT);
    from->ops = before;
    CHECK_EQUAL(atomic_load(shared_place(&g->shared, 1)) - 1, moves ? second : first);
    acomm_group_close(g);
    close(o.segment_fd);
}

/* Whether rank 1 does, by messages of so many bytes. */
static void moves_for(uint64_t bytes, int peer_at, bool expected)
{
    struct waiting t = {.bytes = bytes, .peer_at = peer_at, .talks = true, .alone = true};
    for (int i = 0; i < (expected ? ATTEMPTS : FEW) && (i == 0 || !moves); i++)
        wait_for(&t);
    CHECK_MESSAGE(moves == expected, "%d moves for %d B", moves, (int)bytes);
}

static void test_moves_for_whom_it_talks_to(void)
{
    moves_for(1, first, true);
    moves_for(MIDDLE - 1, first, true);
    moves_for(MIDDLE, first, false);
    moves_for(LONG, first, false); /* they are together */
    moves_for(LONG, second, true);
    moves_for(LONG - 1, second, false);
    moves_for(1, second, false);
}

static void test_stays_where_others_talk_to_either(void)
{
    struct waiting t = {.bytes = 1, .peer_at = first, .talks = false, .alone = true};
    wait_for(&t);
    CHECK_EQUAL(moves, 0);
    t.talks = true;
    t.alone = false;
    wait_for(&t);
    CHECK_EQUAL(moves, 0);
}

/* Each but for a moment, that is: who does something else before it answers would do that in another rank's time. */
static void test_stays_where_answers_take_long(void)
{
    struct waiting t = {.bytes = 1, .peer_at = first, .talks = true, .alone = true, .took = 1};
    turn = SECOND / 50000; /* so few waits follow that they do not count */
    for (int i = 0; i == 0 || (i < ATTEMPTS && !moves); i++)
        wait_for(&t);
    CHECK_EQUAL(moves, 1);
    t.took = SECOND / 1000;
    for (int i = 0; i < FEW; i++) {
        wait_for(&t);
        CHECK_EQUAL(moves, 0);
    }
    turn = 0;
}

static int looks, looks_by_then; /* before the first yield */

static bool look(const struct link *link)
{
    (void)link;
    looks++;
    return false;
}

static void count(void)
{
    looks_by_then = yields ? looks_by_then : looks;
}

static int looks_for_one(struct waiting t)
{
    t.bytes = 1;
    t.look = look;
    looks = looks_by_then = 0;
    before_yield = count;
    wait_for(&t);
    before_yield = NULL;
    return looks_by_then;
}

/* Of two halves of pairs one has to wait for its other half, and one has to make room. */
static void test_waits_for_a_peer_without_a_core_if_that_is_on_a_later_processor(void)
{
    struct waiting t = {.peer_at = second, .talks = true, .alone = true};
    int usual = looks_for_one(t), longer = 0;
    t.away = true;
    for (int i = 0; i < ATTEMPTS && longer <= 3 * usual; i++) /* on a busy machine its turn may be over before */
        longer = looks_for_one(t);
    CHECK(usual > 20);
    CHECK(longer > 3 * usual);
    struct waiting earlier = t, asleep = t, others = t, any = t;
    earlier.peer_at = first;
    asleep.asleep = true;
    others.alone = false;
    any.talks = false;
    CHECK_EQUAL(looks_for_one(earlier), 0);
    CHECK_EQUAL(looks_for_one(asleep), 0);
    CHECK_EQUAL(looks_for_one(others), 0);
    CHECK_EQUAL(looks_for_one(any), 0);
}

int main(void)
{
    TEST(test_joins_where_both_processors_go_on_working);
    TEST(test_joins_no_rank_that_it_cannot);
    TEST(test_joins_whom_it_exchanges_long_messages_with);
    TEST(test_leaves_for_where_no_more_work);
    TEST(test_says_whom_it_talks_to);
    TEST(test_moves_for_whom_it_talks_to);
    TEST(test_stays_where_others_talk_to_either);
    TEST(test_stays_where_answers_take_long);
    TEST(test_waits_for_a_peer_without_a_core_if_that_is_on_a_later_processor);
    return CHECK_RESULT();
}
