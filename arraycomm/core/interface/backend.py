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
from typing import TYPE_CHECKING, Protocol

from arraycomm._engine import Shortcut

from ..arrays.buffer import Buffer
from ..arrays.types import ReduceOp
from .kinds import Kind

if TYPE_CHECKING:
    from ..bootstrap.rendezvous import Rendezvous

Watch = Callable[[Iterable[int]], None]  # see Communicator.split()


class Work(Protocol):
    """A pending operation."""

    def wait(self, timeout: float | None = None) -> None:
        """Blocks until completion. Raises the operation's error; TimeoutError after `timeout` seconds: it continues then."""

    def done(self) -> bool:
        """Whether it has completed or failed. Never blocks, never raises."""

    def source(self) -> tuple[int, int, int]:
        """After a receive: (rank, tag, bytes)."""


class Mover(Protocol):
    """The interface for collectives and messages."""

    def collective(self, kind: Kind, src: Buffer | None, dst: Buffer | None, op: ReduceOp | None = None, root: int = -1,
                   counts: Sequence[int] | None = None, receives: Sequence[int] | None = None, *, layout: int = 0,
                   timeout: float | None = None, async_op: bool = False) -> Work | None:
        """A collective of a kind of operations.def. src, dst: None if this rank has no input or output. op: for reductions. root:
        for rooted kinds. counts: elements of the blocks if they differ, equal on all ranks; for all_to_all the elements sent to
        each rank, with receives. layout: a 32-bit hash of shape or counts, part of the call signature; 0: not checked."""

    # Point to point is independent of the collectives' order. peer None: any source. A receive always gives a Work
    # (ended already when async_op is False), because its source is there.
    def send(self, src: Buffer, peer: int, tag: int = 0, *, timeout: float | None = None,
             async_op: bool = False) -> Work | None: ...
    def recv(self, dst: Buffer, peer: int | None, tag: int = 0, *, timeout: float | None = None,
             async_op: bool = False) -> Work:
        """tag below 0: any; -1 of those below 2**62, -2 of those from there to 3 * 2**61."""


class Serving(Protocol):
    """A one-sided window, which the engine serves by messages (served.py). The program takes no part in it. Thread-safe. Errors
    as of messages; Aborted when the communicator is closed."""

    failed: bool  # the group has failed

    def wait_signal(self, rank: int, timeout: float) -> bool:
        """Waits for a signal of the rank (seconds; 0: polls) and consumes it. Whether there was one in time."""

    def fenced(self, number: int, timeout: float) -> int | None:
        """None if all ranks have requested fence `number` (from 1), or a rank that is late at the timeout."""


class Communicator(Mover, Protocol):
    """One rank's handle of a group."""

    rank: int
    size: int
    name: str
    closed: bool
    shortcut: Shortcut | None  # the fast path of plain synchronous calls; None: the backend has none

    @property
    def about(self) -> str:
        """The transport and the hosts, for the log."""

    def barrier(self, *, timeout: float | None = None, async_op: bool = False) -> Work | None: ...
    def symmetric(self, nbytes: int, *, timeout: float | None = None) -> tuple[int, int, int] | None:
        """Symmetric memory, which peers access without a copy: its address, and the addresses of the C function that frees it
        and of that function's argument (see dlpack.adopt). Collective. It may outlive the communicator.

        None if symmetric memory has no advantage. Raises ResourceError, on all ranks.
        """

    def expose(self, buffer: Buffer) -> Serving | None:
        """Exposes host memory to the peers until the communicator is closed. Collective; sizes may differ. None if the backend
        has no windows.
        """

    def batch(self) -> AbstractContextManager[None]:
        """Groups point-to-point operations: none is required to make progress before the context ends."""

    def split(self, members: Sequence[int], name: str, *, timeout: float,
              watch: Watch | None = None) -> Communicator:
        """A communicator of these ranks of this group (in this order). Collective over the members only.

        timeout: seconds, the default of its operations. watch: called periodically during a wait, with the awaited
        world ranks; its exception ends the wait. Only Group.shrink() passes it.
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
        """Fails every pending operation, here and on the peers, with Aborted. Any thread; idempotent; does not block."""

    def close(self, reason: str = "") -> None:
        """Frees everything. Idempotent. Operations in flight end with Aborted. `reason`: why, when it is not for good
        (an exception's type); the peers are told. Raises, everything freed, what came of operations that this rank left
        early (see Group.broadcast) and no call has raised."""


class Backend(Protocol):
    """A communication library or transport, registered by name in registry.py."""

    name: str
    devices: frozenset[int]  # DeviceType numbers whose arrays it moves
    on_gpus: str  # "module:class": the Mover of CUDA arrays for its communicators without CUDA support (gpu/staged.py)

    def unavailable(self) -> str | None:
        """None if it can be used here, otherwise one sentence: the missing part and the remedy."""

    def meet(self, timeout: float, name: str) -> Rendezvous | None:
        """All ranks, where whatever started them has brought them together for this backend (MPI). None: they meet in a
        store, which rendezvous() finds. Called when nobody says where to meet."""

    def open(self, meeting: Rendezvous, *, name: str, timeout: float) -> Communicator:
        """The communicator of the world. Every rank calls it; blocks until all have, at most `timeout` seconds.

        `timeout` is also the default of the communicator's operations.
        """
