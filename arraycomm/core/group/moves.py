"""Collective methods of Group that move arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..arrays.opaque import nothing_of, row
from . import arguments, shapes
from .exchange import agreed_counts, blocks_of_root, given_rows, scattered_rows
from .part import Part, short
from .work import Work

if TYPE_CHECKING:
    from typing import Literal, overload

    from .part import Array


class Moves(Part):
    """See Group, which has these methods."""

    if TYPE_CHECKING:
        @overload
        def broadcast(self, x: Array | None = None, root: int = 0, *, out: Array | None = None, async_op: Literal[False] = False,
                      timeout: float | None = None) -> Array: ...
        @overload
        def broadcast(self, x: Array | None = None, root: int = 0, *, out: Array | None = None, async_op: Literal[True],
                      timeout: float | None = None) -> Work[Array]: ...
        @overload
        def broadcast(self, x: Array | None = None, root: int = 0, *, out: Array | None = None, async_op: bool,
                      timeout: float | None = None) -> Array | Work[Array]: ...

    @short
    def broadcast(self, x: Any = None, root: int = 0, *, out: Any = None, async_op: bool = False,
                  timeout: float | None = None) -> Any:
        """The root's x on every rank. The other ranks' x gives shape, dtype and library, and is not changed.

        `out` alone is both: what the root gives, and what the other ranks get.

        - Shapes: any, the same on all ranks.
        - Dtypes: every one, the same on all ranks.
        - Memory: out may be x itself. Without out the result is a new array, at the root too.
        - Blocks: until the data are here. The root may return before the others have come: x has been copied then. If one of
          them called something else, it raises CollectiveMismatch, and so does the root's next call on this group, or close().
          With async_op=True it returns a Work at once.
        - Timeout: seconds; None takes the group's. CollectiveTimeout names the late ranks, and the group has failed.
        - Errors: TypeError for what is no array, ValueError for root and out, before anything is sent. Then PeerLost,
          CollectiveMismatch, Aborted, after which the group can only be shrunk or closed.
        - Algorithm: one copy in shared memory. Between hosts a binomial tree, a chain of segments for long arrays, or Bruck's
          (1997) for short ones.

        Examples:
            >>> arraycomm.run(lambda group: group.broadcast(np.full(2, group.rank), root=1).tolist(), 3)
            [[1, 1], [1, 1], [1, 1]]
        """
        arguments.seconds(timeout)
        if x is None:
            x = arguments.given(out, "broadcast needs an array: broadcast(x), or broadcast(out=x) to fill x on the other ranks")
        src = self._movable(x)
        root = arguments.root(root, self.size)
        to = arguments.in_place(x, src) if out is x else arguments.destination(x, src, src.shape, out)
        return self._collective("broadcast", src if self.rank == root else None, to, shapes.layout(src.shape), timeout, async_op,
                                root=root)

    if TYPE_CHECKING:
        @overload
        def all_gather(self, x: Array, *, form: Literal["concat", "stack"] = "concat", uneven: bool = False,
                       counts: Sequence[int] | None = None, out: Array | None = None, async_op: Literal[False] = False,
                       timeout: float | None = None) -> Array: ...
        @overload
        def all_gather(self, x: Array, *, form: Literal["concat", "stack"] = "concat", uneven: bool = False,
                       counts: Sequence[int] | None = None, out: Array | None = None, async_op: Literal[True],
                       timeout: float | None = None) -> Work[Array]: ...
        @overload
        def all_gather(self, x: Array, *, form: Literal["concat", "stack"] = "concat", uneven: bool = False,
                       counts: Sequence[int] | None = None, out: Array | None = None, async_op: bool,
                       timeout: float | None = None) -> Array | Work[Array]: ...
        @overload
        def all_gather(self, x: Array, *, form: Literal["list"], uneven: bool = False, counts: Sequence[int] | None = None,
                       out: Array | None = None, async_op: Literal[False] = False,
                       timeout: float | None = None) -> list[Array]: ...
        @overload
        def all_gather(self, x: Array, *, form: Literal["list"], uneven: bool = False, counts: Sequence[int] | None = None,
                       out: Array | None = None, async_op: Literal[True], timeout: float | None = None) -> Work[list[Array]]: ...

    @short
    def all_gather(self, x: Any, *, form: str = "concat", uneven: bool = False, counts: Sequence[int] | None = None,
                   out: Any = None, async_op: bool = False, timeout: float | None = None) -> Any:
        """Every rank's x, in rank order, on every rank.

        Args:
            form: "concat" joins along the first dimension, "stack" adds a dimension in front, "list" gives a list of arrays.
            uneven: the first dimensions may differ; costs a small exchange first. Not with "stack".
            counts: all ranks' first dimensions, where every rank knows them: as uneven, without the exchange.

        - Shapes: of x the same on all ranks, but for the first dimension with uneven or counts. 0-d arrays are stacked.
        - Dtypes: every one, the same on all ranks.
        - Memory: x may be this rank's own block of out, but not with uneven or counts; any other overlap is a ValueError.
        - Blocks: until every rank has called it. With async_op=True it returns a Work at once.
        - Timeout: seconds; None takes the group's. CollectiveTimeout names the late ranks, and the group has failed.
        - Errors: as broadcast(). Counts that differ between ranks: ValueError or CollectiveMismatch on all of them.
        - Algorithm: one copy in shared memory; between hosts Bruck et al. (1997) for short arrays, a ring for long ones.

        Examples:
            >>> arraycomm.run(lambda group: group.all_gather(np.full(2, group.rank)).tolist(), 2)
            [[0, 0, 1, 1], [0, 0, 1, 1]]
            >>> arraycomm.run(lambda group: group.all_gather(np.full(group.rank + 1, 7), uneven=True).shape, 2)
            [(3,), (3,)]
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

    if TYPE_CHECKING:
        @overload
        def gather(self, x: Array, root: int = 0, *, form: Literal["concat", "stack"] = "concat", uneven: bool = False,
                   counts: Sequence[int] | None = None, out: Array | None = None, async_op: Literal[False] = False,
                   timeout: float | None = None) -> Array | None: ...
        @overload
        def gather(self, x: Array, root: int = 0, *, form: Literal["concat", "stack"] = "concat", uneven: bool = False,
                   counts: Sequence[int] | None = None, out: Array | None = None, async_op: Literal[True],
                   timeout: float | None = None) -> Work[Array | None]: ...
        @overload
        def gather(self, x: Array, root: int = 0, *, form: Literal["concat", "stack"] = "concat", uneven: bool = False,
                   counts: Sequence[int] | None = None, out: Array | None = None, async_op: bool,
                   timeout: float | None = None) -> Array | None | Work[Array | None]: ...
        @overload
        def gather(self, x: Array, root: int = 0, *, form: Literal["list"], uneven: bool = False,
                   counts: Sequence[int] | None = None, out: Array | None = None, async_op: Literal[False] = False,
                   timeout: float | None = None) -> list[Array] | None: ...
        @overload
        def gather(self, x: Array, root: int = 0, *, form: Literal["list"], uneven: bool = False,
                   counts: Sequence[int] | None = None, out: Array | None = None, async_op: Literal[True],
                   timeout: float | None = None) -> Work[list[Array] | None]: ...

    @short
    def gather(self, x: Any, root: int = 0, *, form: str = "concat", uneven: bool = False, counts: Sequence[int] | None = None,
               out: Any = None, async_op: bool = False, timeout: float | None = None) -> Any:
        """As all_gather(), but only `root` gets the result. The other ranks get None.

        With uneven or counts it is an all_to_all, and errors call it so.

        - Shapes: of x the same on all ranks, but for the first dimension with uneven or counts; form as in all_gather().
        - Dtypes: every one, the same on all ranks.
        - Memory: at the root x may be its own block of out, but not with uneven or counts; any other overlap is a ValueError.
        - Blocks: the root until all arrays have come; another rank until its own may be changed. With async_op=True it returns a
          Work at once.
        - Timeout: seconds; None takes the group's. CollectiveTimeout names the late ranks, and the group has failed.
        - Errors: as all_gather(), and ValueError for a root that is no rank of the group.
        - Algorithm: one copy in shared memory; between hosts directly to the root, by a binomial tree for short arrays.

        Examples:
            >>> arraycomm.run(lambda group: group.gather(np.array([group.rank]), root=0), 2)
            [array([0, 1]), None]
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
        to = arguments.Destination(nothing_of(src) if to.buffer is None else to.buffer, to.array)
        layout = shapes.layout(src.shape, [root, *rows])
        return self._collective("all_to_all", src, to, layout, timeout, async_op, counts=counts, receives=receives)

    if TYPE_CHECKING:
        @overload
        def scatter(self, x: Array | None = None, root: int = 0, *, like: Array | None = None, uneven: bool = False,
                    counts: Sequence[int] | None = None, out: Array | None = None, async_op: Literal[False] = False,
                    timeout: float | None = None) -> Array: ...
        @overload
        def scatter(self, x: Array | None = None, root: int = 0, *, like: Array | None = None, uneven: bool = False,
                    counts: Sequence[int] | None = None, out: Array | None = None, async_op: Literal[True],
                    timeout: float | None = None) -> Work[Array]: ...
        @overload
        def scatter(self, x: Array | None = None, root: int = 0, *, like: Array | None = None, uneven: bool = False,
                    counts: Sequence[int] | None = None, out: Array | None = None, async_op: bool,
                    timeout: float | None = None) -> Array | Work[Array]: ...

    @short
    def scatter(self, x: Any = None, root: int = 0, *, like: Any = None, uneven: bool = False,
                counts: Sequence[int] | None = None, out: Any = None, async_op: bool = False,
                timeout: float | None = None) -> Any:
        """The root's x cut along its first dimension into `size` equal parts, or as counts or uneven say; rank r gets part r.

        Args:
            x: the root's; elsewhere it is ignored.
            like: on the other ranks, an array with the shape, dtype and library of a part; or give out.
            counts: rows for each rank, equal on all ranks; like's own first dimension says nothing then.
            uneven: each rank's like or out has the rows that it gets, the root what is left; costs a small exchange first.

        - Shapes: the root's first dimension is a multiple of the group's size, or the sum of counts.
        - Dtypes: every one, the same on all ranks.
        - Memory: out must not overlap x.
        - Blocks: until the part is here. The root may return before the others have come, see broadcast(); not with counts or
          uneven, which are an all_to_all. With async_op=True it returns a Work at once.
        - Timeout: seconds; None takes the group's. CollectiveTimeout names the late ranks, and the group has failed.
        - Errors: as broadcast(), and ValueError for a first dimension that cannot be cut so, or without like and out.
        - Algorithm: one copy in shared memory; between hosts directly from the root, by a binomial tree for short arrays.

        Examples:
            >>> def work(group):
            ...     x = np.arange(4) if group.rank == 0 else None
            ...     return group.scatter(x, like=np.empty(2, int)).tolist()
            >>> arraycomm.run(work, 2)
            [[0, 1], [2, 3]]
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

    if TYPE_CHECKING:
        @overload
        def all_to_all(self, x: Array, *, send_counts: Sequence[int] | None = None, recv_counts: Sequence[int] | None = None,
                       out: Array | None = None, async_op: Literal[False] = False, timeout: float | None = None) -> Array: ...
        @overload
        def all_to_all(self, x: Array, *, send_counts: Sequence[int] | None = None, recv_counts: Sequence[int] | None = None,
                       out: Array | None = None, async_op: Literal[True], timeout: float | None = None) -> Work[Array]: ...
        @overload
        def all_to_all(self, x: Array, *, send_counts: Sequence[int] | None = None, recv_counts: Sequence[int] | None = None,
                       out: Array | None = None, async_op: bool, timeout: float | None = None) -> Array | Work[Array]: ...

    @short
    def all_to_all(self, x: Any, *, send_counts: Sequence[int] | None = None, recv_counts: Sequence[int] | None = None,
                   out: Any = None, async_op: bool = False, timeout: float | None = None) -> Any:
        """Part d of x goes to rank d; the result joins the parts that come, in rank order, along the first dimension.

        Args:
            send_counts: rows for each rank; None cuts x into equal parts. On all ranks or on none.
            recv_counts: rows from each rank; found out by a small exchange, and compared with the senders' when given.

        - Shapes: x's first dimension is a multiple of the group's size, or the sum of send_counts; the others agree.
        - Dtypes: every one, the same on all ranks.
        - Memory: out must not overlap x.
        - Blocks: until every rank has called it. With async_op=True it returns a Work at once.
        - Timeout: seconds; None takes the group's. CollectiveTimeout names the late ranks, and the group has failed.
        - Errors: as broadcast(), and ValueError for counts that do not fit; the group stays usable then.
        - Algorithm: one copy in shared memory; between hosts pairwise exchange, or Bruck et al. (1997) for short arrays.

        Examples:
            >>> arraycomm.run(lambda group: group.all_to_all(np.array([10, 20]) + group.rank).tolist(), 2)
            [[10, 11], [20, 21]]
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

    if TYPE_CHECKING:
        @overload
        def barrier(self, *, async_op: Literal[False] = False, timeout: float | None = None) -> None: ...
        @overload
        def barrier(self, *, async_op: Literal[True], timeout: float | None = None) -> Work[None]: ...
        @overload
        def barrier(self, *, async_op: bool, timeout: float | None = None) -> Work[None] | None: ...

    @short
    def barrier(self, *, async_op: bool = False, timeout: float | None = None) -> Work[None] | None:
        """Returns when every rank has called it.

        - Blocks: until the last rank has called it. With async_op=True it returns a Work at once.
        - Timeout: seconds; None takes the group's. CollectiveTimeout names the late ranks, and the group has failed.
        - Errors: PeerLost, CollectiveMismatch, Aborted, after which the group can only be shrunk or closed.
        - Algorithm: a counter in shared memory; between hosts dissemination (Hensgen, Finkel, Manber 1988).

        Examples:
            >>> arraycomm.run(lambda group: group.barrier(), 2)
            [None, None]
        """
        arguments.seconds(timeout)
        work = self._communicator.barrier(timeout=timeout, async_op=async_op)
        return Work(work, arguments.nothing) if async_op else None
