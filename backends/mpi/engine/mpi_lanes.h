/* Messages among ranks of one host, through the memory that they share (mpi_seats.h) instead of MPI's messages.
 *
 * A lane for each pair and direction: the ring of bytes of the socket engine (link.h), in which every message begins with a head,
 * short contents behind it; and a longer ring for longer contents, which stay there until somebody receives them, or flow through
 * it where they are longer than that. What finds no room there is offered: its receiver reads it where it lies in the sender's
 * array, or asks for it by MPI.
 * News go by MPI still. Each side believes of the other's words in shared memory only what is possible.
 *
 * Cells (link_shm.c): behind each longer ring memory for a whole message of up to an eighth of it, which belongs to the ring's sender
 * at first, and then to who has read it last: lines that this core has just read from the other one are the cheapest to write.
 * A message keeps its cell until it is received or refused, however late; who has no cell uses the rings.
 * All of it, but for the beginning and the end, with the lock of the group's messages (mpi_messages.c). */
#ifndef MPI_LANES_H
#define MPI_LANES_H
#include "choice.h"
#include "link.h"
#include "mpi_news.h"
#include "stores.h"

#define LANE_SHORT 2048 /* bytes of contents that follow the head: between far cores longer ones take less time in the longer ring */

struct lane_head {
    struct head head;   /* ticket: of CLEAR, the tag that contents are to come by */
    uint64_t at;        /* of contents in the longer ring or a cell, bytes of those ever used before them; of an offer where they
                         * lie in the sender's memory, 0: nobody can read them there */
    uint64_t id;        /* of an offer, and of what answers it; of contents there LANE_WHOLE if all are written, and the cell */
};
_Static_assert(sizeof(struct lane_head) <= LINK_BESIDE, "a head lies beside its stamp");

#define LANE_WHOLE 1
#define CELL_SHIFT 1 /* of an enum link_cell in an id */

#define LANE_LINE ((uint64_t)64)
/* A lane's, in which nothing is believed but what is possible. */
struct lane_memory {
    _Alignas(128) _Atomic uint64_t freed;   /* bytes of the longer ring that are free again; by the receiver only */
    _Atomic uint8_t offers[CHOICE_CLASSES]; /* by the receiver too, of lengths by power of two: what would flow is to be offered */
    _Alignas(128) _Atomic uint64_t written; /* by the sender only: its receiver copies them out while it writes more */
    _Atomic uint64_t celled;                /* the same of what it writes to cells */
    struct stores_talk talk;
    _Alignas(4096) char contents[];         /* the longer ring, its cell, then the link's */
};

static inline uint64_t lane_up(uint64_t bytes, uint64_t to)
{
    return (bytes + to - 1) / to * to;
}

static inline uint64_t lane_length(const struct head *head)
{
    return head->count * acomm_dtype_bytes(head->dtype);
}

/* Of a message. */
static inline uint64_t lane_cell(uint64_t id)
{
    return id >> CELL_SHIFT;
}

static inline bool lane_lies_apart(const struct lane_head *head)
{
    return head->head.what == MESSAGE && (lane_cell(head->id) || lane_length(&head->head) > LANE_SHORT);
}

static inline bool lane_is_whole(uint64_t id)
{
    return (id & LANE_WHOLE) != 0;
}

/* Of what a lane has room for only later. */
struct lane_reply { struct lane_reply *next; struct lane_head head; };
struct lane_queue { struct mpi_op *first, **end; };

/* A peer's two lanes: from here to it, and back. */
struct mpi_lane {
    int peer;
    struct link *to, *from;
    struct lane_memory *to_memory, *from_memory; /* of longer contents */
    /* what this rank sends */
    struct lane_queue waiting, offered; /* for room; for an answer */
    struct lane_reply *replies;
    struct lane_head front;      /* of the first that waits, which is `ready` in part: what has been `sent` of it, with the contents */
    const char *body;
    uint64_t body_bytes, sent, place; /* place: of its long contents in the longer ring */
    bool ready;
    bool cut;                    /* nothing goes by the lane any more: it ends within a message, or holds what cannot be */
    uint64_t offers;
    uint64_t filled, freed, seen; /* bytes of the longer ring ever given away; free again; and as last seen of the receiver's word */
    struct mpi_op *writing;      /* whose contents are on their way there, behind all others */
    struct stores stores;
    unsigned cells;              /* those that are ours to write to: CELL_OURS and CELL_THEIRS as the sender sees them */
    uint64_t celled;             /* bytes of cells ever used, each time a whole one */
    /* what it receives */
    struct stores_reader reader;
    struct choice ways[CHOICE_CLASSES]; /* of what is longer than the ring */
    struct lane_queue reading;   /* receives of long contents and of offers, which it reads */
    unsigned held, refused;      /* cells whose contents are not received yet; those that nobody wants, but may still be written */
    uint64_t met;                /* bytes of the longer ring whose heads have come */
    size_t arrived;              /* bytes of the next head and its contents */
    struct { struct lane_head head; char contents[LANE_SHORT]; } next;
};
struct mpi_lanes {
    uint64_t room;               /* bytes of a longer ring */
    uint64_t moved;              /* parts of long contents */
    int size;
    struct mpi_lane lanes[];     /* by rank, this one's own too */
};

/* Whether contents of that length flow through the longer ring, wherever in a line they begin: others find room in it as a whole.
 * Sender and receiver have to agree. */
static inline bool lane_flows(const struct mpi_lanes *all, uint64_t bytes)
{
    return bytes > all->room - LANE_LINE;
}

/* Bytes of a cell: contents begin within a line. */
static inline uint64_t lane_cell_bytes(const struct mpi_lanes *all)
{
    return all->room / LINK_CELL_PART + LANE_LINE;
}

/* As this rank sees it as a sender. */
static inline char *lane_cell_of(const struct mpi_lanes *all, const struct mpi_lane *lane, unsigned cell)
{
    return (cell == CELL_OURS ? lane->to_memory : lane->from_memory)->contents + all->room;
}

/* It is needed no more: what lay there is received, or nobody wants it. */
static inline void lane_take_cell(struct mpi_lane *lane, unsigned cell)
{
    lane->cells |= cell;
    lane->held &= ~cell;
}

/* ---- mpi_lanes.c ---- */
/* Of the memory of so many ranks. */
uint64_t lanes_bytes(int size);
/* In that memory, zeros at the beginning. NULL: no memory. */
struct mpi_lanes *lanes_new(const struct acomm_group *g, char *memory);
/* No message uses them any more. */
void lanes_free(struct mpi_lanes *all);
/* From now on messages go by them. */
void lanes_use(struct acomm_group *g, struct mpi_lanes *all);
/* What can be done for messages from and to a rank, or all for -1. 0 or a code, which may be MPI's. */
int lanes_turn(struct acomm_group *g, int peer);
/* Everything that a rank has sent before it said by MPI what has just been heard. */
int lanes_catch_up(struct acomm_group *g, int peer);
/* Contents in the longer ring are needed no more, but for those that nobody has received, or not yet all of. */
void lane_release(struct acomm_group *g, struct mpi_lane *lane);
/* What is written there, or to a cell, from that place on, at most *bytes: so many. */
const char *lane_contents(const struct mpi_lanes *all, const struct mpi_lane *lane, unsigned cell, uint64_t at, uint64_t *bytes);
/* The operation goes before its end. */
void lanes_leave(struct mpi_op *op);
/* Whether messages are under way. */
bool lanes_busy(struct acomm_group *g);
/* Ends all operations that are in lanes; nothing goes by them any more. */
void lanes_end(struct acomm_group *g, int code);
int lanes_broken(struct acomm_group *g, int peer);
/* Queues of operations. */
void lane_append(struct lane_queue *queue, struct mpi_op *op);
/* Gives memory back that a receive for a device had. */
void lane_unstage(struct mpi_op *op);
bool lane_remove(struct lane_queue *queue, const struct mpi_op *op);

/* ---- mpi_lanes_send.c ---- */
int lanes_send(struct mpi_op *op);
/* Writes of long contents what there is room for; what else has waited for room. 0 or a code. */
int lane_pour(struct acomm_group *g, struct mpi_lane *lane);
int lane_flush(struct acomm_group *g, struct mpi_lane *lane);

/* ---- mpi_lanes_long.c ---- */
/* Long contents, or an offer of them, meet their receive, or NULL: nobody wants them. */
int lanes_meet(struct acomm_group *g, struct mpi_op *op, const struct arrival *a);
/* Those that are all there. */
void lanes_take(struct acomm_group *g, struct mpi_op *op, const struct arrival *a);
/* Reads a part of what each of them waits for. */
int lane_read(struct acomm_group *g, struct mpi_lane *lane);
/* Answers that have waited for room. 1: all have gone, 0: there is none, or a code. */
int lane_flush_answers(struct acomm_group *g, struct mpi_lane *lane);
/* An answer to an offer of this rank's. */
int lane_hear_answer(struct acomm_group *g, struct mpi_lane *lane, const struct lane_head *answer);
#endif
