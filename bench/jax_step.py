"""A sharded training step of JAX (examples/jax_fsdp.py) over arraycomm and over gloo, in turns: `python bench/jax_step.py`.

Alone: every process by itself, without collectives, with its part of the batch and whole parameters, all at once as they share
the processors. What a step takes beyond that is the share of the collectives, and of waiting in them. Losses are compared.
"""

from __future__ import annotations

import argparse
import os
import re
import socket
import statistics
import subprocess
import sys
from pathlib import Path

PROGRAM = str(Path(__file__).resolve().parents[1] / "examples" / "jax_fsdp.py")


def _gloo(ranks: int, arguments: list[str], *, alone: bool = False) -> list[str]:
    """As under srun, from whose variables JAX knows the processes."""
    started = []
    for rank in range(ranks):
        if not rank or alone:
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                port = free.getsockname()[1]
        place = {"SLURM_JOB_ID": "1", "SLURM_STEP_NODELIST": "localhost", "SLURM_NTASKS": "1" if alone else str(ranks),
                 "SLURM_PROCID": "0" if alone else str(rank), "SLURM_LOCALID": "0" if alone else str(rank),
                 "JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{port}", "JAX_CPU_COLLECTIVES_IMPLEMENTATION": "gloo"}
        started.append(subprocess.Popen([sys.executable, PROGRAM, *arguments], env=os.environ | place, stdout=subprocess.PIPE,
                                        stderr=subprocess.DEVNULL, text=True))
    return [process.communicate()[0] for process in started]


def _ours(ranks: int, arguments: list[str]) -> list[str]:
    command = [sys.executable, "-m", "arraycomm.launch", "--jax", "--nproc-per-node", str(ranks), PROGRAM, *arguments]
    return [subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True).stdout]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--np", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    for name, value in (("steps", 20), ("layers", 2), ("width", 256), ("rows", 16)):
        parser.add_argument(f"--{name}", type=int, default=value)
    options = parser.parse_args()
    sizes = [str(n) for n in (options.steps, options.layers, options.width, options.rows)]
    part = [*sizes[:3], str(options.rows // options.np)]
    took: dict[str, list[float]] = {"alone": [], "arraycomm": [], "gloo": []}
    losses: dict[str, list[float]] = {}
    for _ in range(options.rounds):
        told = {"alone": _gloo(options.np, part, alone=True), "arraycomm": _ours(options.np, sizes),
                "gloo": _gloo(options.np, sizes)}
        for name, texts in told.items():
            took[name].append(max(float(ms) for text in texts for ms in re.findall(r"took (\S+) ms", text)))
            losses[name] = [float(loss) for loss in re.findall(r"loss (\S+)", texts[0])]
    alone = statistics.median(took["alone"])
    for name, found in took.items():
        middle = statistics.median(found)
        share = max(0.0, 100 * (1 - alone / middle))
        print(f"{name}: {middle:.1f} ms a step ({min(found):.1f}-{max(found):.1f}), {share:.0f} % of it in collectives")
    apart = max(abs(a - b) / abs(b) for a, b in zip(losses["arraycomm"], losses["gloo"], strict=True))
    print(f"losses of arraycomm and gloo differ by {apart:.1e} at most, relatively")


if __name__ == "__main__":
    main()
