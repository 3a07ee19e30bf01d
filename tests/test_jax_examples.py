"""The programs in examples/ that are JAX's own and do not know arraycomm: over it, and with --over-gloo beside JAX's gloo."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from .ports import free_port

ROOT = Path(__file__).resolve().parents[1]
NEEDS = {"jax_halo": "jax", "jax_fsdp": "optax", "jax_flax": "flax", "jax_keras": "keras", "jax_numpyro": "numpyro"}
LIMIT = 600.0
RANKS = 2


def over_arraycomm(path: Path, ranks: int) -> str:
    return subprocess.run([sys.executable, "-m", "arraycomm.launch", "--jax", "--nproc-per-node", str(ranks), str(path)],
                          capture_output=True, text=True, timeout=LIMIT, check=True).stdout


def over_gloo(path: Path, ranks: int) -> str:
    """As under srun, from whose variables JAX knows the processes."""
    environ = {**os.environ, "JAX_CPU_COLLECTIVES_IMPLEMENTATION": "gloo", "JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{free_port()}",
               "SLURM_JOB_ID": "1", "SLURM_STEP_NODELIST": "localhost", "SLURM_NTASKS": str(ranks)}
    running = [subprocess.Popen([sys.executable, str(path)], stdout=subprocess.PIPE, text=True,
                                env=environ | {"SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank)}) for rank in range(ranks)]
    told = [process.communicate(timeout=LIMIT)[0] for process in running]
    assert not any(process.returncode for process in running)
    return told[0]


def numbers(told: str) -> list[float]:
    lines = [line.partition("] ")[2] or line for line in told.splitlines() if "took" not in line and "Gloo" not in line]
    return [float(number) for line in lines for number in re.findall(r"-?\d+\.\d+(?:e-?\d+)?", line)]


@pytest.mark.parametrize("name", NEEDS)
def test_programs_of_jax(name: str, request: pytest.FixtureRequest) -> None:
    if importlib.util.find_spec(NEEDS[name]) is None:
        pytest.skip(f"{NEEDS[name]} is not installed")
    beside, path = request.config.getoption("--over-gloo"), ROOT / "examples" / f"{name}.py"
    if name == "jax_fsdp" and not beside:
        pytest.skip("a minute: run by --over-gloo")
    ranks = 4 if beside and name in ("jax_fsdp", "jax_halo") else RANKS
    ours = numbers(over_arraycomm(path, ranks))
    assert len(ours) >= 4
    if name not in ("jax_halo", "jax_numpyro"):
        assert ours[-1] < ours[0]  # it learns
    if beside or name == "jax_halo":
        assert ours == pytest.approx(numbers(over_gloo(path, ranks)), rel=1e-6)
