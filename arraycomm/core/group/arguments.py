"""Validates arguments before anything is sent. Every error here names the wrong value and a remedy."""

from __future__ import annotations

import importlib
import operator
from collections.abc import Callable, Iterable
from typing import Any

from ..arrays.buffer import Buffer
from ..arrays.dlpack import allocate, overlaps, resolve_out, wrap, writable_memory
from ..arrays.opaque import Opaque, dtype_name, writable
from ..arrays.types import DeviceType, DType, ReduceOp, reduce_op


class Destination:
    """The output of an operation: the buffer to write (None if this rank has no result), and a function that makes the array."""

    __slots__ = ("array", "buffer")

    def __init__(self, buffer: Any, array: Callable[[], Any]) -> None:
        self.buffer: Any = buffer  # Buffer | None
        self.array = array


def nothing() -> None:
    return None


NOWHERE = Destination(None, nothing)

ANY_TAG = -1  # in a receive or probe: any tag below 2**62, the first tag of objects
_INTEGERS = frozenset((*range(DType.INT8, DType.UINT64 + 1), DType.BOOL))
_COMPLEX = frozenset((DType.COMPLEX64, DType.COMPLEX128))
_BITWISE = frozenset((4, 5, 6))
_ORDERED = frozenset((2, 3))
_LONGEST = 2e6  # s; poll() counts milliseconds in 31 bits
_defined: dict[tuple[str | ReduceOp, int], ReduceOp] = {}  # cache of a pure function


def reduction(op: str | ReduceOp | None, dtype: int) -> ReduceOp:
    """The ReduceOp (None: sum), checked against the dtype. ValueError for an unknown one, TypeError where it is not defined."""
    op = "sum" if op is None else op
    try:
        return _defined[op, dtype]
    except (KeyError, TypeError):
        found = reduce_op(op)
        _check_defined(found, DType(dtype))
        if found.name != "premul_sum":  # factors are not cached: there is no limit to their number
            _defined[op, dtype] = found
        return found


def _check_defined(op: ReduceOp, dtype: DType) -> None:
    if op.code in _BITWISE and dtype not in _INTEGERS:
        raise TypeError(f"{op.name} is defined for integers and bool only, not for {dtype.label}")
    if op.code in _ORDERED and dtype in _COMPLEX:
        raise TypeError(f"{op.name} is not defined for {dtype.label}: complex numbers have no order")
    if op.name in ("avg", "premul_sum") and dtype is DType.BOOL:
        raise TypeError(f"{op.name} is not defined for bool; convert to a number first")


def integer(name: str, value: Any) -> int:
    """Any integer (NumPy's too) as an int. TypeError for other types, including bool and float."""
    try:
        if isinstance(value, bool):
            raise TypeError
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be an integer, got {value!r}") from None


def counts(name: str, values: Iterable[Any], size: int) -> list[int]:
    """As a list of ints. ValueError unless they are one integer >= 0 for each rank of a group of `size`."""
    given = list(values)
    if len(given) != size:
        raise ValueError(f"{name} needs one number for each of the {size} ranks, got {len(given)}")
    try:
        found = [integer(name, n) for n in given]
    except TypeError:
        found = [-1]
    if min(found) < 0:
        raise ValueError(f"{name} must be integers >= 0, got {given}")
    return found


def rank(name: str, value: Any, size: int) -> int:
    """As an int. ValueError unless value is a rank of a group of `size`."""
    found = integer(name, value)
    if not 0 <= found < size:
        raise ValueError(f"{name} {found} is not a rank of this group, which has ranks 0 to {size - 1}")
    return found


def root(value: Any, size: int) -> int:
    """As rank(); None is rank 0."""
    return 0 if value is None else rank("root", value, size)


def source(value: Any, size: int) -> int | None:
    """As rank(); None is any. TypeError for an array: in other libraries it is the first argument of a receive."""
    if hasattr(value, "__dlpack__") or isinstance(value, (bytearray, memoryview, bytes)) or hasattr(value, "typecode"):
        raise TypeError(f"a receive's first argument is the sender's rank, got {type(value).__name__}: give the array by name, "
                        "recv(source, like=x) for a new array, or recv(source, out=x) to fill x")
    return None if value is None else rank("source", value, size)


def given(value: Any, otherwise: str) -> Any:
    """TypeError with the text `otherwise` for None."""
    if value is None:
        raise TypeError(otherwise)
    return value


def tag(value: Any) -> int:
    """As an int. ValueError unless value fits a message's tag."""
    if value is None:
        raise TypeError("tag must be an integer, got None: omit it for tag 0, and receive with arraycomm.ANY_TAG for any")
    found = integer("tag", value)
    if not 0 <= found < 2**63:
        raise ValueError(f"tag must be between 0 and 2**63 - 1, got {found}")
    return found


def received_tag(value: Any) -> int:
    """As tag(), or ANY_TAG."""
    return ANY_TAG if value is not None and integer("tag", value) == ANY_TAG else tag(value)


def seconds(timeout: object) -> None:
    """TypeError, ValueError unless a timeout is None or a number of seconds of at least 0."""
    if timeout is None:
        return
    if isinstance(timeout, (bool, str)) or not hasattr(type(timeout), "__float__"):
        raise TypeError(f"timeout must be a number of seconds, got {timeout!r}")
    if not timeout >= 0:  # type: ignore[operator]  # also true for nan
        raise ValueError(f"timeout must be at least 0 seconds, got {timeout}")


def nanoseconds(timeout: float | None) -> int:
    """A timeout for the engine; negative: the group's default. Converts to float first: NumPy's float16 would overflow."""
    return -1 if timeout is None else int(min(max(float(timeout), 0.0), 4e9) * 1e9)


def group_seconds(timeout: float) -> float:
    """A group's default timeout, also used for connecting: above 0, and limited to the range of system calls."""
    seconds(timeout)
    if not timeout:
        raise ValueError(f"timeout must be above 0 seconds, got {timeout}")
    return float(min(timeout, _LONGEST))


def lengths(shape: object) -> tuple[int, ...]:
    """A shape as a tuple. TypeError, ValueError unless it is an int or ints, none of them negative."""
    given = tuple(shape) if isinstance(shape, Iterable) else (shape,)
    found = tuple(integer("a length of the shape", length) for length in given)
    if any(length < 0 for length in found):
        raise ValueError(f"a shape has no negative lengths, got {found}")
    return found


def dtype(value: Any) -> DType:
    """The DType that a name or a library's dtype object means. TypeError for one that is not supported."""
    if isinstance(value, DType):
        return value
    label = getattr(value, "__name__", None) or str(value)  # numpy.float32, torch.float32, numpy.dtype("float32")
    try:
        return DType[label.rpartition(".")[2].upper()]
    except KeyError:
        supported = ", ".join(kind.label for kind in DType)
        raise TypeError(f"dtype {value!r} is not supported; supported are {supported}") from None


def template(like: Any) -> Any:
    """A template for the library and the device of a new array: `like`, or an array of NumPy."""
    return importlib.import_module("numpy").empty(0) if like is None else like


def writable_out(x: Any) -> Buffer:
    """x as out=, on your word that its memory may be written: for libraries that export it by DLPack without a version.

    Such a capsule (of DLPack before 1.0) has no flag for read-only memory, so that x itself is refused as out=. The Buffer is an
    array over x's memory, which it holds; as out= it is also what the operation returns. Arrays of other libraries may be given
    too.

    - Shapes: any, without strides; the result has x's.
    - Dtypes: every one; the result has x's.
    - Memory: x's own, which the result keeps alive.
    - Blocks: never; nothing is copied.
    - Errors: ValueError for memory that is read-only by its library's word, and for strided arrays; TypeError for what is no
      array.

    Examples:
        >>> x = np.zeros(2)
        >>> arraycomm.run(lambda group: group.all_reduce(np.ones(2), out=arraycomm.writable(x)) is not None, 1), x.tolist()
        ([True], [1.0, 1.0])
    """
    return writable_memory(x)


def in_place(x: Any, src: Buffer) -> Destination:
    """The input itself as destination."""
    if src.readonly:
        writable(x)  # raises with the reason
    return Destination(src, lambda: x)


def destination(template: Any, src: Buffer, shape: tuple[int, ...], out: Any, *, inside: int | None = None,
                contains: int | None = None, distinct: bool = False) -> Destination:
    """The Destination of a result of `shape`: `out`, or a new array of the template's library.

    In place is allowed: out the same memory as the input; or, for gathering operations, the input at its own block of out
    (`inside`: the block's number); or, for scattering ones, out at its own block of the input (`contains`). Not at all with
    `distinct`. Raises ValueError otherwise.
    """
    dtype = src.dtype
    if isinstance(src, Opaque):
        return _of_bytes(src, shape, out, inside, contains, distinct)
    if out is None and src.device_type != DeviceType.CPU:
        return _on_device(template, src, shape)
    if out is None:
        block = allocate(shape, dtype)
        return Destination(block, lambda: wrap(block, template))
    dst = src if out is template and not src.readonly else resolve_out(out)
    if dst.shape != shape:
        raise ValueError(f"out has shape {dst.shape}, but the result has shape {shape}")
    if dst.dtype != dtype:
        raise ValueError(f"out is {DType(dst.dtype).label}, but x is {DType(dtype).label}")
    if (dst.device_type, dst.device_index) != (src.device_type, src.device_index):
        raise ValueError("out and x are on different devices; use an out on the device of x")
    _check_overlap(src, dst, inside, contains, distinct)
    return Destination(dst, lambda: out)


def apart(src: Buffer, out: Any) -> None:
    """ValueError for an `out` that shares memory with the input."""
    dst = writable(out)
    _check_overlap(getattr(src, "buffer", src), getattr(dst, "buffer", dst), None, None, distinct=True)


def _of_bytes(src: Opaque, shape: tuple[int, ...], out: Any, inside: int | None, contains: int | None,
              distinct: bool) -> Destination:
    """As destination(), for an array that moves as bytes."""
    into = None
    if out is not None:
        dst = writable(out)
        if dtype_name(dst) != src.name:
            raise ValueError(f"out is {dtype_name(dst)}, but x is {src.name}")
        if dst.shape != shape:
            raise ValueError(f"out has shape {dst.shape}, but the result has shape {shape}")
        into = dst.carrier
    to = destination(src.carrier, src.buffer, (*shape, src.units), into, inside=inside, contains=contains, distinct=distinct)
    return Destination(src.over(to.buffer), (lambda: src.restore(to.array())) if out is None else lambda: out)


def _on_device(template: Any, src: Buffer, shape: tuple[int, ...]) -> Destination:
    """A new array on the input's device: from its library's allocator, or over memory that the library adopts."""
    from ..arrays.arrays import empty_like  # lazy: not needed for host arrays
    from ..gpu.memory import allocate_on, refuse_capture

    refuse_capture(src)
    made = empty_like(template, shape)
    if made is not None:
        return Destination(resolve_out(made), lambda: made)
    block = allocate_on(src, shape)
    return Destination(block, lambda: wrap(block, template))


def _check_overlap(src: Buffer, dst: Buffer, inside: int | None, contains: int | None, distinct: bool) -> None:
    if not overlaps(src, dst):
        return
    offset = src.address - dst.address
    if not distinct:
        if inside is not None and offset == inside * src.nbytes:
            return
        if contains is not None and -offset == contains * dst.nbytes:
            return
        if inside is None and contains is None and offset == 0 and src.count == dst.count:
            return
    raise ValueError("out overlaps x in memory; use a separate array"
                     + ("" if distinct else ", or the exact same memory for an in-place operation"))
