"""Programs as their authors wrote them for torch.distributed, in one file so that processes start once. Four ranks.

The test changes the package's name in the import lines, and nothing else.
"""

import datetime
import os

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh


def blocking(rank, size):
    tensor = torch.zeros(1)
    if rank == 0:
        tensor += 1
        dist.send(tensor=tensor, dst=1)
    elif rank == 1:
        dist.recv(tensor=tensor, src=0)
        assert tensor[0] == 1


def immediate(rank, size):
    tensor, request = torch.zeros(1), None
    if rank == 0:
        tensor += 1
        request = dist.isend(tensor=tensor, dst=1)
    elif rank == 1:
        request = dist.irecv(tensor=tensor, src=0)
    if request is not None:
        request.wait()
        assert tensor[0] == 1


def sum_of_a_group(rank, size):
    group = dist.new_group([0, 1])
    tensor = torch.ones(1)
    if rank < 2:
        dist.all_reduce(tensor, op=dist.ReduceOp.SUM, group=group)
        assert tensor[0] == 2
        dist.destroy_process_group(group)


def ring_all_reduce(send, recv):
    """Each rank's tensor goes once around."""
    rank, size = dist.get_rank(), dist.get_world_size()
    send_buffer, recv_buffer, accumulated = send.clone(), send.clone(), send.clone()
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
    mine = torch.arange(6, dtype=torch.float32).reshape(2, 3) + rank
    result, expected = torch.zeros(2, 3), mine.clone()
    ring_all_reduce(mine, result)
    dist.all_reduce(expected)
    assert torch.equal(result, expected)


def average_gradients(model):
    size = float(dist.get_world_size())
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad.data, op=dist.ReduceOp.SUM)
        parameter.grad.data /= size


def train(model, inputs, targets, average):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.5)
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        average(model)
        optimizer.step()
        losses.append(loss.item())
    return losses


def new_model():
    torch.manual_seed(1234)
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))


def data_parallel(rank, size):
    """Training on parts of the data with averaged gradients is training on all of it."""
    torch.manual_seed(7)
    inputs = torch.randn(8 * size, 4)
    targets = inputs.sum(1, keepdim=True).sin()
    part = slice(8 * rank, 8 * rank + 8)
    shared, alone = new_model(), new_model()
    train(shared, inputs[part], targets[part], average_gradients)
    losses = train(alone, inputs, targets, lambda model: None)
    assert losses[-1] < losses[0]
    for mine, theirs in zip(shared.parameters(), alone.parameters(), strict=True):
        assert torch.allclose(mine, theirs, atol=1e-5)
        reference = mine.detach().clone()
        dist.broadcast(reference, src=0)
        assert torch.equal(reference, mine.detach())


def mesh(rank, size):
    grid = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    tensor = torch.tensor([float(rank)])
    dist.all_reduce(tensor, group=grid.get_group("shard"))
    assert tensor.item() == (1, 1, 5, 5)[rank]
    dist.all_reduce(tensor, group=grid["replicate"].get_group())
    assert tensor.item() == 6


def parameter_server(rank, size):
    """Rank 0 holds the weights; the others ask for them and send gradients, in any order."""
    pull, push, done = range(3)
    weights, wanted = torch.zeros(5, dtype=torch.float64), torch.arange(5, dtype=torch.float64)
    if rank > 0:
        for step in range(5):
            dist.send(torch.tensor([pull, step]), 0)
            dist.recv(weights, src=0, tag=7)
            request = dist.isend(torch.tensor([push, step]), 0)
            dist.send((1 - wanted) * rank, dst=0, tag=step + 100)
            request.wait()
        dist.send(torch.tensor([done, 0]), 0)
        dist.send_object_list([{"rank": rank}], dst=0)
        return
    left = size - 1
    while left:
        header = torch.zeros(2, dtype=torch.int64)
        source = dist.recv(header)
        kind, step = header.tolist()
        if kind == pull:
            dist.send(weights, dst=source, tag=7)
        elif kind == push:
            gradient = torch.zeros(5, dtype=torch.float64)
            assert dist.recv(gradient, src=source, tag=step + 100) == source
            weights -= gradient
        else:
            note = [None]
            assert dist.recv_object_list(note, src=source) == source and note == [{"rank": source}]
            left -= 1
    assert torch.equal(weights, 5 * sum(range(size)) * (wanted - 1))


def exchange(*ops):
    for request in dist.batch_isend_irecv(list(ops)) if ops else []:
        request.wait()


def pipeline(rank, size):
    """Each rank has one layer; parts of a batch go forward through them and gradients back, as in one process."""
    def layer(stage):
        torch.manual_seed(stage)
        return torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.Tanh()).double()

    stage, parts = layer(rank), torch.randn(3, 4, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    inputs, outputs = [], []
    for part in parts:
        x = part.clone()
        if rank > 0:
            exchange(dist.P2POp(dist.irecv, x, rank - 1))
        inputs.append(x.requires_grad_())
        outputs.append(stage(x))
        if rank < size - 1:
            exchange(dist.P2POp(dist.isend, outputs[-1].detach(), rank + 1))
    for x, y in zip(inputs, outputs, strict=True):
        gradient = 2 * y.detach()
        if rank < size - 1:
            exchange(dist.P2POp(dist.irecv, gradient, rank + 1))
        y.backward(gradient)
        if rank > 0:
            exchange(dist.P2POp(dist.isend, x.grad, rank - 1))
    alone = torch.nn.Sequential(*(layer(r) for r in range(size)))
    for part in parts:
        (alone(part) ** 2).sum().backward()
    for mine, expected in zip(stage.parameters(), alone[rank].parameters(), strict=True):
        assert torch.allclose(mine.grad, expected.grad)


class AllToAll(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, receives, sends):
        ctx.splits = sends, receives
        y = x.new_empty((sum(receives), *x.shape[1:]))
        dist.all_to_all_single(y, x.contiguous(), receives, sends)
        return y

    @staticmethod
    def backward(ctx, gradient):
        receives, sends = ctx.splits
        y = gradient.new_empty((sum(receives), *gradient.shape[1:]))
        dist.all_to_all_single(y, gradient.contiguous(), receives, sends)
        return y, None, None


def experts(rank, size):
    """Tokens go to the rank of their expert and back, and gradients the same way."""
    torch.manual_seed(rank)
    tokens = torch.randn(17 + rank, 4, dtype=torch.float64, requires_grad=True)
    expert = torch.randint(0, size, (len(tokens),))
    order, sends = expert.argsort(stable=True), torch.bincount(expert, minlength=size)
    receives = torch.empty_like(sends)
    dist.all_to_all_single(receives, sends)
    there = AllToAll.apply(tokens[order], receives.tolist(), sends.tolist()) * (rank + 1)
    back = AllToAll.apply(there, sends.tolist(), receives.tolist())
    found = torch.empty_like(back).index_copy(0, order, back)
    assert torch.allclose(found, tokens * (expert + 1)[:, None])
    found.sum().backward()
    assert torch.equal(tokens.grad, (expert + 1.0)[:, None].expand(-1, 4).double())


def objects(rank, size):
    output: list = [None] * size
    dist.all_gather_object(output, {"rank": rank, "list": [1, 2.5, "x"], "tensor": torch.full((2,), rank)})
    assert [found["rank"] for found in output] == list(range(size)) and output[3]["tensor"].tolist() == [3, 3]
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
    for program in (blocking, immediate, sum_of_a_group, ring, data_parallel, parameter_server, pipeline, experts, mesh,
                    objects, barrier_with_an_absent_rank):
        program(rank, size)
    print(f"rank {rank} is through")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
