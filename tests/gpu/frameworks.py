"""Arrays of CuPy, torch and JAX on this rank's GPU, and back."""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np


def found() -> list[str]:
    """Those that are installed and can use a GPU here. Importing decides it, so it is for ranks, not for who starts them."""
    usable = []
    if importlib.util.find_spec("cupy"):
        usable.append("cupy")
    if importlib.util.find_spec("torch"):
        import torch

        usable += ["torch"] if torch.cuda.is_available() else []
    if importlib.util.find_spec("jax"):
        import jax

        usable += ["jax"] if jax.default_backend() == "gpu" else []
    return usable


def make(framework: str, array: np.ndarray[Any, Any]) -> Any:
    if framework == "cupy":
        import cupy

        return cupy.asarray(array)
    if framework == "torch":
        import torch

        return torch.from_numpy(array.copy()).cuda()
    import jax

    return jax.device_put(array, jax.devices("gpu")[0])


def back(array: Any) -> np.ndarray[Any, Any]:
    root = type(array).__module__.partition(".")[0]
    if root == "cupy":
        return np.asarray(array.get())
    return np.asarray(array.cpu()) if root == "torch" else np.asarray(array)
