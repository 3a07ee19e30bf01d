"""Checks that run on every rank of one world: with NumPy arrays in processes without torch, with torch tensors, and with arrays
on a CUDA device (of tests/standin)."""

from __future__ import annotations

import importlib
import json
import sys
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import arraycomm.distributed as dist

RANKS = 3
LIMIT = timedelta(seconds=30)  # for everything that waits, so that a mistake fails instead of hanging
MODULES = ("collective_checks", "list_checks", "message_checks", "object_checks", "work_checks", "refusal_checks")
CHECKS: dict[str, Callable[[Library], None]] = {}


class Library:
    """How a check makes arrays and looks at them."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.rank, self.size = dist.get_rank(), dist.get_world_size()

    def array(self, values: Any, dtype: str = "float64") -> Any:
        """A new array; bfloat16 is there with torch only."""
        if self.name == "numpy":
            return np.array(values, dtype=dtype)
        if self.name == "cuda":
            return standin().asarray(values, dtype)
        torch = importlib.import_module("torch")
        return torch.tensor(np.asarray(values).tolist(), dtype=getattr(torch, dtype))

    def zeros(self, *shape: int, dtype: str = "float64") -> Any:
        return self.array(np.zeros(shape), dtype) if 0 not in shape else self.array(np.zeros((1,) * len(shape)), dtype)[:0]

    def strided(self, values: NDArray[Any], dtype: str = "float64") -> Any:
        """An array of this content in two dimensions that is not contiguous."""
        wide = self.array(np.zeros((2 * values.shape[1], values.shape[0])), dtype)
        view = wide[::2].T
        view[...] = self.array(values, dtype)
        return view


def standin() -> Any:
    """Its arrays need ARRAYCOMM_CUDART_LIBRARY."""
    return importlib.import_module("tests.standin.arrays")


def values(x: Any) -> NDArray[Any]:
    """The content as NumPy's."""
    if type(x).__module__ == "tests.standin.arrays":
        return np.array(x.numpy())
    if type(x).__module__ == "torch":
        x = x.detach()
        x = (x.float() if str(x.dtype) == "torch.bfloat16" else x).numpy()
    return np.array(x)


def same(x: Any, expected: Any) -> None:
    found = values(x)
    assert found.shape == np.shape(expected) and np.array_equal(found, expected), f"{found} instead of {expected}"


def check(function: Callable[[Library], None]) -> Callable[[Library], None]:
    CHECKS[function.__name__] = function
    return function


def load() -> dict[str, Callable[[Library], None]]:
    """All checks, by name, in order."""
    for module in MODULES:
        importlib.import_module(f"tests.distributed.{module}")
    return CHECKS


def serve(rank: int, library: str, folder: str) -> None:
    """One rank: every check, and what went wrong as a file."""
    if library == "torch":
        importlib.import_module("torch")
    else:
        sys.modules["torch"] = None  # type: ignore[assignment]
    dist.init_process_group("gloo", timeout=LIMIT)
    failures = {}
    for name, function in load().items():
        try:
            function(Library(library))
        except Exception:
            failures[name] = traceback.format_exc()
            if dist.group.WORLD is None or dist.group.WORLD.core.closed:
                break
    Path(folder, f"{rank}.json").write_text(json.dumps(failures))
    dist.barrier()
    dist.destroy_process_group()
