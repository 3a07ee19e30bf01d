"""The folder of a launcher's world: libpmix's files, and notes of the ranks on their shared memory, so that none of it outlives
a world that was killed.

A launcher holds a lock on its folder as long as it lives. It clears its own world when that has ended; where the launcher itself
was killed, the next one of the same user on the same host does. The folder may be on a disk that hosts share, where a lock may be
seen on its own host only: it says which that is.
"""

from __future__ import annotations

import contextlib
import fcntl
import glob
import os
import shutil
import socket
import tempfile

from arraycomm.core.log import log

VARIABLE = "ARRAYCOMM_MPI_FOLDER"
_SHARED = "/dev/shm/"
_NAMES = ("mpich_shm_", "sm_segment.")  # of MPICH and Open MPI; Intel MPI's have none
_PREFIX, _LOCK, _NOTE = "arraycomm-mpi-", "lock", "memory-"


class Folder:
    def __init__(self) -> None:
        for left in glob.glob(os.path.join(glob.escape(tempfile.gettempdir()), f"{_PREFIX}*")):
            _sweep(left)
        self.path = tempfile.mkdtemp(prefix=_PREFIX)
        os.chmod(self.path, 0o700)  # the umask may have taken it from this user
        self._lock = -1
        new = os.path.join(self.path, f"{_LOCK}.new")
        try:
            self._lock = _locked(new, os.O_CREAT)
            os.write(self._lock, _mark())
            os.rename(new, os.path.join(self.path, _LOCK))  # when it is held and written: nobody finds another
        except OSError as error:
            log().warning("%s cannot be locked (%s): if this launcher is killed, what it leaves there stays", self.path, error)

    def close(self) -> None:
        _clear(self.path)
        if self._lock >= 0:
            os.close(self._lock)


def note(folder: str, rank: int) -> None:
    """Of this process: the files in memory that it shares with others, by number too."""
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        mapped = {line.rstrip("\n").partition(_SHARED)[2] for line in maps if _SHARED in line}
    lines = []
    for name in mapped:
        if name.startswith(_NAMES):
            with contextlib.suppress(OSError):  # "(deleted)"
                lines.append(f"{os.stat(_SHARED + name).st_ino} {name}\n")
    try:
        with open(os.path.join(folder, f"{_NOTE}{rank}"), "w", encoding="utf-8") as file:
            file.writelines(lines)
    except OSError as error:
        log().warning("rank %d: what it leaves in %s if it is killed stays: %s", rank, _SHARED, error)


def _mark() -> bytes:
    return f"arraycomm-run on {socket.gethostname()}\n".encode()


def _locked(path: str, flags: int = 0) -> int:
    """A descriptor. BlockingIOError where somebody holds it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | flags, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _sweep(path: str) -> None:
    """Clears the folder of a launcher of ours on this host that lives no more."""
    with contextlib.suppress(OSError):  # held, of somebody else, or gone meanwhile
        if os.path.islink(path) or os.lstat(path).st_uid != os.getuid():
            return
        lock = _locked(os.path.join(path, _LOCK))
        if os.read(lock, 1024) == _mark():
            _clear(path)
        os.close(lock)


def _clear(path: str) -> None:
    for file in glob.glob(os.path.join(glob.escape(path), f"{_NOTE}*")):
        with contextlib.suppress(OSError), open(file, encoding="utf-8", errors="replace") as notes:
            for line in notes:
                number, _, name = line.rstrip("\n").partition(" ")
                _remove(number, name)
    shutil.rmtree(path, ignore_errors=True)


def _remove(number: str, name: str) -> None:
    """Where it is still the same file: names come again."""
    with contextlib.suppress(OSError):  # the library has removed it itself, as it does when all end well
        if "/" not in name and name.startswith(_NAMES) and str(os.stat(_SHARED + name).st_ino) == number:
            os.unlink(_SHARED + name)
