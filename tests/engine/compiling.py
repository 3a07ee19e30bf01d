"""The engine's files and their tests, compiled with warnings as errors: the engine's own build shows none.

They are compiled as the package's build compiles them, so that a compiler cache can answer: the kernels of the reductions take
longer than all other files together.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from cffi_build.commands import FLAGS, optimised

HERE = Path(__file__).resolve().parent
ENGINE = HERE.parents[1] / "backends" / "engine"
PUBLIC = HERE.parents[1] / "arraycomm" / "include"
COMPILER = os.environ.get("ARRAYCOMM_TEST_CC") or shutil.which(sysconfig.get_config_var("CC").split()[0]) or "cc"
PYTHONS = [flag for name in ("CFLAGS", "CCSHARED") for flag in (sysconfig.get_config_var(name) or "").split()]
OPTIMISED = optimised([])


def compile_with(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and not done.stderr, f"{' '.join(command)}\n{done.stderr}"


def compile_one(source: Path, target: Path, flags: list[str], compiler: str = COMPILER) -> Path:
    folders = [f"-I{folder}" for folder in (ENGINE, PUBLIC, HERE)]
    compile_with([compiler, *PYTHONS, *FLAGS, *flags, *folders, "-c", str(source), "-o", str(target)])
    return target


def compile_kernels(folder: Path) -> list[Path]:
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(lambda source: compile_one(source, folder / f"{source.stem}.o", OPTIMISED),
                             sorted(ENGINE.glob("reduce/*.c"))))
