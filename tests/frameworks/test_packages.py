"""Programs of other packages over this one, unchanged: torch/packages and jax/packages.

Those of torch leave the same parameters, bit for bit, as over gloo; those of JAX compare themselves with one process.

`tests/run_programs` installs the packages and runs all. The rest of the suite runs the light ones, where they are installed.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
ALL = bool(os.environ.get("ARRAYCOMM_TEST_PROGRAMS"))
LIGHT = ("ignite_run", "accelerated", "lightning_fit")  # their ranks end with equal tensors; where not all run, not beside gloo
# Programs, and the package that each needs. Those of GLOO_ONLY accept no other name.
TORCH = {"ddp": "torch", "fsdp2": "torch", "metrics": "torchmetrics", "lightning_fit": "lightning", "private": "opacus",
         "graphs": "torch_geometric", "accelerated": "accelerate", "trainer": "transformers", "ignite_run": "ignite",
         "deep_speed": "deepspeed", "ray_train": "ray"}
GLOO_ONLY = ("accelerated", "trainer", "ignite_run")
JAX = {"numpyro_hmc": "numpyro", "blackjax_nuts": "blackjax", "jax_md_nve": "jax_md", "equinox_mlp": "equinox",
       "flax_nnx": "flax"}


def _need(program: str, package: str) -> None:
    if not ALL and program not in LIGHT:
        pytest.skip("tests/run_programs runs it")
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")


def _run(path: Path, *arguments: str, **environ: str) -> str:
    """Two ranks, and what they print. Ray starts its own; Lightning would ask mpi4py for ranks under a launcher that it does not
    know, and fail where that has no MPI library.
    """
    ranks = [*(["--as-gloo"] if "ARRAYCOMM_TORCH_AS" in environ else []), "-n", "2"]
    launcher = {"ray_train": [], "lightning_fit": ["-m", "torch.distributed.run", "--nproc-per-node", "2"]}.get(
        path.stem, ["-m", "arraycomm.launch", *ranks])
    quiet = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "300"}
    done = subprocess.run([sys.executable, *launcher, str(path), *arguments], env={**os.environ, **quiet, **environ},
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=900)
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.mark.parametrize("program", TORCH)
def test_torch(program: str, tmp_path: Path) -> None:
    _need(program, TORCH[program])
    import torch

    ways = {"gloo": {"BACKEND": "gloo"}, "as-gloo": {"BACKEND": "gloo", "ARRAYCOMM_TORCH_AS": "gloo"}}
    if program not in GLOO_ONLY:
        ways["by-name"] = {"BACKEND": "arraycomm"}
    if not ALL:
        ways = dict([*ways.items()][-1:])
    saved: dict[str, list[Any]] = {}
    for way, environ in ways.items():
        folder = tmp_path / way
        folder.mkdir()
        environ["TORCH_EXTENSIONS_DIR"] = str(tmp_path)  # torch waits for ever where a run that was killed left its lock
        printed = _run(HERE / "torch" / "packages" / f"{program}.py", str(folder), **environ)
        assert ("get arraycomm in this program" in printed) == (way == "as-gloo"), printed
        saved[way] = [torch.load(folder / f"{rank}.pt") for rank in range(2)]
        expected = saved["gloo"] if ALL else saved[way][:1] * 2
        torch.testing.assert_close(saved[way], expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("program", JAX)
def test_jax(program: str) -> None:
    _need(program, JAX[program])
    _run(HERE / "jax" / "packages" / f"{program}.py")
