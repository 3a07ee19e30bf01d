/* Looks for a message without receiving it. */
#include "base/clock.h"
#include "p2p/peer.h"

/* A probe is an operation that waits as a receive does, and is taken back by who waits for it where nothing came: it has no
 * deadline, so that it fails no group. */

static struct p2p_item *probe_begin(struct p2p *p, struct acomm_op *op)
{
    struct p2p_peer *peer = op->peer < 0 ? NULL : p2p_peer_of(p, op->peer);
    struct p2p_item *item = op->peer < 0 || peer ? p2p_new_item(p, op, 0) : NULL;
    if (!item)
        return NULL;
    if (peer)
        p2p_listen(p, peer);
    else
        p2p_listen_everyone(p);
    p2p_match_probe(p, item);
    return item;
}

int p2p_probe(struct p2p *p, struct acomm_op *op, int64_t until)
{
    op->timeout = INT64_MAX / 4;
    p2p_acquire(p);
    struct p2p_item *item = p->code ? NULL : probe_begin(p, op);
    int rc = p->code ? p->code : item ? 1 : ACOMM_RESOURCE;
    p2p_release(p);
    if (item)
        rc = p2p_wait_until(p, op, until);
    p2p_acquire(p);
    if (item && !op_ended(op))
        p2p_match_end(p, item, rc);
    p2p_release(p);
    return rc;
}
