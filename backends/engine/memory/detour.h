/* Receiving into arrays by way of memory in the cache, where the kernel's copy stumbles.
 *
 * The kernel copies out of a socket by string instructions, which some processors carry out four times as slowly where the target
 * lies a few bytes further on in its page than the source (stream_stumbles()). Where the kernel keeps a stream's bytes nobody is told,
 * but they follow each other as those of the array do: as long as an array's place stays the same against the stream (its track), it
 * stumbles all the way or not at all. So the first piece of a track is timed. If it took much longer than pieces do, the next one goes
 * around, through memory that lies half a page further on, and what is quicker is kept to. */
#ifndef ACOMM_DETOUR_H
#define ACOMM_DETOUR_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define DETOUR_LEAST ((size_t)16 << 10) /* bytes of a piece that tells what a way costs: the first of a track */
#define DETOUR_PIECE ((size_t)64 << 10)
#define DETOUR_TURNS 64                 /* pieces that go around before the straight way is tried again: what else a thread sends moves its streams */

enum detour_way { DETOUR_TRY_STRAIGHT, DETOUR_TRY_AROUND, DETOUR_STRAIGHT, DETOUR_AROUND };

/* Of one stream. Zeros at the beginning. */
struct detour {
    uint64_t received, track;
    enum detour_way way;
    int turns;
    float straight, best; /* ns per byte: of the track's first piece, and of the quickest ones lately; 0: not known */
};

/* As recv() does: bytes moved, 0 none just now, or negative. */
typedef ssize_t detour_recv(void *stream, char *to, size_t bytes);

/* Receives from the stream: all pieces of it, as the place of one goes by those before. */
ssize_t detour_receive(struct detour *d, detour_recv *recv, void *stream, char *to, size_t bytes);

/* The way of the next piece, of DETOUR_LEAST and more; and what one of `bytes` has taken. */
enum detour_way detour_way(struct detour *d, const char *to);
void detour_learn(struct detour *d, size_t bytes, int64_t ns);
#endif
