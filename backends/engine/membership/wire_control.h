/* Frames on control connections: a header of 32 bytes, then `bytes` of payload.
 *
 * Sent as they lie in memory. Array data goes over the wire in the byte order of the machine too, so a job of mixed byte orders
 * cannot exist, and conversion code here would never run. */
#ifndef ACOMM_WIRE_CONTROL_H
#define ACOMM_WIRE_CONTROL_H
#include <assert.h>
#include <stdbool.h>
#include "acomm.h"

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the wire format is little-endian"
#endif

#define WIRE_CONTROL_MAGIC 0x43434161u /* "aACC" */

enum wire_control_kind {
    WIRE_HEARTBEAT, /* nothing else in it */
    WIRE_LOST,      /* rank: died or silent; payload: why */
    WIRE_BYE,       /* rank: leaves the world; payload: why, empty when all is well; `sequence`: as node_peer.ended */
    WIRE_LEFT,      /* rank closed `group` after it had begun `sequence` collectives */
    WIRE_FAIL,      /* `group` failed on rank; payload: acomm_failure */
    WIRE_ASK,       /* rank has begun `sequence` collectives of `group` and asks how many the others have */
    WIRE_BEGUN,     /* rank's answer */
    WIRE_KINDS
};

struct wire_control {
    uint32_t magic;
    uint8_t kind;      /* enum wire_control_kind */
    uint8_t number;    /* of WIRE_ASK and WIRE_BEGUN, from 1 on for each rank and group: the latest one counts; else 0 */
    uint16_t hops;     /* times it may still be forwarded: bounds the life of a frame that no rank remembers any more */
    uint32_t bytes;
    int32_t rank;      /* world rank */
    uint64_t group;
    uint64_t sequence;
};
static_assert(sizeof(struct wire_control) == 32, "wire format");
static_assert(sizeof(acomm_header) == 32 && sizeof(acomm_failure) == 304, "wire format");

#define WIRE_TEXT (sizeof((acomm_failure *)0)->text) /* longest text with its end mark */
#define WIRE_CONTROL_PAYLOAD sizeof(acomm_failure)
#define WIRE_CONTROL_FRAME (sizeof(struct wire_control) + WIRE_CONTROL_PAYLOAD)

/* Whether a peer of this version in a world of `size` can have sent it. */
static inline bool wire_control_valid(const struct wire_control *head, int size)
{
    static const uint32_t least[WIRE_KINDS] = {[WIRE_FAIL] = sizeof(acomm_failure)};
    static const uint32_t most[WIRE_KINDS] = {
        [WIRE_LOST] = WIRE_TEXT - 1, [WIRE_BYE] = WIRE_TEXT - 1, [WIRE_FAIL] = sizeof(acomm_failure)};
    bool numbered = head->kind == WIRE_ASK || head->kind == WIRE_BEGUN;
    return head->magic == WIRE_CONTROL_MAGIC && head->kind < WIRE_KINDS && (numbered || !head->number) && head->rank >= 0 &&
           head->rank < size && head->bytes >= least[head->kind] && head->bytes <= most[head->kind];
}

/* A failure out of a frame: nothing in it may index out of a group of `size`, and its text must end. */
static inline bool wire_failure_valid(const acomm_failure *failure, int size)
{
    return failure->code < 0 && failure->code >= ACOMM_LIBRARY && failure->culprit >= -1 &&
           failure->culprit < size && failure->origin >= 0 && failure->origin < size &&
           failure->text[sizeof failure->text - 1] == 0;
}
#endif
