"""The contenders of `arraycomm-bench compare`: one rank program each, over one protocol.

A contender runs under the interpreter that has its library, and imports the library only when it is created. Modules here import
only ../collectives.py and ../data.py of the benchmark, which need only NumPy; only ours.py imports arraycomm.
To add one, write its file with a class `Contender(Peer)` and a line below; or keep the file elsewhere, and pass it by --peer.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from typing import Any

# Name on the command line -> the file here that implements it.
LIBRARIES = {
    "ours": "ours",
    "ours/jit": "ours_jax",
    "ours/jax.jit": "ours_jax",
    "ours/jax": "jax",
    "gloo": "gloo",
    "openmpi": "mpi4py",
    "mpich": "mpi4py",
    "impi": "mpi4py",
    "openmpi-tcp": "mpi4py",
    "mpich-tcp": "mpi4py",
    "impi-tcp": "mpi4py",
    "mlx": "mlx",
    "mlx-mpi": "mlx",
    "jax": "jax",
    "mpi4jax": "mpi4jax",
}
GROUPS = {"mpi4py": ("openmpi", "mpich", "impi")}


def contender(file: str) -> Any:
    """The class Contender of a module of this folder, or of a file by its absolute path."""
    if not os.path.isabs(file):
        return importlib.import_module(f"{__name__}.{file}").Contender
    spec = importlib.util.spec_from_file_location(f"{__name__}.given", file)
    if spec is None or spec.loader is None:
        raise ImportError(f"cannot load {file}")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.Contender
