"""The shared memory of a group's ranks on one host: a sealed memfd, passed over a Unix socket (SCM_RIGHTS)."""

from __future__ import annotations

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

_NAME = "arraycomm"  # name of the memory files
_TOKEN = b"\x01"  # SCM_RIGHTS needs at least one byte of data


def create(size: int, least: int = 0) -> io.FileIO:
    """A memory file of `size` bytes, or of `least` if the system does not permit `size`. Pages are allocated on first use.

    Raises ResourceError.
    """
    segment = _new()
    try:
        _lengthen(segment, size, least)
        fcntl.fcntl(segment, kernel.F_ADD_SEALS, kernel.SEALED)  # the size is final
        return segment
    except OSError as error:
        segment.close()
        advice = ("see `ulimit -f`, or set ARRAYCOMM_TRANSPORT=tcp" if error.errno == errno.EFBIG
                  else "free memory, or lower ARRAYCOMM_PIECE_BYTES")
        raise ResourceError(f"cannot make {least or size} bytes of shared memory: {error.strerror}; {advice}") from error


def _new() -> io.FileIO:
    try:
        return io.FileIO(kernel.memory_file(_NAME, sealable=True), "r+")
    except OSError as error:
        advice = "set ARRAYCOMM_TRANSPORT=tcp, or auto" if error.errno in kernel.FORBIDDEN else "see `ulimit -n`"
        raise ResourceError(f"cannot make a file of shared memory: {error.strerror}; {advice}") from error


def _lengthen(segment: io.FileIO, size: int, least: int) -> None:
    """Sets the file's length. `ulimit -f` limits it even if no page is allocated."""
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
    try:
        return fcntl.fcntl(segment, kernel.F_GET_SEALS)
    except OSError:  # for example, a file on a disk
        return 0


def _check(segment: io.FileIO, size: int, least: int) -> None:
    if _seals(segment) & kernel.SEALED != kernel.SEALED:
        raise AuthFailed("it sent a file that is not a sealed memory file")
    found = os.fstat(segment.fileno()).st_size
    if found not in (size, least or size):
        raise DistNetworkError(f"it made {found} bytes where {size} are needed: ARRAYCOMM_PIECE_BYTES and the version "
                               "of arraycomm must be the same on all ranks")


def possible() -> bool:
    """Whether this process may create memory files. If they are forbidden: a warning, or ResourceError with
    ARRAYCOMM_TRANSPORT=shm. ResourceError for any other shortage."""
    try:
        _new().close()
        return True
    except ResourceError as error:
        cause = error.__cause__
        if settings.get_transport() == "shm" or not isinstance(cause, OSError) or cause.errno not in kernel.FORBIDDEN:
            raise
        log().warning("no shared memory, so this process uses TCP to all other ranks: %s", cause.strerror)
        return False


class Offers:
    """Segments created by this rank, by group, until all peers have fetched them. Guarded by the owner's lock."""

    def __init__(self) -> None:
        self._segments: dict[int, tuple[io.FileIO, set[int]]] = {}

    def __contains__(self, group: int) -> bool:
        return group in self._segments

    def awaited(self, group: int) -> set[int]:
        """The world ranks that have not fetched it yet."""
        return set(self._segments[group][1]) if group in self._segments else set()

    def offer(self, group: int, segment: io.FileIO, awaited: Iterable[int]) -> None:
        """`awaited`: the world ranks that may fetch it, once each. The caller keeps ownership of the segment."""
        self._segments[group] = (io.FileIO(os.dup(segment.fileno()), "r+"), set(awaited))

    def hand_out(self, sock: socket.socket, hello: Hello) -> None:
        """Sends the segment's descriptor to a rank and closes the socket. Does not block: the send buffer is empty."""
        segment, awaited = self._segments[hello.group]
        with sock:
            if hello.sender not in awaited:
                log().warning("rank %d asked for shared memory of other ranks, or for its own twice", hello.sender)
                return
            awaited.discard(hello.sender)
            try:
                socket.send_fds(sock, [_TOKEN], [segment.fileno()])
            except OSError as error:
                log().info("rank %d ended before it received its shared memory: %s", hello.sender, error.strerror)
        if not awaited:
            self.withdraw(hello.group)

    def withdraw(self, group: int) -> None:
        if group in self._segments:
            self._segments.pop(group)[0].close()

    def close(self) -> None:
        for group in list(self._segments):
            self.withdraw(group)
