"""Backend names as torch.distributed spells them, which device each serves, and what answers under a name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta

from arraycomm.core import registry
from arraycomm.core.backend import Backend as Engine
from arraycomm.core.backend import Communicator
from arraycomm.core.errors import DistBackendError
from arraycomm.core.record import Record
from arraycomm.core.rendezvous import Rendezvous
from arraycomm.core.types import DeviceType

TYPE_CHECKING = False  # as typing's, which takes longer to load than this package
if TYPE_CHECKING:
    from typing import Any

# Our name for what torch calls so; other names are our own.
_ENGINES = {"gloo": "socket"}
# DLPack's device types under torch's name for them; memory that the host can address counts as the host's.
DEVICE_CODES: dict[str, tuple[int, ...]] = {
    "cpu": (DeviceType.CPU, DeviceType.CUDA_HOST, DeviceType.ROCM_HOST),
    "cuda": (DeviceType.CUDA, DeviceType.CUDA_MANAGED, DeviceType.ROCM),
    "mps": (8,),
    "xpu": (14,),
    "hpu": (12,),
}


class Plugin(Record):
    """What register_backend() was given."""

    creator_fn: Callable[..., Any]
    extended_api: bool


class DistributedBackendOptions:
    """What a backend of the extended form gets: where its ranks meet, and which of them this is."""

    def __init__(self, meeting: Rendezvous, timeout: float, group_id: str, ranks: Sequence[int]) -> None:
        self.store = meeting.store
        self.group_rank = meeting.rank
        self.group_size = meeting.size
        self.timeout = timedelta(seconds=timeout)
        self.group_id = group_id
        self.global_ranks_in_group = list(ranks)


class Backend(str):
    """Names of backends, all lower case. Backend("GLOO") is the plain str "gloo"; ValueError for what is no str."""

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
    _plugins: dict[str, Plugin] = {}

    def __new__(cls, name: str) -> str:  # type: ignore[misc]
        if not isinstance(name, str):
            raise ValueError(f"Backend constructor parameter must be string-ish, got {type(name).__name__}")
        return str(name).lower()

    @classmethod
    def register_backend(cls, name: str, func: Callable[..., Any], extended_api: bool = False,
                         devices: str | list[str] | None = None) -> None:
        """Makes `name` a backend: func gives a Communicator (arraycomm.core.backend) for the ranks of one group.

        func: called as func(store, rank, world_size, timeout) on each rank of a new group, with a store of that group's
            own and a timedelta; in the extended form as func(options, pg_options), see DistributedBackendOptions.
        devices: types that it serves, "cpu" or ["cpu", "cuda"]; None: both of these.
        Raises ValueError when the name is taken.
        """
        lower = name.lower()
        if lower in cls._plugins or lower in _ENGINES or lower in registry.names():
            raise ValueError(f"backend {lower!r} is registered already; choose another name")
        served = ["cpu", "cuda"] if devices is None else [devices] if isinstance(devices, str) else list(devices)
        unknown = [device for device in served if device not in DEVICE_CODES]
        if unknown:
            raise ValueError(f"unknown device types {unknown}; known are {', '.join(DEVICE_CODES)}")
        if lower not in cls.backend_list:
            cls.backend_list.append(lower)
        setattr(cls, name.upper(), lower)
        cls.backend_capability[lower] = served
        cls._plugins[name.upper()] = cls._plugins[lower] = Plugin(func, extended_api)
        for device in served:
            cls.default_device_backend_map.setdefault(device, lower)


class BackendConfig:
    """Which backend serves which device type: of "gloo", "cpu:gloo,cuda:nccl", or "undefined" (what there is).

    Raises ValueError for a string that names a device type twice, or pairs some and not others.
    """

    def __init__(self, backend: str) -> None:
        self.device_backend_map: dict[str, str] = _pairs(backend.lower())

    def __repr__(self) -> str:
        return ",".join(f"{device}:{backend}" for device, backend in self.device_backend_map.items())

    def get_device_backend_map(self) -> dict[str, str]:
        return self.device_backend_map


def _pairs(text: str) -> dict[str, str]:
    if text == Backend.UNDEFINED:
        return {device: name for device, name in Backend.default_device_backend_map.items()
                if device == "cpu" or (name != Backend.GLOO and why_unavailable(name) is None)}
    if ":" not in text:
        return dict.fromkeys(Backend.backend_capability.get(text, ["cpu", "cuda", "xpu"]), text)
    found: dict[str, str] = {}
    for pair in text.split(","):
        device, colon, name = pair.partition(":")
        if not colon or not device or not name or ":" in name:
            raise ValueError(f"Invalid device:backend pairing {pair!r} in {text!r}: write <device>:<backend>, several "
                             "with commas between, as cpu:gloo,cuda:nccl")
        if device in found:
            raise ValueError(f"Duplicate device type {device} in {text!r}: each device type has one backend")
        found[device] = name
    return found


def registered() -> list[str]:
    """Names that something answers to, whether it can be used here or not."""
    engines = [next((ours for ours, name in _ENGINES.items() if name == engine), engine) for engine in registry.names()]
    return engines + [name for name in Backend._plugins if name.islower()]


def why_unavailable(name: str) -> str | None:
    """None when groups can be made under this name here, otherwise one sentence."""
    name = name.lower()
    if name in Backend._plugins:
        return None
    engine = _ENGINES.get(name, name)
    if engine not in registry.names():
        known = "is known by name but nothing here provides it" if name in Backend.backend_list else "is unknown"
        return f"backend {name!r} {known}; registered are {', '.join(registered())}"
    return registry.why_unavailable(engine)


def check(name: str) -> None:
    """Raises AssertionError, as torch does, for an unknown name, DistBackendError for one that cannot be used here."""
    reason = why_unavailable(name)
    if reason is None:
        return
    if name.lower() not in Backend.backend_list and name.lower() not in registered():
        raise AssertionError(f"Unknown backend type {name}; registered are {', '.join(registered())}")
    raise DistBackendError(f"{name.upper()} is not available: {reason}")


def find(name: str, pg_options: Any = None, ranks: Sequence[int] = ()) -> Engine:
    """What answers under this name. Raises as check() does."""
    check(name)
    plugin = Backend._plugins.get(name)
    return registry.get(_ENGINES.get(name, name)) if plugin is None else _Registered(name, plugin, pg_options, ranks)


class _Registered:
    """A backend from register_backend(), as the core wants it."""

    def __init__(self, name: str, plugin: Plugin, pg_options: Any, ranks: Sequence[int]) -> None:
        self.name = name
        self.devices = frozenset(code for device in Backend.backend_capability[name] for code in DEVICE_CODES[device])
        self._plugin, self._options, self._ranks = plugin, pg_options, ranks

    def unavailable(self) -> str | None:
        return None

    def open(self, meeting: Rendezvous, *, name: str, timeout: float) -> Communicator:
        if self._plugin.extended_api:
            options = DistributedBackendOptions(meeting, timeout, name, self._ranks)
            made = self._plugin.creator_fn(options, self._options)
        else:
            made = self._plugin.creator_fn(meeting.store, meeting.rank, meeting.size, timedelta(seconds=timeout))
        missing = [part for part in ("rank", "size", "all_reduce", "close") if not hasattr(made, part)]
        if missing:
            raise TypeError(f"backend {self.name!r} gave a {type(made).__name__} without {', '.join(missing)}: it must be "
                            "a Communicator as arraycomm.core.backend describes")
        return made
