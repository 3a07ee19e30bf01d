"""Which libnccl is taken, and what is said where something is missing. Each in a process of its own: a library stays loaded."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.standin import build

REASON = "from arraycomm.core.interface import registry; print(registry.why_unavailable('nccl'))"


def said(code: str, **environ: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env=os.environ | environ)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_available() -> None:
    assert said(REASON, ARRAYCOMM_NCCL_LIBRARY=build.nccl(), ARRAYCOMM_CUDART_LIBRARY=build.cudart()) == "None"


def test_no_library(tmp_path: Path) -> None:
    path = str(tmp_path / "libnccl.so.2")
    text = said(REASON, ARRAYCOMM_NCCL_LIBRARY=path)
    assert path in text and "nvidia-nccl-cu12" in text and "ARRAYCOMM_NCCL_LIBRARY" in text


def test_no_runtime(tmp_path: Path) -> None:
    """A machine with the library and without a GPU: both are said."""
    text = said(REASON, ARRAYCOMM_NCCL_LIBRARY=build.nccl(), ARRAYCOMM_CUDART_LIBRARY=str(tmp_path / "none.so"))
    assert text.startswith("NCCL 2.32.3 is here") and "libcudart" in text


def test_too_old(tmp_path: Path) -> None:
    text = said(REASON, ARRAYCOMM_NCCL_LIBRARY=build.nccl(21803), ARRAYCOMM_CUDART_LIBRARY=build.cudart())
    assert "is NCCL 2.18.3, and 2.19.0 or later is needed" in text


def test_one_that_is_loaded_is_taken(tmp_path: Path) -> None:
    """As torch, CuPy or JAX load theirs."""
    loaded = tmp_path / "libnccl.so.2"
    loaded.write_bytes(Path(build.nccl()).read_bytes())
    code = (f"import ctypes; ctypes.CDLL({str(loaded)!r})\n"
            "from arraycomm.backends.nccl.library import library; print(library().path)")
    assert said(code, ARRAYCOMM_NCCL_LIBRARY="") == str(loaded)


@pytest.mark.parametrize(("name", "version"), [("ncclAlltoAll", "2.28.3"), ("ncclCommWindowRegister", "2.27.0")])
def test_missing_function(name: str, version: str) -> None:
    """The error names the version that is needed."""
    code = ("from arraycomm.backends.nccl.library import library\n"
            f"try:\n    library().{name}\nexcept Exception as error:\n    print(type(error).__name__, error)")
    text = said(code, ARRAYCOMM_NCCL_LIBRARY=build.nccl(22105))
    assert text.startswith(f"DistBackendError {name} needs NCCL {version} or later") and "is 2.21.5" in text
