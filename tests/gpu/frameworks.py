"""Arrays of CuPy, torch and JAX on this rank's GPU, and back. Over the stand-ins, those of tests/standin under CuPy's name."""

from __future__ import annotations

import importlib.util
import os
from typing import Any

import numpy as np

from arraycomm.backends.nccl.library import library
from arraycomm.core.gpu.runtime import runtime

STANDIN = "standin"
_SHARING = 23000  # NCCL's version from which on ranks of a host can share a GPU


def share(rank: int) -> None:
    """Before NCCL is asked for a communicator, where ranks share a GPU: few of its processors for each, and nothing of NVLink's
    switches. From 2.30 on that is an experiment that NCCL knows of. Earlier ones refuse it on one host, so that each rank says
    that it has a host of its own, and they talk over sockets. What the caller has set counts."""
    many = library().version >= _SHARING
    sharing = {"NCCL_MULTI_RANK_GPU_ENABLE": "1"} if many else {"NCCL_HOSTID": f"rank {rank}"}
    for name, value in (sharing | {"NCCL_MAX_CTAS": "8", "NCCL_NVLS_ENABLE": "0"}).items():
        os.environ.setdefault(name, value)


def use(rank: int, framework: str = "") -> list[str]:
    """The rank's GPU becomes the current one, several ranks' where there are too few; which libraries have arrays there.

    framework: the only one that is to be used.

    Importing decides that, so it is for ranks, not for who starts them.
    """
    if framework == STANDIN:
        return [STANDIN]
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # ranks share a GPU's memory
    usable = []
    wanted = {name for name in ("cupy", "torch", "jax") if framework in ("", name) and importlib.util.find_spec(name)}
    if "torch" in wanted:  # the first: the others, and we, then take its libraries
        import torch

        if torch.cuda.is_available():
            torch.cuda.set_device(rank % torch.cuda.device_count())
            usable.append("torch")
    if "cupy" in wanted:
        import cupy

        cupy.cuda.Device(rank % cupy.cuda.runtime.getDeviceCount()).use()
        usable.append("cupy")
    if "jax" in wanted:
        import jax

        jax.config.update("jax_enable_x64", True)  # the tests have arrays of 64-bit types
        usable += ["jax"] if jax.default_backend() == "gpu" else []
    runtime().set_device(rank % runtime().device_count())
    if int(os.environ["LOCAL_WORLD_SIZE"]) > runtime().device_count():
        share(rank)
    assert usable, f"no arrays on a GPU by {framework or 'torch, CuPy or JAX'} here"
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
