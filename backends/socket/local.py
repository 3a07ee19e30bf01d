"""The Unix listener of a rank: a socket in a directory that only this user can enter."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import stat
import tempfile

from arraycomm.core.auth import Hello, check_user, client_handshake
from arraycomm.core.errors import DistNetworkError

_LONGEST = 107  # bytes of a path in sockaddr_un
_NAME = 32  # bytes of a socket's own name, about: namespace, process id, 8 hex digits
_BACKLOG = 1024


def listen() -> tuple[socket.socket, str]:
    """A listening socket and its path. Raises DistNetworkError.

    A path and not an abstract name: file permissions guard it. The names of dead processes' sockets are removed here,
    because a process that is killed cannot.
    """
    directory = _directory()
    sweep(directory)
    path = os.path.join(directory, f"{_namespace()}-{os.getpid()}-{secrets.token_hex(4)}")
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
        check_user(sock, secret)
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
    """Removes what dead processes left."""
    ours = str(_namespace())
    for name in os.listdir(directory):
        namespace, _, rest = name.partition("-")
        pid = rest.partition("-")[0]
        if namespace == ours and pid.isdigit() and not _alive(int(pid)):
            remove(os.path.join(directory, name))


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _directory() -> str:
    bases = (os.environ.get("XDG_RUNTIME_DIR", ""), tempfile.gettempdir(), "/tmp")
    reason = ""
    for base in filter(None, bases):
        directory = os.path.join(base, f"arraycomm-{os.geteuid()}")
        if len(os.fsencode(directory)) + _NAME > _LONGEST:
            continue
        reason = _private(directory)
        if not reason:
            return directory
    raise DistNetworkError(f"no directory for Unix sockets: {reason}; set TMPDIR to one that this user can write to")


def _private(directory: str) -> str:
    """Makes the directory; why it cannot be used, or ""."""
    try:
        with contextlib.suppress(FileExistsError):
            os.mkdir(directory, 0o700)
        status = os.lstat(directory)
    except OSError as error:
        return f"{directory}: {error.strerror}"
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
        return f"{directory} is not a directory of this user, closed to others (mode 0700): remove it"
    return ""
