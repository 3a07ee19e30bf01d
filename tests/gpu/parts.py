"""The parts of tests/run_gpu: `python -m tests.gpu.parts operations 2 torch`. Rows of the report begin with "|"; exit status 3:
what the part needs is not here."""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import importlib.util
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Sequence

import arraycomm
from arraycomm.backends.nccl.declarations import version_text
from arraycomm.backends.nccl.library import library
from arraycomm.core.gpu.runtime import runtime, unavailable
from arraycomm.core.interface import registry

from . import faults, frameworks, overhead, programs, staged, sums, training

NOT_HERE = 3
COUNTS, FEW = (1, 7, 1024, 1_000_003), (7, 1024)
_PACKAGES = ("numpy", "torch", "cupy-cuda13x", "cupy-cuda12x", "jax", "jaxlib", "mpi4py", "cffi")
_SMI = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total,pcie.link.gen.max,pcie.link.width.max",
        "--format=csv,noheader"]


def machine(_ranks: int, _framework: str) -> None:
    """What the figures are of."""
    rows = [("Python", f"{platform.python_version()}, {os.cpu_count()} processors"), ("arraycomm", arraycomm.__file__),
            ("NCCL and CUDA", _libraries())]
    for name in _PACKAGES:
        try:
            rows.append((name, importlib.metadata.version(name)))
        except importlib.metadata.PackageNotFoundError:
            continue
    print("| what | is |\n|---|---|")
    for name, value in rows:
        print(f"| {name} | {value} |")
    try:
        for line in subprocess.run(_SMI, capture_output=True, text=True, timeout=20, check=True).stdout.splitlines():
            print(f"| name, driver, memory, PCIe | {line} |")
    except (OSError, subprocess.SubprocessError) as error:
        print(f"nvidia-smi: {error}")


def _libraries() -> str:
    reason = missing("machine", "")
    if reason is not None:
        return reason
    cuda = runtime()
    versions = " and ".join(f"{version // 1000}.{version % 1000 // 10}" for version in cuda.versions())
    return (f"NCCL {version_text(library().version)} ({library().path}), CUDA's runtime and driver {versions} ({cuda.path}), "
            f"{cuda.device_count()} GPUs")


def _checked(program: Callable[[int, Sequence[int], str], None], ranks: int, framework: str) -> None:
    print("| arrays of | ranks | results that were right |\n|---|---|---|", flush=True)
    arraycomm.spawn(program, (FEW if framework == frameworks.STANDIN else COUNTS, framework), nprocs=ranks)


def operations(ranks: int, framework: str) -> None:
    _checked(programs.everything, ranks, framework)


def symmetric(ranks: int, framework: str) -> None:
    _checked(programs.symmetric, ranks, framework)


def compiled(ranks: int, framework: str) -> None:
    _checked(programs.compiled, ranks, framework)


def facade(ranks: int, framework: str) -> None:
    arraycomm.spawn(programs.facade, (framework,), nprocs=ranks)


PARTS: dict[str, Callable[[int, str], None]] = {
    "machine": machine, "operations": operations, "facade": facade, "symmetric": symmetric, "compiled": compiled,
    "overhead": overhead.compare, "staged": staged.compare, "faults": faults.start,
    "sums": sums.start, "training": training.start}
BACKENDS = {"staged": "socket"}  # of the others: nccl
NEEDS = {"training": ("torch", "msgpack")}  # beside a library of arrays


def missing(part: str, framework: str) -> str | None:
    """Why a part cannot run here; None: it can."""
    for package in NEEDS.get(part, ()):
        if importlib.util.find_spec(package) is None:
            return f"{package} is not installed"
    backend = BACKENDS.get(part, "nccl")
    reason = _unavailable(backend)
    if reason is not None and importlib.util.find_spec("torch") is not None:
        importlib.import_module("torch")  # brings its own libraries, wherever they lie
        reason = _unavailable(backend)
    if reason is not None or framework == frameworks.STANDIN:
        return reason
    if framework and importlib.util.find_spec(framework) is None:
        return f"{framework} is not installed"
    return None


def _unavailable(backend: str) -> str | None:
    return registry.why_unavailable(backend) or unavailable()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.gpu.parts", description=__doc__)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("ranks", type=int, nargs="?", default=1)
    parser.add_argument("framework", nargs="?", default="", help="of its arrays; default: the first of torch, CuPy and JAX")
    parser.add_argument("--standin", action="store_true", help="over the stand-ins, unless the environment names others")
    given = parser.parse_args()
    if given.standin:
        from tests.standin import build

        for variable, standin in (("ARRAYCOMM_CUDART_LIBRARY", build.cudart), ("ARRAYCOMM_NCCL_LIBRARY", build.nccl)):
            if variable not in os.environ:  # who runs many parts has compiled them once for all
                os.environ[variable] = standin()
        given.framework = frameworks.STANDIN
    reason = missing(given.part, given.framework) if given.part != "machine" else None
    if reason is not None:
        print(reason)
        return NOT_HERE
    PARTS[given.part](given.ranks, given.framework)
    return 0


if __name__ == "__main__":
    sys.exit(main())
