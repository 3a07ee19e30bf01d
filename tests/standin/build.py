"""Compiles the stand-ins. Kept for the session: every test file that needs one gets the same file."""

from __future__ import annotations

import functools
import subprocess
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
FLAGS = ["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O1", "-g", "-fPIC", "-shared", "-fvisibility=hidden", "-pthread"]


@functools.cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="standin-")  # goes with the process


@functools.cache
def cudart() -> str:
    """Path of the stand-in for CUDA's runtime."""
    library = Path(_folder().name, "standin_cudart.so")  # by another name: nobody else is to find it
    subprocess.run(["cc", *FLAGS, *map(str, sorted(HERE.glob("cudart*.c"))), "-o", str(library)], check=True)
    return str(library)
