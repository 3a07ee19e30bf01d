"""The log message about an operation that waits for a long time, with the stacks of the late ranks.

The engine reports such operations (acomm_node_late). A late rank of this host is asked for the stacks of its Python threads.
Its acceptor thread answers, unless another thread holds the GIL.
"""

from __future__ import annotations

import contextlib
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from arraycomm._engine import ffi, lib
from arraycomm.core.base.log import log
from arraycomm.core.base.printable import printable
from arraycomm.core.bootstrap.auth import HandshakeBroken, Purpose

from ..errors import describe

if TYPE_CHECKING:
    from .outgoing import Outgoing
    from .peers import Peers

_SHOWN = 8  # maximum number of ranks in the message
_ASKED = 2  # maximum number of ranks to ask for stacks
_SECONDS = 1.0  # timeout of an answer
_LONGEST = 16384  # maximum bytes of an answer
_THREADS, _FRAMES = 4, 12  # of an answer: innermost frames
_SILENT = 2**64 - 1  # in `begun`: the rank did not answer


class Registered(NamedTuple):
    """A group that accepts data connections."""

    group: Any  # acomm_group *
    rank: int
    ranks: dict[int, int]  # world rank -> rank of the group, in order
    name: str


class Late(NamedTuple):
    """An operation in which `rank` has been waiting for the ranks `late`."""

    rank: int
    size: int
    name: str
    seconds: float
    doing: str
    late: tuple[int, ...]  # empty: any sender
    begun: tuple[int, ...]  # each rank's number of collectives, or _SILENT; empty for a message

    def text(self, place: Callable[[int], str]) -> str:
        """The log message. place: "host h, pid p" of a rank."""
        return (f"rank {self.rank} of {self.size} in group {self.name!r} has waited {self.seconds:.3g} s in {self.doing} for "
                f"{self._whom(place)}")

    def _whom(self, place: Callable[[int], str]) -> str:
        if not self.late:
            return "a message from any rank"
        whom = ", ".join(f"{rank} ({place(rank)}{self._last(rank)})" for rank in self.late[:_SHOWN])
        more = f" and {len(self.late) - _SHOWN} more" if len(self.late) > _SHOWN else ""
        return f"rank{'s' * (len(self.late) > 1)} {whom}{more}"

    def _last(self, rank: int) -> str:
        if not self.begun:
            return ""
        begun = self.begun[rank]
        if begun == _SILENT:
            return ", which has not answered"
        return f", last in collective #{begun}" if begun else ", in no collective so far"


def take(node: Any, size: int, groups: Mapping[int, Registered]) -> tuple[Late, list[int]] | None:
    """The engine's next report, with the world ranks of its group."""
    found, begun = ffi.new("acomm_late *"), ffi.new("uint64_t[]", size)
    while lib.acomm_node_late(node, found, begun):
        registered = groups.get(found.group)
        late = _read(found, begun, registered) if registered else None
        if registered and late:
            return late, list(registered.ranks)
    return None


def _read(found: Any, begun: Any, registered: Registered) -> Late | None:
    """None if no rank is late, only data is still in transfer."""
    here, seconds, peer, size = registered.rank, found.waited / 1e9, int(found.peer), len(registered.ranks)
    if not found.all:
        empty = found.mine.kind == lib.ACOMM_RECV and not found.mine.count
        doing = "a receive, a probe or a window's wait" if empty else describe(found.mine)
        return Late(here, size, registered.name, seconds, doing, (peer,) if peer >= 0 else (), ())
    counts = tuple(begun[rank] for rank in range(size))
    late = [rank for rank, count in enumerate(counts) if count < found.mine.sequence]
    late = late or [rank for rank, count in enumerate(counts) if count == _SILENT]
    return Late(here, size, registered.name, seconds, describe(found.mine), tuple(late), counts) if late else None


def tell(late: Late, world: Sequence[int], peers: Peers, outgoing: Outgoing) -> None:
    """Logs the message; for a collective only the first waiting rank of a host logs. world: world rank of each group rank."""
    def beside(rank: int) -> bool:
        return peers[world[rank]].host == peers[world[late.rank]].host

    if late.begun and any(beside(rank) for rank in range(late.rank) if rank not in late.late):
        return
    here = [rank for rank in late.late if beside(rank)][:_ASKED]
    stacks = "".join(f"\nrank {rank}{_ask(world[rank], outgoing)}" for rank in here)
    log().warning("%s%s", late.text(lambda rank: peers[world[rank]].place), stacks)


def _ask(rank: int, outgoing: Outgoing) -> str:
    """The stacks of a rank. rank: world rank."""
    try:
        with outgoing.connect(rank, Purpose.STACKS, patience=_SECONDS) as sock:
            text = _receive(sock).decode(errors="replace")
    except Exception as error:  # catch all: the answer is only for the log
        if isinstance(error.__cause__, (HandshakeBroken, TimeoutError)):
            return " sent no stack: it is stopped, has no CPU, or holds the GIL"
        return f" sent no stack: {printable(str(error) or type(error).__name__)}"
    return " is here:\n" + "\n".join(map(printable, text.splitlines()))


def _receive(sock: socket.socket) -> bytes:
    end, answer = time.monotonic() + _SECONDS, b""
    while len(answer) < _LONGEST:
        sock.settimeout(max(end - time.monotonic(), 0.001))
        more = sock.recv(_LONGEST - len(answer))
        if not more:
            break
        answer += more
    return answer


def answer(sock: socket.socket, thread: str = "") -> None:
    """Sends this process's stacks. Runs in the acceptor thread, so it does not block on a peer that does not read.

    thread: name of the rank's thread, if ranks are threads."""
    with sock, contextlib.suppress(OSError):
        sock.setblocking(False)
        sock.send(_stacks(thread).encode(errors="backslashreplace")[:_LONGEST])


def _stacks(only: str) -> str:
    import traceback  # lazy: rarely needed

    frames, main = sys._current_frames(), threading.main_thread()
    theirs = [thread for thread in threading.enumerate()
              if (thread.name == only if only else thread is main or not thread.name.startswith("arraycomm-"))]
    shown = sorted(theirs, key=lambda thread: thread is not main)[:_THREADS]
    return "".join(f"  thread {thread.name}\n" + "".join(traceback.format_stack(frames[thread.ident], _FRAMES))
                   for thread in shown if thread.ident in frames)
