"""Test modules can be imported in the processes that tests start: as `tests.…`, after everything installed."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT))
# With it print() writes the end of a line by itself, and the lines of ranks that share a pipe mix.
os.environ.pop("PYTHONUNBUFFERED", None)
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # inherited from a shell's background job; tests send SIGINT
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--sanitize-all", action="store_true", help="run the whole conformance suite with sanitizers (hours)")
    parser.addoption("--all-sizes", action="store_true", help="run it with 1 to 5 and 8 ranks over both transports (minutes)")
    parser.addoption("--mpi-all", action="store_true",
                     help="run it, and the tests of the backend, over every MPI library with 1 to 4 ranks (half an hour)")
    parser.addoption("--frameworks", type=lambda names: names.split(","),
                     help="run its matrix over these: mlx,tvm_ffi,array_api_strict,pyarrow, say (a minute)")
    parser.addoption("--programs", type=int, default=1, help="run so many programs of random calls in every world (seconds each)")
    parser.addoption("--torch-tables", action="store_true", help="compare all wrong calls with torch.distributed (a minute)")
    parser.addoption("--over-gloo", action="store_true", help="compare JAX's programs of examples/ with gloo (minutes)")
    parser.addoption("--gpu-parts", action="store_true", help="run all parts of tests/run_gpu over the stand-ins (two minutes)")
    parser.addoption("--races", action="store_true",
                     help="run all of the engine's tests in C under ThreadSanitizer, and its rounds on AArch64 (minutes)")
