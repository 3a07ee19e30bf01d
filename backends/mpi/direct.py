"""Arrays on CUDA devices over MPI: moved by the library itself where it can (gpu.py), else staged through pinned host memory.

Reductions are always staged: MPI leaves their order to the library, has no bfloat16 or float8, and Open MPI, say, copies to the
host for them itself; ours give the same bits everywhere (docs/semantics.md).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from arraycomm.core.backend import Communicator, Work
from arraycomm.core.buffer import Buffer
from arraycomm.core.cuda.staged import Staged, piece_layout
from arraycomm.core.errors import DeviceError
from arraycomm.core.exchange import gather_integers
from arraycomm.core.kinds import Kind
from arraycomm.core.log import log
from arraycomm.core.typed import Any

from . import gpu
from .communicator import MpiCommunicator
from .library import load

_UNKNOWN = 2  # beside 0 and 1: not able, able


class Direct(Staged):
    """See Staged. Messages go the way that this rank can, as the bytes on the way are the same; a collective the way that all
    ranks can, who ask each other at the first one that all of them wait for: those before are staged, as one that is asynchronous
    somewhere must not wait for the others there. Where a trial is to tell, one rank makes it for all of them then; a rank whose
    first array is a message's, of which the others know nothing, makes its own."""

    def __init__(self, host: Communicator, timeout: float) -> None:
        super().__init__(host, timeout)
        assert isinstance(host, MpiCommunicator)
        self._here: bool | None = None  # until that is known
        self._everywhere: bool | None = None
        host.enter = self._cuda.enter
        self._know(gpu.told(load()))

    def _know(self, refused: str | None) -> None:
        if refused is not None:
            self._here = not refused
        if refused:
            self._say(refused)

    def _able(self) -> bool:
        if self._here is None:
            self._know(gpu.tried(load(), self._cuda.device()))
        return bool(self._here)

    def _say(self, why: str) -> None:
        log().warning("group %r: arrays on GPUs go through pinned host memory: %s (docs/mpi.md)", self._host.name, why)

    def _agree(self, what: int, timeout: float | None, async_op: bool) -> bool:
        """Whether this operation is the library's: all ranks can, and know it. what: by which ranks compare that it is the same;
        timeout: its own, whose time begins when that is known."""
        seconds = self._timeout if timeout is None else timeout
        if self._everywhere is None and self._meet(what, time.monotonic() + seconds, waits=not async_op):
            answers = self._answers(seconds)
            if _UNKNOWN in answers:
                answers = self._one_tries(answers.index(_UNKNOWN), seconds + gpu.LIMIT + gpu.GRACE)
            if 0 in answers and self._here:
                self._say(f"rank {answers.index(0)} cannot give them to its MPI library")
            self._everywhere = 0 not in answers
        return bool(self._everywhere)

    def _answers(self, seconds: float) -> list[int]:
        mine = _UNKNOWN if self._here is None else int(self._here)
        return [answer for answer, in gather_integers(self._host, [mine], seconds)]

    def _one_tries(self, rank: int, seconds: float) -> list[int]:
        if self._host.rank == rank:
            self._able()
        answers = self._answers(seconds)
        if self._here is None:
            gpu.learn("" if answers[rank] else f"rank {rank} of group {self._host.name!r} has tried it, and says why not")
            self._know(gpu.told(load()))
        return [answers[rank] if answer == _UNKNOWN else answer for answer in answers]

    # ---- collectives ----

    def _staged(self, kind: Kind, src: Buffer | None, gives: list[int], dst: Buffer | None, gets: list[int], layout: int,
                timeout: float | None, async_op: bool, *, call: Callable[..., Any], uneven: bool, **more: Any) -> Work | None:
        """What moves only goes to the library, whole."""
        name = kind.name
        touched = [buffer for buffer in (src, dst) if buffer is not None]
        try:
            if not kind.reduces and self._everywhere is None:
                with self._cuda.on(touched[0].device_index):
                    self._cuda.refuse_capture(buffer.stream for buffer in touched)  # before the others are asked
            direct = not kind.reduces and self._agree(piece_layout(layout, -1 - kind.number, 1), timeout, async_op)
            deadline = self._deadline(timeout)
            if direct:
                self._settle_before(touched)
                left = self._ready(name, touched, deadline)
                with self._cuda.on(touched[0].device_index):
                    work = call(src, dst, gets if uneven else None, layout=piece_layout(layout, -1, 1), timeout=left,
                                async_op=async_op)
                return self._moving(Moving(work, dst)) if async_op else None
        except DeviceError:  # nothing has been sent
            raise
        except BaseException as error:
            raise self._told(name, error) from error.__cause__
        return super()._staged(kind, src, gives, dst, gets, layout, max(0.0, deadline - time.monotonic()), async_op, call=call,
                               uneven=uneven, **more)

    def _moving(self, work: Moving) -> Moving:
        """Remembered until it has ended, whether or not the caller keeps it: nobody has to wait for it that it goes on."""
        self._under_way.append(lambda: work)
        return work

    def _deadline(self, timeout: float | None) -> float:
        return time.monotonic() + (self._timeout if timeout is None else timeout)

    def _ready(self, name: str, buffers: Sequence[Buffer], deadline: float) -> float:
        """When MPI, which knows no streams, may have them: what is enqueued there has ended. Gives what is left of the time."""
        for device, stream in {(buffer.device_index, buffer.stream) for buffer in buffers if buffer.count}:
            with self._cuda.on(device):
                self._cuda.refuse_capture([stream])
                lane = self._lane(device)
                event = lane.event()
                lane.record(event, stream)
                lane.wait(event, deadline, name)
        return max(0.0, deadline - time.monotonic())

    # ---- point to point ----

    def send(self, src: Buffer, peer: int, tag: int = 0, *, timeout: float | None = None,
             async_op: bool = False) -> Work | None:
        if not self._able():
            return super().send(src, peer, tag, timeout=timeout, async_op=async_op)
        left = self._ready("send", [src], self._deadline(timeout))
        with self._cuda.on(src.device_index):
            return self._host.send(src, peer, tag, timeout=left, async_op=async_op)

    def recv(self, dst: Buffer, peer: int | None, tag: int = 0, *, timeout: float | None = None,
             async_op: bool = False) -> Work:
        if not self._able():
            return super().recv(dst, peer, tag, timeout=timeout, async_op=async_op)
        left = self._ready("recv", [dst], self._deadline(timeout))
        with self._cuda.on(dst.device_index):
            return self._host.recv(dst, peer, tag, timeout=left, async_op=async_op)


class Moving:
    """An asynchronous one under way; see core.backend.Work."""

    def __init__(self, work: Work, writes: Buffer | None) -> None:
        self._work, self.writes = work, writes
        self.done, self.source = work.done, work.source

    def wait(self, timeout: float | None = None) -> None:
        self._work.wait(timeout)
        self.writes = None  # who remembers this one keeps no memory by it

    @property
    def ended(self) -> bool:
        return self._work.done()
