/* Windows: requests for this rank's memory arrive as messages, and the thread that
 * progresses messages serves them: one that waits in this group, or point to point's own. The program takes no part.
 *
 * A request is a header (tag SERVE_REQUESTS), and for put and accumulate its elements: in the header where they are few, else
 * behind it (SERVE_ELEMENTS). The answer to a get has a tag of its own. One request after the other is served, so accumulates are
 * atomic and operations of one rank take effect in their order. */
#ifndef ACOMM_SERVE_H
#define ACOMM_SERVE_H
#include "acomm.h"

#define SERVE_INLINE 64 /* bytes of elements in a header */
enum serve_kind { SERVE_PUT, SERVE_GET, SERVE_ACCUMULATE, SERVE_SIGNAL, SERVE_FENCE };
enum serve_tag { SERVE_REQUESTS, SERVE_ELEMENTS, SERVE_ANSWERS }; /* answers have this tag and those above */

/* A message of int64. */
struct serve_request {
    int64_t kind, offset, count; /* in elements */
    int64_t detail;              /* of accumulate the reduction, of get the number of its answer */
    int64_t bytes;               /* of elements in here; -1: they follow, or there are none */
    char elements[SERVE_INLINE];
};
#endif
