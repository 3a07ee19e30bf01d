"""A slice of the conformance suite over an engine built with the address and undefined behaviour sanitizers.

The whole suite runs so with `pytest tests/sanitized --sanitize-all`. Leaks are checked by the engine's own unit tests in
C: an interpreter keeps too much until its end.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SLICE = "(shm-3 or tcp-3) and not jax and not torch and not mixed"
LIMIT = 900  # s


def library(name: str) -> str:
    """Path of a sanitizer's runtime, which must be loaded before Python."""
    path = subprocess.run(["cc", f"-print-file-name={name}"], capture_output=True, text=True, check=True).stdout.strip()
    if not os.path.isabs(path):
        pytest.skip(f"the C compiler has no {name}")
    return os.path.realpath(path)


@pytest.fixture(scope="module")
def sanitized(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the package, its engine built with sanitizers."""
    target = tmp_path_factory.mktemp("sanitized")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(target), str(ROOT)]
    done = subprocess.run(command, env=os.environ | {"ARRAYCOMM_BUILD_SANITIZE": "address,undefined"}, timeout=LIMIT,
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return target


def test_conformance_without_reports(sanitized: Path, tmp_path: Path, pytestconfig: pytest.Config) -> None:
    reports = tmp_path / "report"
    every = pytestconfig.getoption("--sanitize-all")
    environ = os.environ | {
        "PYTHONPATH": str(sanitized),
        "LD_PRELOAD": f"{library('libasan.so')} {library('libubsan.so')}",
        "ASAN_OPTIONS": f"detect_leaks=0:log_path={reports}",
        "UBSAN_OPTIONS": f"print_stacktrace=1:log_path={reports}",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(ROOT / "tests" / "conformance")]
    done = subprocess.run(command + ([] if every else ["-k", SLICE]), env=environ, timeout=LIMIT * (20 if every else 1),
                          cwd=tmp_path, capture_output=True, text=True)
    found = [path.read_text() for path in tmp_path.glob("report*")]
    assert not found, "\n".join(found)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
