"""Backend names as torch.distributed spells them, which device each serves, and what answers under a name."""

from __future__ import annotations

import enum
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

from arraycomm.core.arrays.types import DEVICE_TYPES
from arraycomm.core.base.errors import DistBackendError
from arraycomm.core.interface import registry
from arraycomm.core.interface.backend import Backend as Engine

from . import devices as known_devices

# torch's name -> the core registry's name; all other names are equal in both.
_ENGINES = {"gloo": "socket"}


BackendType = enum.IntEnum("BackendType", ["UNDEFINED", "GLOO", "NCCL", "UCC", "MPI", "XCCL", "CUSTOM"], start=0)  # torch's


class Plugin(NamedTuple):
    """The arguments of register_backend()."""

    creator_fn: Callable[..., Any]
    extended_api: bool


class Backend(str):
    """Names of backends, in lower case: Backend("GLOO") is the str "gloo". Backend.GLOO and so on are constants.

    - Blocks: never; no library is loaded.
    - Errors: ValueError for what is no str.

    Examples:
        >>> dist.Backend("GLOO") == dist.Backend.GLOO == "gloo"
        True
        >>> dist.Backend.register_backend("gloo", print)
        Traceback (most recent call last):
        ValueError: backend 'gloo' is registered already, by arraycomm itself; choose another name
    """

    UNDEFINED = "undefined"
    GLOO = "gloo"
    NCCL = "nccl"
    UCC = "ucc"
    MPI = "mpi"
    XCCL = "xccl"
    FAKE = "fake"

    backend_list = [UNDEFINED, GLOO, NCCL, XCCL, UCC, MPI, FAKE]
    default_device_backend_map = {"cpu": GLOO, "cuda": NCCL, "xpu": XCCL, "mps": GLOO}
    backend_capability = {GLOO: ["cpu", "cuda"], NCCL: ["cuda"], XCCL: ["xpu"], UCC: ["cpu", "cuda"],
                          MPI: ["cpu", "cuda"], FAKE: ["cpu", "cuda", "hpu", "xpu"]}
    backend_type_map = {UNDEFINED: BackendType.UNDEFINED, GLOO: BackendType.GLOO, NCCL: BackendType.NCCL,
                        XCCL: BackendType.XCCL, UCC: BackendType.UCC, MPI: BackendType.MPI, FAKE: BackendType.CUSTOM}
    _plugins: dict[str, Plugin] = {}  # by lower-case name

    def __new__(cls, name: str) -> str:  # type: ignore[misc]
        if not isinstance(name, str):
            raise ValueError(f"Backend constructor parameter must be string-ish, got {type(name).__name__}")
        return str(name).lower()

    @classmethod
    def register_backend(cls, name: str, func: Callable[..., Any], extended_api: bool = False,
                         devices: str | list[str] | None = None) -> None:
        """Makes `name` a backend: func makes the ranks' ends of a new group.

        func gives an object of a class that derives from ProcessGroup, or a Communicator (arraycomm.core.interface.backend). A
        name that
        a program has registered is replaced with a warning, as in torch.

        Args:
            func: called on each rank of a new group as func(store, rank, world_size, timeout), with a store of that group and a
                timedelta.
            extended_api: True calls func(options, pg_options); options has store, group_rank, group_size, timeout, group_id and
                global_ranks_in_group.
            devices: types that it serves, "cpu" or ["cpu", "cuda"]; None: both of these.

        - Blocks: never; func is called later.
        - Errors: ValueError for a name of this package's own and for an unknown device type.
        """
        lower = name.lower()
        if lower in cls._plugins:
            warnings.warn(f"backend {lower!r} is registered already and replaced", stacklevel=2)
        elif is_registered(lower):
            raise ValueError(f"backend {lower!r} is registered already, by arraycomm itself; choose another name")
        served = ["cpu", "cuda"] if devices is None else [devices] if isinstance(devices, str) else list(devices)
        unknown = [device for device in served if device not in DEVICE_TYPES]
        if unknown:
            raise ValueError(f"unknown device types {', '.join(unknown)}; known are {', '.join(DEVICE_TYPES)}")
        if lower not in cls.backend_list:
            cls.backend_list.append(lower)
        setattr(cls, name.upper(), lower)
        cls.backend_capability[lower] = served
        cls.backend_type_map[lower] = BackendType.CUSTOM
        cls._plugins[lower] = Plugin(func, extended_api)
        for device in served:
            cls.default_device_backend_map.setdefault(device, lower)


class BackendConfig:
    """Which backend serves which device type, made from "gloo", "cpu:gloo,cuda:nccl" or "undefined" (what is available).

    - Blocks: never; a library may be loaded.
    - Errors: ValueError for a string that names a device type twice, or pairs some backends and not others.

    Examples:
        >>> dist.BackendConfig("cpu:gloo,cuda:nccl").get_device_backend_map()
        {'cpu': 'gloo', 'cuda': 'nccl'}
    """

    def __init__(self, backend: str) -> None:
        self._asked = Backend(backend) != Backend.UNDEFINED
        self.device_backend_map: dict[str, str] = _pairs(Backend(backend))

    def __repr__(self) -> str:
        return ",".join(f"{device}:{backend}" for device, backend in self.device_backend_map.items())

    def get_device_backend_map(self) -> dict[str, str]:
        """A dict of device types and the names of their backends.

        - Blocks: never; nothing is sent.
        - Errors: none; it has no arguments.
        """
        return self.device_backend_map

    def _engines(self) -> dict[str, frozenset[int]]:
        """Their names in the core's registry, each with the DLPack types of the devices that are its own."""
        return registry.assign(self.device_backend_map, engine_name)

    def _spelled(self) -> str:
        """What ranks compare: the same for all spellings that mean the same, as "gloo", "socket" and "cpu:gloo"."""
        return registry.spelled(self._engines())

    def _names(self) -> list[str]:
        """The backends, each once."""
        return list(dict.fromkeys(self.device_backend_map.values()))


def _pairs(text: str) -> dict[str, str]:
    if text == Backend.UNDEFINED:
        return {device: name for device, name in Backend.default_device_backend_map.items()
                if device == "cpu" or (name != Backend.GLOO and why_unavailable(name) is None)}
    if ":" not in text:
        return dict.fromkeys(Backend.backend_capability.get(text, ["cpu", "cuda", "xpu"]), text)
    return registry.pairs(text)


def registered() -> list[str]:
    """Names that something answers to, whether it can be used here or not."""
    torch_names = {engine: name for name, engine in _ENGINES.items()}
    return [torch_names.get(engine, engine) for engine in registry.names()] + list(Backend._plugins)


def is_registered(name: str) -> bool:
    """Whether something answers to this name, whether it can be used here or not."""
    return name in Backend._plugins or registry.known(engine_name(name))


def why_unavailable(name: str) -> str | None:
    """None when groups can be made under this name here, otherwise one sentence."""
    if name in Backend._plugins:
        return None
    engine = engine_name(name)
    if registry.known(engine):
        return registry.why_unavailable(engine)
    return f"nothing is registered under this name; registered are {', '.join(registered())}"


def check(name: str) -> None:
    """Raises AssertionError, as torch does, for an unknown name, DistBackendError for one that cannot be used here."""
    reason = why_unavailable(name)
    if reason is None:
        return
    if name not in (Backend.NCCL, Backend.MPI, Backend.XCCL):
        raise AssertionError(f"Unknown backend type {name}; registered are {', '.join(registered())}")
    raise DistBackendError(f"backend {name!r} is not available here: {reason}")


def engine_name(name: str) -> str:
    """In the core's registry."""
    return _ENGINES.get(name, name)


def engine_for(name: str) -> Engine:
    """What the core's registry has under this name. Raises as check() does."""
    check(name)
    return registry.get(engine_name(name))


def get_default_backend_for_device(device: Any) -> str:
    """The backend that groups use for a device type if none is named. device: "cuda", "cuda:0" or a torch.device.

    - Blocks: never; nothing is sent.
    - Errors: RuntimeError for an unknown type, ValueError where no backend is known for it.

    Examples:
        >>> dist.get_default_backend_for_device("cuda:0")
        'nccl'
    """
    found = Backend.default_device_backend_map.get(known_devices.type_of(device))
    if found is None:
        raise ValueError(f"Default backend not registered for device : {device}")
    return found
