"""Compiles and runs the engine's unit tests in C, with the address and undefined behaviour sanitizers.

The first line of a test_*.c names the engine files it is linked with: `/* engine: loop.c reduce*.c collectives/ */`, or
`all`. Where it ends in `; also -O3 */` the test runs a second time, optimised as in the extension: vectorised code
differs from what the sanitizers see. `--races` runs nearly all under ThreadSanitizer as well. ARRAYCOMM_TEST_CC chooses another
compiler than cc.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cffi_build.commands import optimised

from . import symbols
from .compiling import COMPILER, ENGINE, HERE, OPTIMISED, compile_one, compile_with

CHECKED = optimised(["-fsanitize=address,undefined"])
RACES = [*optimised(["-fsanitize=thread"]), "-Wno-tsan"]  # fences, which it does not know
TIMEOUT = 600  # s for one program; only ends what hangs

pytestmark = pytest.mark.skipif(shutil.which(COMPILER) is None, reason=f"no C compiler {COMPILER!r} found")


def first_line(test: Path) -> tuple[list[Path], bool]:
    """The engine sources that a test names in its first line, and whether it also runs optimised."""
    first = test.read_text().split("\n", 1)[0]
    match = re.fullmatch(r"/\* engine:((?: [\w/*]+(?:\.c|/))*| all)(; also -O3)? \*/", first)
    assert match, f"{test.name}: the first line must be '/* engine: a.c b.c */' and name the engine files it needs"
    patterns = ["**/*.c"] if match[1] == " all" else [re.sub("/$", "/**/*.c", name) for name in match[1].split()]
    found = {pattern: sorted(ENGINE.glob(pattern)) for pattern in patterns}
    assert all(found.values()), f"{test.name}: the engine has no {[name for name in found if not found[name]]}"
    return [path for paths in found.values() for path in paths], match[2] is not None


class Builder:
    """Compiles tests, and each of the engine's files once for each compiler and its flags."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._objects: dict[tuple[Path, str, tuple[str, ...]], Path] = {}

    def program(self, test: Path, target: Path, flags: list[str], compiler: str = COMPILER) -> Path:
        objects = self.objects([test, *first_line(test)[0]], flags, compiler)
        compile_with([compiler, *flags, *map(str, objects), "-o", str(target), "-lm", "-pthread"])
        return target

    def objects(self, sources: list[Path], flags: list[str], compiler: str = COMPILER) -> list[Path]:
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            return list(pool.map(lambda source: self._object(source, flags, compiler), sources))

    def _object(self, source: Path, flags: list[str], compiler: str) -> Path:
        key = (source, compiler, tuple(flags))
        if key not in self._objects:
            target = self._folder / f"{len(self._objects)}_{threading.get_ident()}_{source.stem}.o"
            self._objects[key] = compile_one(source, target, flags, compiler)
        return self._objects[key]


@pytest.fixture(scope="module")
def builder(tmp_path_factory: pytest.TempPathFactory) -> Builder:
    return Builder(tmp_path_factory.mktemp("objects"))


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


TESTS = sorted(HERE.glob("test_*.c"))
RACED = ("test_node", "test_node_leaving")  # short ones, always run under ThreadSanitizer
# Some write into memory as a hostile rank would, one is of processes and of the time that they take. In the others threads
# read each other's arrays, in an order that shared memory gives, which each maps elsewhere: it sees none, and its reports take
# longer than the timeouts.
NOT_RACED = ("test_direct", "test_hostile", "test_hostile_fuzz", "test_hostile_places", "test_transfer", "test_window")


def run(builder: Builder, test: Path, directory: Path, flags: list[str], compiler: str = COMPILER,
        emulator: tuple[str, ...] = ()) -> None:
    program = builder.program(test, directory / test.stem, flags, compiler)
    done = subprocess.run(
        [*emulator, str(program)], capture_output=True, text=True, timeout=TIMEOUT, env=environment(), cwd=directory
    )
    assert done.returncode == 0, f"{test.name} ended with {done.returncode}\n{done.stdout}\n{done.stderr}"
    assert re.search(r"^ok 1 - ", done.stdout, re.M), f"{test.name} ran no test\n{done.stdout}"


@pytest.mark.parametrize("test", TESTS, ids=lambda path: path.stem)
def test_sanitized(builder: Builder, test: Path, tmp_path: Path) -> None:
    run(builder, test, tmp_path, sanitizers())


@pytest.mark.parametrize("test", [test for test in TESTS if test.stem not in NOT_RACED], ids=lambda path: path.stem)
def test_races(builder: Builder, test: Path, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    if test.stem not in RACED and not request.config.getoption("--races"):
        pytest.skip("minutes: run by --races")
    run(builder, test, tmp_path, RACES)


@pytest.mark.parametrize("test", [test for test in TESTS if first_line(test)[1]], ids=lambda path: path.stem)
def test_optimised(builder: Builder, test: Path, tmp_path: Path) -> None:
    run(builder, test, tmp_path, OPTIMISED)


MPI = ENGINE.parent / "mpi" / "engine"
# What each folder's objects may use: those of its own level and of all before it.
LEVELS = [{"base"}, {"memory", "reduce"}, {"link", "mpi"}, {"membership"}, {"group", "p2p"}, {"collectives"}, {"rma"},
          {"engine.c"}]
MPI_COLLECTIVES = {"mpi_collective.c", "mpi_types.c", "mpi_open.c"}  # an algorithm, and who makes it known. The others are a link
LONGEST = 6  # objects of a cycle


def test_layers(builder: Builder) -> None:
    """No object uses one of a higher layer, and few use each other."""
    sources = [*sorted(ENGINE.rglob("*.c")), *sorted(MPI.glob("*.c"))]
    graph = symbols.uses(dict(zip(sources, builder.objects(sources, sanitizers()), strict=True)))
    level = {name: number for number, names in enumerate(LEVELS) for name in names}
    layer = {source: source.relative_to(ENGINE).parts[0] if source.parent != MPI else
             "collectives" if source.name in MPI_COLLECTIVES else "mpi" for source in sources}
    upward = [f"{source.relative_to(ENGINE.parent)} uses {sorted(used)} of {to.relative_to(ENGINE.parent)}"
              for source, targets in graph.items() for to, used in targets.items() if level[layer[to]] > level[layer[source]]]
    assert not upward, "\n".join(upward)
    long = [sorted(path.name for path in cycle) for cycle in symbols.cycles(graph) if len(cycle) > LONGEST]
    assert not long, long


CROSS, EMULATOR = "aarch64-linux-gnu-gcc", "qemu-aarch64-static"


@pytest.mark.skipif(not (shutil.which(CROSS) and shutil.which(EMULATOR)), reason=f"{CROSS} and {EMULATOR} are not installed")
@pytest.mark.parametrize("name", ["pattern", "reduce", "shared"])
def test_aarch64(builder: Builder, name: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """The whole engine compiles for the other processor, and its kernels and rounds run there."""
    if name == "shared" and not request.config.getoption("--races"):
        pytest.skip("a minute: run by --races")
    run(builder, HERE / f"test_{name}.c", tmp_path, ["-O3", "-static"], CROSS, (EMULATOR,))
