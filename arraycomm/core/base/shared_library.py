"""Finds and binds shared libraries at run time: libcudart, libnccl, libmpi."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterable, Iterator
from typing import Any

from . import settings
from .errors import DistBackendError


def loaded(*names: str) -> list[str]:
    """Mapped libraries of this process with this file name prefix, for example those of torch, CuPy, JAX or mpi4py. Empty if
    /proc is not mounted."""
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
            paths = dict.fromkeys(line.rstrip("\n").partition("/")[2] for line in maps)
    except FileNotFoundError:
        return []
    return [f"/{path}" for path in paths if os.path.basename(path).startswith(names)]


def packaged(*paths: str) -> Iterator[str]:
    """Files of NVIDIA's packages in this environment; paths: relative to their common folder."""
    found = importlib.util.find_spec("nvidia")
    for root in (found.submodule_search_locations or ()) if found else ():
        for path in paths:
            if os.path.exists(os.path.join(root, path)):
                yield os.path.join(root, path)


def bind(declarations: str, variable: str, guesses: Iterable[str], missing: str, install: str) -> tuple[Any, Any, str]:
    """cffi's FFI, the library and its path: the value of the setting `variable`, else the first loadable guess. Raises
    DistBackendError with `missing`, the cause, and how to `install` it."""
    from cffi import FFI  # lazy: the import takes 30 ms

    ffi, failures = FFI(), []
    ffi.cdef(declarations)
    chosen = settings.get(variable)
    for path in (chosen,) if chosen else guesses:
        try:
            return ffi, ffi.dlopen(path), path
        except OSError as error:
            failures.append(str(error))
    why = failures[0] if chosen else "it is not loaded, no package brings it and the system has none"
    raise DistBackendError(f"{missing}: {why}; {install}")
