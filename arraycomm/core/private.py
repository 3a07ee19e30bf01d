"""A directory that only this user can enter: where ranks on one host meet."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Mapping

from .errors import DistNetworkError


def private_directory(environ: Mapping[str, str] | None = None, *, longest: int = 4096) -> str:
    """$XDG_RUNTIME_DIR/arraycomm-UID, else the same in $TMPDIR or in /tmp; made with mode 0700.

    longest: bytes that its path may have (a Unix socket's is limited). Raises DistNetworkError that says why not.
    """
    env = os.environ if environ is None else environ
    reasons = []
    for base in dict.fromkeys((env.get("XDG_RUNTIME_DIR", ""), env.get("TMPDIR", ""), "/tmp")):
        directory = os.path.join(base, f"arraycomm-{os.geteuid()}")
        if not base or len(os.fsencode(directory)) > longest:
            continue
        reason = _unfit(directory)
        if reason is None:
            return directory
        reasons.append(reason)
    why = "; ".join(reasons) or "all paths are too long"
    raise DistNetworkError(f"no private directory for the ranks of this host: {why}; set TMPDIR to a directory that "
                           "this user can write to")


def _unfit(directory: str) -> str | None:
    """Makes the directory; why it cannot be used."""
    try:
        with contextlib.suppress(FileExistsError):
            os.mkdir(directory, 0o700)
        status = os.lstat(directory)  # a symbolic link is somebody else's trick
    except OSError as error:
        return f"{directory}: {error.strerror}"
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
        return f"{directory} is not a directory of this user, closed to others (mode 0700): remove it"
    return None
