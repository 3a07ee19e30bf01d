"""Shared libraries that are found and bound at run time: libcudart, libnccl, libmpi."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterable, Iterator

from . import settings
from .errors import DistBackendError
from .typed import Any


def loaded(*names: str) -> list[str]:
    """Libraries that this process has mapped whose files' names begin so: those of torch, CuPy, JAX or mpi4py, say. None are
    known where /proc is not mounted."""
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
            paths = dict.fromkeys(line.rstrip("\n").partition("/")[2] for line in maps)
    except FileNotFoundError:
        return []
    return [f"/{path}" for path in paths if os.path.basename(path).startswith(names)]


def packaged(*paths: str) -> Iterator[str]:
    """Those of the files that NVIDIA's packages have in this environment; paths: below their common folder."""
    found = importlib.util.find_spec("nvidia")
    for root in (found.submodule_search_locations or ()) if found else ():
        for path in paths:
            if os.path.exists(os.path.join(root, path)):
                yield os.path.join(root, path)


def bind(declarations: str, variable: str, guesses: Iterable[str], missing: str, install: str) -> tuple[Any, Any, str]:
    """cffi's FFI and library, and where it was found: where the setting `variable` says, or else the first of the guesses
    that can be loaded. DistBackendError: `missing`, why, and how to `install` it."""
    from cffi import FFI  # takes 30 ms with its parser

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
