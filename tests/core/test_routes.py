"""Which communicator of a group an array goes to."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any

import pytest

from arraycomm.core.arrays.buffer import Buffer
from arraycomm.core.arrays.types import DEVICE_TYPES
from arraycomm.core.base.errors import DeviceError
from arraycomm.core.group.routes import Route, Routes
from arraycomm.core.interface import registry

CPU, CUDA, ROCM, XPU = 1, 2, 10, 14


class Fake:
    """A backend and its communicator. heard: what it was told, one list for all."""

    def __init__(self, name: str, heard: list[str], devices: set[int], fails: bool = False) -> None:
        self.name, self.devices, self.heard, self.fails = name, devices, heard, fails

    def split(self, members: Any, name: str, *, timeout: float) -> Fake:
        self.heard.append(f"{self.name} split {members} {name} {timeout}")
        if self.fails:
            raise RuntimeError("no")
        return Fake(f"{self.name}'", self.heard, self.devices)

    @contextmanager
    def batch(self) -> Any:
        self.heard.append(f"{self.name} batch")
        yield
        self.heard.append(f"{self.name} batched")

    def check_peers(self) -> None:
        self.heard.append(f"{self.name} check")

    def abort(self, reason: str) -> None:
        self.heard.append(f"{self.name} abort {reason}")

    def close(self, reason: str = "") -> None:
        self.heard.append(f"{self.name} close {reason}")
        if self.fails:
            raise RuntimeError("no")


def two(heard: list[str], *, fails: bool = False) -> tuple[Fake, Fake, Routes]:
    """Of a backend for GPUs that moves host memory too, and one for the host."""
    gpu, host = Fake("gpu", heard, {CPU, CUDA, ROCM}, fails), Fake("host", heard, {CPU, 3})
    made: Any = [Route(one, one, DEVICE_TYPES[device]) for one, device in ((gpu, "cuda"), (host, "cpu"))]  # type: ignore[arg-type]
    return gpu, host, Routes(made, 9.0)


def on(device_type: int) -> Buffer:
    return Buffer(0, 0, 0, device_type, 0, False, (0,), None)


def test_each_type_of_device_has_its_own() -> None:
    gpu, host, routes = two([])
    by_type: dict[int, object] = dict(routes.by_type)
    main: object = routes.main
    assert by_type == {CPU: host, 3: host, CUDA: gpu, ROCM: gpu}
    assert main is host and routes.name == "cpu:host,cuda:gpu"


def test_a_backend_alone_takes_what_it_can() -> None:
    gpu: Any = Fake("gpu", [], {CPU, CUDA})
    routes = Routes([Route(gpu, gpu)], 9.0)
    assert routes.by_type == {CPU: gpu, CUDA: gpu} and routes.main is gpu and routes.name == "gpu"


def test_devices_that_nobody_serves() -> None:
    host: Any = Fake("host", [], {CPU})
    with pytest.raises(DeviceError, match="device type xpu: group 'g' has cpu:host,cuda:gpu; copy the array"):
        two([])[2].find(on(XPU), "g")
    with pytest.raises(DeviceError, match="device type rocm: group 'g' has host"):
        Routes([Route(host, host)], 9.0).find(on(ROCM), "g")
    with pytest.raises(DeviceError, match="number 99 of DLPack's"):
        Routes([Route(host, host)], 9.0).find(on(99), "g")
    other: Any = Fake("other", [], {XPU})
    with pytest.raises(DeviceError, match="device type cuda"):  # asked for the CPU alone: nothing is staged
        Routes([Route(host, host, DEVICE_TYPES["cpu"]), Route(other, other, DEVICE_TYPES["xpu"])], 9.0).find(on(CUDA), "g")


def test_all_of_them_hear_of_groups_and_the_end() -> None:
    heard: list[str] = []
    routes = two(heard)[2]
    child = routes.split([0, 1], "c", 3.0, None)
    assert (child.name, child.main.name) == ("cpu:host,cuda:gpu", "host'")
    with routes.batch():
        heard.append("in it")
    routes.check_peers()
    routes.abort("why")
    routes.close("gone")
    assert heard == ["gpu split [0, 1] c 3.0", "host split [0, 1] c 3.0", "gpu batch", "host batch", "in it", "host batched",
                     "gpu batched", "gpu check", "host check", "gpu abort why", "host abort why", "host close gone",
                     "gpu close gone"]


def test_a_batch_begins_when_it_is_entered() -> None:
    heard: list[str] = []
    routes = two(heard)[2]
    routes.batch()  # and is not, where the group has one already
    assert heard == []


def test_a_part_of_them() -> None:
    heard: list[str] = []
    part = two(heard)[2].split([0], "c", 3.0, {"gpu": frozenset()})
    assert heard == ["gpu split [0] c 3.0"] and sorted(part.by_type) == [CPU, CUDA, ROCM] and part.name == "gpu"


def test_what_fails_leaves_nothing_open() -> None:
    heard: list[str] = []
    gpu, host, routes = two(heard, fails=True)
    routes._routes = routes._routes[::-1]
    with pytest.raises(RuntimeError, match="no"):
        routes.split([0], "c", 3.0, None)
    assert heard[-1] == "host' close RuntimeError"
    with pytest.raises(RuntimeError, match="no"):
        routes.close("gone")
    assert heard[-2:] == ["gpu close gone", "host close gone"]


def test_pairs_of_devices_and_backends() -> None:
    assert registry.pairs("cpu:a,cuda:b") == {"cpu": "a", "cuda": "b"}
    for text, message in (("cpu:a,cuda", "Invalid device:backend pairing 'cuda'"), ("cpu:a:b", "Invalid device:backend pairing"),
                          ("cpu:a,cpu:b", "Duplicate device type cpu"), ("tpu:a", "Expected one of cpu, cuda.*got 'tpu'")):
        with pytest.raises(ValueError, match=message):
            registry.pairs(text)
    shares = registry.assign({"cpu": "a", "cuda": "b", "xpu": "a"}, str)
    assert shares == {"a": DEVICE_TYPES["cpu"] | DEVICE_TYPES["xpu"], "b": DEVICE_TYPES["cuda"]}
    assert registry.assign({"cpu": "a", "cuda": "a"}, str) == {"a": frozenset()}
    assert [backend.name for backend in registry.choose("cpu:socket")] == ["socket"]
    by_spelling = [registry.assign(registry.pairs(text), str) for text in ("cuda:b,cpu:a,xpu:b", "cpu:a,xpu:b,cuda:b")]
    assert [list(chosen) for chosen in by_spelling] == [["a", "b"]] * 2
    assert [registry.spelled(chosen) for chosen in by_spelling] == ["cpu:a,cuda:b,xpu:b"] * 2
    assert registry.spelled(registry.assign(registry.pairs("cuda:a,cpu:a"), str)) == "a"
    with pytest.raises(ValueError, match="unknown backend 'nobody'"):
        registry.choose("cpu:nobody,cuda:socket")
