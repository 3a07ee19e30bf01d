/* Receives into arrays through a bounce buffer in the cache, where the kernel's copy suffers from 4 KiB aliasing.
 *
 * The kernel copies out of a socket by string instructions, which some processors carry out four times as slowly where the target
 * lies a few bytes further on in its page than the source (stream_stumbles()). The kernel's addresses of a stream's bytes are
 * unknown, but they are consecutive like those of the array: as long as the array's offset to the stream (its track) stays the
 * same, either all of its pieces alias or none. So the first piece of a track is timed. If it took much longer than usual, the
 * next one uses a bounce copy, through memory that lies half a page further on, and the faster path is kept. */
#ifndef ACOMM_BOUNCE_H
#define ACOMM_BOUNCE_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define BOUNCE_LEAST ((size_t)16 << 10) /* bytes of a piece that shows a path's cost: the first of a track */
#define BOUNCE_PIECE ((size_t)64 << 10)
#define BOUNCE_TURNS 64                 /* bounced pieces before a new trial of the direct path: other traffic moves a stream */

enum bounce_way { BOUNCE_TRY_STRAIGHT, BOUNCE_TRY_AROUND, BOUNCE_STRAIGHT, BOUNCE_AROUND };

/* Of one stream. Zeros at the beginning. */
struct bounce {
    uint64_t received, track;
    enum bounce_way way;
    int turns;
    float straight, best; /* ns per byte: of the track's first piece, and of the quickest ones lately; 0: not known */
};

/* As recv() does: bytes moved, 0 none just now, or negative. */
typedef ssize_t bounce_recv(void *stream, char *to, size_t bytes);

/* Receives from the stream: all pieces of it, as the place of one goes by those before. */
ssize_t bounce_receive(struct bounce *d, bounce_recv *recv, void *stream, char *to, size_t bytes);

/* The path of the next piece, of BOUNCE_LEAST and more; and notes the time of one of `bytes`. */
enum bounce_way bounce_way(struct bounce *d, const char *to);
void bounce_learn(struct bounce *d, size_t bytes, int64_t ns);
#endif
