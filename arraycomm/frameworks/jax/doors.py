"""Groups by number, which is how compiled programs know them (core/native/door.h)."""

from __future__ import annotations

from arraycomm.core.group import Group
from arraycomm.core.types import DeviceType

from . import cuda, errors


def number(group: Group, platform: str) -> int:
    """The group's number in programs for this platform of JAX's. TypeError where they cannot call it."""
    shortcut = group._communicator.shortcut
    if shortcut is None or (platform == "cpu" and DeviceType.CPU not in group._movers):
        raise TypeError(f"backend {group.backend!r} cannot be called by compiled programs; call it outside jit")
    found = shortcut.number(errors.report, cuda.enqueue)
    errors.place(found, group)
    cuda.know(found, group)
    return found
