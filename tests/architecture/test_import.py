"""What `import arraycomm` costs: no framework, no thread, no process, little time."""

from __future__ import annotations

import json
import re
import shutil
import statistics
import subprocess
import sys
from pathlib import Path

import arraycomm
from cffi_build import build

HEAVY = ("numpy", "torch", "jax", "jaxlib", "cupy", "msgpack", "matplotlib", "rich", "ml_dtypes", "multiprocessing",
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
    assert not [name for name in names if name.startswith(("arraycomm.backends", "arraycomm.frameworks",
                                                           "arraycomm.distributed"))]


def test_all_names_are_offered() -> None:
    assert fresh("import arraycomm; print(set(arraycomm.__all__) <= set(dir(arraycomm)))").strip() == "True"


def test_nothing_slow_is_loaded_by_init_either() -> None:
    """Each of these takes a good part of what init() may take; whoever uses it anyway has it loaded already."""
    code = """
import sys
slow = {"typing", "re", "hashlib", "_hashlib", "hmac", "traceback", "logging", "dataclasses", "json", "urllib.parse", "ssl"}
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


def interface() -> str:
    """That the Python files were written for."""
    found = re.search(r'"ACOMM_INTERFACE", None\) != (0x[0-9a-f]+):', Path(arraycomm.__file__).read_text())
    assert found
    return found[1]


def test_the_engine_fits_the_python_files() -> None:
    """With another interface one of the two was forgotten: a stale build would end in a KeyError somewhere."""
    before, now = interface(), f"{build.interface():#x}"
    assert before == now, f"the engine's interface has changed: write {now} for {before} in arraycomm/__init__.py"


def test_a_stale_engine_says_so(tmp_path: Path) -> None:
    """The engine is this one, the Python files are of another commit."""
    package = tmp_path / "arraycomm"
    package.mkdir()
    for path in Path(arraycomm.__file__).parent.iterdir():
        if path.name != "__init__.py":
            (package / path.name).symlink_to(path)
    text = Path(arraycomm.__file__).read_text()
    (package / "__init__.py").write_text(text.replace(interface(), "0x1"))
    done = subprocess.run([sys.executable, "-c", f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import arraycomm"],
                          capture_output=True, text=True, timeout=60)
    assert f"ImportError: the engine of arraycomm in {package} was built from other sources" in done.stderr, done.stderr
    assert "python -m cffi_build" in done.stderr


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


def test_import_time(record_property) -> None:
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
