"""A slice of the conformance suite over an engine built with the address and undefined behaviour sanitizers.

With --sanitize-all the whole suite runs so, and each allocation of the C code fails once (allocations.py). Leaks are checked by
the engine's own unit tests in C: an interpreter keeps too much until its end.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
SLICE = "(shm-3 or tcp-3) and not (jax or torch or mixed or lengths or forced or properties)"
LIMIT = 900  # s


def library(name: str) -> str:
    """Path of a sanitizer's runtime, which must be loaded before Python."""
    path = subprocess.run(["cc", f"-print-file-name={name}"], capture_output=True, text=True, check=True).stdout.strip()
    if not os.path.isabs(path):
        pytest.skip(f"the C compiler has no {name}")
    return os.path.realpath(path)


def build(target: Path, **environ: str) -> Path:
    """A folder with the package, its engine built with sanitizers."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(target), str(ROOT)]
    done = subprocess.run(command, env=os.environ | {"ARRAYCOMM_BUILD_SANITIZE": "address,undefined"} | environ, timeout=LIMIT,
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return target


def run(built: Path, folder: Path, *arguments: str, limit: float = LIMIT) -> None:
    """Python with these arguments, over what was built: it must end well, and the sanitizers report nothing."""
    reports = folder / "report"
    environ = os.environ | {
        "PYTHONPATH": str(built),
        "LD_PRELOAD": f"{library('libasan.so')} {library('libubsan.so')}",
        "ASAN_OPTIONS": f"detect_leaks=0:log_path={reports}",
        "UBSAN_OPTIONS": f"print_stacktrace=1:log_path={reports}",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    done = subprocess.run([sys.executable, *arguments], env=environ, timeout=limit, cwd=folder, capture_output=True, text=True)
    found = [path.read_text() for path in folder.glob("report*")]
    assert not found, "\n".join(found)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]


def test_conformance_without_reports(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    every = pytestconfig.getoption("--sanitize-all")
    run(build(tmp_path / "built"), tmp_path, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(ROOT / "tests" / "conformance"),
        "--all-sizes", *([] if every else ["-k", SLICE]), limit=LIMIT * (20 if every else 1))


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_allocations_that_fail(transport: str, tmp_path: Path, pytestconfig: pytest.Config) -> None:
    if not pytestconfig.getoption("--sanitize-all"):
        pytest.skip("minutes: run by --sanitize-all")
    built = build(tmp_path / "built", CFLAGS=f"-include {HERE / 'allocations.h'}")
    run(built, tmp_path, str(HERE / "allocations.py"), transport)
