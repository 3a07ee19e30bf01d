"""Directories that only this user can enter: where ranks on one host meet."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator, Mapping

from .errors import DistNetworkError


def private_directories(environ: Mapping[str, str] | None = None, *, longest: int = 4096) -> Iterator[str]:
    """arraycomm-UID in $XDG_RUNTIME_DIR, in $TMPDIR, in /tmp, and in /dev/shm; made with mode 0700. Only those that can be used,
    as a trial shows: the file system may be full or read-only, and another user may have taken the name.

    longest: bytes that its path may have (a Unix socket's is limited).
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
    """The first of them. Raises DistNetworkError where there is none."""
    for directory in private_directories(environ):
        return directory
    raise DistNetworkError(f"the ranks of this host cannot meet: user {os.geteuid()} can make a private directory in none of "
                           "$XDG_RUNTIME_DIR, $TMPDIR, /tmp and /dev/shm; set TMPDIR to a directory that can be written to, or "
                           "MASTER_ADDR and MASTER_PORT")


def _make(directory: str) -> None:
    """Raises OSError where it is none of this user's."""
    with contextlib.suppress(FileExistsError):
        os.mkdir(directory, 0o700)
    status = os.lstat(directory)  # a symbolic link is somebody else's trick
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        raise PermissionError
    if status.st_mode & 0o777 != 0o700:  # made under another umask, or opened to others
        os.chmod(directory, 0o700)


def _try(directory: str) -> None:
    path = os.path.join(directory, os.urandom(16).hex())
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.write(descriptor, b"x")
    finally:
        os.close(descriptor)
        os.unlink(path)
