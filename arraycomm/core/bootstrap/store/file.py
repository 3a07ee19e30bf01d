"""FileStore: a store in a file that all ranks can open, for one host or a shared file system.

The file is a log of requests. Every user replays it into a Table of its own; whoever changes something appends under a
lock. Locks are byte-range locks of the open file description (fcntl's F_OFD_SETLK), which NFS carries too and which
the kernel drops when a user dies: one byte guards the log, another is held shared by every user as a sign of life.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import struct
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from datetime import timedelta

from ...base.errors import DistStoreError, ResourceError
from .request import RequestStore
from .table import CHANGING, MAX_REQUEST, Op, Table, encode

_MAGIC = b"arraycomm store 2\n"
_USERS = b"\0users"  # "<open now> <closed so far>"
_LOG_BYTE, _LIFE_BYTE = 2**62, 2**62 + 1  # beyond any data
_FLOCK = "hhqqi"  # struct flock with 64-bit offsets: type, whence, start, length, pid
_POLL = (0.0005, 0.02)  # s: polling interval of the file, first and longest: network file systems deliver no events
_CHUNK = 1 << 20
_LENGTH = 4  # bytes, before each request in the log


class FileStore(RequestStore):
    """Opens or makes `file_name`, readable by this user only; the last of `world_size` users to close removes it.

    A file that crashed users left behind is emptied by the next one. With `world_size` -1 it is never removed.
    Raises DistStoreError, within a second, when the file is a symbolic link, somebody else's, not a store, or the
    file system is full. In a child made by fork it must not be used.
    """

    def __init__(self, file_name: str | os.PathLike[str], world_size: int = -1,
                 timeout: timedelta | None = None, *, _counts: bool = True) -> None:
        super().__init__(timeout)
        if not isinstance(world_size, int):
            raise TypeError(f"world_size must be an int, got {world_size!r}")
        self.path = os.path.abspath(os.fspath(file_name))
        self._world_size = world_size
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._table, self._offset = Table(), len(_MAGIC)
        self._descriptor = self._join()
        self._finalizer = weakref.finalize(self, _leave, self.path, self._descriptor, world_size, _counts,
                                           self._pid)

    def _where(self) -> str:
        return f"FileStore {self.path}"

    def _join(self) -> int:
        """Opens and locks the file. Retries if a user has removed it between open and lock."""
        end = time.monotonic() + self.timeout.total_seconds()
        while True:
            descriptor = _open(self.path)
            try:
                with _locked(descriptor, fcntl.F_WRLCK, end, self.path), _translated(self.path):
                    if _stands(self.path, descriptor):
                        _begin(self.path, descriptor)
                        _count_users(descriptor, joined=1, closed=0)
                        return descriptor
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)

    def _call(self, op: int, fields: Sequence[bytes | int], timeout: float) -> list[bytes]:
        if self._pid != os.getpid():
            raise RuntimeError("this store was opened before a fork; open another one in the child")
        end = time.monotonic() + timeout
        pause = _POLL[0]
        while True:
            with self._lock:
                answer = self._once(op, fields)
            if answer is not None:
                return answer
            if time.monotonic() >= end:
                raise TimeoutError
            time.sleep(max(min(pause, end - time.monotonic()), 0.0))
            pause = min(2 * pause, _POLL[1])

    def _once(self, op: int, fields: Sequence[bytes | int]) -> list[bytes] | None:
        if not self._finalizer.alive:
            raise DistStoreError("this store was closed")
        mode = fcntl.F_WRLCK if op in CHANGING else fcntl.F_RDLCK
        end = time.monotonic() + self.timeout.total_seconds()
        with _locked(self._descriptor, mode, end, self.path), _translated(self.path):
            self._offset = _replay(self._descriptor, self._table, self._offset)
            answer = self._table.apply(op, fields)
            if op in CHANGING and answer is not None:
                try:
                    self._offset = _append(self._descriptor, self._offset, encode(op, fields))
                except BaseException:
                    self._table, self._offset = Table(), len(_MAGIC)  # ahead of the file: replay from the start
                    raise
            return answer

    def clone(self) -> FileStore:
        """A further user of the file, who is not one of the `world_size`.

        - Blocks: until the file is open.
        - Errors: DistStoreError when the file is gone.
        """
        twin = object.__new__(type(self))
        FileStore.__init__(twin, self.path, self._world_size, self.timeout, _counts=False)
        return twin

    def close(self) -> None:
        with self._lock:
            if self._pid == os.getpid():
                self._finalizer()


def _leave(path: str, descriptor: int, world_size: int, counts: bool, pid: int) -> None:
    """Removes the file if this was the last user. Never raises, because it runs at exit."""
    if pid != os.getpid():
        return  # a forked child has a copy of the descriptor but does not count as a user
    try:
        # A full or vanished file system: the next user of the path empties the file.
        with contextlib.suppress(OSError, DistStoreError), \
                _locked(descriptor, fcntl.F_WRLCK, time.monotonic() + 1.0, path):
            users, closed = _count_users(descriptor, joined=-1, closed=counts)
            if users == 0 and 0 <= world_size <= closed and _stands(path, descriptor):
                os.unlink(path)
    finally:
        os.close(descriptor)


def _open(path: str) -> int:
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    try:
        descriptor = os.open(path, flags, 0o600)
    except OSError as error:
        link = error.errno == errno.ELOOP
        reason = "it is a symbolic link, which is not followed" if link else error.strerror
        raise DistStoreError(f"cannot open the FileStore {path}: {reason}") from error
    status = os.fstat(descriptor)
    reason = None
    if not stat.S_ISREG(status.st_mode):
        reason = "it is not a regular file"
    elif status.st_uid != os.geteuid():
        reason = f"it belongs to user {status.st_uid}, this is user {os.geteuid()}"
    elif status.st_mode & 0o022 and status.st_size:
        reason = f"others may write to it (mode {status.st_mode & 0o777:04o}): `chmod 600` it, or take another path"
    if reason:
        os.close(descriptor)
        raise DistStoreError(f"will not use {path} as a FileStore: {reason}")
    if status.st_mode & 0o077:
        os.fchmod(descriptor, 0o600)
    return descriptor


def _stands(path: str, descriptor: int) -> bool:
    try:
        there = os.stat(path, follow_symlinks=False)
    except FileNotFoundError:
        return False
    mine = os.fstat(descriptor)
    return (there.st_dev, there.st_ino) == (mine.st_dev, mine.st_ino)


def _begin(path: str, descriptor: int) -> None:
    """Checks or writes the first line, and empties a file whose users are all dead. Takes the shared lock of a live user."""
    start = os.pread(descriptor, len(_MAGIC), 0)
    if start != _MAGIC and not _MAGIC.startswith(start):
        raise DistStoreError(f"will not use {path} as a FileStore: it holds something else; choose another path")
    alone = _lock(descriptor, fcntl.F_WRLCK, _LIFE_BYTE)
    table = Table()
    if start == _MAGIC:
        _replay(descriptor, table, len(_MAGIC))
    if start != _MAGIC or (alone and _users(table)[0] > 0):
        os.ftruncate(descriptor, 0)
        _write(descriptor, 0, _MAGIC)
    _lock(descriptor, fcntl.F_RDLCK, _LIFE_BYTE)


def _users(table: Table) -> tuple[int, int]:
    found = table.apply(Op.AWAIT_VALUES, [_USERS])
    users, closed = (0, 0) if found is None else map(int, found[0].split())
    return users, closed


def _count_users(descriptor: int, *, joined: int, closed: int) -> tuple[int, int]:
    table = Table()
    offset = _replay(descriptor, table, len(_MAGIC))
    before = _users(table)
    now = before[0] + joined, before[1] + closed
    _append(descriptor, offset, encode(Op.SET, [_USERS, f"{now[0]} {now[1]}".encode()]))
    return now


def _replay(descriptor: int, table: Table, offset: int) -> int:
    """Replays the requests appended since `offset`; returns the new offset. Skips a torn last request of a dead user."""
    try:
        return _read_on(descriptor, table, offset)
    except (ValueError, ResourceError) as error:
        raise DistStoreError(f"the FileStore's file is damaged ({error}); remove it") from error


def _read_on(descriptor: int, table: Table, offset: int) -> int:
    buffer = bytearray()
    while data := os.pread(descriptor, _CHUNK, offset + len(buffer)):
        buffer += data
        position = 0
        while (end := position + _LENGTH + int.from_bytes(buffer[position:position + _LENGTH], "little")) <= len(buffer):
            if table.replay(bytes(buffer[position + _LENGTH:end])) is None:
                raise ValueError("a request that was not carried out")
            position = end
        if end - position > MAX_REQUEST:
            raise ValueError(f"a request of {end - position} bytes")
        offset += position
        del buffer[:position]
    return offset


def _append(descriptor: int, offset: int, request: bytes) -> int:
    entry = len(request).to_bytes(_LENGTH, "little") + request
    try:
        if os.fstat(descriptor).st_size > offset:
            os.ftruncate(descriptor, offset)  # the partial request of a dead user
        _write(descriptor, offset, entry)
    except BaseException:
        with contextlib.suppress(OSError):
            os.ftruncate(descriptor, offset)
        raise
    return offset + len(entry)


def _write(descriptor: int, offset: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(descriptor, view, offset)
        view, offset = view[written:], offset + written


def _lock(descriptor: int, mode: int, byte: int) -> bool:
    """Acquires, changes or releases (F_UNLCK) a lock; False if it conflicts with another user's."""
    try:
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, struct.pack(_FLOCK, mode, os.SEEK_SET, byte, 1, 0))
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES):
            return False
        raise DistStoreError(f"this file system cannot lock files ({error.strerror}); use a TCPStore") from error
    return True


@contextlib.contextmanager
def _locked(descriptor: int, mode: int, end: float, path: str) -> Iterator[None]:
    pause = _POLL[0] / 10
    while not _lock(descriptor, mode, _LOG_BYTE):
        if time.monotonic() >= end:
            raise DistStoreError(f"timeout: another process keeps the FileStore {path} locked; it may be stopped")
        time.sleep(pause)
        pause = min(2 * pause, _POLL[1])
    try:
        yield
    finally:
        _lock(descriptor, fcntl.F_UNLCK, _LOG_BYTE)


@contextlib.contextmanager
def _translated(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise DistStoreError(f"cannot use the FileStore {path}: {error.strerror}") from error
