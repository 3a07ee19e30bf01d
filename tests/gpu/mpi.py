"""Arrays on a GPU over the MPI backend, in ranks that arraycomm-run --mpi starts: `python -m tests.gpu.parts mpi 2 torch`. On one
rank nothing goes to the library. Which way they went is in the report; Open MPI 4 takes no launcher but its own."""

from __future__ import annotations

import os
import subprocess
import sys

import arraycomm
from arraycomm.core import registry

from . import frameworks, programs

COUNTS, FEW = (1, 7, 1_000_003), (7, 1024)


def start(ranks: int, framework: str) -> None:
    print("| arrays of | ranks | results that were right | moved by |\n|---|---|---|---|", flush=True)
    code = subprocess.run([sys.executable, "-m", "arraycomm.launch", "--mpi", "--no-prefix", "--nproc-per-node", str(ranks), "-m",
                           "tests.gpu.mpi", framework]).returncode
    if code:
        raise SystemExit(f"arraycomm-run --mpi gave {code}")


def work(framework: str) -> None:
    counts = FEW if framework == frameworks.STANDIN else COUNTS
    for name in frameworks.use(int(os.environ["RANK"]), framework):
        with arraycomm.init(backend="mpi", timeout=60, name=f"arrays of {name}") as group:
            for dtype in programs.DTYPES:
                programs.operations(group, name, dtype, counts)
            programs.streams(group, name, counts[-1])
            group.barrier()
            if group.rank == 0:
                print(f"| {name} | {group.size} | {programs.checked} | {_way(group)} |", flush=True)


def _way(group: arraycomm.Group) -> str:
    backend = registry.get("mpi")
    library = backend.describe()["library"]  # type: ignore[attr-defined]
    mover = next(mover for mover in group._movers.values() if hasattr(mover, "_everywhere"))
    return f"{library} itself, reductions staged" if mover._everywhere else f"the host, over {library}"


if __name__ == "__main__":
    work(sys.argv[1] if len(sys.argv) > 1 else "")
