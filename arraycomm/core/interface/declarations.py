"""A hash of the engine's declarations, by which `import arraycomm` detects an outdated build of the engine."""

# The build runs this file by its path: the package cannot be imported before it has an engine.

from __future__ import annotations

import os
from collections.abc import Callable

HEADERS = ("arraycomm/include/operations.def", "arraycomm/include/arraycomm.h", "arraycomm/include/arraycomm_backend.h",
           "backends/engine/acomm.h", "backends/mpi/engine/acomm_mpi.h", "arraycomm/frameworks/native/acomm_xla.h")
_PYTHON = "arraycomm/_engine.pyi"


def interface(package: str, sha256: Callable[[bytes], object]) -> int | None:
    """The hash for the surrounding source tree. None without one: the package was installed with its engine."""
    root = os.path.dirname(package)
    text = b""
    try:
        for name in (*HEADERS, _PYTHON):
            with open(os.path.join(root, name), "rb", buffering=0) as file:
                text += file.read()
    except FileNotFoundError:
        return None
    return int(sha256(text).hexdigest()[:12], 16)  # type: ignore[attr-defined]
