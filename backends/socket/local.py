"""The Unix listener of a rank: a socket in a directory that only this user can enter."""

from __future__ import annotations

import contextlib
import os
import socket

from arraycomm.core.auth import Hello, client_handshake
from arraycomm.core.errors import DistNetworkError
from arraycomm.core.private import private_directory

_LONGEST = 107  # bytes of a path in sockaddr_un
_NAME = 32  # bytes of a socket's own name, about: namespace, process id, 8 hex digits
_BACKLOG = 1024


def listen() -> tuple[socket.socket, str]:
    """A listening socket and its path. Raises DistNetworkError.

    A path and not an abstract name: file permissions guard it. A process that is killed leaves it; others sweep().
    """
    directory = private_directory(longest=_LONGEST - _NAME)
    path = os.path.join(directory, f"{_namespace()}-{os.getpid()}-{os.urandom(4).hex()}")
    sock = socket.socket(socket.AF_UNIX)
    try:
        sock.bind(path)
        sock.listen(_BACKLOG)
        return sock, path
    except OSError as error:
        sock.close()
        raise DistNetworkError(f"cannot listen on {path}: {error.strerror}; set TMPDIR to a directory of a local file "
                               "system") from error


def connect(path: str, secret: bytes | None, hello: Hello, *, deadline: float) -> socket.socket:
    """A connected, authenticated, blocking socket. Raises OSError, AuthFailed."""
    sock = socket.socket(socket.AF_UNIX)
    try:
        sock.connect(path)
        client_handshake(sock, secret, hello, deadline=deadline)
        return sock
    except BaseException:
        sock.close()
        raise


def remove(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def _namespace() -> int:
    """Process ids mean something within this number only: containers may share the directory."""
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return 0


def sweep(directory: str) -> None:
    """Removes the names of dead processes' sockets."""
    ours = str(_namespace())
    for name in os.listdir(directory):
        namespace, _, rest = name.partition("-")
        pid = rest.partition("-")[0]
        if namespace == ours and pid.isdecimal() and not _alive(int(pid)):
            remove(os.path.join(directory, name))


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
