"""DType, DeviceType and ReduceOp: the vocabulary that core, backends and frameworks share."""

from __future__ import annotations

import enum
from typing import NamedTuple


class DType(enum.IntEnum):
    """Element types, numbered as on the wire and in the engine (acomm.h).

    Attributes:
        itemsize: bytes of an element.
        label: the name that NumPy, torch and JAX use: "float32".

    - Blocks: never; an integer.
    - Errors: ValueError for a number that stands for no dtype.

    Examples:
        >>> arraycomm.DType.BFLOAT16.label, arraycomm.DType.BFLOAT16.itemsize
        ('bfloat16', 2)
    """

    BOOL = 0
    INT8 = 1
    INT16 = 2
    INT32 = 3
    INT64 = 4
    UINT8 = 5
    UINT16 = 6
    UINT32 = 7
    UINT64 = 8
    FLOAT16 = 9
    BFLOAT16 = 10
    FLOAT32 = 11
    FLOAT64 = 12
    COMPLEX64 = 13
    COMPLEX128 = 14
    FLOAT8_E3M4 = 15
    FLOAT8_E4M3 = 16
    FLOAT8_E4M3B11FNUZ = 17
    FLOAT8_E4M3FN = 18
    FLOAT8_E4M3FNUZ = 19
    FLOAT8_E5M2 = 20
    FLOAT8_E5M2FNUZ = 21
    FLOAT8_E8M0FNU = 22

    @classmethod
    def _missing_(cls, value: object) -> DType | None:
        """Of a number that stands for a dtype which the engine does not know (opaque.py): its elements are bytes."""
        if not isinstance(value, int) or not 256 <= value < 1 << 20:
            return None
        made = int.__new__(cls, value)
        made._name_, made._value_ = "OPAQUE", value
        return made

    @property
    def itemsize(self) -> int:
        return _ITEMSIZE[self] if self < len(_ITEMSIZE) else 1

    @property
    def label(self) -> str:
        """The name that NumPy, torch and JAX use: "float32"."""
        return self.name.lower()


_ITEMSIZE = (1, 1, 2, 4, 8, 1, 2, 4, 8, 2, 2, 4, 8, 8, 16) + (1,) * 8


class DeviceType(enum.IntEnum):
    """DLPack's device types that a backend may know."""

    CPU = 1
    CUDA = 2
    CUDA_HOST = 3
    ROCM = 10
    ROCM_HOST = 11
    CUDA_MANAGED = 13


# DLPack's under the names that callers use for devices; memory that the host can address counts as the host's.
DEVICE_TYPES: dict[str, frozenset[int]] = {
    "cpu": frozenset((int(DeviceType.CPU), int(DeviceType.CUDA_HOST), int(DeviceType.ROCM_HOST))),
    "cuda": frozenset((int(DeviceType.CUDA), int(DeviceType.CUDA_MANAGED), int(DeviceType.ROCM))),
    "mps": frozenset((8,)),
    "xpu": frozenset((14,)),
    "hpu": frozenset((12,)),
}


def device_name(code: int) -> str:
    """Of a DLPack device type, for messages."""
    if code in tuple(DeviceType):
        return DeviceType(code).name.lower()
    return next((name for name, types in DEVICE_TYPES.items() if code in types), f"number {code} of DLPack's")


class ReduceOp(NamedTuple):
    """A reduction; operations take its name as well.

    Attributes:
        name: "sum", "product", "min", "max", "band", "bor", "bxor", "avg" or "premul_sum".
        code: its number on the wire.
        factor: premul_sum's.

    - Blocks: never; a tuple of the three.
    - Errors: none; operations raise ValueError for a name that they do not know.

    Examples:
        >>> arraycomm.premul_sum(0.5).name
        'premul_sum'
    """

    name: str
    code: int
    factor: float = 1.0

    def __str__(self) -> str:
        return f"{self.name}({self.factor!r})" if self.name == "premul_sum" else self.name


_NAMES = ("sum", "product", "min", "max", "band", "bor", "bxor", "avg")
OPS: dict[str, ReduceOp] = {name: ReduceOp(name, code) for code, name in enumerate(_NAMES)}
OPS["prod"] = OPS["product"]
LOCATING = ("minloc", "maxloc")  # made of these, see locations.py
_CHOICE = f"choose from {', '.join(_NAMES)}, or arraycomm.premul_sum(factor)"
CODES: dict[object, int] = {name: op.code for name, op in OPS.items()} | {op: op.code for op in OPS.values()}


def premul_sum(factor: float) -> ReduceOp:
    """The reduction `sum over ranks of factor * x`, with each rank's own factor being the same number.

    - Blocks: never; it makes the op of a later call.
    - Errors: TypeError when the factor is not a real number.

    Examples:
        >>> arraycomm.run(lambda group: group.all_reduce(np.ones(2), arraycomm.premul_sum(0.5)).tolist(), 3)[0]
        [1.5, 1.5]
    """
    if isinstance(factor, bool) or not isinstance(factor, (int, float)):
        raise TypeError(f"premul_sum needs a real number as its factor, got {type(factor).__name__}")
    return ReduceOp("premul_sum", 8, float(factor))


def reduce_op(op: str | ReduceOp) -> ReduceOp:
    """The ReduceOp of a name. Raises ValueError for an unknown name, naming the known ones, TypeError for a function."""
    if isinstance(op, ReduceOp):
        return op
    if callable(op):
        raise TypeError("functions reduce in all_reduce, reduce, reduce_scatter, scan and exscan of a Group, outside of compiled "
                        f"code; here {_CHOICE}")
    if op in LOCATING:
        raise ValueError(f"{op} is for all_reduce and reduce of a Group, outside of compiled code. Here reduce by {op[:3]}, then "
                         "take the min of where(x == extremes, rank, size)")
    try:
        return OPS[op]
    except (KeyError, TypeError):
        raise ValueError(f"unknown reduction {op!r}; {_CHOICE}") from None
