"""Memory that the ranks of a group share where all of them are on one host (engine/mpi_seats.h): rank 0 makes it, and the others
take it through /proc, where the kernel lets nobody in but this user's processes."""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
from collections.abc import Sequence

from arraycomm._engine import lib
from arraycomm.core import kernel, settings
from arraycomm.core.log import log

_NAME = "arraycomm-mpi"  # of the memory file
_TOLD = struct.Struct("<iiQ")  # process; the file's descriptor and inode
BYTES = _TOLD.size


class Offer:
    """What a rank tells of itself. Rank 0's has the memory, until it is closed. Raises ValueError for an unknown transport."""

    def __init__(self, rank: int, size: int) -> None:
        self.wanted = settings.get_transport() != "tcp"
        self.file = _made(lib.acomm_mpi_shared_bytes(size)) if rank == 0 and size > 1 and self.wanted else -1
        inode = os.fstat(self.file).st_ino if self.file >= 0 else 0
        self.told = _TOLD.pack(os.getpid(), self.file, inode)

    def close(self) -> None:
        if self.file >= 0:
            os.close(self.file)
        self.file = -1


def take(group: object, told: Sequence[bytes], offer: Offer) -> int:
    """Maps rank 0's memory. 0: that cannot be; 2: every rank's own can be read too; else 1."""
    offers = [_TOLD.unpack(one) for one in told]
    process, descriptor, inode = offers[0]
    if descriptor < 0 or not offer.wanted:
        return 0
    try:
        file = os.dup(offer.file) if offer.file >= 0 else kernel.lent_file(process, descriptor, inode, _NAME)
    except OSError:
        return 0  # not permitted, or another namespace of processes
    try:
        if not _is(file, lib.acomm_mpi_shared_bytes(len(told))):
            return 0
        return int(lib.acomm_mpi_share(group, file, [process for process, _, _ in offers]))
    finally:
        os.close(file)


def _is(file: int, size: int) -> bool:
    found = os.fstat(file)
    with contextlib.suppress(OSError):  # no memory file
        return found.st_size == size and fcntl.fcntl(file, kernel.F_GET_SEALS) & kernel.SEALED == kernel.SEALED
    return False


def _made(size: int) -> int:
    """A memory file, or -1."""
    if not size:
        return -1
    try:
        file = kernel.memory_file(_NAME, sealable=True)
    except OSError as error:
        log().info("no shared memory for records, which go by MPI's messages: %s", error)
        return -1
    try:
        os.ftruncate(file, size)
        fcntl.fcntl(file, kernel.F_ADD_SEALS, kernel.SEALED)
        return file
    except OSError as error:
        log().info("no shared memory for records, which go by MPI's messages: %s", error)
        os.close(file)
        return -1
