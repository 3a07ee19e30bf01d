"""What `import arraycomm` costs: no framework, no thread, no process, little time."""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import arraycomm
from arraycomm.core.interface.declarations import HEADERS

HEAVY = ("numpy", "torch", "jax", "jaxlib", "cupy", "msgpack", "matplotlib", "ml_dtypes", "multiprocessing",
         "asyncio", "http", "ssl")


def fresh(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_loads_no_framework_and_starts_nothing() -> None:
    code = """
import json, os, sys
before = set(os.listdir("/proc/self/fd"))
import arraycomm
print(json.dumps({"modules": sorted({name.partition(".")[0] for name in sys.modules}),
                  "threads": len(os.listdir("/proc/self/task")),
                  "descriptors": sorted(set(os.listdir("/proc/self/fd")) - before)}))
"""
    found = json.loads(fresh(code))
    assert not set(found["modules"]) & set(HEAVY)
    assert found["threads"] == 1 and not found["descriptors"]


def test_backends_are_not_loaded() -> None:
    names = fresh("import sys, arraycomm; print(*(m for m in sys.modules if m.startswith('arraycomm.')))").split()
    later = ("arraycomm.backends", "arraycomm.frameworks", "arraycomm.distributed", "arraycomm.core.bootstrap")
    assert not [name for name in names if name.startswith(later)]


def test_all_names_are_offered() -> None:
    assert fresh("import arraycomm; print(set(arraycomm.__all__) <= set(dir(arraycomm)))").strip() == "True"


def test_nothing_slow_is_loaded_by_init_either() -> None:
    """Each of these takes a good part of what init() may take; whoever uses it anyway has it loaded already."""
    code = """
import sys
slow = {"traceback", "logging", "dataclasses", "json", "urllib.parse", "ssl"}
for name in slow:
    sys.modules.pop(name, None)
import arraycomm
arraycomm.init().close()
print(*sorted(slow & set(sys.modules)))
"""
    assert fresh(code).split() == []


def test_a_source_tree_without_the_engine_says_so(tmp_path: Path) -> None:
    (tmp_path / "arraycomm").mkdir()
    shutil.copy(Path(__file__).parents[2] / "arraycomm" / "__init__.py", tmp_path / "arraycomm")
    done = subprocess.run([sys.executable, "-S", "-c", "import arraycomm"], cwd=tmp_path, capture_output=True, text=True,
                          timeout=60)  # -S: an editable install would find the engine
    assert f"ImportError: the engine of arraycomm is not built in {tmp_path / 'arraycomm'}. Python found" in done.stderr


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A source tree with this engine."""
    package, root = tmp_path / "arraycomm", Path(arraycomm.__file__).parents[1]
    package.mkdir()
    for path in (root / "arraycomm").iterdir():
        if path.name != "include":
            (package / path.name).symlink_to(path)
    for name in HEADERS[:-1]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(root / name, tmp_path / name)
    return tmp_path


def imported(tree: Path) -> str:
    code = f"import sys; sys.path.insert(0, {str(tree)!r}); import arraycomm; print(arraycomm.__file__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    return done.stdout + done.stderr


@pytest.mark.parametrize("name", [*HEADERS[:-1], "arraycomm/_engine.pyi"])
def test_a_stale_engine_says_so(tree: Path, name: str) -> None:
    """It would end in a KeyError somewhere."""
    assert imported(tree) == f"{tree / 'arraycomm' / '__init__.py'}\n"
    before = (tree / name).read_text()
    (tree / name).unlink()
    (tree / name).write_text(before + "\n")
    told = imported(tree)
    assert f"ImportError: the engine of arraycomm in {tree / 'arraycomm'} was built from other declarations" in told
    assert "python -m cffi_build" in told


def test_an_installed_package_has_no_declarations_beside_it(tree: Path) -> None:
    (tree / HEADERS[2]).unlink()
    assert imported(tree) == f"{tree / 'arraycomm' / '__init__.py'}\n"


def test_fork_before_init_is_harmless() -> None:
    code = """
import os, arraycomm
if os.fork() == 0:
    with arraycomm.init() as group:
        os._exit(0 if group.size == 1 else 1)
assert os.wait()[1] == 0
with arraycomm.init() as group:
    print(group.size)
"""
    assert fresh(code).strip() == "1"


def test_import_time(record_property: Callable[[str, object], None]) -> None:
    """Processor time in one process, beside what any interpreter loads; the promise is 50 ms, the limit is for slow CI."""
    code = "import time; t = time.process_time(); import arraycomm; print(time.process_time() - t)"
    times = [float(fresh(code)) * 1000 for _ in range(5)]
    best = min(times)
    record_property("import_ms", best)
    print(f"\nimport arraycomm: best {best:.1f} ms, median {statistics.median(times):.1f} ms of {len(times)}")
    assert best < 200


def test_a_package_is_missing() -> None:
    """What the engine itself imports is named as it is: the engine is there."""
    program = "import sys; sys.modules['_cffi_backend'] = None; import arraycomm"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert "_cffi_backend" in done.stderr.splitlines()[-1] and "not built" not in done.stderr
