"""Group.empty(): arrays in memory that a group's ranks reach without a copy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..arrays.dlpack import adopt, allocate, wrap
from ..arrays.opaque import elements
from ..arrays.types import DeviceType, DType
from . import arguments
from .part import Part

if TYPE_CHECKING:
    from typing import overload

    from .part import Array


class SymmetricArrays(Part):
    """See Group, which has this method."""

    if TYPE_CHECKING:
        @overload
        def empty(self, shape: int | Sequence[int], dtype: Any = "float32", *, like: Array,
                  timeout: float | None = None) -> Array: ...
        @overload
        def empty(self, shape: int | Sequence[int], dtype: Any = "float32", *, timeout: float | None = None) -> Any: ...

    def empty(self, shape: int | Sequence[int], dtype: Any = "float32", *, like: Any = None,
              timeout: float | None = None) -> Any:
        """A symmetric array, uninitialised, in memory that the group's ranks reach without a copy. Every rank calls it.

        Collectives whose arrays are all symmetric read and write the peers' arrays in place; for everything else it is an
        array like any other. Where not all ranks are on one host and share memory it is one, and with a warning where a rank's
        address space is limited (`ulimit -v`); on GPUs, unless ARRAYCOMM_NCCL_SYMMETRIC is 1 on all ranks (docs/guide/gpu.md:
        what the program must see to then).

        Args:
            shape: an int or ints.
            dtype: a name ("bfloat16"), a DType, or NumPy's or torch's dtype object.
            like: an array whose library the new one is of, and on whose type of device it lies; None: NumPy.

        - Shapes: any; may differ between ranks.
        - Dtypes: every one that arrays of like's library can have.
        - Memory: freed with the array and its views; valid when the group is closed before. Collectives take it as x and as out.
        - Blocks: until every rank has called it.
        - Timeout: seconds; None takes the group's. CollectiveTimeout names the late ranks, and the group has failed.
        - Errors: TypeError, ValueError for the arguments. ResourceError on all ranks when one of them has no memory.

        Examples:
            >>> def work(group):
            ...     x = group.empty(2)
            ...     x[:] = group.rank
            ...     return group.all_reduce(x, out=x).tolist()
            >>> arraycomm.run(work, 2)
            [[1.0, 1.0], [1.0, 1.0]]
        """
        arguments.seconds(timeout)
        lengths, template = arguments.lengths(shape), arguments.template(like)
        if of := elements(dtype, template):
            return of.restore(self.empty((*lengths, of.units), DType.UINT8, like=of.carrier, timeout=timeout))
        kind, src = arguments.dtype(dtype), self._readable(template)
        if src.device_type != DeviceType.CPU:
            from ..gpu.memory import symmetric_on  # lazy: not needed for host arrays

            return wrap(symmetric_on(self._movers[src.device_type], src, lengths, kind, timeout), template)
        found = self._communicator.symmetric(math.prod(lengths) * kind.itemsize, timeout=timeout)
        return wrap(adopt(lengths, kind, *found) if found else allocate(lengths, kind), template)
