"""The recipes that resume from a checkpoint: a rank is killed once, and the end is that of a run without a failure."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
RECIPES = ROOT / "docs" / "guide" / "recipes"
LIMIT = 300.0  # s, only ends what hangs
ENVIRON = {**{name: value for name, value in os.environ.items() if not name.startswith("ARRAYCOMM_")},
           "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
KILL = """
    if step == 25 and RANK == 1 and not os.path.exists("killed"):
        open("killed", "x")
        os.kill(os.getpid(), 9)"""


def run(folder: Path, name: str, kill: str, *command: str) -> tuple[list[int], set[str]]:
    """The steps with which ranks began, and what they ended with."""
    folder.mkdir()
    text, count = re.subn(r"^( *)for step in .*:$", lambda loop: loop[0] + kill.replace("\n", f"\n{loop[1]}"),
                          (RECIPES / name).read_text(), flags=re.MULTILINE)
    assert count == 1
    (folder / name).write_text(text)
    done = subprocess.run(command, cwd=folder, env=ENVIRON, timeout=LIMIT, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    print(done.stdout)
    assert done.returncode == 0 and (folder / "killed").exists() == bool(kill)
    return ([int(step) for step in re.findall(r"begins at step (\d+)", done.stdout)],
            set(re.findall(r"has ended with (.*)", done.stdout)))


def check(tmp_path: Path, name: str, kill: str, *command: str) -> None:
    begun, wanted = run(tmp_path / "without", name, "", "arraycomm-run", "-n", "2", name)
    assert begun == [0, 0] and len(wanted) == 1
    begun, ended = run(tmp_path / "killed", name, kill, *command)
    assert begun.count(20) == 2 and set(begun) == {0, 20} and ended == wanted  # the launcher repeats lines of the killed rank


def test_arraycomm_run(tmp_path: Path) -> None:
    check(tmp_path, "elastic.py", KILL.replace("RANK", "group.rank"),
          "bash", str(RECIPES / "elastic.sh"), "-n", "2", "elastic.py")


def test_torchrun(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    check(tmp_path, "elastic_torch.py", KILL.replace("RANK", "dist.get_rank()"), sys.executable, "-m", "torch.distributed.run",
          "--max-restarts", "3", "--nproc-per-node", "2", "elastic_torch.py")
