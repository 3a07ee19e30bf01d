"""The shared memory of a group's ranks on one host: a sealed memfd. That of a world is lent, so that its ranks take it without
a handshake; where the system does not permit that, and for other groups, it is handed over on a Unix socket.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import io
import os
import socket
import struct
from collections.abc import Iterable

from arraycomm.core.base import kernel, settings
from arraycomm.core.base.errors import AuthFailed, DistNetworkError, ResourceError
from arraycomm.core.base.log import log
from arraycomm.core.bootstrap.auth import Hello

_RANK = struct.Struct("<I")
_NAME = "arraycomm"  # of the memory files
_TOKEN = b"\x01"  # a descriptor has to travel with at least one byte


def create(size: int, least: int = 0) -> io.FileIO:
    """A memory file of `size` bytes, or of `least` where the system permits no such file; memory is taken when it is first used.

    Raises ResourceError.
    """
    segment = _new()
    try:
        _seal(segment, size, least)
        return segment
    except BaseException:
        segment.close()
        raise


def _new() -> io.FileIO:
    try:
        return io.FileIO(kernel.memory_file(_NAME, sealable=True), "r+")
    except OSError as error:
        advice = "set ARRAYCOMM_TRANSPORT=tcp, or auto" if error.errno in kernel.FORBIDDEN else "see `ulimit -n`"
        raise ResourceError(f"cannot make a file of shared memory: {error.strerror}; {advice}") from error


def _seal(segment: io.FileIO, size: int, least: int) -> None:
    """Gives it its size for good. Does nothing where another rank has done so, or where it is no memory file without a size and
    seals: _check() tells whether it is the same, or what it is."""
    if _seals(segment) != 0 or os.fstat(segment.fileno()).st_size not in (0, size, least or size):
        return
    try:
        _lengthen(segment, size, least)
        fcntl.fcntl(segment, kernel.F_ADD_SEALS, kernel.SEALED)
    except PermissionError:
        return  # sealed
    except OSError as error:
        advice = ("see `ulimit -f`, or set ARRAYCOMM_TRANSPORT=tcp" if error.errno == errno.EFBIG
                  else "free memory, or lower ARRAYCOMM_PIECE_BYTES")
        raise ResourceError(f"cannot make {least or size} bytes of shared memory: {error.strerror}; {advice}") from error


def _lengthen(segment: io.FileIO, size: int, least: int) -> None:
    """A file without memory counts for `ulimit -f` by its length."""
    try:
        segment.truncate(size)
    except OSError as error:
        if error.errno != errno.EFBIG or not least:
            raise
        segment.truncate(least)


def receive(sock: socket.socket, size: int, least: int = 0) -> io.FileIO:
    """The segment from a peer, checked. Raises TimeoutError, DistNetworkError when the peer has gone, AuthFailed."""
    # CMSG_SPACE and not CMSG_LEN: descriptors beyond the first must be seen, so that they can be closed.
    token, ancillary, _, _ = sock.recvmsg(1, socket.CMSG_SPACE(8 * 4), socket.MSG_CMSG_CLOEXEC)
    files = [io.FileIO(descriptor, "r+") for level, kind, data in ancillary
             if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS)
             for descriptor, in struct.iter_unpack("i", data[: len(data) - len(data) % 4])]
    try:
        if not token:
            raise DistNetworkError("it closed the connection")
        if len(files) != 1:
            raise AuthFailed(f"it sent {len(files)} descriptors, not one")
        _check(files[0], size, least)
        return files.pop()
    finally:
        for file in files:
            file.close()


def _seals(segment: io.FileIO) -> int:
    """0: none yet. A file on a disk has none for ever, so it counts as sealed against seals."""
    try:
        return fcntl.fcntl(segment, kernel.F_GET_SEALS)
    except OSError:
        return kernel.F_SEAL_SEAL


def _check(segment: io.FileIO, size: int, least: int) -> None:
    if _seals(segment) & kernel.SEALED != kernel.SEALED:
        raise AuthFailed("it sent a file that is not a sealed memory file")
    found = os.fstat(segment.fileno()).st_size
    if found not in (size, least or size):
        raise DistNetworkError(f"it made {found} bytes where {size} are needed: ARRAYCOMM_PIECE_BYTES and the version "
                               "of arraycomm must be the same on all ranks")


class Lent:
    """An empty memory file that peers take by themselves, through /proc: the kernel lets nobody in but this user's processes.
    And a pipe, in which they say that they have it.

    It is there before anybody knows how long it must be. Whoever comes first gives it its size.
    """

    def __init__(self) -> None:
        """Raises ResourceError."""
        self._file = _new()
        try:
            self._said, self._say = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            self._file.close()
            raise ResourceError(f"cannot make a pipe for shared memory: {error.strerror}; see `ulimit -n`") from error
        self.name = " ".join(f"{os.fstat(end).st_ino} {end}" for end in (self._file.fileno(), self._say))  # for this rank's card
        self.taken: set[int] = set()  # who has said so

    def fileno(self) -> int:
        """What can be read when somebody has."""
        return self._said

    def hear(self) -> None:
        """Reads what peers have said. Does not block."""
        with contextlib.suppress(BlockingIOError):  # nothing more
            said = os.read(self._said, _RANK.size * 1024)
            self.taken.update(rank for rank, in _RANK.iter_unpack(said))

    def take(self, size: int, least: int = 0) -> io.FileIO:
        """This rank's own; the caller closes it. Raises as create() and receive() do."""
        return _taken(io.FileIO(os.dup(self._file.fileno()), "r+"), size, least)

    def close(self) -> None:
        """Idempotent."""
        if not self._file.closed:
            self._file.close()
            os.close(self._said)
            os.close(self._say)


def take(pid: int, name: str, size: int, rank: int, least: int = 0) -> io.FileIO | None:
    """What the process `pid` has lent, for `rank`. None where the system does not permit that, or the process has gone.

    Raises as create() and receive() do.
    """
    file_inode, file, pipe_inode, pipe = map(int, name.split(" "))
    try:
        segment = io.FileIO(kernel.lent_file(pid, file, file_inode, _NAME), "r+")
    except OSError:
        return None
    segment = _taken(segment, size, least)
    try:
        say = kernel.lent_pipe(pid, pipe, pipe_inode)
        try:
            os.write(say, _RANK.pack(rank))
        finally:
            os.close(say)
        return segment
    except OSError:
        segment.close()
        return None


def _taken(segment: io.FileIO, size: int, least: int) -> io.FileIO:
    try:
        _seal(segment, size, least)
        _check(segment, size, least)
        return segment
    except BaseException:
        segment.close()
        raise


def lend() -> Lent | None:
    """What this rank lends. None, with a warning, where memory files are forbidden and ARRAYCOMM_TRANSPORT leaves the choice."""
    try:
        return Lent()
    except ResourceError as error:
        cause = error.__cause__
        if settings.get_transport() == "shm" or not isinstance(cause, OSError) or cause.errno not in kernel.FORBIDDEN:
            raise
        log().warning("no shared memory, so that this process talks TCP to all others: %s", cause.strerror)
        return None


class Offers:
    """Segments made here, by group, until all others have fetched them. Guarded by the owner's lock."""

    def __init__(self) -> None:
        self._segments: dict[int, tuple[io.FileIO, set[int]]] = {}

    def __contains__(self, group: int) -> bool:
        return group in self._segments

    def awaited(self, group: int) -> set[int]:
        """Who has not fetched it."""
        return set(self._segments[group][1]) if group in self._segments else set()

    def offer(self, group: int, segment: io.FileIO, awaited: Iterable[int]) -> None:
        """`awaited`: the world ranks that may fetch it, once each. The segment stays the caller's."""
        self._segments[group] = (io.FileIO(os.dup(segment.fileno()), "r+"), set(awaited))

    def hand_out(self, sock: socket.socket, hello: Hello) -> None:
        """Gives the segment to a rank and closes the socket. Does not block: nothing else is ever written to it."""
        segment, awaited = self._segments[hello.group]
        with sock:
            if hello.sender not in awaited:
                log().warning("rank %d asked for shared memory of other ranks, or for its own twice", hello.sender)
                return
            awaited.discard(hello.sender)
            try:
                socket.send_fds(sock, [_TOKEN], [segment.fileno()])
            except OSError as error:
                log().info("rank %d went before it had its shared memory: %s", hello.sender, error.strerror)
        if not awaited:
            self.withdraw(hello.group)

    def withdraw(self, group: int) -> None:
        if group in self._segments:
            self._segments.pop(group)[0].close()

    def close(self) -> None:
        for group in list(self._segments):
            self.withdraw(group)
