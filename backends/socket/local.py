"""The Unix listeners of a rank: a socket in a directory of this user with mode 0700, and one with the same text as its abstract
name: a fallback for when a cleaner of temporary files has removed the first.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import time
from hashlib import sha256

from arraycomm.core.base import kernel, settings
from arraycomm.core.base.deadline import Deadline
from arraycomm.core.base.private import private_directories
from arraycomm.core.bootstrap.auth import Hello, persist

_LONGEST = 107  # bytes of a path in sockaddr_un
_BACKLOG = 1024
_RETRY_FULL = 0.02  # s before a retry to a peer with a full backlog
_ABSTRACT = "@"  # instead of a directory: only the abstract name exists


def listen() -> tuple[list[socket.socket], str]:
    """Listening sockets and their path for connect(); no sockets and "" if the system permits neither.

    The path is preferred: file permissions protect it, while any user can connect to an abstract name (and is then refused). Its
    name is random. The socket of a killed process remains until another process calls sweep().
    """
    name = f"{_host()}-{os.getpid()}-{os.urandom(16).hex()}"
    found, path = [], ""
    for directory in private_directories(longest=_LONGEST - len(name) - 1):
        sock = _bound(f"{directory}/{name}")
        if sock:
            found, path = [sock], f"{directory}/{name}"
            break
    sock = _bound(_abstract(name))
    return ([*found, sock], path or f"{_ABSTRACT}/{name}") if sock else (found, path)


def _abstract(name: str) -> str:
    return f"\0arraycomm {name}"


def _bound(path: str) -> socket.socket | None:
    try:
        sock = socket.socket(socket.AF_UNIX)
    except OSError:
        return None
    try:
        sock.bind(path)
        if not path.startswith("\0"):
            os.chmod(path, 0o600)  # the umask may have removed this user's permission to connect
        sock.listen(_BACKLOG)
        return sock
    except OSError:  # for example, a file system without sockets
        sock.close()
        return None


def connect(path: str, secret: bytes | None, hello: Hello, *, deadline: float) -> socket.socket:
    """A connected, authenticated, blocking socket. Raises OSError, AuthFailed. A busy peer is retried, as in
    auth.connect()."""
    return persist(lambda remaining: _reach(path, remaining), secret, hello, deadline=deadline)


def _reach(path: str, remaining: Deadline) -> socket.socket:
    directory, _, name = path.rpartition("/")
    sock = socket.socket(socket.AF_UNIX)
    try:
        if directory == _ABSTRACT:
            _call(sock, _abstract(name), remaining)
            return sock
        try:
            _call(sock, path, remaining)
        except OSError as error:
            try:
                _call(sock, _abstract(name), remaining)
            except OSError:
                raise error from None
        return sock
    except BaseException:
        sock.close()
        raise


def _call(sock: socket.socket, path: str, remaining: Deadline) -> None:
    """Retries while the peer's backlog is full: a non-blocking connect() then fails at once."""
    sock.setblocking(False)
    while True:
        try:
            sock.connect(path)
            sock.setblocking(True)
            return
        except BlockingIOError:
            if remaining.left <= 0:
                raise TimeoutError(errno.ETIMEDOUT, "it does not accept connections") from None
        with remaining.slice(_RETRY_FULL) as seconds:
            time.sleep(seconds)


def remove(path: str) -> None:
    """Idempotent."""
    if os.path.isabs(path):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)


def _host() -> str:
    """Identifies the scope of process ids. Other containers and hosts may share the directory and have equal ids of processes and
    namespaces. "" if unknown."""
    try:
        mark = f"{settings.get('ARRAYCOMM_HOSTID')} {kernel.boot_id()} {os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:
        return ""
    return str(sha256(mark.encode(errors="surrogateescape")).hexdigest()[:12])


def sweep(path: str) -> None:
    """Removes the sockets of dead processes from this socket's directory."""
    directory, _, name = path.rpartition("/")
    ours = name.partition("-")[0]
    if not ours or directory == _ABSTRACT:
        return
    with contextlib.suppress(FileNotFoundError):  # the directory has been removed
        for name in os.listdir(directory):
            host, _, rest = name.partition("-")
            pid = rest.partition("-")[0]
            if host == ours and pid.isdecimal() and not _alive(int(pid)):
                remove(os.path.join(directory, name))


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except OSError as error:
        return error.errno == errno.EPERM
    return True
