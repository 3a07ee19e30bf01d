/* Inside point to point: the state of each peer, and the calls between the p2p_*.c files.
 *
 * Everything here is guarded by p2p.lock; links are used under it too, so that after an operation has ended no thread accesses
 * its buffer. Lock order: p2p.lock, then group->lock. Never the other way round.
 *
 *   p2p.c           entry points: open, post, probe, fail, close; the lock
 *   p2p/wait.c      waiting threads
 *   p2p/match.c     which message belongs to which receive; how operations end
 *   p2p/send.c      frames out, p2p/recv.c frames in
 *   p2p/offer.c     data that the receiver reads where it lies
 *   p2p/share.c     the same, with the sender writing parts of it
 *   p2p/progress.c  which thread makes progress: a waiting one, or the engine's own
 *   serve.c         windows: messages that are answered on arrival */
#ifndef ACOMM_P2P_PEER_H
#define ACOMM_P2P_PEER_H
#include <poll.h>
#include "group/group.h"
#include "p2p/p2p.h"
#include "p2p/wire.h"

/* A ring of nodes with the list itself as one of them: adding and removing need no search and no special case. */
struct p2p_list { struct p2p_list *prev, *next; };

static inline void p2p_list_init(struct p2p_list *list)
{
    list->prev = list->next = list;
}

static inline bool p2p_list_empty(const struct p2p_list *list)
{
    return list->next == list;
}

static inline void p2p_list_remove(struct p2p_list *node)
{
    node->prev->next = node->next;
    node->next->prev = node->prev;
    p2p_list_init(node);
}

/* To the end of `list`, out of the list it was in. */
static inline void p2p_list_move(struct p2p_list *list, struct p2p_list *node)
{
    p2p_list_remove(node);
    node->prev = list->prev;
    node->next = list;
    list->prev->next = node;
    list->prev = node;
}

#define P2P_OF(type, member, node) ((type *)((char *)(node) - offsetof(type, member)))
#define P2P_EACH(at, list) (struct p2p_list *at = (list)->next; at != (list); at = at->next)

/* One operation under way. */
struct p2p_item {
    struct p2p_list here;        /* in one of its peer's lists, or in p2p.any */
    struct p2p_list all;         /* in p2p.all */
    struct p2p_item *spare;      /* free list */
    struct acomm_op *op;
    uint64_t order;              /* receives: when it was posted */
    uint64_t id;                 /* rendezvous */
    uint64_t bytes, moved;
    bool async;                  /* as posted: its owner may change op->synchronous */
    struct wire_place place;     /* of the data, see p2p/offer.c; DIRECT_FABRIC: `at` is the fabric's tag */
    struct fabric_message *message; /* whose data the fabric moves; NULL: the links do */
    bool shared, whole;          /* receives: both sides copy (p2p/share.c); or did, without success */
    uint32_t mine;               /* parts that this side acquired */
    int errnum;                  /* why one could not be read */
    enum { P2P_CLEAR, P2P_REFUSE, P2P_DONE } reply; /* in replies: CTS, NACK or DONE */
    int dtype;                   /* of the message that was refused */
    uint64_t count;
};
#define P2P_ITEM(node) P2P_OF(struct p2p_item, here, node)

/* A message that came before its receive. */
struct p2p_message {
    struct p2p_list here;        /* in its peer's unexpected, until matched */
    uint64_t arrival;            /* order over all peers */
    int64_t tag;
    uint64_t count, bytes, id;
    struct wire_place place;     /* of the data, where the peer offers it */
    int dtype;
    bool eager;                  /* data is here, or arriving; otherwise the peer waits for CTS */
    bool arrived;                /* all of the data */
    struct p2p_item *receiver;   /* matched */
    struct p2p_item *sender;     /* to ourselves: the data is in its buffer */
    char data[];
};
#define P2P_MESSAGE(node) P2P_OF(struct p2p_message, here, node)

#define P2P_SMALL (64 + (16 << 10)) /* header and payload up to here share one system call: a call costs more than the copy */
#define P2P_TURN ((size_t)WIRE_DATA_MAX + P2P_SMALL) /* bytes from or to one peer, up to P2P_SMALL more: then others are served */

/* The frame that is being written. */
struct p2p_out {
    struct p2p_item *item;       /* NULL: none */
    enum wire_kind kind;
    size_t size, sent;           /* of head */
    const char *body;            /* rest of the payload, in the user's buffer */
    uint64_t left;
    uint64_t payload;
    char head[P2P_SMALL];
};

/* The frame that is being read. */
struct p2p_in {
    uint64_t left;               /* bytes of payload to come */
    uint64_t payload;
    char *to;                    /* NULL: to be dropped */
    struct p2p_item *item;       /* whose buffer `to` is */
    struct p2p_message *message; /* or this one's data */
    bool open;                   /* a frame with payload is being read */
    size_t begin, end;           /* bytes read ahead */
    char buffer[P2P_SMALL];
};

struct p2p_peer {
    int rank;
    struct link *to, *from;      /* NULL until needed */
    bool to_ready, from_ready;
    int64_t left;                /* time of its notice that it closed the group, or 0; its messages may still be under way */
    bool gone;                   /* nothing more comes from it */
    bool data_turn;              /* headers and data alternate */
    /* sends */
    struct p2p_list queue;       /* header not sent yet, in posting order */
    struct p2p_list awaiting;    /* RTS sent */
    struct p2p_list sending;     /* CTS received; DATA alternates */
    uint64_t next_id, charged, credited;
    /* receives */
    struct p2p_list posted, replies, receiving, reading; /* reading: and what is under way in the fabric, sends too */
    bool asked, unreadable;      /* whether the system permits reading its memory */
    struct p2p_list unexpected;  /* messages, in order of arrival */
    uint64_t expected_id, arrived, consumed; /* the last two: sums of charges */
    uint64_t remembered;         /* unexpected RTS */
    struct p2p_out out;
    struct p2p_in in;
};

struct p2p_trouble {
    int code, culprit, errnum;   /* code 0: none */
    bool reported;
    const char *text;
    struct acomm_op op;          /* a copy: the original may be gone when the failure is reported */
};

struct p2p {
    struct acomm_group *group;
    pthread_mutex_t lock;
    _Atomic int wanted;          /* threads that wait for the lock; a thread that takes it repeatedly yields it to them */
    struct p2p_peer **peers;     /* by rank, NULL until needed */
    int *open, opened;           /* ranks in peers */
    bool everyone;               /* all peers are open and polled */
    bool serves;                 /* peers send requests at any time (serve.h) */
    struct p2p_list any;         /* receives from any source */
    struct p2p_list probes;      /* probes: operations that wait for a message, and leave it (p2p.c) */
    struct p2p_list all;         /* every operation under way */
    struct p2p_item *spare;
    uint64_t orders, arrivals, credit;
    const char *forced;          /* protocol of long messages, "staged" or "read"; NULL: read where possible */
    bool shares;                 /* peers may write to receives */
    int carried;                 /* messages under way in the fabric, which signals no end */
    int64_t next_deadline;
    int code;                    /* failed: nothing is posted any more */
    struct p2p_trouble trouble;
    /* progress */
    const void *leader;          /* the leader; &thread for our own thread; NULL: none */
    pthread_cond_t turn;         /* waiters that do not lead */
    pthread_cond_t work;         /* our own thread */
    int followers, sleepers;     /* on `turn`; in poll() */
    int async;                   /* operations that may have no waiter */
    uint64_t posts;              /* of those, ever */
    int wake_fd;                 /* eventfd, ends poll(); -1 until needed */
    bool changed;                /* poll() would have to watch more descriptors */
    bool deep;                   /* our thread sleeps until `work` */
    bool started, stopping;
    pthread_t thread;
    struct pollfd *fds[2];       /* of the waiting thread that leads, and of our own */
    int room[2];
    uint32_t passes;             /* also says which peer the next one begins with */
    size_t unseen;               /* bytes moved since deadlines were looked at */
    bool due;                    /* after the last pass clock and signals are due, despite progress */
};

/* p2p.c */
void p2p_acquire(struct p2p *p);
/* The same with the caller's own lock (op.h), which is released before any wait. */
void p2p_acquire_for(struct p2p *p, struct acomm_op *op);
void p2p_release_for(struct p2p *p, struct acomm_op *op);
/* Releases the lock for threads that wait for it, then acquires it again. */
void p2p_pause(struct p2p *p);
/* Unlocks, and reports the trouble found meanwhile to the group. */
void p2p_release(struct p2p *p);
/* Records the first trouble; op may be NULL where none is concerned. errno is kept for codes that have one. */
void p2p_trouble(struct p2p *p, const struct acomm_op *op, int code, int culprit, const char *text);
/* An operation under way, in no list of a peer's; NULL: out of memory. */
struct p2p_item *p2p_new_item(struct p2p *p, struct acomm_op *op, uint64_t bytes);
/* NULL: out of memory. */
struct p2p_peer *p2p_peer_of(struct p2p *p, int rank);
/* Makes the link from the peer, or (NULL) from all, so that its frames are read. */
void p2p_listen(struct p2p *p, struct p2p_peer *peer);
void p2p_listen_everyone(struct p2p *p);
bool p2p_ready(struct p2p *p, const struct link *link, bool *ready);
/* Why a link failed: its own text, if it has one. */
static inline const char *p2p_why(const struct link *link, const char *otherwise)
{
    return link->why ? link->why : otherwise;
}
/* The text for an operation that did not end in time. */
const char *p2p_late(const struct acomm_op *op);
/* p2p/match.c */
void p2p_match_end(struct p2p *p, struct p2p_item *item, int status);
/* A receive ends well. */
void p2p_match_received(struct p2p *p, struct p2p_item *item);
/* The operation ends with ACOMM_TRUNCATED: the other side has this dtype and count. */
void p2p_match_truncated(struct p2p *p, struct p2p_item *item, int dtype, uint64_t count);
bool p2p_match_agrees(const struct p2p_item *item, int dtype, uint64_t count);
/* DIRECT_FABRIC: begins this side's transfer; failures become trouble. tag: the receiver's, or 0. */
void p2p_match_begin(struct p2p *p, struct p2p_item *item, int64_t tag);
/* Both sides have begun: nothing more comes by the link. */
void p2p_match_carry(struct p2p *p, struct p2p_peer *peer, struct p2p_item *item);
/* Whether it has ended or failed. */
bool p2p_match_carried(struct p2p *p, struct p2p_peer *peer, struct p2p_item *item);
/* Takes the receive that a message from `peer` belongs to out of its list; NULL: none is posted. */
struct p2p_item *p2p_match_posted(struct p2p *p, struct p2p_peer *peer, int64_t tag);
/* A receive matched an RTS or an OFFER: gets the data or answers. */
void p2p_match_reply(struct p2p *p, struct p2p_peer *peer, struct p2p_item *item, const struct p2p_message *m);
/* Appends a message of `room` bytes to what is unexpected; NULL (and trouble): out of memory. */
struct p2p_message *p2p_match_aside(struct p2p *p, struct p2p_peer *peer, int64_t tag, int dtype, uint64_t count,
                                    uint64_t room);
/* Ends the receive of an eager message, once it is matched and all of its data has arrived. */
void p2p_match_deliver(struct p2p *p, struct p2p_peer *peer, struct p2p_message *message);
/* A new receive: takes the first message that fits, or waits in the list of posted receives. */
void p2p_match_receive(struct p2p *p, struct p2p_item *item);
/* A new probe: has found a message, or waits in p2p.probes. */
void p2p_match_probe(struct p2p *p, struct p2p_item *item);
/* Ends `awaited`, of any source, if all other ranks have closed the group: the group can still be used. */
void p2p_match_end_alone(struct p2p *p, const struct acomm_op *awaited);
/* The first probe that waits for this peer, or, -1, for any; or NULL. */
struct acomm_op *p2p_match_probing(struct p2p *p, int peer);
/* A send to this rank itself. */
void p2p_match_self(struct p2p *p, struct p2p_peer *self, struct p2p_item *item);

/* p2p/send.c, p2p/recv.c: whether anything moved; failures become trouble. */
bool p2p_send_push(struct p2p *p, struct p2p_peer *peer);
bool p2p_send_waits(const struct p2p_peer *peer);
struct acomm_op *p2p_send_first(const struct p2p_peer *peer); /* an operation that waits to be sent */
/* `full`: reads on when nothing posted needs it. */
bool p2p_recv_pull(struct p2p *p, struct p2p_peer *peer, bool full);

/* p2p/offer.c */
/* Where the receiver can read the data of a send: `how` is DIRECT_NOTHING where it cannot. */
struct wire_place p2p_offer_place(struct p2p *p, const struct p2p_peer *peer, const struct p2p_item *item);
/* A receive matched this place: whether it will read there, from now on in peer->reading. */
bool p2p_offer_accept(struct p2p *p, struct p2p_peer *peer, struct p2p_item *item);
/* Reads a part of the first that has been accepted; whether anything moved. */
bool p2p_offer_pull(struct p2p *p, struct p2p_peer *peer, struct p2p_item *item);
/* Whether a peer can have sent this place for so many bytes. */
bool p2p_offer_valid(const struct p2p *p, const struct wire_place *place, uint64_t bytes);
/* p2p/share.c */
/* Lets the sender write parts of this receive as well, if that can be. */
void p2p_share_open(struct p2p *p, struct p2p_peer *peer, struct p2p_item *item);
/* The next part for this side: its place and bytes. False: none is left. */
bool p2p_share_take(struct p2p_peer *peer, struct p2p_item *item, uint64_t *offset, uint64_t *bytes);
/* This side could not copy its part; no side acquires another. */
void p2p_share_stop(struct p2p_peer *peer, struct p2p_item *item, int errnum);
/* Whether the sender has finished its parts; then it accesses none of the receive's memory any more. */
bool p2p_share_over(struct p2p_peer *peer, struct p2p_item *item);
/* Writes a part of an array that a receiver shares with us; whether it did. */
bool p2p_share_push(struct p2p *p, struct p2p_peer *peer);

/* Arrays that this rank has offered may change from now on. */
void p2p_offer_withdraw(struct p2p *p);

/* p2p/progress.c */
/* Makes progress where possible; `full`: also reads links that no posted operation needs, so that blocked senders progress. */
bool p2p_progress_pass(struct p2p *p, bool full);
/* Sleeps until a link may be ready. *nap grows from call to call where links cannot be polled; 0 starts again. */
void p2p_progress_sleep(struct p2p *p, int64_t *nap, int64_t until);
/* Ends the sleep of the leading thread. */
void p2p_progress_wake(struct p2p *p);
/* Ensures that a thread progresses the asynchronous operations; starts the own thread when first needed. */
void p2p_progress_attend(struct p2p *p);
/* The leader has ended its turn: the next waiter leads. */
void p2p_progress_hand_over(struct p2p *p);
#endif
