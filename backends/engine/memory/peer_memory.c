/* Reads and writes another process's memory: process_vm_readv(2) and process_vm_writev(2). */
#include "memory/peer_memory.h"

#include <errno.h>
#include <sys/uio.h>

bool peer_memory_reaches(int32_t pid)
{
    char byte;
    struct iovec ours = {&byte, 1}, nowhere = {NULL, 1}; /* permission comes first, then the address is looked up */
    return process_vm_readv(pid, &ours, 1, &nowhere, 1, 0) == 1 || errno == EFAULT;
}

int peer_memory_read(int32_t pid, uint64_t from, char *to, size_t bytes)
{
    while (bytes) {
        struct iovec ours = {to, bytes}, theirs = {(void *)(uintptr_t)from, bytes};
        ssize_t n = process_vm_readv(pid, &ours, 1, &theirs, 1, 0);
        if (n <= 0)
            return n ? errno : EFAULT;
        from += (uint64_t)n;
        to += n;
        bytes -= (size_t)n;
    }
    return 0;
}

ssize_t peer_memory_write(int32_t pid, uint64_t to, const char *from, size_t bytes)
{
    struct iovec ours = {(void *)(uintptr_t)from, bytes}, theirs = {(void *)(uintptr_t)to, bytes};
    return process_vm_writev(pid, &ours, 1, &theirs, 1, 0);
}
