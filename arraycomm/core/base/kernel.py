"""Calls of the kernel: those that a Python built for an old glibc (conda's, many of uv's) lacks, memfd_create and pidfd_open
with fcntl's constants of seals, and short forms of others."""

from __future__ import annotations

import contextlib
import errno
import os
import select

F_ADD_SEALS, F_GET_SEALS = 1033, 1034
F_SEAL_SEAL, F_SEAL_SHRINK, F_SEAL_GROW, F_SEAL_WRITE = 1, 2, 4, 8
SEALED = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL  # if a peer could shrink the file, this process would get SIGBUS
FORBIDDEN = (errno.EPERM, errno.ENOSYS, errno.EACCES)  # errors of system calls that a container forbids or the kernel lacks
_MFD_CLOEXEC, _MFD_ALLOW_SEALING, _MFD_NOEXEC_SEAL = 1, 2, 8
_MEMFD_CREATE = {"x86_64": 319, "aarch64": 279}
_PIDFD_OPEN = 434  # on all architectures


def memory_file(name: str, *, sealable: bool = False) -> int:
    """A descriptor of an empty file in memory, not inherited. Raises OSError."""
    flags = _MFD_CLOEXEC | (_MFD_ALLOW_SEALING if sealable else 0)
    try:
        try:
            return _new_memory_file(name, flags)
        except PermissionError as error:
            if error.errno != errno.EACCES:
                raise
            return _new_memory_file(name, flags | _MFD_NOEXEC_SEAL)  # required by sysctl vm.memfd_noexec=2
    except OSError as error:
        if error.errno not in FORBIDDEN:
            raise
        raise OSError(error.errno, f"memfd_create: {error.strerror}; that takes Linux 3.17 or later, and a container whose "
                                   "seccomp filter permits it") from error


def unnamed_file(name: str) -> int:
    """As memory_file(), but if the system forbids it, an unlinked file that only this user can open. It cannot be sealed."""
    try:
        return memory_file(name, sealable=True)
    except OSError as error:
        if error.errno not in FORBIDDEN:
            raise
        for folder in ("/dev/shm", os.environ.get("TMPDIR") or "/tmp"):
            with contextlib.suppress(OSError):  # report the first error, which is more useful
                return os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
        raise


def _new_memory_file(name: str, flags: int) -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create(name, flags)
    return _call(_memfd_create(), name.encode(), flags)


def process_descriptor(pid: int) -> int:
    """A descriptor that becomes readable when the child process has ended, not inherited. Raises OSError."""
    try:
        return os.pidfd_open(pid) if hasattr(os, "pidfd_open") else _call(_PIDFD_OPEN, pid, 0)
    except OSError as error:
        if error.errno not in FORBIDDEN:  # a container's seccomp filter may be older than the call
            raise
        return _watched(pid)


def _watched(pid: int) -> int:
    """A pipe that a thread closes when the process ends. The process stays waitable."""
    import threading

    reader, writer = os.pipe()

    def watch() -> None:
        with contextlib.suppress(ChildProcessError):  # it has been reaped already
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        os.close(writer)

    threading.Thread(target=watch, name="arraycomm-watch", daemon=True).start()
    return reader


def boot_id() -> str:
    """Random, equal in all processes of this kernel until it boots again. Raises OSError."""
    with open("/proc/sys/kernel/random/boot_id", "rb", buffering=0) as file:
        return file.read().decode().strip()


def polled(descriptor: int, events: int, milliseconds: float | None = 0) -> int:
    """Waits for one of the events, or an error, at most so long (None: without a limit). Returns what is there; 0 if nothing."""
    poll = select.poll()
    poll.register(descriptor, events)
    return sum(found for _, found in poll.poll(milliseconds))


def advice(error: int | None, usual: str) -> str:
    """Advice for the user about a resource shortage."""
    return "a container's seccomp filter forbids what that takes" if error in FORBIDDEN else usual


def _memfd_create() -> int:
    """memfd_create by syscall(). Raises OSError on architectures whose syscall number is not listed here."""
    machine = os.uname().machine
    if machine not in _MEMFD_CREATE:
        raise OSError(errno.EOPNOTSUPP, f"this Python has no os.memfd_create, whose number is known on {', '.join(_MEMFD_CREATE)}"
                                        f" only, not on {machine}: take a Python built for glibc 2.27 or later")
    return _MEMFD_CREATE[machine]


def _call(number: int, *arguments: int | bytes) -> int:
    import ctypes  # lazy: not needed where Python has the functions

    libc = ctypes.CDLL(None, use_errno=True)
    result: int = libc.syscall(number, *arguments)
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result
