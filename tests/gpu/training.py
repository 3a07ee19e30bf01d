"""torch modules on a GPU over arraycomm: `python -m tests.gpu.parts training 2 torch`.

What is trained by the ranks on their parts of a batch is compared with a module that one process trains on the whole of it. Over
the stand-ins modules are on the CPU: that tries these programs, and no GPU.
"""

from __future__ import annotations

import contextlib
import copy
import socket
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import arraycomm
import arraycomm.distributed as dist

from . import frameworks

ROWS, WIDTH, STEPS = 2, 64, 4  # of a rank's part of the batch, so few that PowerSGD can give their gradients as they are
EXACT, HALF, POWER = 1e-4, 2.0**-6, 1e-3  # of the largest gradient: float32 by another kernel; float16; PowerSGD
TURNS, SLEEP = 10, 200_000_000  # cycles of a GPU


def start(ranks: int, framework: str) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    print("| what | ranks | within |\n|---|---|---|", flush=True)
    arraycomm.spawn(work, (framework, port), nprocs=ranks)


def work(rank: int, framework: str, port: int) -> None:
    name = frameworks.use(rank, framework)[0]
    device = "cpu" if name == frameworks.STANDIN else "cuda"
    dist.init_process_group("gloo" if device == "cpu" else "nccl", timeout=timedelta(seconds=60))
    collectives(device)
    size = dist.get_world_size()
    dist.destroy_process_group()
    registered(rank, size, port, device)


def told(what: str, within: float, group: Any) -> None:
    group.barrier()  # it holds on all ranks
    if group.get_rank() == 0:
        print(f"| {what} | {group.get_world_size()} | {within:g} |", flush=True)


# ---- over arraycomm.distributed ----


def collectives(device: str) -> None:
    """Those with gradients: values, and gradients of the sum of all ranks' losses, each loss weighing its rank's outputs."""
    import torch

    from arraycomm.frameworks.torch import autograd as f

    me, size = dist.get_rank(), dist.get_world_size()
    last = size - 1

    def numbers(seed: int, *shape: int) -> Any:
        return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(device)

    inputs = [numbers(rank, 2 * size, 3) for rank in range(size)]
    total, pieces = sum(inputs), [x.split(2) for x in inputs]  # pieces[s][r]: of rank s for rank r

    def weight(rank: int, number: int, rows: int) -> Any:
        """Of a rank's output of this number."""
        return numbers(1000 + 10 * rank + number, rows, 3)

    def weights(rows: int) -> list[Any]:
        """Of all ranks' first outputs."""
        return [weight(rank, 0, rows) for rank in range(size)]

    def empty(rows: int) -> Any:
        return torch.empty(rows, 3, dtype=torch.float64, device=device)

    whole, part = weights(2 * size), weights(2)
    nothing, across = torch.zeros_like(whole[me]), torch.cat([w.split(2)[me] for w in whole])
    average = dist.ReduceOp.AVG
    # Name, the function, this rank's outputs, and the gradient of its input. What means nothing on a rank is left out.
    cases: list[tuple[str, Callable[[Any], Any], list[Any], Any]] = [
        ("all_reduce", f.all_reduce, [total], sum(whole)),
        ("all_reduce AVG", lambda x: f.all_reduce(x, average), [total / size], sum(whole) / size),
        ("broadcast", lambda x: f.broadcast(x, last), [inputs[last]], sum(whole) if me == last else nothing),
        ("reduce", lambda x: f.reduce(x, 0), [total] if me == 0 else [], whole[0]),
        ("all_gather", f.all_gather, inputs, sum(weight(rank, me, 2 * size) for rank in range(size))),
        ("gather", lambda x: f.gather(x, 0), inputs if me == 0 else [nothing] * size, weight(0, me, 2 * size)),
        ("scatter", lambda x: f.scatter(list(x.split(2)), 0), [pieces[0][me]], torch.cat(part) if me == 0 else nothing),
        ("reduce_scatter", lambda x: f.reduce_scatter(empty(2), list(x.split(2))), [sum(p[me] for p in pieces)], torch.cat(part)),
        ("all_to_all", lambda x: f.all_to_all([empty(2) for _ in range(size)], list(x.split(2))), [p[me] for p in pieces],
         torch.cat([weight(rank, me, 2) for rank in range(size)])),
        ("all_to_all_single", lambda x: f.all_to_all_single(empty(2 * size), x), [torch.cat([p[me] for p in pieces])], across)]
    for name, function, outputs, gradient in cases:
        x = inputs[me].clone().requires_grad_()
        found = function(x)
        found = found if isinstance(found, tuple) else (found,)
        sum((y * weight(me, number, len(y))).sum() for number, y in enumerate(found)).backward()
        for number, (y, want) in enumerate(zip(found, outputs)):  # noqa: B905 - the outputs that mean something
            close(y.detach(), want, EXACT, f"{name}: output {number}")
        close(x.grad, gradient, EXACT, f"the gradient of {name}")
    told(f"collectives with gradients: {', '.join(name for name, *_ in cases)}", EXACT, dist)


# ---- over torch.distributed ----


def registered(rank: int, size: int, port: int, device: str) -> None:
    """Backend "arraycomm": a GPU's tensors go by the host. What asks for a backend of the device hears that there is none."""
    import torch
    import torch.distributed as theirs

    import arraycomm.frameworks.torch  # noqa: F401 - where the package is not installed it is not registered by itself

    theirs.init_process_group("arraycomm", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=size,
                              timeout=timedelta(seconds=60))
    ranks = torch.arange(size, dtype=torch.float32, device=device)
    for count in (3, 2_000_003):  # in one piece, and in several
        x = torch.full((count,), float(rank), device=device)
        theirs.all_reduce(x)
        assert (x == ranks.sum()).all(), f"all_reduce of {count}"
        work = theirs.all_reduce(x, op=theirs.ReduceOp.MAX, async_op=True)
        work.wait()
        assert (x == ranks.sum()).all(), f"all_reduce of {count}, asynchronous"
        x = torch.full((count,), float(rank), device=device)
        future = theirs.all_reduce(x, async_op=True).get_future()
        assert (future.wait()[0] == ranks.sum()).all(), f"the future of all_reduce of {count}"
        x = torch.full((count,), float(rank), device=device)
        theirs.broadcast(x, size - 1)
        assert (x == size - 1).all(), f"broadcast of {count}"
        parts = [torch.empty_like(x) for _ in range(size)]
        theirs.all_gather(parts, torch.full_like(x, rank))
        assert all((part == other).all() for other, part in enumerate(parts)), f"all_gather of {count}"
        together = torch.empty(size * count, device=device)
        theirs.all_gather_into_tensor(together, torch.full_like(x, rank))
        assert torch.equal(together, ranks.repeat_interleave(count)), f"all_gather_into_tensor of {count}"
        theirs.reduce_scatter_tensor(x, together)
        assert (x == rank * size).all(), f"reduce_scatter_tensor of {count}"
    told("torch.distributed's functions", 0, theirs)
    parallel(device)
    world: Any = theirs.group.WORLD
    try:
        world._get_backend(torch.device("cuda"))
    except RuntimeError as error:
        assert "tensors in host memory" in str(error), error
    else:
        raise AssertionError("a backend for CUDA, of which docs/guide/torch.md says that there is none")
    theirs.destroy_process_group()


def parallel(device: str) -> None:
    """DistributedDataParallel over backend "arraycomm"."""
    import torch.distributed as theirs
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

    for given in ({}, {"bucket_cap_mb": 0.001}, {"gradient_as_bucket_view": True}, {"find_unused_parameters": True},
                  {"static_graph": True}):
        train(device, EXACT, given)
        told(f"DistributedDataParallel {given or 'as it is'}", EXACT, theirs)
    train(device, EXACT, {}, accumulate=True)
    told("no_sync", EXACT, theirs)
    power = powerSGD_hook.PowerSGDState(None, ROWS * theirs.get_world_size(), start_powerSGD_iter=2)
    for name, hook, state, tolerance in (
            ("allreduce_hook", default_hooks.allreduce_hook, None, EXACT),
            ("fp16_compress_hook", default_hooks.fp16_compress_hook, None, HALF),
            ("powerSGD_hook", powerSGD_hook.powerSGD_hook, power, POWER)):
        train(device, tolerance, {}, hook=(state, hook))
        told(name, tolerance, theirs)
    embedding(device)
    told("sparse gradients of nn.Embedding, by the host", EXACT, theirs)
    if device != "cpu":
        on_another_stream(device)


def network(device: str) -> Any:
    import torch

    torch.manual_seed(3)
    module = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh(), torch.nn.LayerNorm(WIDTH),
                                 torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh(), torch.nn.Linear(WIDTH, 3))
    module.register_buffer("told", torch.zeros(5))
    return module.to(device)


def batch(step: int, size: int, device: str) -> Any:
    """All ranks' rows of a step, one rank's behind the other's."""
    import torch

    return torch.randn(size * ROWS, WIDTH, generator=torch.Generator().manual_seed(step)).to(device)


def close(got: Any, want: Any, tolerance: float, what: str) -> None:
    """tolerance: of the largest value."""
    assert got.dtype == want.dtype and got.shape == want.shape, f"{what}: {got.dtype} {tuple(got.shape)}"
    off, largest = float((got - want).abs().max()), float(want.abs().max())
    assert off <= tolerance * max(largest, 1e-3), f"{what}: off by {off:g}, where the largest value is {largest:g}"


def train(device: str, tolerance: float, given: dict[str, Any], *, accumulate: bool = False,
          hook: tuple[Any, Any] | None = None) -> None:
    """DistributedDataParallel for some steps; losses and gradients are compared in each, and the parameters are made equal after
    it, so that what one step loses is not the next one's. accumulate: two batches a step."""
    import torch
    import torch.distributed as theirs

    me, size = theirs.get_rank(), theirs.get_world_size()
    alone = network(device)
    module = copy.deepcopy(alone)
    with torch.no_grad():
        for tensor in (*module.parameters(), *module.buffers()):
            tensor += me  # the first rank's count
    parallel = torch.nn.parallel.DistributedDataParallel(module, **given)
    if hook is not None:
        parallel.register_comm_hook(*hook)
    for step in range(STEPS):
        for model in (alone, parallel):
            model.zero_grad()
        for turn in (0, 1) if accumulate else (1,):
            x = batch(2 * step + turn, size, device)
            expected = alone(x).pow(2).mean()
            expected.backward()
            with contextlib.nullcontext() if turn else parallel.no_sync():
                loss = parallel(x[me * ROWS : (me + 1) * ROWS]).pow(2).mean()
                loss.backward()
            total = loss.detach().clone()
            theirs.all_reduce(total)
            close(total / size, expected.detach(), EXACT, f"{given}: the loss of step {step}")
        assert not module.told.any(), "buffers are the first rank's"
        for (name, mine), whole in zip(module.named_parameters(), alone.parameters(), strict=True):
            close(mine.grad, whole.grad, tolerance, f"{given} {hook}: the gradient of {name} in step {step}")
        with torch.no_grad():
            for mine, whole in zip(module.parameters(), alone.parameters(), strict=True):
                whole -= 0.1 * whole.grad
                mine.copy_(whole)


def embedding(device: str) -> None:
    import torch
    import torch.distributed as theirs

    me, size = theirs.get_rank(), theirs.get_world_size()
    torch.manual_seed(4)
    alone = torch.nn.Sequential(torch.nn.Embedding(50, 4, sparse=True), torch.nn.Linear(4, 3)).to(device)
    module = copy.deepcopy(alone)
    parallel = torch.nn.parallel.DistributedDataParallel(module)
    for step in range(2):
        for model in (alone, parallel):
            model.zero_grad()
        words = torch.arange(7 * size, device=device) * (step + 1) % 11
        alone(words).pow(2).mean().backward()
        parallel(words[me * 7 : (me + 1) * 7]).pow(2).mean().backward()
        assert module[0].weight.grad.is_sparse and module[0].weight.grad.device == module[0].weight.device
        for mine, whole in zip(module.parameters(), alone.parameters(), strict=True):
            close(mine.grad.to_dense(), whole.grad.to_dense(), EXACT, f"sparse: step {step}")


def on_another_stream(device: str) -> None:
    """All of a program on a stream that is not the default one, which is busy: what a hook computes of the gradients belongs on
    the program's stream."""
    import torch
    import torch.distributed as theirs
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    me, size = theirs.get_rank(), theirs.get_world_size()
    for name, hook in (("without a hook", None), ("allreduce_hook", default_hooks.allreduce_hook),
                       ("fp16_compress_hook", default_hooks.fp16_compress_hook)):
        torch.cuda.synchronize()
        with torch.cuda.stream(stream := torch.cuda.Stream()):
            alone = network(device)
            module = torch.nn.parallel.DistributedDataParallel(copy.deepcopy(alone))
            if hook is not None:
                module.register_comm_hook(None, hook)
            for turn in range(TURNS):  # which thread calls a hook's callback is a matter of time
                for model in (alone, module):
                    model.zero_grad()
                x = batch(turn, size, device)
                alone(x).pow(2).mean().backward()
                loss = module(x[me * ROWS : (me + 1) * ROWS]).pow(2).mean()
                stream.synchronize()
                with torch.cuda.stream(torch.cuda.default_stream()):
                    torch.cuda._sleep(SLEEP)
                loss.backward()
                for mine, whole in zip(module.parameters(), alone.parameters(), strict=True):
                    close(mine.grad, whole.grad, HALF, f"a gradient of turn {turn} on another stream, {name}")
        told(f"on a stream beside a busy default stream, {name}", HALF, theirs)
