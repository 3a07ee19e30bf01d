"""Conversion between NumPy arrays and arrays of the selected library."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

import numpy as np

from .data import Array, numpy_dtype, poison


class NumpyArrays:
    """NumPy's arrays. Subclasses override `array` and `host`."""

    immutable = False

    def array(self, host: Array) -> Any:
        """The library's array of these values; owns its memory."""
        return host

    def host(self, array: Any) -> Array:
        """The values as a NumPy array, which may share the memory."""
        return np.asarray(array)

    def why_not(self, dtype: str) -> str | None:
        """None if the library has the dtype, otherwise the reason in a sentence."""
        return None

    def poisoned(self, count: int, dtype: str) -> Any:
        """An output buffer, see data.poison. None if the library's arrays are immutable."""
        return self.array(poison(count, dtype))


class TorchArrays(NumpyArrays):
    """torch on the CPU. NumPy has no dtype for its narrow floats: those pass as integers of their width."""

    def __init__(self) -> None:
        self.torch = _load("torch")

    def array(self, host: Array) -> Any:
        raw = host.view(f"i{host.dtype.itemsize}") if host.dtype.isbuiltin != 1 else host
        return self.torch.from_numpy(raw).view(getattr(self.torch, host.dtype.name))

    def why_not(self, dtype: str) -> str | None:
        return None if hasattr(self.torch, dtype) else "torch has no such dtype"

    def host(self, array: Any) -> Array:
        wanted = numpy_dtype(str(array.dtype).removeprefix("torch."))
        if wanted.isbuiltin == 1:
            return super().host(array)
        integer = {1: self.torch.int8, 2: self.torch.int16}[wanted.itemsize]
        return super().host(array.view(integer)).view(wanted)


class JaxArrays(NumpyArrays):
    """JAX on the CPU, with 64-bit dtypes. Immutable: results are new arrays, nothing is in place."""

    immutable = True

    def __init__(self) -> None:
        self.jax = _load("jax")
        self.jax.config.update("jax_platforms", "cpu")
        self.jax.config.update("jax_enable_x64", True)

    def array(self, host: Array) -> Any:
        return self.jax.numpy.array(host).block_until_ready()

    def poisoned(self, count: int, dtype: str) -> None:
        return None


def require(name: str) -> None:
    """Raises ModuleNotFoundError that says what to install, without importing it: jax alone takes a second."""
    if importlib.util.find_spec(name) is None:
        raise ModuleNotFoundError(f"--framework {name} needs {name}: pip install {name}")


def _load(name: str) -> Any:
    require(name)
    return importlib.import_module(name)


def open_framework(name: str) -> NumpyArrays:
    """The arrays of "numpy", "torch" or "jax". ModuleNotFoundError says what to install."""
    return {"numpy": NumpyArrays, "torch": TorchArrays, "jax": JaxArrays}[name]()
