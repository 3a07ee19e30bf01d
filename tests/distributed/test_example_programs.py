"""The whole programs of torch.distributed's documents, as files that a user runs: the import is changed, and the GPU is the CPU.

Not here: the program that trains TwoLinLayerNet and the call of register_comm_hook, which are about torch's own
DistributedDataParallel (the hook itself is in test_examples.py); and what wait() does to several CUDA streams.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import arraycomm
import arraycomm.distributed as dist
from arraycomm.distributed.device_mesh import DeviceMesh, init_device_mesh

from ..ports import free_port

LIMIT = 300  # s: what hangs
IMPORTS = """
import os
from datetime import timedelta

import torch
import arraycomm.distributed as dist
import torch.multiprocessing as mp
"""
MAIN = """
if __name__ == "__main__":
    os.environ["MASTER_ADDR"] = "localhost"
    os.environ["MASTER_PORT"] = "29501"
    mp.spawn(worker, nprocs=2, args=())
"""
DETAIL = """    os.environ["TORCH_CPP_LOG_LEVEL"]="INFO"
    os.environ["TORCH_DISTRIBUTED_DEBUG"] = "DETAIL"
"""
MONITORED_BARRIER = IMPORTS + """
def worker(rank):
    dist.init_process_group("gloo", rank=rank, world_size=2)
    # monitored barrier requires gloo process group to perform host-side sync.
    group_gloo = dist.new_group(backend="gloo")
    if rank not in [1]:
        dist.monitored_barrier(group=group_gloo, timeout=timedelta(seconds=2))
""" + MAIN
SHAPES = IMPORTS + """
def worker(rank):
    dist.init_process_group("gloo", rank=rank, world_size=2)
    tensor = torch.randn(10 if rank == 0 else 20)
    dist.all_reduce(tensor)
""" + MAIN.replace("    mp.", DETAIL + "    mp.")
OVERVIEW = IMPORTS + """
def setup(rank, world_size):
    dist.init_process_group(
        backend='gloo',
        init_method='tcp://127.0.0.1:29501',
        world_size=world_size,
        rank=rank
    )

def cleanup():
    dist.destroy_process_group()

def demo_basic(rank, world_size):
    setup(rank, world_size)
    tensor = torch.ones(2, 2)
    dist.all_reduce(tensor, op=dist.ReduceOp.SUM)
    print(f'Rank {rank}: {tensor.tolist()}\\n', end='', flush=True)
    cleanup()

if __name__ == '__main__':
    world_size = 2
    mp.spawn(demo_basic, args=(world_size,), nprocs=world_size)
"""
LAUNCHED = """
import argparse
import numpy as np
import arraycomm.distributed
parser = argparse.ArgumentParser()
parser.add_argument("--local-rank", "--local_rank", type=int)
parser.add_argument("--arg1", action="store_true")
args = parser.parse_args()
arraycomm.distributed.init_process_group(backend='gloo',
                                         init_method='env://')
x = np.ones(1)
arraycomm.distributed.all_reduce(x)
print(f"{arraycomm.distributed.get_rank()} {args.local_rank} {args.arg1} {x[0]}\\n", end="", flush=True)
"""


def start(*command: str | Path, **variables: str) -> subprocess.Popen[str]:
    foreign = ("RANK", "WORLD_SIZE", "LOCAL_", "MASTER_", "ARRAYCOMM_STORE", "ARRAYCOMM_SECRET", "TORCH")
    environ = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    return subprocess.Popen([sys.executable, *map(str, command)], env=environ | {"OMP_NUM_THREADS": "1"} | variables, text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    try:
        out, err = process.communicate(timeout=LIMIT)
    finally:
        process.kill()
    return process.returncode, out, err


def of_document(program: str, tmp_path: Path) -> tuple[int, str, str]:
    """Its exit status and what it wrote, at a port of its own."""
    pytest.importorskip("torch")
    path = tmp_path / "program.py"
    path.write_text(program.replace("29501", str(free_port())))
    return ended(start(path))


def test_monitored_barrier(tmp_path: Path) -> None:
    code, _, err = of_document(MONITORED_BARRIER, tmp_path)
    assert code == 1 and "Rank 1 failed to pass monitoredBarrier in 2000 ms" in err, err


def test_shapes_that_differ(tmp_path: Path) -> None:
    code, _, err = of_document(SHAPES, tmp_path)
    assert code == 1 and "Detected mismatch between collectives on ranks. Rank " in err, err
    assert "Tensor shape: (10) vs (20)" in err, err


def test_overview(tmp_path: Path) -> None:
    code, out, err = of_document(OVERVIEW, tmp_path)
    assert code == 0 and sorted(out.splitlines()) == [f"Rank {rank}: [[2.0, 2.0], [2.0, 2.0]]" for rank in range(2)], err


def test_launcher_on_two_nodes(tmp_path: Path) -> None:
    """The documents' commands; beyond them, our launcher wants one secret on all nodes."""
    path, port = tmp_path / "program.py", free_port()
    path.write_text(LAUNCHED)
    nodes = [start("-m", "arraycomm.distributed.launch", "--nproc-per-node=2", "--nnodes=2", f"--node-rank={node}",
                   "--master-addr=127.0.0.1", f"--master-port={port}", path, "--arg1",
                   ARRAYCOMM_SECRET="0123456789abcdef" * 2) for node in range(2)]
    try:
        results = [ended(node) for node in nodes]
    finally:
        for node in nodes:
            node.kill()
    assert [code for code, _, _ in results] == [0, 0], results
    for number, (_, out, _) in enumerate(results):
        assert sorted(out.splitlines()) == [f"{2 * number + local} {local} True 4.0" for local in range(2)]


def test_help_of_the_launcher() -> None:
    code, out, _ = ended(start("-m", "arraycomm.distributed.launch", "--help"))
    assert code == 0 and "--nproc-per-node" in out and "--master-addr" in out


def meshes(rank: int) -> None:
    mesh_1d = init_device_mesh("cpu", mesh_shape=(8,))
    mesh_2d = init_device_mesh("cpu", mesh_shape=(2, 8), mesh_dim_names=("dp", "tp"))
    mesh = DeviceMesh(device_type="cpu", mesh=[[0, 1, 2, 3], [4, 5, 6, 7]])
    x = np.array([rank])
    dist.all_reduce(x, group=mesh_2d.get_group("tp"))
    dist.all_reduce(x, group=mesh_2d.get_group("dp"))
    assert x.tolist() == [sum(range(16))]
    if rank >= 8:
        assert mesh.get_coordinate() is None and mesh_1d.get_coordinate() is None
    else:
        assert mesh.get_coordinate() == (rank // 4, rank % 4) and mesh_1d.get_coordinate() == (rank,)
        dist.all_reduce(x, group=mesh.get_group(1))
        dist.all_reduce(x, group=mesh_1d.get_group())
        assert x.tolist() == [8 * 4 * sum(range(16))]
    dist.barrier()
    dist.destroy_process_group()


def test_meshes() -> None:
    arraycomm.spawn(meshes, nprocs=16, start_method="forkserver")
