"""Group: the framework-neutral API. Checks arguments once, calls the Communicator, makes results.

Every collective is called by all ranks of the group in the same order. `x` is any array that supports DLPack or the buffer
protocol; ranks may use different libraries in one call. Without `out` the result is a new array of x's own library,
dtype and device; with `out` it is written there and `out` is returned. Strided input is packed first; `out` must be
contiguous and writable.

Common parameters
    out: array to write the result into; `out=x` (in place) where shapes agree.
    async_op: return a Work at once instead of the result.
    timeout: seconds; None takes the group's.

Common errors, before anything is sent: TypeError (not an array, dtype not supported or not defined for the operation),
ValueError (wrong shape, dtype or device, read-only or overlapping out, rank out of range). After that the DistErrors:
PeerLost, CollectiveTimeout, CollectiveMismatch, Aborted; the group cannot be used any more then.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from arraycomm._engine import Shortcuts, interrupting

from ..arrays.buffer import Buffer
from ..arrays.dlpack import resolve
from ..arrays.types import ReduceOp
from ..base.errors import counted_in
from ..interface.kinds import KINDS
from . import arguments
from .arguments import Destination
from .exchange import gather_integers
from .messages import MessageMethods
from .moves import Moves
from .objects import ObjectCollectives
from .part import plain
from .reductions import Reductions
from .routes import Routes
from .survivors import Shrinking
from .symmetric import SymmetricArrays
from .work import Work

if TYPE_CHECKING:
    from ..interface.backend import Watch
    from .cart import Cart


class Group(Reductions, Moves, ObjectCollectives, MessageMethods, Shrinking, SymmetricArrays, Shortcuts):
    """One rank's end of a group of ranks. Made by init(), run() and split(); a context manager that closes.

    Every collective is called by all ranks of the group in the same order. x is any array that supports DLPack or the buffer
    protocol; ranks may use different libraries in one call. Without out the result is a new array of x's own library, dtype and
    device; with out it is written there, and out is returned.

    Attributes:
        rank: this rank's number in the group, from 0 on.
        size: how many ranks the group has.
        ranks: its members' numbers in the world that init() opened, in order.
        name: the group's name, in messages of errors.
        backend: the name of what moves its arrays, "socket" for one.
        timeout: seconds, the default of its operations.

    - Blocks: one thread at a time calls its collectives; calls of several threads are carried out one after the other.
    - Errors: TypeError and ValueError before anything is sent. After a GroupError the group can only be shrunk or closed.

    Examples:
        >>> arraycomm.run(lambda group: (group.rank, group.size, group.ranks), 2)
        [(0, 2, (0, 1)), (1, 2, (0, 1))]
    """

    # Native fast paths without a slow path, for the facades.
    _plain_all_reduce = plain(Reductions.all_reduce)
    _plain_broadcast = plain(Moves.broadcast)
    _plain_all_gather = plain(Moves.all_gather)
    _plain_reduce_scatter = plain(Reductions.reduce_scatter)
    _plain_barrier = plain(Moves.barrier)
    _plain_send = plain(MessageMethods.send)
    _plain_recv = plain(MessageMethods.recv)

    def __init__(self, routes: Routes, timeout: float, on_close: Callable[[], None] | None = None) -> None:
        self._routes = routes
        self._movers = routes.by_type
        self._communicator = routes.main
        self._on_close = on_close
        self._batch = None  # used by the fast path, as the next one (native/call/call.h)
        self._shortcut = routes.main.shortcut
        self._splits = 0
        self._children: list[Group] = []
        self._first, self._asked = self, {}
        self.rank = routes.main.rank
        self.size = routes.main.size
        self.name = routes.main.name
        self.backend = routes.name
        self.timeout = timeout
        self.ranks = tuple(range(self.size))  # subgroup() sets others

    def __repr__(self) -> str:
        return f"<arraycomm.Group {self.name!r}: rank {self.rank} of {self.size}, backend {self.backend}>"

    def __reduce__(self) -> Any:
        raise TypeError(f"group {self.name!r} is of this process and cannot be pickled or copied: call arraycomm.init() in the "
                        "process that is to use it, and split() or subgroup() for another group of its ranks")

    def __enter__(self) -> Group:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: types.TracebackType | None) -> None:
        self.close("" if kind is None else kind.__name__)

    def _readable(self, x: Any, read: Callable[[Any], Any] = resolve) -> Any:
        src = read(x)
        if src.device_type not in self._movers:
            self._routes.find(src, self.name)
        return src

    def _collective(self, name: str, src: Buffer | None, to: Destination, layout: int, timeout: float | None, async_op: bool,
                    op: ReduceOp | None = None, root: int = -1, counts: Sequence[int] | None = None,
                    receives: Sequence[int] | None = None, mover: Any = None) -> Any:
        """Runs a collective with checked arguments; returns the method's result. mover: None: that of the arrays' device."""
        some: Any = src or to.buffer
        work = (mover or self._movers[some.device_type]).collective(
            KINDS[name], src, to.buffer, op, root, counts, receives, layout=layout, timeout=timeout, async_op=async_op)
        return Work(work, to.array) if async_op else to.array()

    def split(self, color: int | None, key: int = 0, *, name: str | None = None) -> Group | None:
        """Splits the group into one group for each color; ranks are ordered by key, then by rank. All ranks call it.

        Args:
            color: an integer, or None: this rank is in no new group and gets None.
            key: an integer, for the order.
            name: part of the new group's name, instead of the color; equal on its members.

        Closing this group closes the new one too.

        - Blocks: until every rank has called it, then until the members have met.
        - Timeout: the group's own; CollectiveTimeout names the late ranks.
        - Errors: TypeError for a color or key that is no integer. PeerLost, CollectiveMismatch, Aborted, as of any collective.

        Examples:
            >>> arraycomm.run(lambda group: group.split(color=group.rank % 2).ranks, 4)
            [(0, 2), (1, 3), (0, 2), (1, 3)]
        """
        key = 0 if key is None else arguments.integer("key", key)
        if color is not None:
            color = arguments.integer("color", color)
        answers = gather_integers(self._communicator, [0 if color is None else 1, color or 0, key], None)
        self._splits += 1
        if color is None:
            return None
        alike = [(k, rank) for rank, (inside, c, k) in enumerate(answers) if inside and c == color]
        members = [rank for _, rank in sorted(alike)]
        return self.subgroup(members, f"{self._splits}.{name or color}")  # the count makes the name unique in the world

    def subgroup(self, members: Sequence[int], name: str, *, timeout: float | None = None,
                 backends: Mapping[str, frozenset[int]] | None = None) -> Group:
        """A new group of these ranks of this group, in this order. Only they call it, all with the same arguments.

        Args:
            members: ranks of this group, this one among them.
            name: a name that no other subgroup of this group has had, closed ones included.
            timeout: seconds, the default of the new group's operations; None takes this group's.
            backends: some of this group's backends, each with the DLPack device types that it serves; None: all.

        Closing this group closes the new one too.

        - Blocks: until the members have met; the other ranks take no part.
        - Timeout: CollectiveTimeout where a member does not come within `timeout`; this group stays usable.
        - Errors: ValueError where this rank is not a member, or a member comes twice. PeerLost when a member is lost; its rank
          is that in this group.

        Examples:
            >>> def work(group):
            ...     return group.subgroup([2, 0], "ends").rank if group.rank != 1 else None
            >>> arraycomm.run(work, 3)
            [1, None, 0]
        """
        members = [arguments.rank("member", member, self.size) for member in members]
        if self.rank not in members or len(set(members)) != len(members):
            raise ValueError(f"rank {self.rank} asks for a group of the ranks {members}: a rank asks for groups that "
                             "have it as a member, and each member appears once")
        seconds = self.timeout if timeout is None else arguments.group_seconds(timeout)
        return self._part(members, f"{self.name}/{name}", seconds, backends)

    def _part(self, members: Sequence[int], name: str, seconds: float, backends: Mapping[str, frozenset[int]] | None = None,
              watch: Watch | None = None) -> Group:
        with counted_in(self.ranks, self.name):
            child = Group(self._routes.split(members, name, seconds, backends, watch), seconds)
        child.ranks = tuple(self.ranks[member] for member in members)
        self._children = [group for group in self._children if not group.closed] + [child]
        return child

    def cart(self, dims: Sequence[int], periods: bool | Sequence[bool] = False) -> Cart:
        """The ranks as a grid of these lengths, in row-major order; see Cart.

        Args:
            dims: the grid's lengths; 0: the length is computed.
            periods: whether the ends of a dimension are neighbours; one value for all dimensions, or one for each.

        - Blocks: never; nothing is sent.
        - Errors: ValueError where the product of dims is not the group's size.

        Examples:
            >>> arraycomm.run(lambda group: group.cart([2, 0]).coords, 4)
            [(0, 0), (0, 1), (1, 0), (1, 1)]
        """
        from .cart import Cart  # lazy: rarely used

        return Cart(self, dims, periods)

    def handle(self) -> int:
        """The group's number for native code (docs/reference/c-api.md). Afterwards the group lives until it is closed.

        - Blocks: never; nothing is sent.
        - Errors: TypeError where its backend moves no arrays of the host.

        Examples:
            >>> arraycomm.run(lambda group: group.handle() > 0, 2)
            [True, True]
        """
        return int(self._routes.handle(self))

    def check_peers(self) -> None:
        """Raises PeerLost if this rank knows that a rank of the group has died or left.

        - Blocks: never; it uses what this rank knows already.
        - Errors: PeerLost, whose ranks are those that have died or left.

        Examples:
            >>> def work(group):
            ...     group.check_peers()      # all are there
            ...     group.barrier()
            >>> arraycomm.run(work, 2)
            [None, None]
        """
        with counted_in(self.ranks, self.name):
            self._routes.check_peers()

    def abort(self, reason: str = "") -> None:
        """Ends every operation in progress, here and on the peers, with Aborted. Any thread may call it.

        - Blocks: never; the peers are notified within a second.
        - Errors: none; a group that is closed already stays as it is.

        Examples:
            >>> def work(group):
            ...     if group.rank == 0:
            ...         group.abort("enough")
            ...     try:
            ...         group.barrier()
            ...     except arraycomm.Aborted:
            ...         return "aborted"
            >>> arraycomm.run(work, 2)
            ['aborted', 'aborted']
        """
        self._routes.abort(reason)

    def close(self, reason: str = "") -> None:
        """Closes the group, the groups split from it, and all groups that shrink() made of it. It may be called again.

        Not collective: a peer that needs this rank afterwards gets PeerLost. Work in flight ends with Aborted.

        Args:
            reason: why the rank leaves in an error, for the peers' messages: for example an exception's type.

        - Blocks: without a reason until the peers have come to a broadcast, scatter or scan that this rank left early. If that
          was the last call over links, then until the others close too, at most 2 s: calls that differ are reported to all.
        - Timeout: the group's own, for the first wait; CollectiveTimeout after it, and the group is closed.
        - Errors: CollectiveMismatch and PeerLost, from these waits. RuntimeError in a signal handler that interrupted an
          operation: let the handler raise, and close the group where that is caught.

        Examples:
            >>> def work(group):
            ...     group.close()
            ...     return group.closed
            >>> arraycomm.run(work, 2)
            [True, True]
        """
        if interrupting() and not self.closed:
            raise RuntimeError(f"group {self.name!r} cannot be closed by a handler of a signal that came inside an operation: "
                               "let the handler raise, and close the group where that is caught")
        self._first._end(reason)

    def _end(self, reason: str) -> None:
        with ExitStack() as steps:  # in reverse order, all of them even after an error
            if self._on_close is not None:
                steps.callback(self._on_close)
                self._on_close = None
            steps.callback(self._routes.close, reason)
            while self._children:
                steps.callback(self._children.pop()._end, reason)

    def _end_with(self, function: Callable[[], None] | None) -> None:
        """Replaces the function that close() calls at its end."""
        self._on_close = function

    @property
    def closed(self) -> bool:
        """Whether close() was called.

        - Blocks: never, as any attribute.
        - Errors: none, on a closed group too.

        Examples:
            >>> arraycomm.run(lambda group: group.closed, 2)
            [False, False]
        """
        return bool(self._communicator.closed)
