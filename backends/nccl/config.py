"""ncclConfig_t: the options of a new communicator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from arraycomm.core.base.errors import DistBackendError
from arraycomm.core.base.log import log

from .declarations import CONFIG, CONSTANTS, MAGIC, UNSET, version_text
from .library import Library

_KNOWN = 22902  # the version whose ncclConfig_t declarations.py has in full
_STRINGS = frozenset(("netName", "commName"))


def check(nccl: Library, options: Mapping[str, Any]) -> None:
    """ValueError for an option that ncclConfig_t does not have, DistBackendError if the option needs another version."""
    for name in options:
        if name not in CONFIG:
            raise ValueError(f"NCCL has no option {name!r}; it has {', '.join(CONFIG)}")
        if nccl.version < CONFIG[name]:
            raise DistBackendError(f"NCCL's option {name} needs version {version_text(CONFIG[name])} or later, and "
                                   f"{nccl.path} is {version_text(nccl.version)}")
    zero, since = CONSTANTS["NCCL_CTA_POLICY_ZERO"]
    if options.get("CTAPolicy") == zero and nccl.version < since:
        raise DistBackendError(f"NCCL's zero-CTA policy needs version {version_text(since)} or later, and {nccl.path} is "
                               f"{version_text(nccl.version)}")
    for name in ("splitShare", "shrinkShare"):
        if options.get(name) not in (None, 0, UNSET):
            log().warning("NCCL's option %s has no effect: each group makes a communicator of its own (docs/guide/gpu.md)", name)


def make(nccl: Library, options: Mapping[str, Any]) -> tuple[Any, list[Any]]:
    """A pointer to an ncclConfig_t with these fields set and NCCL's defaults otherwise, and objects to keep alive with it.

    Blocking by default: for a non-blocking communicator, NCCL starts a thread for each operation that enqueues it, and the
    caller has to wait for that thread.
    """
    made, alive = nccl.ffi.new("ncclConfig_t *"), []
    made.size, made.magic, made.version = _size(nccl), MAGIC, min(nccl.version, _KNOWN)
    values: dict[str, Any] = dict.fromkeys(CONFIG.keys() - _STRINGS, UNSET)
    for name, value in (values | {"blocking": 1} | dict(options)).items():
        if name in _STRINGS:
            alive.append(nccl.ffi.new("char[]", str(value).encode()))
            setattr(made, name, alive[-1])
        else:
            setattr(made, name, int(value))
    return made, alive


def _size(nccl: Library) -> int:
    """The size of the struct in this version of NCCL, without fields that the version does not have."""
    known = [name for name, since in CONFIG.items() if since <= nccl.version]
    fields = dict(nccl.ffi.typeof("ncclConfig_t").fields)
    last = fields[known[-1]]
    end = int(last.offset) + int(nccl.ffi.sizeof(last.type))
    return (end + 7) // 8 * 8  # the compiler's padding
