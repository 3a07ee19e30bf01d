"""The folder of a launcher's world: libpmix's files, and notes of the ranks on their shared memory, so that none of it outlives
a world that was killed.

A launcher holds a lock on its folder as long as it lives. It clears its own world when that has ended; where the launcher itself
was killed, the next one of the same user does.
"""

from __future__ import annotations

import contextlib
import fcntl
import glob
import os
import shutil
import tempfile

VARIABLE = "ARRAYCOMM_MPI_FOLDER"
_SHARED = "/dev/shm/"
_NAMES = ("mpich_shm_", "sm_segment.", "vader_segment.")  # of MPICH, Open MPI 5 and 4; Intel MPI's have none
_PREFIX, _LOCK, _NOTE = "arraycomm-mpi-", "lock", "memory-"


class Folder:
    def __init__(self) -> None:
        for left in glob.glob(os.path.join(glob.escape(tempfile.gettempdir()), f"{_PREFIX}*")):
            _sweep(left)
        self.path = tempfile.mkdtemp(prefix=_PREFIX)
        # The lock gets its name when it is held: nobody finds one that is not.
        self._lock = _locked(os.path.join(self.path, f"{_LOCK}.new"), os.O_CREAT)
        os.rename(os.path.join(self.path, f"{_LOCK}.new"), os.path.join(self.path, _LOCK))

    def close(self) -> None:
        _clear(self.path)
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
    with open(os.path.join(folder, f"{_NOTE}{rank}"), "w", encoding="utf-8") as file:
        file.writelines(lines)


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
    """Clears the folder of a launcher of ours that lives no more."""
    with contextlib.suppress(OSError):  # held, of somebody else, or gone meanwhile
        if os.path.islink(path) or os.lstat(path).st_uid != os.getuid():
            return
        lock = _locked(os.path.join(path, _LOCK))
        _clear(path)
        os.close(lock)


def _clear(path: str) -> None:
    for file in glob.glob(os.path.join(glob.escape(path), f"{_NOTE}*")):
        with open(file, encoding="utf-8") as notes:
            for line in notes:
                _remove(*line.rstrip("\n").split(" ", 1))
    shutil.rmtree(path, ignore_errors=True)


def _remove(number: str, name: str) -> None:
    """Where it is still the same file: names come again."""
    with contextlib.suppress(OSError):  # the library has removed it itself, as it does when all end well
        if "/" not in name and name.startswith(_NAMES) and os.stat(_SHARED + name).st_ino == int(number):
            os.unlink(_SHARED + name)
