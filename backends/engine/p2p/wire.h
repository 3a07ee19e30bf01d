/* Frames of point-to-point messages, on the links of CHANNEL_P2P: a header of 40 bytes; EAGER, DATA and OFFER have a payload.
 *
 *   sender                        receiver
 *   EAGER tag dtype count data -> copied into the posted receive, or aside until one is posted
 *   RTS tag dtype count id     -> remembered until a receive is posted (request to send)
 *         <- CTS id               a receive of the same dtype and count is posted (clear to send)
 *   DATA id, again and again   -> straight into the posted receive
 *         <- NACK id dtype count  instead of CTS: the posted receive, which differs
 *   OFFER as RTS, place        where both ranks are on one host: the data may also be read where it lies
 *         <- DONE id               it has been read, or copied by both sides (p2p/share.c); or CTS, NACK as above
 *   OFFER, DIRECT_FABRIC       the data is in memory of a GPU, and is sent by the fabric
 *         <- CTS id tag            the fabric receives under this tag; or NACK
 *   DATA id, no contents       the fabric sends
 * Answers travel on the receiver's own outgoing link. A link keeps its order, so DATA needs no offset, ids count up.
 *
 * Credit: every message copied aside costs WIRE_CHARGE. Each frame's `consumed` has the receiver's sum of freed charges; a sender
 * whose uncredited messages would exceed wire_credit() uses RTS instead, whose CTS brings new credit. So the copies are bounded,
 * and a link is always read to its end, whatever its first frame is.
 *
 * Sent as they lie in memory, see wire_control.h. */
#ifndef ACOMM_WIRE_H
#define ACOMM_WIRE_H
#include <assert.h>
#include <stdbool.h>
#include <string.h>
#include "acomm.h"

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the wire format is little-endian"
#endif

#define WIRE_DTYPES 0xffffffu               /* what a frame's dtype holds */
#define WIRE_MAGIC 0x50434361u              /* "aCCP" */
#define WIRE_EAGER_MAX (4u << 20)           /* bytes of an EAGER message: waiting for CTS would cost a tenth of the time */
#define WIRE_EAGER_NEAR (256u << 10)        /* the same in shared memory: beyond, CTS costs less than a second copy */
#define WIRE_DATA_MAX (1u << 20)            /* bytes of a DATA frame: the most before a small message, unless EAGER is longer */
#define WIRE_RTS_MAX (1u << 20)             /* messages that a receiver remembers for one peer */
#define WIRE_CREDIT_GROUP (64u << 20)       /* bytes copied aside in one group, unless the minima add up to more */
#define WIRE_CREDIT_MIN (256u << 10)
#define WIRE_CREDIT_MAX (8u << 20)

enum wire_kind { WIRE_EAGER, WIRE_RTS, WIRE_CTS, WIRE_DATA, WIRE_NACK, WIRE_OFFER, WIRE_DONE, WIRE_FRAMES };

struct wire_frame {
    uint32_t magic;
    uint8_t kind;      /* enum wire_kind */
    uint32_t dtype : 24; /* EAGER, RTS, OFFER: of the message; NACK: of the posted receive; else 0 */
    uint64_t id;       /* number of the rendezvous message between these two ranks; EAGER: 0 */
    int64_t tag;       /* EAGER, RTS, OFFER; CTS: the fabric's */
    uint64_t count;    /* elements, as dtype; DATA: bytes of payload */
    uint64_t consumed; /* sum of charges that the frame's sender has freed */
};
static_assert(sizeof(struct wire_frame) == 40, "wire format");

/* The payload of OFFER. With the header it fills what a ring sends in one cache line. */
struct wire_place {
    uint64_t at;       /* address in the sender's process, or offset in its arena, or 0 */
    uint64_t how;      /* enum direct_how */
};
static_assert(sizeof(struct wire_place) == 16, "wire format");

/* Charge of a message of `bytes` that its receiver copies aside: the bytes and their bookkeeping. */
static inline uint64_t wire_charge(uint64_t bytes)
{
    return bytes + 256;
}

/* Charges that may be open between two ranks of a group of `size`. Equal on both sides. */
static inline uint64_t wire_credit(int size)
{
    uint64_t share = WIRE_CREDIT_GROUP / (uint64_t)size;
    return share < WIRE_CREDIT_MIN ? WIRE_CREDIT_MIN : share > WIRE_CREDIT_MAX ? WIRE_CREDIT_MAX : share;
}

/* Bytes of a message; false when no address space could hold it. */
static inline bool wire_bytes(uint64_t count, uint64_t width, uint64_t *bytes)
{
    return width && !__builtin_mul_overflow(count, width, bytes) && *bytes <= INT64_MAX;
}

static inline void wire_put(char *to, const struct wire_frame *frame)
{
    memcpy(to, frame, sizeof *frame);
}

static inline bool wire_dtype(uint32_t dtype)
{
    return dtype < ACOMM_DTYPES || (dtype >= ACOMM_OPAQUE && dtype < ACOMM_OPAQUE_END);
}

/* Whether a peer of this version can have sent it; references in it are checked at their lookup. */
static inline bool wire_get(const char *from, struct wire_frame *frame)
{
    memcpy(frame, from, sizeof *frame);
    return frame->magic == WIRE_MAGIC && frame->kind < WIRE_FRAMES && wire_dtype(frame->dtype);
}

/* Tags from 2^62 on are the library's own: of objects' heads, and from 3 * 2^61 on of their contents. */
#define TAG_WATCH INT64_MAX /* no rank sends with it: the receive ends with the group, or when all others have closed it */

/* Whether a receive matches messages of this tag; one below 0 matches any: -1 of those below 2^62, -2 of heads. */
static inline bool tag_fits(int64_t wanted, int64_t tag)
{
    return wanted == -1 ? tag >> 62 == 0 : wanted == -2 ? tag >> 61 == 2 : tag == wanted;
}
#endif
