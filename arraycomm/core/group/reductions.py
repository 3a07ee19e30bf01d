"""Collective methods of Group that reduce arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ..arrays.opaque import row
from ..arrays.types import LOCATING, ReduceOp
from . import arguments, shapes
from .part import Part, short

if TYPE_CHECKING:
    from typing import Literal, overload

    from .part import Array
    from .work import Work

    _Op = str | ReduceOp | Callable[[Any, Any], Any]  # a function: see Reductions.all_reduce()


class Reductions(Part):
    """See Group, which has these methods."""

    def _reducible(self, x: Any, op: _Op, timeout: float | None) -> tuple[Any, ReduceOp | None, Any]:
        """The Buffer of x, the reduction, and the mover (None: that of the array's device)."""
        arguments.seconds(timeout)
        if callable(op):
            from .functions import Chain  # lazy: rarely used

            return self._movable(x), None, Chain(self, op, x)
        src = self._readable(x)
        return src, arguments.reduction(op, src.dtype), None

    def _reduced(self, name: str, x: Any, op: _Op, out: Any, timeout: float | None, async_op: bool, index: Any = None,
                 root: int = -1) -> Any:
        """root: -1 if all ranks get a result."""
        if name in ("all_reduce", "reduce") and (op in LOCATING or index is not None):
            from .locations import located

            return located(self, x, op, index, root, out, timeout, async_op=async_op)
        src, reduction, mover = self._reducible(x, op, timeout)
        if root not in (-1, self.rank):
            to = arguments.NOWHERE
        else:
            to = arguments.in_place(x, src) if out is x else arguments.destination(x, src, src.shape, out)
        return self._collective(name, src, to, shapes.layout(src.shape), timeout, async_op, reduction, root, mover=mover)

    if TYPE_CHECKING:
        @overload
        def all_reduce(self, x: Any, op: Literal["minloc", "maxloc"], *, index: Any = None, out: Any = None,
                       async_op: bool = False, timeout: float | None = None) -> tuple[Any, Any]: ...
        @overload
        def all_reduce(self, x: Array, op: _Op = "sum", *, index: None = None, out: Array | None = None,
                       async_op: Literal[False] = False, timeout: float | None = None) -> Array: ...
        @overload
        def all_reduce(self, x: Array, op: _Op = "sum", *, index: None = None, out: Array | None = None,
                       async_op: Literal[True], timeout: float | None = None) -> Work[Array]: ...
        @overload
        def all_reduce(self, x: Array, op: _Op = "sum", *, index: None = None, out: Array | None = None, async_op: bool,
                       timeout: float | None = None) -> Array | Work[Array]: ...

    @short
    def all_reduce(self, x: Any, op: _Op = "sum", *, index: Any = None, out: Any = None, async_op: bool = False,
                   timeout: float | None = None) -> Any:
        """The elementwise reduction of every rank's x, on every rank.

        The result's bits are the same on all ranks and from run to run.

        op "minloc" or "maxloc" gives (extremes, ranks): of each element also the lowest rank that has it, as int64. With index,
        an int or an int64 array of x's shape, (extremes, indices): the lowest index of those that have it. NaN is an extreme, as
        for min. out is a pair then, async_op is a ValueError, and arrays on a GPU are compared on the host.

        op may also be a function of two arrays of x's library, which gives one of x's shape and dtype: op(op(x0, x1), x2), each
        call on one rank. It need not be commutative, may write to its first argument only, and is slow: the ranks take turns.
        For one in C see arraycomm.reduction(). Any dtype; timeout is of each step; async_op is a ValueError. An error of the
        function is raised on all ranks (a RemoteError on the others), and the group stays usable.

        - Shapes: any, 0-d and without elements too, the same on all ranks; the result has x's shape.
        - Dtypes: the same on all ranks; those for which op is defined. float16, bfloat16 and float8 accumulate in float32.
        - Memory: out may be x itself, in place; any other overlap is a ValueError. x with strides is packed into a copy first;
          out must be contiguous and writable, and may be of another library.
        - Blocks: until every rank has called it. With async_op=True it returns a Work at once.
        - Timeout: seconds; None takes the group's. CollectiveTimeout names the late ranks, and the group has failed.
        - Errors: TypeError where op is not defined for the dtype and for what is no array, ValueError for out and op, before
          anything is sent. Then PeerLost, CollectiveMismatch, Aborted, after which the group can only be shrunk or closed.
        - Algorithm: in shared memory, each rank reduces its slice of all arrays. Between hosts recursive doubling (Thakur,
          Rabenseifner, Gropp 2005), halving (Rabenseifner 2004), a ring (Patarasuk, Yuan 2009) or Bruck's (1997), by length.

        Examples:
            >>> arraycomm.run(lambda group: group.all_reduce(np.arange(2) + group.rank).tolist(), 3)
            [[3, 6], [3, 6], [3, 6]]
        """
        return self._reduced("all_reduce", x, op, out, timeout, async_op, index)

    if TYPE_CHECKING:
        @overload
        def reduce(self, x: Any, root: int, op: Literal["minloc", "maxloc"], *, index: Any = None, out: Any = None,
                   async_op: bool = False, timeout: float | None = None) -> tuple[Any, Any] | None: ...
        @overload
        def reduce(self, x: Array, root: int = 0, op: _Op = "sum", *, index: None = None, out: Array | None = None,
                   async_op: Literal[False] = False, timeout: float | None = None) -> Array | None: ...
        @overload
        def reduce(self, x: Array, root: int = 0, op: _Op = "sum", *, index: None = None, out: Array | None = None,
                   async_op: Literal[True], timeout: float | None = None) -> Work[Array | None]: ...
        @overload
        def reduce(self, x: Array, root: int = 0, op: _Op = "sum", *, index: None = None, out: Array | None = None,
                   async_op: bool, timeout: float | None = None) -> Array | None | Work[Array | None]: ...

    @short
    def reduce(self, x: Any, root: int = 0, op: _Op = "sum", *, index: Any = None, out: Any = None, async_op: bool = False,
               timeout: float | None = None) -> Any:
        """As all_reduce(), but only `root` gets the result. The other ranks get None, and their `out` is not touched.

        - Shapes: any, the same on all ranks; the root's result has x's shape.
        - Dtypes: the same on all ranks; those for which op is defined.
        - Memory: at the root out may be x itself; any other overlap is a ValueError.
        - Blocks: the root until all have given their arrays; another rank until its own array may be changed. With async_op=True
          it returns a Work at once.
        - Timeout: seconds; None takes the group's. CollectiveTimeout names the late ranks, and the group has failed.
        - Errors: as all_reduce(), and ValueError for a root that is no rank of the group.
        - Algorithm: in shared memory as all_reduce(); between hosts a binomial tree or Rabenseifner's halving, by length.

        Examples:
            >>> arraycomm.run(lambda group: group.reduce(np.float32(group.rank + 1), root=1, op="max"), 3)
            [None, array(3., dtype=float32), None]
        """
        root = arguments.root(root, self.size)
        return self._reduced("reduce", x, op, out, timeout, async_op, index, root)

    if TYPE_CHECKING:
        @overload
        def reduce_scatter(self, x: Array, op: _Op = "sum", *, counts: Sequence[int] | None = None, out: Array | None = None,
                           async_op: Literal[False] = False, timeout: float | None = None) -> Array: ...
        @overload
        def reduce_scatter(self, x: Array, op: _Op = "sum", *, counts: Sequence[int] | None = None, out: Array | None = None,
                           async_op: Literal[True], timeout: float | None = None) -> Work[Array]: ...
        @overload
        def reduce_scatter(self, x: Array, op: _Op = "sum", *, counts: Sequence[int] | None = None, out: Array | None = None,
                           async_op: bool, timeout: float | None = None) -> Array | Work[Array]: ...

    @short
    def reduce_scatter(self, x: Any, op: _Op = "sum", *, counts: Sequence[int] | None = None,
                       out: Any = None, async_op: bool = False, timeout: float | None = None) -> Any:
        """The reduction of every rank's x, cut along the first dimension; rank r gets part r.

        Args:
            counts: rows of the first dimension for each rank, equal on all ranks; None cuts into equal parts.

        - Shapes: of x the same on all ranks, with a first dimension that is a multiple of the group's size, or the sum of
          counts. The result has this rank's rows of it.
        - Dtypes: the same on all ranks; those for which op is defined.
        - Memory: out may be this rank's own block of x, but not with counts; any other overlap is a ValueError.
        - Blocks: until every rank has called it. With async_op=True it returns a Work at once.
        - Timeout: seconds; None takes the group's. CollectiveTimeout names the late ranks, and the group has failed.
        - Errors: as all_reduce(), and ValueError for a first dimension that cannot be cut so.
        - Algorithm: in shared memory each rank reduces its block of all arrays; between hosts recursive halving or a ring (Chan
          et al. 2007), by length.

        Examples:
            >>> arraycomm.run(lambda group: group.reduce_scatter(np.arange(4)).tolist(), 2)
            [[0, 2], [4, 6]]
        """
        src, reduction, mover = self._reducible(x, op, timeout)
        rows = None if counts is None else shapes.check_counts(src.shape, self.size, counts, "counts")
        part = shapes.part(src.shape, self.size, rows, self.rank)
        to = arguments.destination(x, src, part, out, contains=self.rank if rows is None else None)
        elements = None if rows is None else [n * row(src) for n in rows]
        return self._collective("reduce_scatter", src, to, shapes.layout(src.shape, rows), timeout, async_op, reduction,
                                counts=elements, mover=mover)

    if TYPE_CHECKING:
        @overload
        def scan(self, x: Array, op: _Op = "sum", *, out: Array | None = None, async_op: Literal[False] = False,
                 timeout: float | None = None) -> Array: ...
        @overload
        def scan(self, x: Array, op: _Op = "sum", *, out: Array | None = None, async_op: Literal[True],
                 timeout: float | None = None) -> Work[Array]: ...
        @overload
        def scan(self, x: Array, op: _Op = "sum", *, out: Array | None = None, async_op: bool,
                 timeout: float | None = None) -> Array | Work[Array]: ...

    @short
    def scan(self, x: Any, op: _Op = "sum", *, out: Any = None, async_op: bool = False, timeout: float | None = None) -> Any:
        """The elementwise reduction, in rank order, of the x of this rank and of those before it.

        avg divides by their number. The last rank's result has all_reduce()'s bits where that reduces in rank order.

        - Shapes: any, the same on all ranks; the result has x's shape.
        - Dtypes: the same on all ranks; those for which op is defined.
        - Memory: out may be x itself, in place; any other overlap is a ValueError.
        - Blocks: until the ranks before this one have called it; it may wait for the later ones too. With async_op=True it
          returns a Work at once.
        - Timeout: seconds; None takes the group's. CollectiveTimeout names the late ranks, and the group has failed.
        - Errors: as all_reduce().
        - Algorithm: in shared memory each rank reduces the arrays up to its own; between hosts a chain of the ranks in
          segments, or Bruck's (1997) for short arrays.

        Examples:
            >>> arraycomm.run(lambda group: group.scan(np.array([1, 10])).tolist(), 3)
            [[1, 10], [2, 20], [3, 30]]
        """
        return self._reduced("scan", x, op, out, timeout, async_op)

    if TYPE_CHECKING:
        @overload
        def exscan(self, x: Array, op: _Op = "sum", *, out: Array | None = None, async_op: Literal[False] = False,
                   timeout: float | None = None) -> Array: ...
        @overload
        def exscan(self, x: Array, op: _Op = "sum", *, out: Array | None = None, async_op: Literal[True],
                   timeout: float | None = None) -> Work[Array]: ...
        @overload
        def exscan(self, x: Array, op: _Op = "sum", *, out: Array | None = None, async_op: bool,
                   timeout: float | None = None) -> Array | Work[Array]: ...

    @short
    def exscan(self, x: Any, op: _Op = "sum", *, out: Any = None, async_op: bool = False, timeout: float | None = None) -> Any:
        """As scan(), of the ranks before this one only.

        Rank 0 gets the reduction's identity: zeros of sum, bor and bxor, ones of product, all bits of band, of min and max
        infinity and minus infinity, or the dtype's largest and smallest value. avg, premul_sum and functions have none: zeros.

        - Shapes: any, the same on all ranks; the result has x's shape.
        - Dtypes: the same on all ranks; those for which op is defined.
        - Memory: out may be x itself, in place; any other overlap is a ValueError.
        - Blocks: as scan(). With async_op=True it returns a Work at once.
        - Timeout: seconds; None takes the group's. CollectiveTimeout names the late ranks, and the group has failed.
        - Errors: as all_reduce().
        - Algorithm: scan()'s, one rank later.

        Examples:
            >>> arraycomm.run(lambda group: group.exscan(np.array([5, 7])).tolist(), 3)
            [[0, 0], [5, 7], [10, 14]]
        """
        return self._reduced("exscan", x, op, out, timeout, async_op)
