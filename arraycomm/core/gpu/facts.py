"""The GPU section of arraycomm-info: driver, CUDA's runtime, devices, or the missing part."""

from __future__ import annotations

import os

from ..base.errors import DistBackendError
from .runtime import NO_DRIVER, Runtime, runtime

_DRIVER = "/proc/driver/nvidia"  # as the kernel module of NVIDIA's driver has it


def facts(driver: str = _DRIVER) -> dict[str, str]:
    """The lines of the section, in order."""
    found = {"driver": _driver(driver)}
    try:
        cuda = runtime()
    except DistBackendError as error:
        return found | {"runtime": str(error)}
    try:
        ours, supported = cuda.versions()
    except DistBackendError as error:
        return found | {"runtime": f"{cuda.path}: {error}"}
    found["runtime"] = f"CUDA {_version(ours)} ({cuda.path})"
    if not supported:
        return found | {"GPUs": NO_DRIVER}
    found["driver"] += f", for CUDA up to {_version(supported)}"
    return found | _devices(cuda, driver)


def _version(number: int) -> str:
    """12080 -> "12.8"."""
    return f"{number // 1000}.{number % 1000 // 10}"


def _driver(folder: str) -> str:
    try:
        with open(os.path.join(folder, "version")) as file:
            words = file.readline().split()
    except OSError:
        return "no kernel module of NVIDIA's driver is loaded"
    return next((word for word in words if word[0].isdigit() and "." in word), "of unknown version")


def _devices(cuda: Runtime, driver: str) -> dict[str, str]:
    try:
        count = cuda.device_count()
    except DistBackendError as error:
        return {"GPUs": str(error)}
    if not count:
        return {"GPUs": "CUDA finds none here"}
    return {f"GPU {index}": _device(cuda, index, driver) for index in range(count)}


def _device(cuda: Runtime, index: int, driver: str) -> str:
    try:
        bus = cuda.bus_id(index)
    except DistBackendError as error:
        return str(error)
    try:
        with open(os.path.join(driver, "gpus", bus.lower(), "information")) as file:
            model = next((line.partition(":")[2].strip() for line in file if line.startswith("Model:")), "")
    except OSError:  # in some containers
        model = ""
    return f"{model or 'of a model that the driver does not report'}, {bus}"
