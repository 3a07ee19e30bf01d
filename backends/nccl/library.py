"""libnccl: search paths, functions, and result codes as exceptions. Bound by cffi at run time, nothing is
compiled."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

from arraycomm.core.base import settings
from arraycomm.core.base.errors import CollectiveTimeout, DistBackendError, DistError, PeerLost
from arraycomm.core.base.shared_library import bind, loaded, packaged

from .declarations import CONSTANTS, FUNCTIONS, OLDEST, source, version_text

VARIABLE = "ARRAYCOMM_NCCL_LIBRARY"
_NAME = "libnccl.so.2"
_INSTALL = ("install the package nvidia-nccl-cu12 (or nvidia-nccl-cu13, for CUDA 13), or set "
            f"{VARIABLE} to the path of {_NAME}")
REMOTE, IN_PROGRESS, TIMEOUT = (CONSTANTS[name][0] for name in ("ncclRemoteError", "ncclInProgress", "ncclTimeout"))
_NAMES = {value: name for name, (value, _) in CONSTANTS.items()
          if name in ("ncclUnhandledCudaError", "ncclSystemError", "ncclInternalError", "ncclInvalidArgument",
                      "ncclInvalidUsage", "ncclRemoteError", "ncclTimeout")}


class Library:
    """`lib.ncclX(...)` returns NCCL's result code; a function that this version lacks is a DistBackendError."""

    def __init__(self, ffi: Any, lib: Any, path: str) -> None:
        self.ffi, self._lib, self.path = ffi, lib, path
        out = ffi.new("int *")
        code = lib.ncclGetVersion(out)
        if code:
            raise DistBackendError(f"{path} does not report its version: code {code}")
        self.version = int(out[0])
        if self.version < OLDEST:
            raise DistBackendError(f"{path} is NCCL {version_text(self.version)}, and {version_text(OLDEST)} or later is needed; "
                                   f"{_INSTALL}")

    def __getattr__(self, name: str) -> Any:
        if name not in FUNCTIONS:
            raise AttributeError(name)
        self.require(name)
        try:
            function = getattr(self._lib, name)
        except AttributeError as error:  # cffi's error has only the linker's text
            raise DistBackendError(f"{self.path} has no {name}, though its version is {version_text(self.version)}") from error
        setattr(self, name, function)  # cached: later accesses do not come here
        return function

    def has(self, name: str) -> bool:
        """Whether this version has a function."""
        return self.version >= FUNCTIONS[name][0]

    def require(self, name: str) -> None:
        """DistBackendError if this version lacks the function; the text names the version that has it."""
        if not self.has(name):
            raise DistBackendError(f"{name} needs NCCL {version_text(FUNCTIONS[name][0])} or later, and {self.path} is "
                                   f"{version_text(self.version)}; {_INSTALL}")

    def error_text(self, code: int, comm: int = 0) -> str:
        """NCCL's text for a code, and for its last error."""
        text = self.ffi.string(self.ncclGetErrorString(code)).decode(errors="replace")
        last = self.ncclGetLastError(comm)
        detail = self.ffi.string(last).decode(errors="replace").strip() if last != self.ffi.NULL else ""
        return f"{text}: {detail}" if detail and detail != text else text


def translate(nccl: Library, code: int, doing: str, comm: int = 0) -> DistError:
    """The exception for a code. doing: the rank and the call that failed."""
    text = (f"{doing}: {nccl.error_text(code, comm)} ({_NAMES.get(code, 'a code that is not known here')}, {code}); "
            "NCCL_DEBUG=WARN makes NCCL print more")
    if code == REMOTE:
        return PeerLost(text)
    return CollectiveTimeout(text) if code == TIMEOUT else DistBackendError(text)


def library() -> Library:
    """The library of this process. Raises DistBackendError that names the missing part."""
    return _load(settings.get(VARIABLE))


@functools.cache
def _load(_chosen: str) -> Library:
    return Library(*bind(source(), VARIABLE, _guesses(), f"the library of NCCL, {_NAME}, is missing", _INSTALL))


def _guesses() -> Iterator[str]:
    yield from loaded("libnccl.so")  # prefer the mapped one: a second copy would have its own connections
    yield from packaged(f"nccl/lib/{_NAME}")
    yield _NAME
