"""Types as a user's program sees them, from outside the package, by mypy and by pyright."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PROGRAM = Path(__file__).with_name("typed_program.py")
WRONG = {  # what stands in its place, and must be refused
    "group.all_reduce(x)": "group.all_reduce(1)",
    "group.broadcast(x, root=0)": "group.broadcast(x, root='0')",
    "list[float])": "list[str])",
    "group.gather(x), Vector | None": "group.gather(x), Vector",
    "async_op=True).result(), Vector)": "async_op=True).result(), str)",
    "received.array, Vector": "received.array, str",
    "group.broadcast_object(settings), dict[str, float]": "group.broadcast_object(settings), dict[str, int]",
    "like=x)": "like=1)",
}


def mypy(path: Path) -> list[str]:
    cache = str(path.parents[1] / "cache")
    done = subprocess.run([sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--cache-dir", cache, str(path)],
                          capture_output=True, text=True, timeout=300, cwd=path.parent,
                          env={**os.environ, "MYPYPATH": str(ROOT)})
    assert done.returncode <= 1, done.stdout + done.stderr
    return [line for line in done.stdout.splitlines() if line.startswith(f"{path.name}:") and ": error:" in line]


def pyright(path: Path) -> list[str]:
    config = {"extraPaths": [str(ROOT)], "include": [path.name], "typeCheckingMode": "standard"}
    (path.parent / "pyrightconfig.json").write_text(json.dumps(config))
    done = subprocess.run([sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable], capture_output=True,
                          text=True, timeout=300, cwd=path.parent)
    found = json.loads(done.stdout)["generalDiagnostics"]
    return [row["message"] for row in found if row["severity"] == "error"]


@pytest.mark.parametrize("checker", [mypy, pyright], ids=lambda checker: checker.__name__)
def test_a_program(checker: Callable[[Path], list[str]], tmp_path: Path) -> None:
    if importlib.util.find_spec(checker.__name__) is None:
        pytest.skip(f"{checker.__name__} is not installed")
    good, wrong = tmp_path / "good" / "program.py", tmp_path / "wrong" / "program.py"
    text = changed = PROGRAM.read_text()
    for old, new in WRONG.items():
        assert old in changed
        changed = changed.replace(old, new, 1)
    for path, program in ((good, text), (wrong, changed)):
        path.parent.mkdir()
        path.write_text(program)
    assert checker(good) == []
    assert len(checker(wrong)) >= len(WRONG)


def test_the_program_runs() -> None:
    done = subprocess.run([sys.executable, str(PROGRAM)], capture_output=True, text=True, timeout=120,
                          env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert re.fullmatch(r"\[4\.0, 4\.0\]\n", done.stdout), done.stdout + done.stderr
