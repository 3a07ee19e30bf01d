"""The job's secret: its sources, and when it is required.

Our launcher makes one per job and passes it in an inherited, sealed memory file. It is never in argv, a log or the
store. Without a launcher the user gives one, or the job stays on loopback. There the kernel
protects it: a peer must run under the same user id (auth.check_user), which excludes other users of the machine.
Another job of the same user differs by the job's name only.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Mapping

from ..base import kernel, settings
from ..base.errors import AuthFailed, ResourceError
from .address import is_loopback

_MAX_BYTES = 4096
_LEAST = 16  # bytes: a shorter secret can be found by brute force from one recorded handshake
_UNSEALED = b"arraycomm's secret, unsealed\n"  # magic in front of a secret in an unsealed file
_SEALS = kernel.F_SEAL_WRITE | kernel.F_SEAL_SHRINK | kernel.F_SEAL_GROW | kernel.F_SEAL_SEAL


def new_secret() -> bytes:
    """32 random bytes."""
    return os.urandom(32)


def find(environ: Mapping[str, str] | None = None) -> bytes | None:
    """The secret that ARRAYCOMM_SECRET, ARRAYCOMM_SECRET_FILE or ARRAYCOMM_SECRET_FD gives, None when none is set.

    Raises AuthFailed that names the variable when one is set but cannot be used.
    """
    text = settings.get("ARRAYCOMM_SECRET", environ)
    if text:
        return _decode(os.fsencode(text), "ARRAYCOMM_SECRET")
    path = settings.get("ARRAYCOMM_SECRET_FILE", environ)
    if path:
        return _decode(_read_file(path), f"ARRAYCOMM_SECRET_FILE={path}")
    number = settings.get("ARRAYCOMM_SECRET_FD", environ)
    return _read_descriptor(number) if number else None


def require(secret: bytes | None, address: str) -> None:
    """Raises AuthFailed when there is no secret and a numeric address can be reached from other machines."""
    if secret or is_loopback(address) or settings.get_flag("ARRAYCOMM_INSECURE"):
        return
    raise AuthFailed(f"refusing to use {address} without a secret: anybody on the network could join. Give "
                     "all ranks the same ARRAYCOMM_SECRET, or ARRAYCOMM_SECRET_FILE (mode 0600, e.g. made by "
                     "`openssl rand -hex 32`), or accept the risk with ARRAYCOMM_INSECURE=1")


def to_descriptor(secret: bytes) -> int:
    """An inheritable, sealed memory file that holds the secret, for ARRAYCOMM_SECRET_FD of child processes.

    If the system forbids these, an unlinked file.
    """
    descriptor = kernel.unnamed_file("arraycomm-secret")
    try:
        try:
            os.write(descriptor, secret)
        except OSError as error:
            raise ResourceError(f"cannot write {len(secret)} bytes, the secret, into a memory file: {error.strerror}; see "
                                "`ulimit -f`") from error
        try:
            fcntl.fcntl(descriptor, kernel.F_ADD_SEALS, _SEALS)
        except OSError:  # not a memory file
            os.pwrite(descriptor, _UNSEALED + secret, 0)
        os.set_inheritable(descriptor, True)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _decode(raw: bytes, source: str) -> bytes:
    """64 hex digits are 32 bytes; anything else is used as it is, without surrounding white space."""
    raw = raw.strip()
    if len(raw) < _LEAST or len(set(raw)) == 1:
        found = f"has {len(raw)} bytes" if len(raw) < _LEAST else f"has {len(raw)} times the same byte"
        raise AuthFailed(f"{source} {found if raw else 'is empty'}: a secret that can be guessed gives no protection; put at "
                         f"least {_LEAST} bytes there, best 64 random hex digits (made by `openssl rand -hex 32`)")
    if len(raw) == 64:
        try:
            return bytes.fromhex(raw.decode("ascii"))
        except ValueError:
            return raw
    return raw


def _read_file(path: str) -> bytes:
    """Reads a file of this user or of root: Kubernetes mounts secrets as symbolic links to root's files with group read
    permission. The permissions of the link's target are checked."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise AuthFailed(f"cannot open ARRAYCOMM_SECRET_FILE={path}: {error.strerror}") from error
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise AuthFailed(f"ARRAYCOMM_SECRET_FILE={path} is not a regular file")
        given = status.st_uid == 0 != os.geteuid() or not status.st_mode & 0o222  # from an administrator, who chose the group
        if status.st_uid not in (os.geteuid(), 0) or status.st_mode & (0o037 if given else 0o077):
            raise AuthFailed(f"ARRAYCOMM_SECRET_FILE={path} must belong to this user (uid {os.geteuid()}) or root, closed "
                             f"to others; it belongs to uid {status.st_uid}, mode {status.st_mode & 0o777:04o}; "
                             f"`chmod 600 {path}`, or `defaultMode: 0440` of a Kubernetes secret volume")
        if status.st_size > _MAX_BYTES:
            raise AuthFailed(f"ARRAYCOMM_SECRET_FILE={path} has {status.st_size} bytes, at most {_MAX_BYTES} are read")
        return os.read(descriptor, _MAX_BYTES)
    finally:
        os.close(descriptor)


def _is_sealed(descriptor: int) -> bool:
    try:
        return bool(fcntl.fcntl(descriptor, kernel.F_GET_SEALS) & kernel.F_SEAL_WRITE)
    except OSError as error:
        if error.errno != errno.EINVAL:  # not a memory file
            raise
        return False


def _is_private(status: os.stat_result) -> bool:
    """Whether it is an unlinked file that only this user can open, as made by kernel.unnamed_file()."""
    return stat.S_ISREG(status.st_mode) and not (status.st_nlink or status.st_mode & 0o077) and status.st_uid == os.geteuid()


def _read_descriptor(number: str) -> bytes:
    """Reads the launcher's file, always at offset 0, so that it can be read again."""
    try:
        descriptor = int(number)
        secret = os.pread(descriptor, len(_UNSEALED) + _MAX_BYTES, 0)
        if not _is_sealed(descriptor):
            if not (secret.startswith(_UNSEALED) and _is_private(os.fstat(descriptor))):
                raise ValueError("it is not sealed")
            secret = secret.removeprefix(_UNSEALED)
    except (OSError, ValueError, OverflowError) as error:
        raise AuthFailed(f"cannot read the secret from descriptor ARRAYCOMM_SECRET_FD={number} ({error}); only one "
                         "that inherits it from the launcher can (subprocess closes descriptors: give "
                         "pass_fds, or ARRAYCOMM_SECRET_FILE)") from error
    if len(secret) < _LEAST:
        raise AuthFailed(f"descriptor ARRAYCOMM_SECRET_FD={number} has {len(secret)} bytes, and a secret at least {_LEAST}")
    return secret
