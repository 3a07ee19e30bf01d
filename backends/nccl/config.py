"""ncclConfig_t: how a communicator is to be made."""

from __future__ import annotations

from collections.abc import Mapping

from arraycomm.core.base.errors import DistBackendError
from arraycomm.core.base.log import log
from arraycomm.core.base.typed import Any

from .declarations import CONFIG, CONSTANTS, MAGIC, UNSET, version_text
from .library import Library

_KNOWN = 22902  # whose ncclConfig_t declarations.py has whole
_STRINGS = frozenset(("netName", "commName"))


def check(nccl: Library, options: Mapping[str, Any]) -> None:
    """ValueError for an option that ncclConfig_t does not have, DistBackendError for one that needs another version."""
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
    """A pointer to an ncclConfig_t with these fields set and all others left to NCCL, and what must live as long as it.

    Blocking, unless the options say otherwise: operations of a communicator that does not block are enqueued by a thread that
    NCCL starts for each of them, and that has to be waited for.
    """
    made, alive = nccl.ffi.new("ncclConfig_t *"), []
    made.size, made.magic, made.version = _size(nccl), MAGIC, min(nccl.version, _KNOWN)
    for name in CONFIG:
        if name not in _STRINGS:
            setattr(made, name, UNSET)
    for name, value in ({"blocking": 1} | dict(options)).items():
        if name in _STRINGS:
            alive.append(nccl.ffi.new("char[]", str(value).encode()))
            setattr(made, name, alive[-1])
        else:
            setattr(made, name, int(value))
    return made, alive


def _size(nccl: Library) -> int:
    """Of the struct as this version has it, no longer: it must not read fields that it would not know."""
    known = [name for name, since in CONFIG.items() if since <= nccl.version]
    fields = dict(nccl.ffi.typeof("ncclConfig_t").fields)
    last = fields[known[-1]]
    end = int(last.offset) + int(nccl.ffi.sizeof(last.type))
    return (end + 7) // 8 * 8  # as the compiler pads it
