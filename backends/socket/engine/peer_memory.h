/* The memory of another process of this host, read and written where it lies. */
#ifndef ACOMM_PEER_MEMORY_H
#define ACOMM_PEER_MEMORY_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* What a process tells those who are to read its memory. */
struct peer_process {
    int32_t pid;
    uint64_t key, key_at; /* a number of this process only, and where it lies in its memory; 0: none could be drawn */
};
struct peer_process peer_memory_self(void);
/* Whether the system lets us at its memory; and that it is that process's: in another namespace of process numbers, its number
 * is somebody else's. */
bool peer_memory_reaches(const struct peer_process *process);

#define PEER_MEMORY_PAST ((size_t)1 << 20) /* bytes that go past the caches, aside or around at a time: many times what a system call costs */

/* Copies from address `from` of the process. 0 or errno: EPERM or ENOSYS where the system does not permit it, ESRCH when the
 * process has gone, EFAULT for memory that only its owner can read. `to` may be written in part then. Costs 2 us a call and
 * what the kernel takes to look up every page: 6 GB/s on pages of 4 KiB, 14 on huge ones.
 * past: past the caches, for what is too long to be found there later: memory then moves two bytes for each that is read, else
 * three. That pays where all processors are busy copying, and by parts of 1 MiB: by parts of 64 KiB it takes 1.1 times as long as
 * reading straight. */
int peer_memory_read(int32_t pid, uint64_t from, char *to, size_t bytes, bool past);
/* Copies to address `to` of the process, some of the bytes: how many, or what process_vm_writev says. */
ssize_t peer_memory_write(int32_t pid, uint64_t to, const char *from, size_t bytes);
#endif
