"""What a user gets: a source archive, a wheel built from it outside the checkout, ranks that run from that wheel."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
LIMIT = 600  # s for one command; only ends what hangs

PROGRAM = """
import array, arraycomm
with arraycomm.init() as group:
    result = group.all_reduce(array.array("d", [1.0, 2.0, group.rank]), op="sum")
    print(group.size, result.tolist(), arraycomm.__file__)
"""


def run(*command: str | Path, cwd: Path) -> str:
    """stdout of a command that knows nothing of this checkout nor of this interpreter's environment."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "ARRAYCOMM_"))}
    done = subprocess.run(list(map(str, command)), cwd=cwd, env=environ, capture_output=True, text=True, timeout=LIMIT)
    assert done.returncode == 0, f"{' '.join(map(str, command))}\n{done.stdout[-5000:]}\n{done.stderr[-5000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of this one as a fresh clone has it: an old build could lend it files that the archive lacks."""
    copy = tmp_path_factory.mktemp("checkout") / "arraycomm"
    ignored = [line.rstrip("/") for line in (ROOT / ".gitignore").read_text().split()]
    shutil.copytree(ROOT, copy, symlinks=True, ignore=shutil.ignore_patterns(".git", *ignored))
    return copy


@pytest.fixture(scope="module")
def built(checkout: Path) -> Path:
    """A folder with the source archive of the checkout, and the wheel that `build` makes of that archive elsewhere.

    Without isolation, so that this test needs no network: setuptools and cffi are those of the tests' environment."""
    folder = checkout.parent / "dist"
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, checkout, cwd=checkout.parent)
    return folder


def test_source_archive_is_the_whole_checkout(checkout: Path, built: Path) -> None:
    """Also tests and documents: who packages it for a distribution runs the tests from the archive."""
    (path,) = built.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        packed = {member.name.partition("/")[2] for member in archive if not member.isdir()}
    there = {path.relative_to(checkout).as_posix() for path in checkout.rglob("*") if path.is_file() or path.is_symlink()}
    made = {name for name in there | packed if "__pycache__" in name or name.startswith("arraycomm.egg-info/")}
    assert packed - made - {"PKG-INFO", "setup.cfg"} == there - made - {".gitignore"}
    assert {"arraycomm/py.typed", "backends/engine/acomm.h", "cffi_build/build.py", "tests/run"} <= packed


def test_wheel_holds_what_runs_and_nothing_else(built: Path) -> None:
    (path,) = built.glob("*.whl")
    names = set(zipfile.ZipFile(path).namelist())
    modules = {name for name in names if ".dist-info/" not in name}
    assert {"arraycomm/py.typed", "arraycomm/_engine.pyi", "arraycomm/bench/peers/gloo.py"} <= modules
    sources = [path for top in ("arraycomm", "backends", "bench") for path in (ROOT / top).rglob("*.py")]
    assert sum(name.endswith(".py") for name in modules) == len(sources)
    assert {name.partition("/")[0] for name in modules} == {"arraycomm", "arraycomm_jax", "arraycomm_torch"}
    read_when_used = {"arraycomm/monitor/page.html", "arraycomm/include/arraycomm.h",
                      "arraycomm/include/arraycomm_backend.h", "arraycomm/include/operations.def"}
    assert read_when_used <= modules
    assert {name.rpartition(".")[2] for name in modules - read_when_used} == {"py", "pyi", "so", "typed"}
    assert [name for name in names if name.endswith("/LICENSE")]


@pytest.fixture(scope="module")
def installed(built: Path) -> Path:
    """bin of a fresh environment with the wheel and what it requires, linked from the tests' environment.

    Not --system-site-packages: that would show the base interpreter's packages, and here the editable arraycomm must not
    be seen. pip resolves the wheel's requirements among the links, so one that is not declared is missing at run time.
    """
    environment = built.parent / "environment"
    run(sys.executable, "-m", "venv", environment, cwd=built)
    (packages,) = environment.glob("lib/python*/site-packages")
    for name in ("cffi", "pycparser", "msgpack"):
        distribution = metadata.distribution(name)
        for top in {file.parts[0] for file in distribution.files or ()} - {"..", "__pycache__"}:
            (packages / top).symlink_to(Path(str(distribution.locate_file(top))).resolve())
    (wheel,) = built.glob("*.whl")
    run(environment / "bin" / "pip", "install", "--quiet", "--no-index", wheel, cwd=built)
    return environment / "bin"


def test_ranks_run_from_the_wheel(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    printed = run(installed / "arraycomm-run", "--nproc-per-node", "2", "--no-prefix", "program.py", cwd=tmp_path)
    (line,) = set(printed.splitlines())
    assert line.startswith("2 [2.0, 4.0, 1.0] ")
    assert Path(line.split()[-1]).is_relative_to(installed.parent)


def test_commands_of_the_wheel(installed: Path, tmp_path: Path) -> None:
    assert "socket       available" in run(installed / "arraycomm-info", cwd=tmp_path)
    done = subprocess.run([installed / "arraycomm-bench", "all_reduce"], cwd=tmp_path, capture_output=True, text=True,
                          timeout=LIMIT)
    assert done.returncode == 2 and "; pip install numpy" in done.stderr  # there is no NumPy
