"""Private directories of this user (mode 0700), for sockets and rendezvous files of one host."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator, Mapping

from .errors import DistNetworkError


def private_directories(environ: Mapping[str, str] | None = None, *, longest: int = 4096) -> Iterator[str]:
    """arraycomm-UID in $XDG_RUNTIME_DIR, in $TMPDIR, in /tmp, and in /dev/shm; made with mode 0700. Each is tested
    for use: the file system may be full or read-only, and another user may own the name.

    longest: maximum length of the path in bytes (a Unix socket's is limited).
    """
    env = os.environ if environ is None else environ
    for base in dict.fromkeys((env.get("XDG_RUNTIME_DIR", ""), env.get("TMPDIR", ""), "/tmp", "/dev/shm")):
        directory = os.path.join(base, f"arraycomm-{os.geteuid()}")
        if os.path.isabs(base) and len(os.fsencode(directory)) <= longest:
            try:
                _make(directory)
                _try(directory)
            except OSError:
                continue
            yield directory


def private_directory(environ: Mapping[str, str] | None = None) -> str:
    """The first of private_directories(). Raises DistNetworkError if there is none."""
    for directory in private_directories(environ):
        return directory
    raise DistNetworkError(f"the ranks of this host cannot meet: user {os.geteuid()} can make a private directory in none of "
                           "$XDG_RUNTIME_DIR, $TMPDIR, /tmp and /dev/shm; set TMPDIR to a directory that can be written to, or "
                           "MASTER_ADDR and MASTER_PORT")


def _make(directory: str) -> None:
    """Makes the directory. Raises OSError if it exists and belongs to another user."""
    with contextlib.suppress(FileExistsError):
        os.mkdir(directory, 0o700)
    status = os.lstat(directory)  # lstat: a symbolic link may be an attack by another user
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        raise PermissionError
    if status.st_mode & 0o777 != 0o700:  # made under another umask, or its mode was changed
        os.chmod(directory, 0o700)


def _try(directory: str) -> None:
    path = os.path.join(directory, os.urandom(16).hex())
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.write(descriptor, b"x")
    finally:
        os.close(descriptor)
        os.unlink(path)
