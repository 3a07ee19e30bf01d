"""docs/guide/recipes/job.sh, submitted by sbatch to a real cluster, whose one node is this machine."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ..ports import free_port
from .launchers import LIMIT, SIZE, slurm

ROOT = Path(__file__).resolve().parents[2]
SUM = """
import numpy as np, arraycomm
with arraycomm.init() as group:
    print(f"sum {group.all_reduce(np.ones(3) * group.rank).tolist()}\\n", end="", flush=True)
"""
SURVIVORS = """
import os, signal, numpy as np, arraycomm
group = arraycomm.init()
try:
    group.barrier()  # the others have left init() too, in which the loss of a rank is an error
    if group.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    group.all_reduce(np.ones(3))
except arraycomm.PeerLost:
    group = group.shrink()
print(f"sum {group.all_reduce(np.ones(3)).tolist()}\\n", end="", flush=True)
"""
TORCH = """
import torch, torch.distributed as dist
dist.init_process_group("arraycomm")
x = torch.ones(3) * dist.get_rank()
dist.all_reduce(x)
print(f"sum {x.tolist()}\\n", end="", flush=True)
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[dict[str, str]]:
    if os.getuid() or not all(map(shutil.which, ("slurmctld", "slurmd", "munged", "sbatch", "openssl"))):
        pytest.skip("needs root, openssl, and Debian's packages slurmctld, slurmd, slurm-client and munge")
    with slurm() as environ:
        yield {**os.environ, **environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}


def submitted(program: str, folder: Path, environ: dict[str, str], end: str = "") -> tuple[bool, list[str]]:
    """Whether the job was completed, and what its ranks print of sums. Options of sbatch precede those in the script, whose last
    line is replaced by `end`."""
    (folder / "program.py").write_text(program)
    script = (ROOT / "docs/guide/recipes/job.sh").read_text()
    (folder / "job.sh").write_text("\n".join(script.splitlines()[:-1]) + f"\n{end}" if end else script)

    def run(*command: str) -> str:
        return subprocess.run(command, cwd=folder, env=environ, timeout=LIMIT, check=True, stdout=subprocess.PIPE).stdout.decode()

    job = run("sbatch", "--parsable", "--nodes=1", f"--ntasks-per-node={SIZE}", "--output=output", "job.sh").strip()
    while not (state := re.search(r"JobState=(COMPLETED|FAILED|NODE_FAIL|TIMEOUT)", run("scontrol", "show", "job", job))):
        time.sleep(0.1)  # sbatch --wait looks after 2, 10, 42 ... s
    output = (folder / "output").read_text()
    print(output)
    return state[1] == "COMPLETED", [line for line in output.splitlines() if line.startswith("sum")]


def test_the_recipe(cluster: dict[str, str], tmp_path: Path) -> None:
    assert submitted(SUM, tmp_path, cluster) == (True, ["sum [6.0, 6.0, 6.0]"] * SIZE)


def test_survivors_of_the_recipe_continue(cluster: dict[str, str], tmp_path: Path) -> None:
    assert submitted(SURVIVORS, tmp_path, cluster) == (False, ["sum [3.0, 3.0, 3.0]"] * (SIZE - 1))


def test_a_program_of_torch(cluster: dict[str, str], tmp_path: Path) -> None:
    pytest.importorskip("torch")
    page = (ROOT / "docs/guide/slurm.md").read_text().partition("\n## torch\n")[2]
    end = page.partition("```bash\n")[2].partition("```")[0].replace("train.py", "program.py").replace("29500", str(free_port()))
    assert submitted(TORCH, tmp_path, cluster, end) == (True, ["sum [6.0, 6.0, 6.0]"] * SIZE)
