/* Tags of messages. Those from 2^62 on are the library's own: of objects' heads, and from 3 * 2^61 on of their contents. */
#ifndef ACOMM_TAGS_H
#define ACOMM_TAGS_H
#include <stdbool.h>
#include <stdint.h>

#define TAG_WATCH INT64_MAX /* nobody sends with it: the receive ends with the group, or when all others have closed it */

/* Whether a receive takes messages of this tag; one below 0 takes any: -1 of those below 2^62, -2 of heads. */
static inline bool tag_fits(int64_t wanted, int64_t tag)
{
    return wanted == -1 ? tag >> 62 == 0 : wanted == -2 ? tag >> 61 == 2 : tag == wanted;
}
#endif
