"""Each allocation of the store's server fails once (store_allocations.c); keys leave nothing behind (store_given_back.c)."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
NATIVE = HERE.parents[1] / "arraycomm" / "core" / "native"
ENGINE = HERE.parents[1] / "backends" / "engine"
PUBLIC = HERE.parents[1] / "arraycomm" / "include"
SOURCES = [path for path in sorted((NATIVE / "store").glob("*.c")) if path.name != "python.c"]
SOURCES.append(ENGINE / "base" / "process.c")
COMPILER = os.environ.get("ARRAYCOMM_TEST_CC", "cc")
FLAGS = ["-std=gnu11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-O1", "-g", "-pthread"]
SANITIZERS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]


@pytest.mark.skipif(shutil.which(COMPILER) is None, reason=f"no C compiler {COMPILER!r} found")
def test_no_key_is_lost_and_no_answer_wrong(tmp_path: Path) -> None:
    def compiled(*more: str) -> subprocess.CompletedProcess[str]:
        command = [COMPILER, *FLAGS, *more, "-include", str(HERE.parent / "sanitized" / "allocations.h"), f"-I{NATIVE}",
                   f"-I{ENGINE}", f"-I{PUBLIC}", *map(str, [*SOURCES, HERE / "store_allocations.c", HERE / "store_given_back.c"]),
                   "-o", str(tmp_path / "program")]
        return subprocess.run(command, capture_output=True, text=True, timeout=300)

    done = compiled(*SANITIZERS)
    done = done if done.returncode == 0 else compiled()  # a compiler without them
    assert done.returncode == 0, done.stderr
    ran = subprocess.run([str(tmp_path / "program")], capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, f"{ran.returncode}\n{ran.stdout}\n{ran.stderr}"
