"""The engine's files and their tests, compiled with warnings as errors: the engine's own build shows none.

Who needs the same file compiled the same way calls the same function, so that a compiler cache can answer.
"""

from __future__ import annotations

import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
ENGINE = HERE.parents[1] / "backends" / "socket" / "engine"
COMPILER = os.environ.get("ARRAYCOMM_TEST_CC", "cc")
FLAGS = ["-std=gnu11", "-D_GNU_SOURCE", "-ffp-contract=off", "-Wall", "-Wextra", "-Wshadow", "-Werror"]
OPTIMISED = ["-O3", "-fPIC"]  # as in the extension


def compile_with(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stderr}"


def compile_one(source: Path, target: Path, flags: list[str], compiler: str = COMPILER) -> Path:
    compile_with([compiler, *FLAGS, *flags, f"-I{ENGINE}", f"-I{HERE}", "-c", str(source), "-o", str(target)])
    return target


def compile_kernels(folder: Path) -> list[Path]:
    """The objects of the reductions, which take longer to compile than all other files together."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(lambda source: compile_one(source, folder / f"{source.stem}.o", OPTIMISED),
                             sorted(ENGINE.glob("reduce*.c"))))
