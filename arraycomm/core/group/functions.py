"""Reductions by user-defined functions, in Python or in C, in rank order.

A chain: each rank receives what the ranks before it have reduced, applies the function to that and its own array, and sends the
result to the next rank. So a function is called once for each rank but the first, memory for two more arrays is all that a rank
needs, and all ranks get the same bits, whatever the function does. Rejected: gathering all arrays everywhere, as ranks whose
libraries or processors differ would compute different bits.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from typing import Any

from arraycomm._engine import ffi, lib

from ..arrays.dlpack import wrap
from ..arrays.joined import clear, copy, duplicate, on_host, through_host
from ..arrays.opaque import Opaque, dtype_name, readable
from ..arrays.types import DeviceType
from ..base.errors import RemoteError
from ..interface.kinds import KINDS, Kind
from . import arguments
from .exchange import gather_integers, same_values

_TAG = 2**63 - 2  # tag of the chain's messages, which no user receive matches
_LAYOUT = 0x66756E63  # layout of the exchanges before and after, unique in the call signature
_C = "void (*)(uintptr_t, uintptr_t, uint64_t, int32_t, uintptr_t)"


class Reduction:
    """An op that is a function in C; made by reduction(). Callable as one in Python: (left, right) gives a new array."""

    def __init__(self, function: Any, context: Any = 0) -> None:
        self._kept = function, context
        self._address, self._context = _address("function", function), _address("context", context)
        if not self._address:
            raise ValueError("the function's address is 0")

    def __call__(self, left: Any, right: Any) -> Any:
        first, second = readable(left), readable(right)
        if second.device_type != DeviceType.CPU:
            raise TypeError("a function in C reduces arrays in host memory: copy x there, or give a function of two arrays")
        made = duplicate(_memory(second))
        function = ffi.cast(_C, self._address)
        function(first.address, made.address, math.prod(second.shape), second.dtype, self._context)  # without the GIL
        return second.restore(wrap(made, second.carrier)) if isinstance(second, Opaque) else wrap(made, right)

    def __repr__(self) -> str:
        return f"<arraycomm.reduction at {self._address:#x}>"


def reduction(function: Any, context: Any = 0) -> Reduction:
    """An op for all_reduce, reduce, reduce_scatter, scan and exscan that is a function of the program's in C:

        void f(const void *in, void *inout, uint64_t count, int32_t dtype, void *context)

    puts in[i] op inout[i] into inout[i], for i below count. `in` has been reduced from the ranks before, inout is this rank's;
    both are packed. dtype: DType's number; of NumPy's structured arrays and others that are bytes to arraycomm a number from 256
    on, and count is in their elements. Called once a rank, for all elements, without Python's lock.

    Args:
        function: its address, or a function pointer of cffi or ctypes, or what has an `address` (numba.cfunc).
        context: an address, or a pointer of cffi or ctypes. What this returns keeps both.

    - Blocks: never; it makes the op of a later call.
    - Errors: TypeError for anything else, ValueError for the address 0.

    Examples:
        >>> import ctypes
        >>> @ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 2, ctypes.c_uint64, ctypes.c_int32, ctypes.c_void_p)
        ... def last(given, inout, count, dtype, context):   # leaves inout as it is: the last rank's array wins
        ...     pass
        >>> arraycomm.run(lambda group: group.all_reduce(np.float64(group.rank), arraycomm.reduction(last)).tolist(), 3)
        [2.0, 2.0, 2.0]
    """
    return Reduction(function, context)


def _address(name: str, value: Any) -> int:
    if isinstance(value, ffi.CData):
        return int(ffi.cast("uintptr_t", value))
    ctypes = sys.modules.get("ctypes")
    if ctypes is not None and type(value).__module__ != "builtins":
        try:
            return ctypes.cast(value, ctypes.c_void_p).value or 0
        except ctypes.ArgumentError:
            value = getattr(value, "address", value)
    if callable(value):
        raise TypeError(f"{name} must be in C: an address, or a pointer of cffi or ctypes. A function in Python is an op itself")
    return arguments.integer(name, value)


def _memory(buffer: Any) -> Any:
    """The Buffer; in bytes if the elements are opaque."""
    return buffer.buffer if isinstance(buffer, Opaque) else buffer


class Chain:
    """The Mover (backend.py) of one collective whose op is a function. x: this rank's array."""

    def __init__(self, group: Any, function: Callable[[Any, Any], Any], x: Any) -> None:
        self._group, self._function, self._x = group, function, x

    def collective(self, kind: Kind, src: Any, dst: Any, op: object, root: int, counts: Sequence[int] | None,
                   receives: None, *, layout: int, timeout: float | None, async_op: bool) -> None:
        if async_op:
            raise ValueError("a reduction by a function of the program's runs in its caller, and is not asynchronous")
        group, host, last = self._group, self._group._communicator, self._group.size - 1
        self._compare(kind, src, root, counts, timeout)
        before, made, failed = None, src, None
        if group.rank:
            left = arguments.destination(self._x, src, src.shape, None)
            before = left.buffer
            with through_host(_memory(before)) as memory:
                host.recv(memory, group.rank - 1, _TAG, timeout=timeout)
            if group.rank < last or kind.reduces != lib.ACOMM_EXCLUSIVE:
                made, failed = self._applied(left.array(), before, src)
        if group.rank < last:
            host.send(on_host(_memory(made)), group.rank + 1, _TAG, timeout=timeout)
        if kind.reduces == lib.ACOMM_OF_ALL:
            self._spread(made, src, dst, counts, layout, timeout)
        elif kind.reduces == lib.ACOMM_EXCLUSIVE and before is None:
            clear(_memory(dst))
        else:
            copy(_memory(made if kind.reduces == lib.ACOMM_INCLUSIVE else before), _memory(dst))
        self._raise_failure(kind.name, failed, timeout)

    def _spread(self, made: Any, src: Any, dst: Any, counts: Sequence[int] | None, layout: int, timeout: float | None) -> None:
        """Sends the last rank's result to all ranks, which keep their part."""
        group, last = self._group, self._group.size - 1
        all_of_it = dst is not None and dst.count == src.count
        whole = dst if all_of_it else arguments.destination(self._x, src, src.shape, None).buffer
        group._movers[src.device_type].collective(KINDS["broadcast"], made if group.rank == last else None, whole, root=last,
                                                  layout=layout, timeout=timeout)
        if dst is not None and not all_of_it:
            start = sum(counts[: group.rank]) if counts else group.rank * dst.count
            copy(_memory(whole).part(start, (dst.count,)), _memory(dst))

    def _compare(self, kind: Kind, src: Any, root: int, counts: Sequence[int] | None, timeout: float | None) -> None:
        mine = hash((kind.number, root, src.dtype, src.shape, *(counts or ()))) & 0x7FFFFFFFFFFFFFFF
        told = gather_integers(self._group._communicator, [mine], timeout, _LAYOUT)
        same_values(self._group, [value for value, in told], "reduce by functions, but not alike: another operation, root, "
                    f"counts, shape or dtype; here it is {kind.name} of {dtype_name(src)} of shape {src.shape}")

    def _applied(self, left: Any, before: Any, src: Any) -> tuple[Any, Exception | None]:
        """The function's result; if it fails, the previous ranks' result and the exception."""
        try:
            made = readable(self._function(left, self._x))
            if (made.shape, made.dtype, made.device_type) == (src.shape, src.dtype, src.device_type):
                return made, None
            raise ValueError(f"the function made {dtype_name(made)} of shape {made.shape} from two arrays of {dtype_name(src)} "
                             f"of shape {src.shape}")
        except Exception as error:
            return before, error
        except BaseException as error:  # Ctrl-C too, because the other ranks wait
            self._group.abort(f"was interrupted in a reduction's function: {type(error).__name__}")
            raise

    def _raise_failure(self, name: str, failed: Exception | None, timeout: float | None) -> None:
        """Raises the first failing rank's error on all ranks; on that rank it is the original exception."""
        group = self._group
        flags = gather_integers(group._communicator, [failed is not None], timeout, _LAYOUT)
        first = next((rank for rank, flag in enumerate(flags) if flag[0]), None)
        if first is None:
            return
        told: Any = group.broadcast_object(failed, root=first, timeout=timeout)
        if failed is not None and group.rank == first:
            raise failed
        raise RemoteError(told.type_name, f"{told.text} (raised by the function of {name}, on rank {first})")
