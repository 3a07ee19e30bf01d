"""GradientReducer: the gradients of all ranks reduced in buckets, each under way while the next gradients are computed."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from ..arrays.buffer import Buffer
from ..arrays.dlpack import adopt, allocate, resolve, resolve_out, wrap
from ..arrays.joined import clear, copy
from ..arrays.types import DeviceType, DType, ReduceOp
from . import arguments, buckets
from .exchange import gather_integers, same_values
from .group import Group

if TYPE_CHECKING:
    from .part import Array

_MISSING = object()


def _on_host(buffer: Buffer) -> bool:
    return buffer.device_type == DeviceType.CPU


class _Like:
    """The properties of an array before it is pushed."""

    def __init__(self, x: Any) -> None:
        buffer = resolve(x)
        self.shape, self.dtype, self.count, self.nbytes = buffer.shape, DType(buffer.dtype), buffer.count, buffer.nbytes
        self.packs = _on_host(buffer)  # a device array is not packed: it has its own bucket

    def check(self, index: int, buffer: Buffer) -> None:
        if _on_host(buffer) != self.packs:
            here, there = ("on a device", "in host memory") if self.packs else ("in host memory", "on a device")
            raise ValueError(f"array {index} lies {here}; the reducer was made for one {there}")
        if (buffer.shape, buffer.dtype) != (self.shape, self.dtype):
            raise ValueError(f"array {index} is {DType(buffer.dtype).label} of shape {buffer.shape}; the reducer was made for "
                             f"{self.dtype.label} of shape {self.shape}")


class _Bucket:
    """Arrays that are reduced in one operation. A bucket of one array has no memory of its own."""

    def __init__(self, group: Group, indices: Sequence[int], likes: Sequence[_Like]) -> None:
        self.indices = indices
        self.missing = len(indices)  # number of arrays not yet pushed
        self.work: Any = None
        self.alone: Any = None  # of a bucket of one array, after push(): its Buffer and Destination
        self.parts: dict[int, Buffer] = {}
        if len(indices) == 1:
            return
        dtype, count = likes[indices[0]].dtype, sum(likes[index].count for index in indices)
        # Symmetric memory of the host's ranks: the only copies are of gradients into it and out of it.
        found = group._communicator.symmetric(count * dtype.itemsize)
        self.whole = adopt((count,), dtype, *found) if found else allocate((count,), dtype)
        start = 0
        for index in indices:
            self.parts[index] = self.whole.part(start, likes[index].shape)
            start += likes[index].count


class GradientReducer:
    """Reduces a list of arrays over a group's ranks, in buckets. Every rank makes one with the same kind of arrays, and uses it
    alike.

    Args:
        group: no other call may use it between the first push() and finish().
        like: the parameters, or any arrays with the gradients' shapes and dtypes, in host memory or on a device. They may be of
            any
            library, also mixed.
        op: as in all_reduce().
        bucket_bytes: arrays of one dtype share an operation up to this many bytes.

    The results do not depend on bucket_bytes: each element is reduced in the order of the ranks. Between several hosts this needs
    ARRAYCOMM_ALGORITHM=all_reduce=pairwise; otherwise the order there depends on the length of an operation. A reducer must not
    be
    used by several threads at once.

    - Shapes: those of `like`, array by array, the same on all ranks.
    - Dtypes: those of `like` for which op is defined.
    - Memory: an array must not be changed between push() and finish(); reduce() may write into its own arrays (out=arrays).
    - Blocks: reduce() and finish() do, until all buckets have been reduced; push() does not.
    - Errors: ValueError or TypeError for arrays that cannot be reduced, CollectiveMismatch on all ranks when they differ.
    - Algorithm: gradients in buckets, from the last parameter on (Li et al., "PyTorch Distributed", 2020).

    Examples:
        >>> def work(group):
        ...     gradients = [np.full(2, group.rank), np.float32(group.rank)]
        ...     reducer = arraycomm.GradientReducer(group, gradients, op="sum")
        ...     first = reducer.reduce(gradients)[0].tolist()
        ...     for index in reversed(range(2)):
        ...         reducer.push(index, gradients[index])
        ...     return first, reducer.finish()[0].tolist(), len(reducer.buckets)
        >>> arraycomm.run(work, 2)
        [([1, 1], [1, 1], 2), ([1, 1], [1, 1], 2)]
    """

    def __init__(self, group: Group, like: Sequence[Any], *, op: str | ReduceOp = "avg",
                 bucket_bytes: int = buckets.DEFAULT_BYTES) -> None:
        arguments.integer("bucket_bytes", bucket_bytes)
        self.group, self.op = group, op
        self._templates = list(like)
        self._likes = [_Like(x) for x in self._templates]
        for known in self._likes:
            arguments.reduction(op, known.dtype)
        self._agree(bucket_bytes)
        kinds = [("host", known.dtype) if known.packs else index for index, known in enumerate(self._likes)]
        planned = buckets.plan([known.nbytes for known in self._likes], kinds, bucket_bytes)
        self._buckets = [_Bucket(group, indices, self._likes) for indices in planned]
        self._of = {index: bucket for bucket in self._buckets for index in bucket.indices}
        self._reset()

    @property
    def buckets(self) -> list[list[int]]:
        """The indices of the arrays in each bucket, in the order in which buckets are reduced.

        - Blocks: never, as any attribute.
        - Errors: none; it is set by the constructor.
        """
        return [list(bucket.indices) for bucket in self._buckets]

    def reduce(self, arrays: Sequence[Array | None], *, out: Sequence[Array] | None = None) -> list[Array]:
        """Reduces all arrays. Gives new arrays of the same libraries, or writes into those of `out`.

        None stands for a gradient that this rank does not have; it counts as zeros.

        - Shapes: those of `like`, array by array.
        - Dtypes: those of `like`.
        - Memory: `out=arrays` reduces in place.
        - Blocks: until every rank has given its arrays.
        - Errors: ValueError or TypeError for the arrays, before anything is sent. Then those of all_reduce().
        """
        for name, given in (("arrays", arrays), ("out", out)):
            if given is not None and len(given) != len(self._likes):
                raise ValueError(f"{name} has {len(given)} arrays; the reducer was made for {len(self._likes)}")
        for index, array in enumerate(arrays):  # before anything is sent
            self._check(index, array, None if out is None else out[index])
        for index in reversed(range(len(arrays))):
            self.push(index, arrays[index], out=None if out is None else out[index])
        return self.finish()

    def push(self, index: int, array: Any, *, out: Any = None) -> None:
        """Gives one gradient. A bucket is reduced when all its arrays, and the buckets before it, have been given.

        - Shapes: that of `like` with this index.
        - Dtypes: that of `like` with this index.
        - Memory: array must not be changed before finish(). The result is written into `out` if it is given.
        - Blocks: never; finish() does.
        - Errors: ValueError for an index that does not exist or was pushed already, and for another shape or dtype.
        """
        index = operator.index(index)
        if not 0 <= index < len(self._likes):
            raise ValueError(f"there is no array {index}; the reducer was made for {len(self._likes)}")
        if self._come[index] is not _MISSING:
            raise ValueError(f"array {index} was pushed twice; call finish() once all have been pushed")
        bucket = self._of[index]
        source, buffer = self._check(index, array, out)
        if bucket.parts:
            copy(buffer, bucket.parts[index])
        else:  # resolved now: at the bucket's start its library may use another stream
            bucket.alone = buffer, (arguments.in_place(source, buffer) if out is source else
                                    arguments.destination(source, buffer, buffer.shape, out))
        self._come[index], self._out[index] = source, out
        bucket.missing -= 1
        self._start()

    def finish(self) -> list[Any]:
        """Waits for all buckets and gives the results, in the order of the arrays.

        - Blocks: until every rank has pushed all its arrays.
        - Errors: ValueError when some have not been pushed. Then those of all_reduce().
        """
        late = [index for index, array in enumerate(self._come) if array is _MISSING]
        if late:
            raise ValueError(f"arrays {late[:8]}{' and more' if len(late) > 8 else ''} have not been pushed; push None for "
                             "gradients that this rank does not have")
        results: list[Any] = [None] * len(self._likes)
        try:
            for bucket in self._buckets:
                bucket.work.wait()
                for index in bucket.indices:
                    results[index] = self._result(index, bucket.parts[index]) if bucket.parts else bucket.alone[1].array()
        finally:
            self._reset()
        return results

    def _check(self, index: int, array: Any, out: Any) -> tuple[Any, Buffer]:
        """The array (zeros for None) and its Buffer."""
        source = _zeros(self._templates[index], index) if array is None else array
        buffer = resolve(source)
        self._likes[index].check(index, buffer)
        if out is not None:
            self._likes[index].check(index, resolve_out(out))
        return source, buffer

    def _agree(self, bucket_bytes: int) -> None:
        text = repr([(known.shape, int(known.dtype), known.packs) for known in self._likes]) + f"{bucket_bytes} {self.op}"
        mine = int.from_bytes(sha256(text.encode()).digest()[:7], "big")
        answers = [answer for answer, in gather_integers(self.group._communicator, [mine], None)]
        same_values(self.group, answers, "give a GradientReducer other shapes, dtypes, kinds of devices, op or bucket_bytes")

    def _reset(self) -> None:
        self._come: list[Any] = [_MISSING] * len(self._likes)
        self._out: list[Any] = [None] * len(self._likes)
        self._started = 0
        for bucket in self._buckets:
            bucket.missing, bucket.work, bucket.alone = len(bucket.indices), None, None

    def _start(self) -> None:
        """Starts the buckets in their fixed order, equal on all ranks, independent of the order of push()."""
        while self._started < len(self._buckets) and not self._buckets[self._started].missing:
            bucket = self._buckets[self._started]
            if bucket.parts:
                bucket.work = self.group.all_reduce(bucket.whole, self.op, out=bucket.whole, async_op=True)
            else:
                buffer, to = bucket.alone
                bucket.work = self.group.all_reduce(buffer, self.op, out=to.buffer, async_op=True)
            self._started += 1

    def _result(self, index: int, part: Buffer) -> Any:
        """The caller's array, copied out of the bucket's memory, which is reused."""
        out = self._out[index]
        into = allocate(part.shape, part.dtype) if out is None else resolve_out(out)
        copy(part, into)
        return wrap(into, self._come[index]) if out is None else out


def _zeros(template: Any, index: int) -> Any:
    """A host array as the template, of zeros."""
    buffer = resolve(template)
    if not _on_host(buffer):
        raise ValueError(f"array {index} lies on a device: push zeros there for a gradient that this rank does not have")
    zeros = allocate(buffer.shape, buffer.dtype)
    clear(zeros)
    return wrap(zeros, template)
