"""Device types by torch's names, and the forms in which a caller may name a device."""

from __future__ import annotations

from typing import Any

from arraycomm.core.arrays.types import DEVICE_TYPES, DeviceType


def type_of(device: Any) -> str:
    """"cuda" for "cuda:1", a torch.device or a device number. RuntimeError for an unknown device type, TypeError for a value of
    another kind."""
    if not isinstance(device, (str, int)) and not hasattr(device, "type"):
        raise TypeError(f"a device is a str as \"cuda:0\", a torch.device or a number, got {device!r}")
    name = "cuda" if isinstance(device, int) else str(getattr(device, "type", device)).partition(":")[0]
    if name not in DEVICE_TYPES:
        raise RuntimeError(f"Expected one of {', '.join(DEVICE_TYPES)} as the device type, got {device!r}")
    return name


def bound(device_id: Any) -> Any:
    """The bound device for device_id: a device unchanged, a number as "cuda:<number>", None for None.

    Raises ValueError for a device that is no accelerator or has no index: it must name the device of this process.
    """
    if device_id is None:
        return None
    if isinstance(device_id, int):
        return f"cuda:{device_id}"
    name, number = type_of(device_id), getattr(device_id, "index", None)
    if isinstance(device_id, str):
        number = device_id.partition(":")[2]
    if name == "cpu" or number in (None, ""):
        raise ValueError(f"device_id parameter must be an accelerator with an index, as cuda:0; got {device_id!r}")
    return device_id


def of_array(x: Any) -> int:
    """DLPack's device type of an array; the host for objects that have only the buffer protocol."""
    export = getattr(x, "__dlpack_device__", None)
    return int(export()[0]) if export else int(DeviceType.CPU)
