"""TORCH_DISTRIBUTED_DEBUG=DETAIL: before each collective the ranks exchange and compare their call signatures.

The exchange has its own group, so that the collective's group stays intact if signatures differ or a rank is missing.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

from arraycomm._engine import lib
from arraycomm.core.base.errors import CollectiveTimeout
from arraycomm.core.base.log import log
from arraycomm.core.diagnostics.watch import Call, Watcher
from arraycomm.core.group.exchange import mismatch
from arraycomm.core.group.group import Group
from arraycomm.core.interface.kinds import KINDS

TRACE = 5  # below logging.DEBUG


class Fingerprint(NamedTuple):
    """A rank's call signature. An empty field is not compared, or the rank has no value for it."""

    sequence: str
    operation: str
    dtype: str
    shape: str
    reduction: str
    root: str

    def __str__(self) -> str:
        of = f" of {self.dtype} {self.shape}" if self.dtype else ""
        told = [f", {name} {value}" for name, value in (("op", self.reduction), ("root", self.root)) if value]
        return f"{self.operation}{of}{''.join(told)}, collective {self.sequence} of the group"


_ASPECTS = {"sequence": "Sequence number", "operation": "Op type", "dtype": "Tensor dtype", "shape": "Tensor shape",
            "reduction": "Reduction", "root": "Root"}


class Consistency(Watcher):
    """The check for one group. Made by all its ranks; the facade makes one for each group. The group between closes with its
    parent."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self._between = group.subgroup(range(group.size), "consistency")

    def begin(self, call: Call) -> None:
        mine = fingerprint(call)
        if _wants_trace():
            log().log(TRACE, "rank %d in group %r: %s", self._group.rank, self._group.name, mine if call.sequence else call.name)
        if not call.sequence or self._group.size == 1:
            return
        timeout = call.parameters.get("timeout")
        everyone = [Fingerprint(*told) for told in self._exchange(tuple(mine), timeout, mine)]
        if any(differences(everyone[0], other) for other in everyone):
            self._refuse(everyone, timeout)

    def _exchange(self, told: object, timeout: float | None, about: Fingerprint) -> list[Any]:
        """Every rank's signature."""
        try:
            return self._between.all_gather_object(told, timeout=timeout)
        except CollectiveTimeout as error:
            error.args = (f"not all ranks reached {about}; TORCH_DISTRIBUTED_DEBUG=DETAIL waits for all of them first: {error}",)
            raise

    def _refuse(self, everyone: Sequence[Fingerprint], timeout: float | None) -> None:
        """Raises, on all ranks alike."""
        first = everyone[0]
        odd = [rank for rank, theirs in enumerate(everyone) if differences(first, theirs)]
        told = "; ".join(differences(first, everyone[odd[0]]))
        lines = "".join(f"\n  rank {rank}: {theirs}" for rank, theirs in enumerate(everyone))
        if os.environ.get("TORCH_SHOW_CPP_STACKTRACES") == "1":
            for rank, stack in enumerate(self._exchange(_stack(), timeout, first)):
                lines += f"\nCall stack of rank {rank}:\n{stack}"
        raise mismatch(
            self._group, odd, f"Detected mismatch between collectives on ranks. Rank 0 is running collective: {first}, but rank "
            f"{odd[0]} is running collective: {everyone[odd[0]]}. Collectives differ in the following aspects: {told}. All "
            f"ranks:{lines}")


def _wants_trace() -> bool:
    """Whether the log level is TRACE. If `logging` is not loaded, it is not configured either, and stays unloaded."""
    logging = sys.modules.get("logging")
    return logging is not None and logging.getLogger("arraycomm").isEnabledFor(TRACE)


def fingerprint(call: Call) -> Fingerprint:
    given, kind = call.parameters, KINDS.get(call.name)  # none of isend and irecv
    dtype, shape = "", ""
    of_root = kind is not None and kind.cuts and kind.gives == lib.ACOMM_ROOT  # other ranks know only their part
    found = None if of_root and call.group.rank == given.get("root", 0) else call.array()
    if found is not None:
        dtype, dimensions = found[0], found[1]
        told = [given.get(name) for name in ("counts", "uneven", "send_counts")]
        free = kind is not None and kind.joins and any(value is not None and value is not False for value in told)
        shape = "(" + ", ".join(["*"] * free + [str(n) for n in dimensions[free:]]) + ")"
    return Fingerprint(str(call.sequence), call.name, dtype, shape, str(given.get("op", "sum")) if kind and kind.reduces else "",
                       str(given.get("root", 0)) if kind and kind.rooted else "")


def differences(one: Fingerprint, other: Fingerprint) -> list[str]:
    """Aspects in which they differ, as `Tensor shape: (10,) vs (20,)`. Of other operations nothing else is compared."""
    if one.operation != other.operation:
        return [f"Op type: {one.operation} vs {other.operation}"]
    pairs: Any = zip(Fingerprint._fields, one, other, strict=True)
    return [f"{_ASPECTS[name]}: {a} vs {b}" for name, a, b in pairs if a != b and a and b]


def _stack() -> str:
    import traceback  # imported on demand: only a report needs it

    return "".join(traceback.format_stack(limit=40)[:-4])
