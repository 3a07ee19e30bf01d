#include "peer_memory.h"

#include <errno.h>
#include <sys/uio.h>

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
