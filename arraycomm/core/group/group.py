"""Group: the framework-neutral API. Checks arguments once, calls the Communicator, makes results.

Every collective is called by all ranks of the group in the same order. `x` is any array that speaks DLPack or the buffer
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

from arraycomm._engine import ShortcutMethod, Shortcuts, interrupting

from ..arrays.buffer import Buffer
from ..arrays.dlpack import resolve
from ..arrays.opaque import nothing_of, row
from ..arrays.types import LOCATING, ReduceOp
from ..base.errors import counted_in
from ..base.typed import TYPE_CHECKING, Any
from ..interface.kinds import KINDS, parameters
from . import arguments, shapes
from .arguments import Destination, nothing
from .exchange import agreed_counts, blocks_of_root, gather_integers, given_rows, scattered_rows
from .messages import MessageMethods
from .objects import ObjectCollectives
from .routes import Routes
from .survivors import Shrinking
from .symmetric import SymmetricArrays
from .work import Work

if TYPE_CHECKING:
    from typing import TypeVar

    from ..interface.backend import Watch
    from .cart import Cart

    _Function = TypeVar("_Function", bound=Callable[..., Any])
    _Op = str | ReduceOp | Callable[[Any, Any], Any]  # a function: see Group.all_reduce()


def _short(function: _Function) -> _Function:
    """A method whose plain calls are one native step (native/call/shortcut.c). Of isend and irecv that gives a Work at once.

    What that declines runs the function itself, the slow path, which is the reference and explains what is wrong.
    """
    name = function.__name__
    begins = name not in KINDS
    method: Any = ShortcutMethod(KINDS[name[begins:]].number, *parameters(function), function, begins, False)
    return method  # type: ignore[no-any-return]


def _plain(method: Any) -> Any:
    return ShortcutMethod(method.kind, *parameters(method.__wrapped__), None, False, False)


class Group(ObjectCollectives, MessageMethods, Shrinking, SymmetricArrays, Shortcuts):
    """One rank's end of a group of ranks. Made by arraycomm.init() and Group.split(); a context manager that closes.

    Attributes: rank, size, ranks (its members' in the world, in order), name, backend (its name),
    timeout (seconds, default of the operations).
    One thread at a time may call its collectives; calls of several threads are carried out one after the other.
    """

    def __init__(self, routes: Routes, timeout: float, on_close: Callable[[], None] | None = None) -> None:
        self._routes = routes
        self._movers = routes.by_type
        self._communicator = routes.main
        self._on_close = on_close
        self._batch = self._flight = None  # these and the next are for the fast path (native/call/call.h)
        self._shortcut = routes.main.shortcut
        self._splits = 0
        self._children: list[Group] = []
        self._first, self._asked = self, {}
        self.rank = routes.main.rank
        self.size = routes.main.size
        self.name = routes.main.name
        self.backend = routes.name
        self.timeout = timeout
        self.ranks = tuple(range(self.size))  # subgroup() says others

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
        """Of arguments that were checked; gives what the method gives. mover: None takes that of the arrays' device."""
        some: Any = src or to.buffer
        work = (mover or self._movers[some.device_type]).collective(
            KINDS[name], src, to.buffer, op, root, counts, receives, layout=layout, timeout=timeout, async_op=async_op)
        return Work(work, to.array) if async_op else to.array()

    def _reducible(self, x: Any, op: _Op, timeout: float | None) -> tuple[Any, ReduceOp | None, Any]:
        """x, read; what reduces it, and the mover, where that is not that of the array's device."""
        arguments.seconds(timeout)
        if callable(op):
            from .functions import Chain  # not for programs that have none

            return self._movable(x), None, Chain(self, op, x)
        src = self._readable(x)
        return src, arguments.reduction(op, src.dtype), None

    # ---- collectives ----

    @_short
    def all_reduce(self, x: Any, op: _Op = "sum", *, index: Any = None, out: Any = None, async_op: bool = False,
                   timeout: float | None = None) -> Any:
        """The elementwise reduction of every rank's x, on every rank; any shape.

        op "minloc" or "maxloc" gives (extremes, ranks): of each element also the lowest rank that has it, as int64. With index,
        an int or an int64 array of x's shape, (extremes, indices): the lowest index of those that have it. NaN is an extreme, as
        for min. out is a pair then, async_op is a ValueError, and arrays on a GPU are compared on the host.

        op may also be a function of two arrays of x's library, which gives one of x's shape and dtype: op(op(x0, x1), x2), each
        call on one rank. It need not be commutative, may write to its first argument only, and is slow: the ranks take turns.
        For one in C see arraycomm.reduction(). Any dtype; timeout is of each step; async_op is a ValueError. An error of the
        function is raised on all ranks (a RemoteError on the others), and the group stays usable.

        The result's bits are the same on all ranks and from run to run. float16, bfloat16 and float8 are accumulated in
        float32.
        """
        if op in LOCATING or index is not None:
            from .locations import located

            return located(self, x, op, index, -1, out, timeout, async_op=async_op)
        return self._reduced("all_reduce", x, op, out, timeout, async_op)

    def _reduced(self, name: str, x: Any, op: _Op, out: Any, timeout: float | None, async_op: bool) -> Any:
        src, reduction, mover = self._reducible(x, op, timeout)
        to = arguments.in_place(x, src) if out is x else arguments.destination(x, src, src.shape, out)
        return self._collective(name, src, to, shapes.layout(src.shape), timeout, async_op, reduction, mover=mover)

    @_short
    def scan(self, x: Any, op: _Op = "sum", *, out: Any = None, async_op: bool = False,
             timeout: float | None = None) -> Any:
        """The elementwise reduction, in rank order, of the x of this rank and of those before it; any shape.

        avg divides by their number. The last rank's result has all_reduce's bits where that reduces in rank order.
        """
        return self._reduced("scan", x, op, out, timeout, async_op)

    @_short
    def exscan(self, x: Any, op: _Op = "sum", *, out: Any = None, async_op: bool = False,
               timeout: float | None = None) -> Any:
        """As scan(), of the ranks before this one only.

        Rank 0 gets the reduction's identity: zeros of sum, bor and bxor, ones of product, all bits of band, of min and max
        infinity and minus infinity, or the dtype's largest and smallest value. avg, premul_sum and functions have none: zeros.
        """
        return self._reduced("exscan", x, op, out, timeout, async_op)

    @_short
    def reduce(self, x: Any, root: int = 0, op: _Op = "sum", *, index: Any = None, out: Any = None, async_op: bool = False,
               timeout: float | None = None) -> Any:
        """As all_reduce, but only `root` gets the result; the other ranks get None, and their `out` is not touched."""
        root = arguments.root(root, self.size)
        if op in LOCATING or index is not None:
            from .locations import located

            return located(self, x, op, index, root, out, timeout, async_op=async_op)
        src, reduction, mover = self._reducible(x, op, timeout)
        to = arguments.destination(x, src, src.shape, out) if self.rank == root else arguments.NOWHERE
        return self._collective("reduce", src, to, shapes.layout(src.shape), timeout, async_op, reduction, root, mover=mover)

    @_short
    def broadcast(self, x: Any = None, root: int = 0, *, out: Any = None, async_op: bool = False,
                  timeout: float | None = None) -> Any:
        """The root's x on every rank. The other ranks' x tells shape, dtype and library, and is not changed.

        `out` alone is both: what the root gives, and what the other ranks get.

        The root may return before the others have come: x has been copied then. If one of them called something else, it
        raises CollectiveMismatch, and so does the root's next call on this group, or close().
        """
        arguments.seconds(timeout)
        if x is None:
            x = arguments.given(out, "broadcast needs an array: broadcast(x), or broadcast(out=x) to fill x on the other ranks")
        src = self._movable(x)
        root = arguments.root(root, self.size)
        to = arguments.in_place(x, src) if out is x else arguments.destination(x, src, src.shape, out)
        return self._collective("broadcast", src if self.rank == root else None, to, shapes.layout(src.shape), timeout, async_op,
                                root=root)

    @_short
    def all_gather(self, x: Any, *, form: str = "concat", uneven: bool = False, counts: Sequence[int] | None = None,
                   out: Any = None, async_op: bool = False, timeout: float | None = None) -> Any:
        """Every rank's x, in rank order, on every rank.

        form: "concat" joins along the first dimension, "stack" adds a dimension in front, "list" gives a list of arrays.
        0-d arrays are stacked by "concat" too.
        uneven: the first dimensions may differ; costs a small exchange first. Not with "stack".
        counts: all ranks' first dimensions, where every rank knows them: as uneven, without the exchange.
        """
        arguments.seconds(timeout)
        src = self._movable(x)
        rows = given_rows(self, src, counts, uneven, timeout)
        shape = shapes.gathered(src.shape, self.size, form, rows)
        to = arguments.destination(x, src, shape, out, inside=self.rank if rows is None else None)
        counts = None if rows is None else [n * row(src) for n in rows]
        if form == "list":
            to = shapes.listed(to, src.shape, self.size, rows)
        return self._collective("all_gather", src, to, shapes.layout(src.shape, rows), timeout, async_op, counts=counts)

    @_short
    def gather(self, x: Any, root: int = 0, *, form: str = "concat", uneven: bool = False, counts: Sequence[int] | None = None,
               out: Any = None, async_op: bool = False, timeout: float | None = None) -> Any:
        """As all_gather, but only `root` gets the result; the other ranks get None.

        With uneven or counts it is an all_to_all, and errors call it so: out must not overlap x.
        """
        arguments.seconds(timeout)
        src = self._movable(x)
        root = arguments.root(root, self.size)
        rows = given_rows(self, src, counts, uneven, timeout)
        shape = shapes.gathered(src.shape, self.size, form, rows)
        to, even = arguments.NOWHERE, rows is None
        if self.rank == root:
            to = arguments.destination(x, src, shape, out, inside=self.rank if even else None, distinct=not even)
            if form == "list":
                to = shapes.listed(to, src.shape, self.size, rows)
        if rows is None:
            return self._collective("gather", src, to, shapes.layout(src.shape), timeout, async_op, root=root)
        counts, receives = blocks_of_root(self, root, src, rows)
        to = Destination(nothing_of(src) if to.buffer is None else to.buffer, to.array)
        layout = shapes.layout(src.shape, [root, *rows])
        return self._collective("all_to_all", src, to, layout, timeout, async_op, counts=counts, receives=receives)

    @_short
    def scatter(self, x: Any = None, root: int = 0, *, like: Any = None, uneven: bool = False,
                counts: Sequence[int] | None = None, out: Any = None, async_op: bool = False,
                timeout: float | None = None) -> Any:
        """The root's x cut along its first dimension into `size` equal parts, or as counts or uneven say; rank r gets part r.

        x: elsewhere it is ignored. like: on the other ranks, an array that tells shape, dtype and library of a part; or out.
        counts: rows for each rank, equal on all ranks; like's own first dimension says nothing then.
        uneven: each rank's like or out has the rows that it gets, and the root what is left; costs a small exchange first.
        The root may return before the others have come, see broadcast(); not with counts or uneven, which are an all_to_all.
        """
        arguments.seconds(timeout)
        root = arguments.root(root, self.size)
        template = x if self.rank == root else out if like is None else like
        if template is None and self.rank != root:
            raise ValueError("scatter needs like= or out= on the ranks other than the root: nothing else tells "
                             "shape and dtype of the part")
        src = self._movable(template)
        if uneven or counts is not None:
            rows = scattered_rows(self, src, root, counts, timeout)
            to = arguments.destination(template, src, (rows[self.rank], *src.shape[1:]), out, distinct=self.rank == root)
            receives, counts = blocks_of_root(self, root, src, rows)
            layout = shapes.layout(src.shape, [root, *rows])
            src = src if self.rank == root else nothing_of(src)
            return self._collective("all_to_all", src, to, layout, timeout, async_op, counts=counts, receives=receives)
        part = src.shape
        if self.rank == root:
            part = shapes.divided(part, self.size, "scatter", "give counts, or uneven=True, for uneven parts")
        to = arguments.destination(template, src, part, out)
        whole = src if self.rank == root else None
        return self._collective("scatter", whole, to, shapes.layout(part), timeout, async_op, root=root)

    @_short
    def reduce_scatter(self, x: Any, op: _Op = "sum", *, counts: Sequence[int] | None = None,
                       out: Any = None, async_op: bool = False, timeout: float | None = None) -> Any:
        """The reduction of every rank's x, cut along the first dimension; rank r gets part r.

        counts: rows of the first dimension for each rank, equal on all ranks; None cuts into equal parts, and the first
        dimension must be a multiple of the group's size.
        """
        src, reduction, mover = self._reducible(x, op, timeout)
        rows = None if counts is None else shapes.check_counts(src.shape, self.size, counts, "counts")
        part = shapes.part(src.shape, self.size, rows, self.rank)
        to = arguments.destination(x, src, part, out, contains=self.rank if rows is None else None)
        elements = None if rows is None else [n * row(src) for n in rows]
        return self._collective("reduce_scatter", src, to, shapes.layout(src.shape, rows), timeout, async_op, reduction,
                                counts=elements, mover=mover)

    @_short
    def all_to_all(self, x: Any, *, send_counts: Sequence[int] | None = None, recv_counts: Sequence[int] | None = None,
                   out: Any = None, async_op: bool = False, timeout: float | None = None) -> Any:
        """Part d of x goes to rank d; the result joins the parts that come, in rank order, along the first dimension.

        send_counts: rows for each rank; None cuts x into equal parts. On all ranks or on none.
        recv_counts: rows from each rank; found out by a small exchange, and compared with the senders' when given.
        """
        arguments.seconds(timeout)
        src = self._movable(x)
        if send_counts is None:
            if recv_counts is not None:
                raise ValueError("all_to_all takes recv_counts only together with send_counts")
            shapes.divided(src.shape, self.size, "all_to_all", "give send_counts for uneven parts")
            shape, sends, receives = src.shape, None, None
        else:
            given = shapes.check_counts(src.shape, self.size, send_counts, "send_counts")
            rows = agreed_counts(self, src, given, recv_counts, timeout)
            shape = (sum(rows), *src.shape[1:])
            sends = [n * row(src) for n in given]
            receives = [n * row(src) for n in rows]
        to = arguments.destination(x, src, shape, out, distinct=True)
        layout = shapes.layout(src.shape if send_counts is None else src.shape[1:])
        return self._collective("all_to_all", src, to, layout, timeout, async_op, counts=sends, receives=receives)

    @_short
    def barrier(self, *, async_op: bool = False, timeout: float | None = None) -> Work | None:
        """Returns when every rank has called it."""
        arguments.seconds(timeout)
        work = self._communicator.barrier(timeout=timeout, async_op=async_op)
        return Work(work, nothing) if async_op else None

    # ---- point to point: independent of the collectives' order ----

    @_short
    def send(self, x: Any, dest: int, tag: int = 0, *, timeout: float | None = None) -> Work | None:
        """Sends x to rank `dest`; returns when x may be changed again. Inside batch() it returns a Work at once."""
        if self._batch is not None:
            return self.isend(x, dest, tag, timeout=timeout)
        arguments.seconds(timeout)
        src = self._movable(x)
        dest = arguments.rank("dest", dest, self.size)
        tag = arguments.tag(tag)
        self._movers[src.device_type].send(src, dest, tag, timeout=timeout)
        return None

    @_short
    def recv(self, source: int | None = None, tag: int = 0, *, like: Any = None, out: Any = None,
             timeout: float | None = None) -> Any:
        """Receives a message and gives Received(array, source, tag).

        source: a rank, or None for any. tag: of the message, or arraycomm.ANY_TAG.
        One of: like, an array whose library, shape and dtype the new one has; out, the array to write into.
        Messages of one tag between two ranks arrive in the order in which they were sent. A message of another size or
        dtype is a CollectiveMismatch; the group stays usable.
        timeout: seconds; where none comes in time that is CollectiveTimeout, and the group is finished, on all ranks. To poll,
        use irecv(...).result(timeout), which may be asked again, or probe().
        Inside batch() it returns a Work at once.
        """
        work = self.irecv(source, tag, like=like, out=out, timeout=timeout)
        return work if self._batch is not None else work.result()

    @_short
    def isend(self, x: Any, dest: int, tag: int = 0, *, timeout: float | None = None) -> Work:
        """As send(), but returns a Work at once. x must not be changed before it has ended."""
        arguments.seconds(timeout)
        src = self._movable(x)
        dest = arguments.rank("dest", dest, self.size)
        tag = arguments.tag(tag)
        work = self._movers[src.device_type].send(src, dest, tag, timeout=timeout, async_op=True)
        return self._started(Work(work, nothing))

    @_short
    def irecv(self, source: int | None = None, tag: int = 0, *, like: Any = None, out: Any = None,
              timeout: float | None = None) -> Work:
        """As recv(), but returns a Work at once; its result() is the Received.

        timeout: as in recv(), it ends the group. That of result(timeout) does not: TimeoutError, and the receive goes on.
        """
        return self._receive(source, tag, like, out, timeout)

    # Native calls that have no slow path behind them: NotImplemented where that would be needed, and nothing was sent. So who has
    # a slow path of its own takes no error for a refusal: it may be a signal handler's, after the operation.
    _plain_all_reduce = _plain(all_reduce)
    _plain_broadcast = _plain(broadcast)
    _plain_all_gather = _plain(all_gather)
    _plain_reduce_scatter = _plain(reduce_scatter)
    _plain_barrier = _plain(barrier)
    _plain_send = _plain(send)
    _plain_recv = _plain(recv)

    # ---- groups ----

    def split(self, color: int | None, key: int = 0, *, name: str | None = None) -> Group | None:
        """A new group of the ranks that give the same color, ordered by key, then by rank here. All ranks call it.

        color: an integer, or None to stay outside (gives None). name: stands in the new group's name instead of the color;
        equal on its members.
        Closed with this group at the latest.
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
        return self.subgroup(members, f"{self._splits}.{name or color}")  # the count: a name must not come twice in a world

    def subgroup(self, members: Sequence[int], name: str, *, timeout: float | None = None,
                 backends: Mapping[str, frozenset[int]] | None = None) -> Group:
        """A new group of these ranks of this group, in this order. Only they call it, all with the same arguments.

        name: of no other subgroup of this group, closed ones included. timeout: seconds, its operations' default; None
        takes this group's. backends: of this group's by name, each with the DLPack types of the devices whose arrays are its;
        None: all, as here. Closed with this group at the latest. Raises ValueError when this rank is not a member, PeerLost when
        a member is lost, whose rank is that in this group.
        """
        members = [arguments.rank("member", member, self.size) for member in members]
        if self.rank not in members or len(set(members)) != len(members):
            raise ValueError(f"rank {self.rank} asks for a group of the ranks {members}: a rank asks for groups that "
                             "have it as a member, and each member stands there once")
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
        """The ranks as a grid of these lengths (0: one to be found), in row-major order. Nothing is sent; see Cart.

        periods: of all dimensions or of each one, whether its ends are neighbours. ValueError where dims are not of all ranks.
        """
        from .cart import Cart  # not for programs that have none

        return Cart(self, dims, periods)

    def handle(self) -> int:
        """The group's number for native code (docs/reference/c-api.md). Then it lives until it is closed, referred to or not.
        TypeError where its backend moves no arrays of the host."""
        return self._routes.handle(self)

    def check_peers(self) -> None:
        """PeerLost when a rank of the group is known to have died or left. Does not block."""
        with counted_in(self.ranks, self.name):
            self._routes.check_peers()

    def abort(self, reason: str = "") -> None:
        """Ends every operation under way, here and on the peers, with Aborted. From any thread; does not block."""
        self._routes.abort(reason)

    def close(self, reason: str = "") -> None:
        """Frees the group, those split from it, and those that shrink() has put in each other's place, all of them. Idempotent.
        Work in flight ends with Aborted.

        Not collective: a peer that needs this rank afterwards gets PeerLost. `reason` (an exception's type, say) tells
        the peers why when it is not for good.

        Without one it waits until the peers have come to a broadcast or scatter that this rank left as its root, and raises
        what comes of it (CollectiveMismatch, PeerLost, CollectiveTimeout) once the group is closed.

        RuntimeError in a signal handler that interrupted an operation: that would have to end first, and does so behind it.
        """
        if interrupting() and not self.closed:
            raise RuntimeError(f"group {self.name!r} cannot be closed by a handler of a signal that came inside an operation: "
                               "let the handler raise, and close the group where that is caught")
        self._first._end(reason)

    def _end(self, reason: str) -> None:
        with ExitStack() as steps:  # from the last to the first, all of them
            if self._on_close is not None:
                steps.callback(self._on_close)
                self._on_close = None
            steps.callback(self._routes.close, reason)
            while self._children:
                steps.callback(self._children.pop()._end, reason)

    def _end_with(self, function: Callable[[], None] | None) -> None:
        """What close() calls at its end, instead of what it called so far."""
        self._on_close = function

    @property
    def closed(self) -> bool:
        """Whether close() was called."""
        return self._communicator.closed
