"""`forbidding.py ERRNO CALL,CALL... PROGRAM ARGUMENT...`: the program, where a filter like a container's makes calls fail."""

from __future__ import annotations

import ctypes
import os
import struct
import sys

NUMBERS = {"x86_64": {"memfd_create": 319, "process_vm_readv": 310, "process_vm_writev": 311, "pidfd_open": 434, "mbind": 237,
                      "sched_getaffinity": 204, "madvise": 28, "io_uring_setup": 425, "epoll_create1": 291},
           "aarch64": {"memfd_create": 279, "process_vm_readv": 270, "process_vm_writev": 271, "pidfd_open": 434, "mbind": 235,
                       "sched_getaffinity": 123, "madvise": 233, "io_uring_setup": 425, "epoll_create1": 20}}
_LOAD_NUMBER, _IF_EQUAL, _RETURN = 0x20, 0x15, 0x06  # of classic BPF
_ERRNO, _ALLOW = 0x00050000, 0x7FFF0000
_NO_NEW_PRIVILEGES, _SECCOMP, _FILTER = 38, 22, 2


def forbid(errno: int, names: list[str]) -> None:
    """For this process and those that it starts."""
    code = struct.pack("HBBI", _LOAD_NUMBER, 0, 0, 0)
    for name in names:
        code += struct.pack("HBBI", _IF_EQUAL, 0, 1, NUMBERS[os.uname().machine][name])
        code += struct.pack("HBBI", _RETURN, 0, 0, _ERRNO | errno)
    code += struct.pack("HBBI", _RETURN, 0, 0, _ALLOW)
    kept = ctypes.create_string_buffer(code, len(code))
    program = struct.pack("HxxxxxxP", len(code) // 8, ctypes.addressof(kept))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0) or libc.prctl(_SECCOMP, _FILTER, program, 0, 0):
        raise OSError(ctypes.get_errno(), "no filter")


if __name__ == "__main__":
    forbid(int(sys.argv[1]), sys.argv[2].split(","))
    os.execvp(sys.argv[3], sys.argv[3:])
