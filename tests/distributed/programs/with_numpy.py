"""with_torch.py with NumPy arrays, where torch cannot be imported. Four ranks."""

import datetime
import os

import numpy as np
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh


def immediate(rank, size):
    tensor, request = np.zeros(1), None
    if rank == 0:
        tensor += 1
        request = dist.isend(tensor=tensor, dst=1)
    elif rank == 1:
        request = dist.irecv(tensor=tensor, src=0)
    if request is not None:
        request.wait()
        assert tensor[0] == 1


def ring_all_reduce(send, recv):
    """Each rank's tensor goes once around."""
    rank, size = dist.get_rank(), dist.get_world_size()
    send_buffer, recv_buffer, accumulated = send.copy(), send.copy(), send.copy()
    left, right = (rank - 1) % size, (rank + 1) % size
    for step in range(size - 1):
        if step % 2 == 0:
            request = dist.isend(send_buffer, right)
            dist.recv(recv_buffer, left)
            accumulated += recv_buffer
        else:
            request = dist.isend(recv_buffer, right)
            dist.recv(send_buffer, left)
            accumulated += send_buffer
        request.wait()
    recv[:] = accumulated


def ring(rank, size):
    mine = np.arange(6, dtype=np.float32).reshape(2, 3) + rank
    result, expected = np.zeros((2, 3), np.float32), mine.copy()
    ring_all_reduce(mine, result)
    dist.all_reduce(expected)
    assert np.array_equal(result, expected)


def average_gradients(gradients):
    size = float(dist.get_world_size())
    for gradient in gradients:
        dist.all_reduce(gradient, op=dist.ReduceOp.SUM)
        gradient /= size


def train(inputs, targets, average):
    """Two layers, by hand."""
    random = np.random.default_rng(1234)
    first, second = random.normal(size=(4, 8)) / 2, random.normal(size=(8, 1)) / 3
    losses = []
    for _ in range(20):
        hidden = np.tanh(inputs @ first)
        error = hidden @ second - targets
        losses.append(float((error**2).mean()))
        slope = 2 * error / error.size
        gradients = [inputs.T @ (slope @ second.T * (1 - hidden**2)), hidden.T @ slope]
        average(gradients)
        first -= 0.05 * gradients[0]
        second -= 0.05 * gradients[1]
    return losses, (first, second)


def data_parallel(rank, size):
    """Training on parts of the data with averaged gradients is training on all of it."""
    inputs = np.random.default_rng(7).normal(size=(8 * size, 4))
    targets = np.sin(inputs.sum(1, keepdims=True))
    part = slice(8 * rank, 8 * rank + 8)
    _, shared = train(inputs[part], targets[part], average_gradients)
    losses, alone = train(inputs, targets, lambda gradients: None)
    assert losses[-1] < losses[0]
    for mine, theirs in zip(shared, alone, strict=True):
        assert np.allclose(mine, theirs)
        reference = mine.copy()
        dist.broadcast(reference, src=0)
        assert np.array_equal(reference, mine)


def mesh(rank, size):
    grid = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    tensor = np.array([float(rank)])
    dist.all_reduce(tensor, group=grid.get_group("shard"))
    assert tensor.item() == (1, 1, 5, 5)[rank]
    dist.all_reduce(tensor, group=grid["replicate"].get_group())
    assert tensor.item() == 6


def objects(rank, size):
    output: list = [None] * size
    dist.all_gather_object(output, {"rank": rank, "list": [1, 2.5, "x"], "array": np.full(2, rank)})
    assert [found["rank"] for found in output] == list(range(size)) and output[3]["array"].tolist() == [3, 3]
    chosen = [("a", rank), None] if rank == 2 else [None, None]
    dist.broadcast_object_list(chosen, src=2)
    assert chosen == [("a", 2), None]
    got = [None]
    dist.scatter_object_list(got, [f"for {r}" for r in range(size)] if rank == 0 else None, src=0)
    assert got == [f"for {rank}"]


def barrier_with_an_absent_rank(rank, size):
    if rank == 1:
        return
    try:
        dist.monitored_barrier(timeout=datetime.timedelta(seconds=1))
    except RuntimeError as error:
        assert rank != 0 or "Rank 1" in str(error)
    else:
        raise AssertionError("the barrier did not miss rank 1")


def main():
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
    rank, size = dist.get_rank(), dist.get_world_size()
    assert size == int(os.environ["WORLD_SIZE"]) == 4
    try:
        import torch  # noqa: F401
    except ImportError:
        pass
    else:
        raise AssertionError("torch is there")
    for program in (immediate, ring, data_parallel, mesh, objects, barrier_with_an_absent_rank):
        program(rank, size)
    print(f"rank {rank} is through")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
