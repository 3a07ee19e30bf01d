r"""How long JAX's own collectives are inside the library, arraycomm or an MPI, and how long in JAX and XLA.

    cc -O2 -shared -fPIC -o within.so tests/frameworks/jax/within.c
    LD_PRELOAD=$PWD/within.so arraycomm-run --jax -n 2 -m tests.frameworks.jax.within [OPERATION...]
    JAX_COORDINATOR_ADDRESS=127.0.0.1:PORT MPITRAMPOLINE_LIB=WRAPPER mpirun -n 2 -x LD_PRELOAD=$PWD/within.so \
        python -m tests.frameworks.jax.within [OPERATION...]

WRAPPER: MPIwrapper's library over that MPI. MPICH's mpirun has -genv NAME VALUE for -x. A row has medians over the calls, in
microseconds: from the later process's first call of the library to the last return; the earlier one's wait for it; and what
else the whole jitted call took, of the process that took longer.
"""

from __future__ import annotations

import ctypes
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.experimental import multihost_utils
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

BYTES = {8: 1000, 1 << 10: 1000, 1 << 16: 500, 1 << 20: 100, 1 << 24: 10}  # of the whole array of all_gather: the calls of each
MOST = 10_000  # calls of the library in those


def operations(size: int) -> dict[str, Callable[[Any], Any]]:
    ring = [(i, (i + 1) % size) for i in range(size)]
    return {
        "psum": lambda x: lax.psum(x, "r"),
        "all_gather": lambda x: lax.all_gather(x, "r", tiled=True),
        "psum_scatter": lambda x: lax.psum_scatter(x, "r", tiled=True),
        "all_to_all": lambda x: lax.all_to_all(x, "r", 0, 0, tiled=True),
        "ppermute": lambda x: lax.ppermute(x, "r", ring),
    }


def timed(program: Callable[[Any], Any], x: Any, calls: int, donated: bool) -> np.ndarray[Any, Any]:
    """Of each call ns: its begin, first call of the library, last return, end."""
    noted, taken = np.zeros((MOST, 2), np.int64), ctypes.CDLL(None).within_take
    found = np.zeros((calls, 4), np.int64)
    for i in range(-5, calls):
        taken(noted.ctypes.data_as(ctypes.c_void_p), MOST)
        begin = time.monotonic_ns()
        y = jax.block_until_ready(program(x))
        end = time.monotonic_ns()
        x = y if donated else x
        number = taken(noted.ctypes.data_as(ctypes.c_void_p), MOST)
        assert number, "the library was not called: see the command above"
        if i >= 0:
            found[i] = begin, noted[:number, 0].min(), noted[:number, 1].max(), end
    return found


def row(times: np.ndarray[Any, Any]) -> str:
    """times: [process, call, 4]."""
    begin, first, last, end = np.moveaxis(times, 2, 0) / 1e3
    later = first.max(0)
    outside = (end - begin - (last - first)).max(0)
    return " | ".join(f"{np.median(part):.1f}" for part in ((last - later).max(0), (later - first).max(0), outside))


def meet() -> None:
    for rank, size in (("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"), ("PMI_RANK", "PMI_SIZE")):
        if rank in os.environ:
            jax.config.update("jax_cpu_collectives_implementation", "mpi")
            jax.distributed.initialize(num_processes=int(os.environ[size]), process_id=int(os.environ[rank]))
            return
    jax.distributed.initialize()


def main() -> None:
    jax.config.update("jax_enable_x64", True)  # nanoseconds are gathered
    meet()
    size = jax.process_count()
    mesh = jax.make_mesh((size,), ("r",))
    chosen = {name: f for name, f in operations(size).items() if name in sys.argv[1:] or not sys.argv[1:]}
    for name, function in chosen.items():
        donated = name == "psum"
        program = jax.jit(jax.shard_map(function, mesh=mesh, in_specs=P("r"), out_specs=P("r"), check_vma=False),
                          donate_argnums=(0,) if donated else ())
        for total, calls in BYTES.items():
            count = max(total // 4 // (size if name == "all_gather" else 1), size)
            block = np.zeros(count, np.float32)
            x = jax.make_array_from_process_local_data(NamedSharding(mesh, P("r")), block, (size * count,))
            times = multihost_utils.process_allgather(timed(program, x, calls, donated))
            if jax.process_index() == 0:
                print(f"| {name} | {total} | {row(times)} |", flush=True)


if __name__ == "__main__":
    main()
