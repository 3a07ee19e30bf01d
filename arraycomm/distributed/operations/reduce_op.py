"""ReduceOp: the reductions by torch's names, and the deprecated reduce_op."""

from __future__ import annotations

import warnings
from typing import Any

from arraycomm.core.arrays.types import ReduceOp as CoreReduceOp
from arraycomm.core.arrays.types import premul_sum

# The core's names of the reductions, indexed by torch's numbers.
_NAMES = {"SUM": "sum", "AVG": "avg", "PRODUCT": "product", "MIN": "min", "MAX": "max", "BAND": "band", "BOR": "bor",
          "BXOR": "bxor", "PREMUL_SUM": None}
_FOR_COMPLEX = frozenset(("SUM", "AVG", "PREMUL_SUM"))


class ReduceOp:
    """A reduction: SUM, AVG, PRODUCT, MIN, MAX, BAND, BOR, BXOR, or PREMUL_SUM with a factor.

    Attributes:
        op: the member of ReduceOp.RedOpType.
        factor: the factor of a PREMUL_SUM.

    - Blocks: never; it is a value.
    - Errors: TypeError for what is no RedOpType. RuntimeError for the factor of another reduction.

    Examples:
        >>> dist.ReduceOp.SUM, dist.ReduceOp.RedOpType(0) == dist.ReduceOp.SUM
        (<RedOpType.SUM: 0>, True)
        >>> dist.ReduceOp(dist.ReduceOp.SUM).factor
        Traceback (most recent call last):
        RuntimeError: Only PREMUL_SUM supports accessing factor
    """

    __slots__ = ("_factor", "op", "_plain")

    SUM: RedOpType
    AVG: RedOpType
    PRODUCT: RedOpType
    MIN: RedOpType
    MAX: RedOpType
    BAND: RedOpType
    BOR: RedOpType
    BXOR: RedOpType
    PREMUL_SUM: RedOpType
    op: RedOpType
    _plain: str  # the core's name for the fast path; "", which the core refuses, if dtype or factor need a check first

    def __init__(self, op: RedOpType) -> None:
        if not isinstance(op, RedOpType):
            raise TypeError(f"ReduceOp() takes a member of ReduceOp.RedOpType, got {op!r}")
        self.op, self._plain = op, op._plain
        self._factor: float | None = None

    @property
    def factor(self) -> float:
        """The factor of a PREMUL_SUM.

        - Blocks: never, as any attribute.
        - Errors: RuntimeError for other reductions, and for a PREMUL_SUM without a factor.
        """
        if self.op.name != "PREMUL_SUM":
            raise RuntimeError("Only PREMUL_SUM supports accessing factor")
        if self._factor is None:
            raise RuntimeError("this PREMUL_SUM has no factor; make one with _make_nccl_premul_sum(factor)")
        return self._factor

    @property
    def _core(self) -> str | CoreReduceOp:
        """The core's reduction. TypeError for PREMUL_SUM without a factor."""
        name = _NAMES[self.op.name]
        if name is not None:
            return name
        if self._factor is None:
            raise TypeError("ReduceOp.PREMUL_SUM needs its factor: pass _make_nccl_premul_sum(factor)")
        return premul_sum(self._factor)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ReduceOp) and (self.op.value, self._factor) == (other.op.value, other._factor)

    def __hash__(self) -> int:
        return hash((self.op.value, self._factor))

    def __repr__(self) -> str:
        return f"<ReduceOp {self.op}{'' if self._factor is None else f'({self._factor})'}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuilt, (self.op.name, self._factor))


class RedOpType(ReduceOp):
    """One of the reductions. name and value as torch's."""

    __slots__ = ("name", "value")

    __members__: dict[str, RedOpType] = {}

    name: str
    value: int

    def __init__(self, value: int) -> None:
        """A copy of the member with this number. ValueError when there is none."""
        if value not in range(len(_NAMES)):
            raise ValueError(f"{value} is not the number of a reduction; they go from 0 to {len(_NAMES) - 1}")
        self.name, self.value = list(_NAMES)[value], value
        self.op, self._factor = self, None
        # PRODUCT is not for complex numbers here, but it is in the core.
        self._plain = "" if self.name == "PRODUCT" else _NAMES[self.name] or ""

    def __int__(self) -> int:
        return self.value

    __index__ = __int__

    def __str__(self) -> str:
        return f"RedOpType.{self.name}"

    def __repr__(self) -> str:
        return f"<RedOpType.{self.name}: {self.value}>"


def _rebuilt(name: str, factor: float | None) -> ReduceOp:
    return RedOpType.__members__[name] if factor is None else _make_nccl_premul_sum(factor)


for _number, _name in enumerate(_NAMES):
    _member = RedOpType.__members__[_name] = RedOpType(_number)
    setattr(ReduceOp, _name, _member)
setattr(ReduceOp, "RedOpType", RedOpType)  # noqa: B010 - an annotation would hide the class


def _make_nccl_premul_sum(factor: Any) -> ReduceOp:
    """The sum of every rank's array times a factor: a number, or an array of one element. On every backend."""
    number = factor if isinstance(factor, (int, float)) else float(factor.item())
    op = ReduceOp(ReduceOp.PREMUL_SUM)
    op._factor = premul_sum(number).factor
    return op


def supports_complex(reduceOp: ReduceOp) -> bool:  # noqa: N803 - torch's name
    """Whether the reduction takes complex numbers.

    - Blocks: never; nothing is sent.
    - Errors: AttributeError for what is no ReduceOp.

    Examples:
        >>> dist.supports_complex(dist.ReduceOp.SUM), dist.supports_complex(dist.ReduceOp.MAX)
        (True, False)
    """
    return reduceOp.op.name in _FOR_COMPLEX


class _DeprecatedReduceOp:
    """torch.distributed.reduce_op: the members of ReduceOp, each with a FutureWarning. Use ReduceOp.

    - Blocks: never; it is a namespace.
    - Errors: AttributeError for a reduction that does not exist.

    Examples:
        >>> import warnings
        >>> with warnings.catch_warnings():
        ...     warnings.simplefilter("ignore")
        ...     dist.reduce_op.SUM
        <RedOpType.SUM: 0>
    """

    def __getattribute__(self, name: str) -> Any:
        warnings.warn("`torch.distributed.reduce_op` is deprecated, please use `torch.distributed.ReduceOp` instead",
                      FutureWarning, stacklevel=2)
        return getattr(RedOpType, name)


reduce_op = _DeprecatedReduceOp()
"""torch.distributed.reduce_op: the members of ReduceOp, each with a FutureWarning. Use ReduceOp."""
