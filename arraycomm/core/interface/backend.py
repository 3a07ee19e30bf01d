"""THE interface between core and a backend: Backend makes Communicators, a Communicator moves Buffers.

Core has checked every argument before it calls: buffers are packed, of the right device, dtype and count, roots and
peers are in range, an output is writable. A backend only moves and reduces. Calls on one Communicator come from one
thread at a time. Errors are the exceptions of errors.py, with rank, operation and culprit in their text.

Every collective takes `timeout` (seconds, None: the group's) and `async_op`. With async_op False the call returns
None after the operation has ended; otherwise it returns a Work at once, and the buffers' owners are kept alive by
the Work until it has ended.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager

from arraycomm._engine import Shortcut

from ..arrays.buffer import Buffer
from ..arrays.types import ReduceOp
from ..base.typed import TYPE_CHECKING, Any, Literal, Protocol
from .kinds import Kind

if TYPE_CHECKING:
    from ..bootstrap.rendezvous import Rendezvous

Watch = Callable[[Iterable[int]], None]  # see Communicator.split()


class Work(Protocol):
    """An operation under way."""

    def wait(self, timeout: float | None = None) -> None:
        """Block until the end. Raises the operation's error; TimeoutError after `timeout` seconds, the operation going on."""

    def done(self) -> bool:
        """Whether it has ended, well or not. Never blocks, never raises."""

    def source(self) -> tuple[int, int, int]:
        """After a receive: (rank, tag, bytes)."""


class Mover(Protocol):
    """What moves arrays."""

    def collective(self, kind: Kind, src: Buffer | None, dst: Buffer | None, op: ReduceOp | None = None, root: int = -1,
                   counts: Sequence[int] | None = None, receives: Sequence[int] | None = None, *, layout: int = 0,
                   timeout: float | None = None, async_op: bool = False) -> Work | None:
        """What operations.def says of the kind. src, dst: None where this rank gives or gets nothing. op: of what reduces. root:
        of what has one. counts: elements of the blocks, where they differ, equal on all ranks; of all_to_all what this rank gives
        to each, with receives. layout: a 32-bit hash of shape or counts that ranks compare; 0 compares nothing."""

    # Point to point is independent of the collectives' order. peer None: any source. A receive always gives a Work
    # (ended already when async_op is False), because its source is there.
    def send(self, src: Buffer, peer: int, tag: int = 0, *, timeout: float | None = None,
             async_op: bool = False) -> Work | None: ...
    def recv(self, dst: Buffer, peer: int | None, tag: int = 0, *, timeout: float | None = None,
             async_op: bool = False) -> Work:
        """tag below 0: any; -1 of those below 2**62, -2 of those from there to 3 * 2**61."""


class Exposed(Protocol):
    """Memory of every rank that the others read and write without the owner's taking part. Calls have done their work when
    they return. Any thread. Offsets are in elements, and checked by the caller, as ranks are; buffers are host memory of the
    same dtype. Errors as of messages; Aborted when the communicator is closed."""

    direct: Literal[True]
    failed: bool  # a call has raised what ended the group

    def put(self, source: Buffer, rank: int, offset: int) -> None: ...
    def get(self, to: Buffer, rank: int, offset: int) -> None: ...

    def accumulate(self, source: Buffer, rank: int, offset: int, op: ReduceOp) -> None:
        """One rank at a time accumulates in a rank's memory."""

    def signal(self, rank: int) -> None:
        """One more signal for the rank, which sees it after what was put before."""

    def wait_signal(self, rank: int, timeout: float) -> bool:
        """Takes a signal of the rank, and waits for it (seconds; 0: looks). Whether there was one in time."""

    def fence(self, timeout: float) -> int | None:
        """All ranks call it. None when all have come, or a rank that has not in time."""


class Serving(Protocol):
    """Memory of this rank that the others ask for by messages (served.py), where ranks do not reach each other's. Nothing of the
    program's runs for it. Any thread. Errors as Exposed's."""

    direct: Literal[False]
    failed: bool  # what ended the group is known

    def wait_signal(self, rank: int, timeout: float) -> bool:
        """As Exposed.wait_signal()."""

    def fenced(self, number: int, timeout: float) -> int | None:
        """None when all ranks have asked for their fence of this number (from 1), or one that has not in time."""


class Communicator(Mover, Protocol):
    """One rank's end of a group."""

    rank: int
    size: int
    name: str
    closed: bool
    shortcut: Shortcut | None  # plain synchronous calls in one native step; None: the backend has no such entry point

    @property
    def about(self) -> str:
        """Over what it goes, and between which hosts, for the log."""

    def barrier(self, *, timeout: float | None = None, async_op: bool = False) -> Work | None: ...
    def symmetric(self, nbytes: int, *, timeout: float | None = None) -> tuple[int, int, int] | None:
        """Memory that the peers reach without a copy: its address, and the addresses of the C function that gives it back and
        of that function's argument (see dlpack.adopt). Every rank calls it. It outlives the communicator.

        None where any memory does as well. Raises ResourceError, on all ranks.
        """

    def expose(self, buffer: Buffer, near: Any) -> Exposed | Serving | None:
        """Lets the peers at host memory, until the communicator is closed. Every rank calls it, with memory of any size.

        near: the communicator of the same ranks, closed after this one, whose symmetric memory it may be. The same on all ranks:
        a Serving where they cannot reach each other's memory, None where the backend has neither.
        """

    def batch(self) -> AbstractContextManager[None]:
        """Groups point-to-point operations: none is required to make progress before the context ends."""

    def split(self, members: Sequence[int], name: str, *, timeout: float,
              watch: Watch | None = None) -> Communicator:
        """A communicator of these ranks of this group (in this order). Called by the members only, all of them.

        timeout: seconds, the default of its operations. watch: called now and then, while this rank waits, with the ranks of the
        world that it waits for; what it raises ends the wait. Given by Group.shrink() alone.
        """

    def gone(self) -> frozenset[int]:
        """For Group.shrink(): the ranks that died, or left the world or this group, as far as is known here; none of them comes
        back. A backend without this method cannot shrink groups.

        Raises Aborted when the others have declared this rank lost, or when the communicator is closed, DistBackendError where
        what it stands on cannot go on without a rank.
        """

    def check_peers(self) -> None:
        """Raises PeerLost when a rank is known to have died or left. Any thread; does not block."""

    def abort(self, reason: str) -> None:
        """Ends every operation under way, here and on the peers, with Aborted. Any thread; idempotent; does not block."""

    def close(self, reason: str = "") -> None:
        """Frees everything. Idempotent. Operations in flight end with Aborted. `reason`: why, when it is not for good
        (an exception's type); the peers are told. Raises, everything freed, what came of operations that this rank left
        early (see Group.broadcast) and no call has raised."""


class Backend(Protocol):
    """A way to communicate, by name in registry.py."""

    name: str
    devices: frozenset[int]  # DeviceType numbers whose arrays it moves
    on_gpus: str  # "module:class": what moves arrays on CUDA devices for a communicator of it that does not (gpu/staged.py)

    def unavailable(self) -> str | None:
        """None when it can be used here, otherwise one sentence: what is missing and how to get it."""

    def meet(self, timeout: float, name: str) -> Rendezvous | None:
        """All ranks, where whatever started them has brought them together for this backend (MPI). None: they meet in a
        store, which rendezvous() finds. Called when nobody says where to meet."""

    def open(self, meeting: Rendezvous, *, name: str, timeout: float) -> Communicator:
        """The communicator of the world. Every rank calls it; blocks until all have, at most `timeout` seconds.

        `timeout` is also the default of the communicator's operations.
        """
