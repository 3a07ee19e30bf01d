"""Arrays of CuPy, torch and JAX on this rank's GPU, and back. Over the stand-ins, those of tests/standin under CuPy's name."""

from __future__ import annotations

import importlib.util
import os
from typing import Any

import numpy as np

from arraycomm.backends.nccl.declarations import version_text
from arraycomm.backends.nccl.library import library
from arraycomm.core.cuda.runtime import runtime

STANDIN = "standin"
_SHARING = 23000  # NCCL's version from which on ranks can share a GPU


def too_few(ranks: int) -> str | None:
    """Why so many ranks cannot run here; None: they can."""
    count, version = runtime().device_count(), library().version
    if ranks <= count or version >= _SHARING:
        return None
    return (f"{ranks} ranks and {count} GPU: ranks share one from NCCL {version_text(_SHARING)} on, and this is "
            f"{version_text(version)}")


def use(rank: int) -> list[str]:
    """The rank's GPU becomes the current one, several ranks' where there are too few; which libraries have arrays there.

    Importing decides that, so it is for ranks, not for who starts them.
    """
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # ranks share a GPU's memory
    device = rank % runtime().device_count()
    runtime().set_device(device)
    if os.path.basename(runtime().path).startswith(STANDIN):
        return [STANDIN]
    usable = []
    if importlib.util.find_spec("cupy"):
        import cupy

        cupy.cuda.Device(device).use()
        usable.append("cupy")
    if importlib.util.find_spec("torch"):
        import torch

        if torch.cuda.is_available():
            torch.cuda.set_device(device)
            usable.append("torch")
    if importlib.util.find_spec("jax"):
        import jax

        jax.config.update("jax_enable_x64", True)  # the tests have arrays of 64-bit types
        usable += ["jax"] if jax.default_backend() == "gpu" else []
    assert usable, "no library here has arrays on a GPU: install CuPy, or torch or JAX for CUDA"
    return usable


def make(framework: str, array: np.ndarray[Any, Any]) -> Any:
    """On the current GPU."""
    if framework == STANDIN:
        from tests.conformance import data

        return data.make("cupy", array)
    if framework == "cupy":
        import cupy

        return cupy.asarray(array)
    if framework == "torch":
        import torch

        return torch.from_numpy(array.copy()).cuda()
    import jax

    return jax.device_put(array, jax.devices("gpu")[runtime().device()])


def back(array: Any) -> np.ndarray[Any, Any]:
    root = type(array).__module__.partition(".")[0]
    if root == "cupy":
        return np.asarray(array.get())
    return np.asarray(array.cpu()) if root == "torch" else np.asarray(array)
