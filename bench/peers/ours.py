"""arraycomm itself, in several configurations: VARIANTS."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import mpi
from .protocol import OPERATIONS, Call, Missing, Peer

# "ours/NAME" in the table -> the settings of its ranks. Variants that need special arrays: see `place`.
_PIECE = 1 << 20
_FORCED = ("records", "leader", "leaders")


def _forced(way: str) -> dict[str, str]:
    from arraycomm.core.interface import tuning  # not before it is known that arraycomm is there

    kinds = sorted({row.kind for row in tuning.rows() if row.name == way})
    return {"ARRAYCOMM_ALGORITHM": ",".join(f"{kind}={way}" for kind in kinds)}


def _flat(size: int) -> dict[str, str]:
    from arraycomm.core.interface import tuning

    picks = [(kind, pick) for kind in tuning.operations() for pick in tuning.shipped(kind, "tcp", size)]
    return {"ARRAYCOMM_ALGORITHM": ",".join(f"{kind}={pick.name}" + ("" if pick.up_to is None else f":{pick.up_to}")
                                            for kind, pick in picks)}


VARIANTS: dict[str, dict[str, str]] = {
    "auto": {},
    # Over several hosts: the table's choice without knowledge of the hosts, and each hierarchical algorithm forced.
    "flat": {},  # see _flat
    **{way: {} for way in _FORCED},
    "4tcp": {"ARRAYCOMM_SOCKET_CONNECTIONS": "4"},
    "shm": {"ARRAYCOMM_TRANSPORT": "shm"},
    "symmetric": {"ARRAYCOMM_TRANSPORT": "shm"},
    "tcp": {"ARRAYCOMM_TRANSPORT": "tcp"},
    "unchecked": {"ARRAYCOMM_TRANSPORT": "tcp", "ARRAYCOMM_CHECK": "0"},
    "jit": {},  # inside JAX programs, see ours_jax.py
    "jax.jit": {},
    "jax": {"ARRAYCOMM_JAX": "1"},  # JAX unchanged: its own collectives over arraycomm, see jax.py
    # The MPI backend over each library, in the environment of the contender of that name, where arraycomm is installed too.
    **{library: {"ARRAYCOMM_BACKEND": "mpi"} for library in mpi.WHEELS},
}


def _library(name: str) -> str | None:
    """The MPI library of a variant."""
    way = name.partition("/")[2]
    return way if way in mpi.WHEELS else None


class Contender(Peer):
    operations: tuple[str, ...] = OPERATIONS
    dtypes = ("float32", "bfloat16")

    def __init__(self, name: str) -> None:
        import arraycomm

        super().__init__(name)
        self.group: Any = arraycomm.init().__enter__()
        self.rank, self.size = self.group.rank, self.group.size

    @classmethod
    def network(cls, name: str) -> bool:
        return name not in ("ours/shm", "ours/symmetric") and _library(name) is None

    @classmethod
    def version(cls, name: str) -> str:
        import arraycomm

        return f"arraycomm {arraycomm.__version__}"

    @classmethod
    def environ(cls, name: str, python: str, size: int, directory: str) -> dict[str, str]:
        library, way = _library(name), name.partition("/")[2]
        if way == "flat":
            return _flat(size)
        if way in _FORCED:
            return _forced(way)
        return VARIANTS[way] | (mpi.environ(library, python, directory) if library else {})

    @classmethod
    def command(cls, name: str, python: str, program: list[str], size: int) -> list[list[str]]:
        library = _library(name)
        if library is None:
            return super().command(name, python, program, size)
        return mpi.command(library, python, program, size, mpi.remedy(library))

    @classmethod
    def clear(cls, name: str, since: float) -> None:
        if _library(name):
            mpi.clear(since)

    @classmethod
    def spread(cls, name: str, addresses: list[str], interface: str, directory: str) -> dict[str, str]:
        if not cls.network(name):
            raise Missing("it is for one host")
        return {}

    def place(self, values: NDArray[np.float32], dtype: str) -> Any:
        if self.name == "ours/symmetric":
            array = self.group.empty(values.shape, dtype)
            array[...] = values.astype(array.dtype, copy=False)
            return array
        if dtype == "float32":
            return values
        import ml_dtypes

        # In the memory of `values`, whose pages are chosen; never ahead of what is still to be converted.
        array = values.view(ml_dtypes.bfloat16)[: len(values)]
        for at in range(0, len(values), _PIECE):
            array[at:at + _PIECE] = values[at:at + _PIECE].astype(ml_dtypes.bfloat16)
        return array

    def call(self, operation: str, x: Any, out: Any) -> Call:
        group = self.group
        if operation == "sendrecv":
            return self.one_way(partial(group.send, x), lambda source: group.recv(source, out=out))
        if operation == "barrier":
            barrier: Call = group.barrier
            return barrier
        method = getattr(group, operation)
        if operation == "broadcast":
            return lambda: method(x, 0, out=out)
        # No partial: with keywords it copies a dict for every call, which a program's own call does not do.
        return lambda: method(x, out=out)

    def barrier(self) -> None:
        self.group.barrier()

    def close(self) -> None:
        self.group.close()
