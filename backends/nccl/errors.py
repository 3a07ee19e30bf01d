"""NCCL's result codes as exceptions: the one place where they become text and types."""

from __future__ import annotations

from arraycomm.core.base.errors import CollectiveTimeout, DistBackendError, DistError, PeerLost

from .declarations import CONSTANTS
from .library import Library

REMOTE, IN_PROGRESS, TIMEOUT = (CONSTANTS[name][0] for name in ("ncclRemoteError", "ncclInProgress", "ncclTimeout"))
_NAMES = {value: name for name, (value, _) in CONSTANTS.items()
          if name in ("ncclUnhandledCudaError", "ncclSystemError", "ncclInternalError", "ncclInvalidArgument",
                      "ncclInvalidUsage", "ncclRemoteError", "ncclTimeout")}


def translate(nccl: Library, code: int, doing: str, comm: int = 0) -> DistError:
    """The exception for a code. doing: who, and what was called."""
    text = (f"{doing}: {nccl.error_text(code, comm)} ({_NAMES.get(code, 'a code that is not known here')}, {code}); "
            "NCCL_DEBUG=WARN makes NCCL say more")
    if code == REMOTE:
        return PeerLost(text)
    return CollectiveTimeout(text) if code == TIMEOUT else DistBackendError(text)
