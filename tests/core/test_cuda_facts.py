"""What arraycomm-info says of GPUs. Over the stand-in for CUDA's runtime, and a driver's files that the test makes."""

from __future__ import annotations

from pathlib import Path

import pytest

from arraycomm.core.gpu.facts import facts
from arraycomm.core.gpu.runtime import NO_DRIVER, Runtime, runtime, unavailable
from tests.standin import arrays, build

pytestmark = pytest.mark.usefixtures("cuda")


def test_devices(tmp_path: Path) -> None:
    (tmp_path / "version").write_text("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.10  Release\nGCC 12.2\n")
    place = tmp_path / "gpus" / runtime().bus_id(1).lower()
    place.mkdir(parents=True)
    (place / "information").write_text("Model: \t\t NVIDIA H100 80GB HBM3\nIRQ:   \t\t 17\n")
    found = facts(str(tmp_path))
    assert found["driver"].startswith("570.86.10, for CUDA up to ")
    assert found["runtime"].startswith("CUDA ") and build.cudart() in found["runtime"]
    assert found["GPU 0"] == f"of a model that the driver does not report, {runtime().bus_id(0)}"
    assert found["GPU 1"] == f"NVIDIA H100 80GB HBM3, {runtime().bus_id(1)}"
    assert list(found) == ["driver", "runtime", "GPU 0", "GPU 1"]


def test_a_machine_without_a_gpu(tmp_path: Path, cuda: arrays.Cuda) -> None:
    cuda.tell("standin_fail", b"cudaGetDeviceCount", 1, 100)
    found = facts(str(tmp_path))
    assert found["driver"].startswith("no kernel module of NVIDIA's driver is loaded")
    assert "CUDA failed to count the devices" in found["GPUs"]


def test_a_machine_without_a_driver(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(Runtime, "versions", lambda self: (13000, 0))  # as CUDA answers there
    assert facts(str(tmp_path))["GPUs"] == unavailable() == NO_DRIVER


def test_no_runtime(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ARRAYCOMM_CUDART_LIBRARY", str(tmp_path / "none.so"))
    found = facts(str(tmp_path))
    assert list(found) == ["driver", "runtime"] and "none.so" in found["runtime"]
