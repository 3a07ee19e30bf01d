"""A pipe that ties ranks to their parent: when the parent dies in any way, the kernel kills the ranks.

Only the parent holds the write end. Every rank holds a read end with O_ASYNC and F_SETSIG set to SIGKILL, so the
kernel sends that signal to the read end's owner, a process or a whole process group, as soon as the pipe has no writer.
Rejected: PR_SET_PDEATHSIG fires when the parent's *thread* ends and spares the rank's own children; a watching thread
in the rank needs the interpreter lock, which a rank may hold for minutes.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal

from .errors import ResourceError
from .kernel import polled


class Lifeline:
    """The parent's write end. Closing it kills every tied rank."""

    def __init__(self) -> None:
        self.read_end, self.write_end = os.pipe()

    def open_reader(self) -> int:
        """A separately opened read end: owner and signal belong to the open file description, which dup() would share.

        Raises ResourceError where /proc is not mounted.
        """
        try:
            return os.open(f"/proc/self/fd/{self.read_end}", os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise ResourceError("cannot start ranks: /proc is not mounted here, by which the kernel is asked to end them with "
                                "this process; mount it (mount -t proc proc /proc), or start each rank by itself, with RANK, "
                                "WORLD_SIZE, MASTER_ADDR and MASTER_PORT") from None

    def close(self) -> None:
        """Idempotent."""
        for name in ("read_end", "write_end"):
            descriptor = getattr(self, name)
            if descriptor >= 0:
                setattr(self, name, -1)
                os.close(descriptor)


def tie(reader: int, owner: int) -> None:
    """Makes the kernel kill `owner` (a process id, or minus a process group's) when the write end of `reader`'s pipe closes."""
    fcntl.fcntl(reader, fcntl.F_SETOWN, owner)
    fcntl.fcntl(reader, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(reader, fcntl.F_SETFL, fcntl.fcntl(reader, fcntl.F_GETFL) | os.O_ASYNC)
    # The kernel signals the event only: a parent that died before this moment is detected by polling once.
    if polled(reader, 0) & select.POLLHUP:
        os.kill(owner, signal.SIGKILL)
