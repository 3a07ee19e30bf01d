"""arraycomm: collectives for any array that supports DLPack.

    import arraycomm
    with arraycomm.init() as group:
        total = group.all_reduce(x)

Importing loads no array library and starts nothing.
"""

from __future__ import annotations

try:
    from ._engine import lib as _lib  # "from . import _engine" would not say ModuleNotFoundError
except ModuleNotFoundError as missing:
    if missing.name != f"{__name__}._engine":  # a dependency of the engine is missing: the error names it
        raise
    raise ImportError(
        f"the engine of arraycomm is not built in {__path__[0]}. Python found the source tree there: run from another "
        "folder, or build it in place with `pip install -e .`"
    ) from missing

from hashlib import sha256 as _sha256

from .core.interface.declarations import interface as _interface

if _interface(__path__[0], _sha256) not in (None, getattr(_lib, "ACOMM_INTERFACE", None)):
    raise ImportError(
        f"the engine of arraycomm in {__path__[0]} was built from other declarations than the source tree there has: build it "
        "again, by `python -m cffi_build` in the source tree, or by `pip install -e .` as before"
    )

from .core.arrays.codec import register_type
from .core.arrays.types import DType, ReduceOp, premul_sum
from .core.base.errors import (
    Aborted,
    AuthFailed,
    CollectiveMismatch,
    CollectiveTimeout,
    DeviceError,
    DistBackendError,
    DistError,
    DistNetworkError,
    DistStoreError,
    GroupError,
    PeerLost,
    QueueEmptyError,
    RemoteError,
    ResourceError,
)
from .core.group.arguments import ANY_TAG
from .core.group.arguments import writable_out as writable
from .core.group.group import Group
from .core.group.start import from_mpi4py, init
from .core.group.work import Message, Received, Work, wait_all, wait_any

TYPE_CHECKING = False  # as in typing, whose import takes longer than this package's
if TYPE_CHECKING:
    from typing import Any

    from .core.group.functions import reduction
    from .core.group.gradients import GradientReducer
    from .core.group.thread_ranks import run
    from .launch.spawn import spawn

__version__ = "0.1.0"

__all__ = [
    "ANY_TAG", "Aborted", "AuthFailed", "CollectiveMismatch", "CollectiveTimeout", "DType", "DeviceError", "DistBackendError",
    "DistError", "DistNetworkError", "DistStoreError", "GradientReducer", "Group", "GroupError", "Message", "PeerLost",
    "QueueEmptyError", "Received", "ReduceOp", "RemoteError", "ResourceError", "Work", "from_mpi4py", "get_include",
    "get_library", "init", "premul_sum", "reduction", "register_type", "run", "spawn", "wait_all", "wait_any", "writable",
]


def get_include() -> str:
    """The folder of arraycomm.h, the C API (docs/reference/c-api.md).

    - Blocks: never; the header is part of the package.
    - Errors: none, with or without a C compiler.

    Examples:
        >>> import os
        >>> os.path.exists(os.path.join(arraycomm.get_include(), "arraycomm.h"))
        True
    """
    return f"{__path__[0]}/include"


def get_library() -> str:
    """The file in which C code finds the C API. This process has loaded it: dlopen(path, RTLD_NOW | RTLD_NOLOAD).

    - Blocks: never; the file is part of the package.
    - Errors: none; without the engine the package itself cannot be imported.

    Examples:
        >>> import ctypes
        >>> hasattr(ctypes.CDLL(arraycomm.get_library()), "arraycomm_api")
        True
    """
    from . import _engine

    return str(_engine.__file__)


_PACKAGES = ("debug", "dist2", "distributed", "frameworks", "trace")
_LATER = {  # name -> module, imported on first use: most programs do not need them, and spawn loads multiprocessing
    "GradientReducer": "core.group.gradients", "reduction": "core.group.functions", "run": "core.group.thread_ranks",
    "spawn": "launch.spawn",
}


def __getattr__(name: str) -> Any:
    if name in _LATER:
        from importlib import import_module

        return getattr(import_module(f"{__name__}.{_LATER[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:  # the public names, those that are not loaded yet among them
    return sorted({*__all__, *(name for name in globals() if name.startswith("_") or name in _PACKAGES)})
