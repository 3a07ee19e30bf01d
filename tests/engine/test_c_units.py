"""Compiles and runs the engine's unit tests in C, with the address and undefined behaviour sanitizers.

The first line of a test_*.c names the engine files it is linked with: `/* engine: reduce.c reduce_float8.c */`.
ARRAYCOMM_TEST_CC chooses another compiler than cc.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
ENGINE = HERE.parents[1] / "backends" / "socket" / "engine"
COMPILER = os.environ.get("ARRAYCOMM_TEST_CC", "cc")
FLAGS = ["-std=gnu11", "-D_GNU_SOURCE", "-ffp-contract=off", "-fvisibility=hidden", "-Wall", "-Wextra", "-Wshadow"]
CHECKED = ["-O1", "-g", "-fno-omit-frame-pointer", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
TIMEOUT = 120  # seconds for one program

pytestmark = pytest.mark.skipif(shutil.which(COMPILER) is None, reason=f"no C compiler {COMPILER!r} found")


def engine_files(test: Path) -> list[Path]:
    """The engine sources that a test names in its first line."""
    first = test.read_text().split("\n", 1)[0]
    match = re.fullmatch(r"/\* engine:((?: [\w/]+\.c)*) \*/", first)
    assert match, f"{test.name}: the first line must be '/* engine: a.c b.c */' and name the engine files it needs"
    return [ENGINE / name for name in match[1].split()]


def compiled(sources: list[Path], target: Path, flags: list[str]) -> Path:
    """Compiles sources into target; a warning is an error, because the engine's own build shows none."""
    command = [COMPILER, *FLAGS, *flags, "-Werror", f"-I{ENGINE}", f"-I{HERE}"]
    command += [*map(str, sources), "-o", str(target), "-lm", "-pthread"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stderr}"
    return target


@functools.cache
def sanitizers() -> list[str]:
    """The checked flags where this compiler can link and run them, otherwise only -O1."""
    probe = subprocess.run(
        [COMPILER, *CHECKED, "-x", "c", "-", "-o", "/dev/null"],
        input="int main(void) { return 0; }",
        capture_output=True,
        text=True,
        timeout=60,
    )
    return CHECKED if probe.returncode == 0 else ["-O1", "-g"]


def environment() -> dict[str, str]:
    """An unsanitized program that preloads libraries must not disturb the sanitizers' own start."""
    kept = {key: value for key, value in os.environ.items() if key not in ("LD_PRELOAD", "ASAN_OPTIONS")}
    return kept | {"UBSAN_OPTIONS": "print_stacktrace=1"}


@pytest.mark.parametrize("test", sorted(HERE.glob("test_*.c")), ids=lambda path: path.stem)
def test_c(test: Path, tmp_path: Path) -> None:
    program = compiled([test, *engine_files(test)], tmp_path / test.stem, sanitizers())
    done = subprocess.run([str(program)], capture_output=True, text=True, timeout=TIMEOUT, env=environment(), cwd=tmp_path)
    assert done.returncode == 0, f"{test.name} ended with {done.returncode}\n{done.stdout}\n{done.stderr}"
    assert re.search(r"^ok 1 - ", done.stdout, re.M), f"{test.name} ran no test\n{done.stdout}"
