"""Groups by their handles, which is how compiled programs know them."""

from __future__ import annotations

from arraycomm._engine import lib
from arraycomm.core.arrays.types import DeviceType
from arraycomm.core.group.group import Group

from . import cuda, errors

lib.acomm_xla_report(id(errors.report))
lib.acomm_xla_enqueuer(id(cuda.enqueue))


def number(group: Group, platform: str) -> int:
    """The group's number in programs for this platform of JAX's. TypeError where they cannot call it."""
    shortcut = group._communicator.shortcut
    if shortcut is None or (platform == "cpu" and DeviceType.CPU not in group._movers):
        raise TypeError(f"backend {group.backend!r} cannot be called by compiled programs; call it outside jit")
    found = int(shortcut.number(group))
    errors.place(found, group)
    cuda.know(found, group)
    return found
