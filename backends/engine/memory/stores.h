/* Which stores write contents into a ring in shared memory, chosen by trials (choice.h) of what writer and reader take together.
 *
 * Who writes past the caches saves time between far cores, but leaves lines in memory, which costs who reads twice as much
 * between near ones; and no time to write says how far the cores are, where what is written comes from memory itself. So the writer
 * times some pieces, names them, and their reader answers there how long it copied them. Times are no promise: a peer that tells
 * wrong ones gets worse stores.
 * With more ranks than cores a pair shares a core now and then, which trials of so many bytes come too late for: there the time to
 * write decides alone (stream_fill; messages of 1 MiB over MPI, 4 ranks on 2 cores, 1.12 to 1.17 of mpi4py's speed, by trials
 * 0.82 to 1.01). */
#ifndef ACOMM_STORES_H
#define ACOMM_STORES_H
#include <stdatomic.h>
#include "base/choice.h"
#include "memory/stream.h"

/* In the memory of both; zeros at the beginning. */
struct stores_talk {
    _Alignas(64) _Atomic uint64_t asked; /* by the writer: the number of a piece, 0 none, above its bytes; */
    _Atomic uint64_t at;                 /* the bytes of the ring ever used before it */
    _Alignas(64) _Atomic uint64_t told;  /* by the reader: the number above the ns that copying it took */
};
#define STORES_CLASSES 16

/* The writer's; zeros at the beginning. */
struct stores {
    struct choice choices[STORES_CLASSES]; /* by the length of the whole that a piece is of */
    struct stream_path alone;               /* by the time to write */
    uint32_t number;                       /* of the last trial */
    struct { struct choice *of; int way; uint64_t bytes; int64_t ns; uint32_t passed; } trial; /* whose answer is awaited; of NULL: none */
};
/* The reader's; zeros at the beginning. */
struct stores_reader {
    uint64_t asked, copied;      /* the last trial seen, and bytes of it */
    int64_t ns;
};

/* A piece of contents of `whole` bytes: to `to`, which is byte `at` of the ring. talk NULL: without trials. */
void stores_write(struct stores *s, struct stores_talk *talk, uint64_t at, char *to, const char *from, size_t bytes, uint64_t whole);
/* Contents back out, as many pieces as there are. */
void stores_read(struct stores_reader *r, struct stores_talk *talk, uint64_t at, char *to, const char *from, size_t bytes, uint64_t whole);
#endif
