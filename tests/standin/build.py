"""Compiles the stand-ins. Kept for the session: every test file that needs one gets the same file."""

from __future__ import annotations

import functools
import importlib.util
import subprocess
import tempfile
from pathlib import Path

from tests.engine import compiling

HERE = Path(__file__).parent
FLAGS = ["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O1", "-g", "-fPIC", "-shared", "-fvisibility=hidden", "-pthread",
         "-Wl,-Bsymbolic"]  # where torch has loaded CUDA's runtime for all, its functions would come before our own
ENGINE_FLAGS = ["-D_GNU_SOURCE", "-ffp-contract=off", f"-I{compiling.ENGINE}", f"-I{compiling.PUBLIC}"]


@functools.cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="standin-")  # goes with the process


@functools.cache
def cudart() -> str:
    """Path of the stand-in for CUDA's runtime."""
    library = Path(_folder().name, "standin_cudart.so")  # by another name: nobody else is to find it
    subprocess.run(["cc", *FLAGS, "-ffp-contract=off", *map(str, sorted(HERE.glob("cudart*.c"))), "-o", str(library)], check=True)
    return str(library)


@functools.cache
def nccl(version: int = 23203) -> str:
    """Path of the stand-in for NCCL, which finds that for CUDA's runtime by itself. version: without what is newer."""
    library = Path(_folder().name, f"standin_nccl_{version}.so")
    subprocess.run(["cc", *FLAGS, *ENGINE_FLAGS, f"-DSTANDIN_VERSION={version}", *map(str, sorted(HERE.glob("nccl*.c"))),
                    *_kernels(), cudart(), "-o", str(library), "-lm"], check=True)
    return str(library)


@functools.cache
def _kernels() -> list[str]:
    folder = Path(_folder().name, "kernels")
    folder.mkdir()
    return list(map(str, compiling.compile_kernels(folder)))


@functools.cache
def xla() -> str:
    """Path of the stand-in for XLA, which calls handlers by the header that jaxlib brings."""
    library, jaxlib = Path(_folder().name, "standin_xla.so"), importlib.util.find_spec("jaxlib")
    assert jaxlib is not None and jaxlib.origin is not None
    include = Path(jaxlib.origin).parent / "include"
    subprocess.run(["cc", *FLAGS, f"-I{include}", str(HERE / "xla.c"), "-o", str(library)], check=True)
    return str(library)


@functools.cache
def mpi(library: str) -> str:
    """Path of the stand-in for an MPI library: this one, whose messages can fail, and which takes arrays on devices."""
    made = Path(_folder().name, f"standin_{Path(library).parts[-3]}_{Path(library).name}")
    family = [] if library.endswith(".so.40") else ["-DAS_MPICH"]
    subprocess.run(["cc", *FLAGS, f'-DREAL="{library}"', *family, str(HERE / "mpi.c"), "-Wl,--no-as-needed", library,
                    f"-Wl,-rpath,{Path(library).parent}", "-o", str(made), "-ldl"], check=True)
    return str(made)


@functools.cache
def null() -> str:
    """Path of a library that stands for both and does nothing."""
    library = Path(_folder().name, "standin_null.so")
    subprocess.run(["cc", "-std=gnu11", "-O2", "-fPIC", "-shared", str(HERE / "null.c"), "-o", str(library)], check=True)
    return str(library)
