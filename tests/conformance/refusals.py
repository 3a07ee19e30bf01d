"""Tasks: what is refused before anything is sent. After every refusal the group works on."""

from __future__ import annotations

import faulthandler
import os
import re
import signal
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import numpy as np

from .data import make
from .worlds import Context


def arguments(context: Context) -> None:
    """Arrays, dtypes, shapes, operations, roots, peers, tags and counts that make no sense."""
    group, size = context.group, context.size
    x, f = np.arange(6 * size, dtype=np.int32), np.ones(4, np.float32)
    none: Any = None
    wrong: Any = group  # for arguments of other types
    for label, kind, text, call in [
        ("no array", TypeError, "", lambda: wrong.all_reduce("text")),
        ("a list", TypeError, "", lambda: wrong.all_reduce([1, 2])),
        ("None", TypeError, "", lambda: group.broadcast(none)),
        ("strings", TypeError, "", lambda: group.all_reduce(np.array(["a"]))),
        ("objects", TypeError, "", lambda: group.all_reduce(np.array([object()]))),
        ("dates", TypeError, "", lambda: group.all_reduce(np.array(["2020-01-01"], "datetime64[D]"))),
        ("byte order", TypeError, "", lambda: group.all_reduce(np.arange(3, dtype=">i4"))),
        ("unknown op", ValueError, "unknown reduction 'mean'.*sum", lambda: group.all_reduce(f, "mean")),
        ("bits of floats", TypeError, "band.*float32", lambda: group.all_reduce(f, "band")),
        ("order of complex", TypeError, "max.*complex64", lambda: group.all_reduce(f.astype(np.complex64), "max")),
        ("avg of bool", TypeError, "avg.*bool", lambda: group.all_reduce(f > 0, "avg")),
        ("root too high", ValueError, f"root {size}.*ranks 0 to {size - 1}", lambda: group.reduce(x, size)),
        ("root below", ValueError, "root -1", lambda: group.broadcast(x, -1)),
        ("root float", TypeError, "root", lambda: wrong.gather(x, 0.0)),
        ("dest", ValueError, f"dest {size}", lambda: group.send(x, size)),
        ("source", ValueError, "source -2", lambda: group.recv(-2, like=x)),
        ("tag below", ValueError, "tag", lambda: group.send(x, 0, -1)),
        ("tag float", TypeError, "tag", lambda: wrong.send(x, 0, 1.5)),
        ("timeout below", ValueError, "timeout.*at least 0.*-1", lambda: group.all_reduce(f, timeout=-1.0)),
        ("timeout nan", ValueError, "timeout.*nan", lambda: group.barrier(timeout=float("nan"))),
        ("timeout text", TypeError, "timeout.*seconds.*'1'", lambda: wrong.send(x, 0, timeout="1")),
        ("timeout delta", TypeError, "timeout.*seconds", lambda: wrong.recv(like=x, timeout=timedelta(1))),
        ("timeout of objects", ValueError, "timeout", lambda: group.all_gather_object(1, timeout=-0.5)),
        ("timeout of a subgroup", ValueError, "timeout", lambda: group.subgroup([group.rank], "never", timeout=-1.0)),
        ("no timeout of a subgroup", ValueError, "above 0", lambda: group.subgroup([group.rank], "never", timeout=0.0)),
        ("form", ValueError, "form.*concat", lambda: wrong.all_gather(x, form="tuple")),
        ("uneven stack", ValueError, "stack", lambda: group.all_gather(x, form="stack", uneven=True)),
        ("own count", ValueError, "gives 7 rows", lambda: group.all_gather(x, counts=[7] * size)),
        ("counts to gather", ValueError, "one number for each", lambda: group.all_gather(x, counts=[6] * (size + 1))),
        ("0-d cut", ValueError, "0-d", lambda: group.reduce_scatter(np.float32(1) + np.zeros(()))),
        ("few counts", ValueError, "counts", lambda: group.reduce_scatter(x, counts=[1] * (size + 1))),
        ("sum of counts", ValueError, "add up", lambda: group.reduce_scatter(x, counts=[7] * size)),
        ("negative counts", ValueError, ">= 0", lambda: group.all_to_all(x, send_counts=[-1] * size)),
        ("counts of floats", ValueError, "integers >= 0", lambda: wrong.all_to_all(x, send_counts=np.full(size, 6.0))),
        ("counts of bools", ValueError, "integers >= 0", lambda: group.all_gather(x[:1], counts=[True] * size)),
        ("received floats", ValueError, "recv_counts.*integers", lambda: wrong.all_to_all(
            x, send_counts=[6] * size, recv_counts=[6.0] * size)),
        ("recv_counts alone", ValueError, "send_counts", lambda: group.all_to_all(x, recv_counts=[6] * size)),
        ("color", TypeError, "color", lambda: wrong.split("red")),
    ]:
        context.raises(label, kind, text, call)
    if size > 1:
        context.raises("indivisible", ValueError, "multiple", lambda: group.all_to_all(np.arange(size + 1)))
        context.raises("no template", ValueError, "like=",
                 lambda: group.scatter(None, (context.rank + 1) % size))
    _still_works(context)


def outputs(context: Context) -> None:
    """Arrays that cannot take the result."""
    group = context.group
    x = np.arange(6, dtype=np.float32)
    frozen = np.zeros(6, np.float32)
    frozen.setflags(write=False)
    for label, text, call in [
        ("shape", r"\(7,\).*\(6,\)", lambda: group.all_reduce(x, out=np.zeros(7, np.float32))),
        ("dtype", "float64.*float32", lambda: group.all_reduce(x, out=np.zeros(6))),
        ("strided", "contiguous", lambda: group.all_reduce(x, out=np.zeros(12, np.float32)[::2])),
        ("read-only", "out=", lambda: group.all_reduce(x, out=frozen)),
        ("read-only in place", "out=", lambda: group.all_reduce(frozen, out=frozen)),
        ("jax", "immutable.*out=|out=.*immutable", lambda: group.all_reduce(x, out=make("jax", x))),
        ("jax in place", "out=", lambda: (lambda j: group.all_reduce(j, out=j))(make("jax", x))),
        ("jax receive", "out=", lambda: (lambda j: group.recv(0, out=j))(make("jax", x))),
        ("overlap", "overlap", lambda: (lambda b: group.all_reduce(b[:4], out=b[1:5]))(x.copy())),
        ("overlap from behind", "overlap", lambda: (lambda b: group.all_reduce(b[1:5], out=b[:4]))(x.copy())),
    ]:
        context.raises(f"out: {label}", (ValueError, TypeError), text, call)
    if context.size > 1:
        whole = np.zeros(4 * context.size, np.float32)
        other = (context.rank + 1) % context.size
        context.raises("block of another rank", ValueError, "overlap",
                 lambda: group.all_gather(whole[other * 4 : other * 4 + 4], out=whole))
        context.raises("all_to_all in place", ValueError, "overlap", lambda: group.all_to_all(whole, out=whole))
    _still_works(context)


def torch_bits(context: Context) -> None:
    """Lazily conjugated or negated tensors, and those that want a gradient: right, or refused with a reason."""
    import torch

    z = torch.tensor([1 + 2j, 3 - 1j])
    for label, x, want in [("conjugate", z.conj(), z.numpy().conj()), ("negative", z.conj().imag, -z.numpy().imag)]:
        try:
            y = context.group.all_reduce(x)
        except (TypeError, ValueError) as error:
            context.check(re.search("resolve_|conj|neg", str(error)), f"{label}: {error}")
        else:
            context.check(np.array_equal(y.resolve_conj().resolve_neg().numpy(), want * context.size), f"{label}: {y}")
    leaf = torch.ones(3, requires_grad=True)
    try:
        y = context.group.all_reduce(leaf)
    except (TypeError, ValueError, RuntimeError) as error:
        context.check("detach" in str(error), f"gradient: {error}")
    else:
        context.check(not y.requires_grad and y.tolist() == [context.size] * 3, f"gradient: {y}")
    _still_works(context)


def fork(context: Context) -> None:
    """A child made by fork may not use the group, in any way, and is told so; the parent is not disturbed."""
    group = context.group
    group.all_reduce(np.ones(3), async_op=True).wait(60)  # so that there is a worker, which the child will not have
    under_way = group.irecv(context.rank, tag=11, like=np.ones(3))
    for label, call in [
        ("all_reduce", lambda: group.all_reduce(np.ones(3))),
        ("all_gather", lambda: group.all_gather(np.ones(3))),
        ("asynchronous", lambda: group.all_reduce(np.ones(3), async_op=True).wait(5)),
        ("message", lambda: group.isend(np.ones(3), context.rank).wait(5)),
        ("begun before", lambda: under_way.wait(5)),
        ("barrier", lambda: group.barrier()),
    ]:
        said = _said_by_child(call)
        context.check(said.startswith("RuntimeError") and "fork" in said, f"fork, {label}: {said}")
    group.send(np.full(3, 2.0), context.rank, tag=11)
    context.check(under_way.result(60).array.tolist() == [2.0] * 3, "begun before a fork")
    _still_works(context)


def _said_by_child(call: Callable[[], Any]) -> str:
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        faulthandler.dump_traceback_later(30, exit=True, file=write)  # when it hangs: says where, and ends it
        signal.alarm(60)
        try:
            call()
            said = "no error"
        except RuntimeError as error:
            said = f"RuntimeError: {error}"
        except BaseException as error:  # whatever it is, it has to reach the parent
            said = f"{type(error).__name__}: {error}"
        os.write(write, said.encode()[:4000])
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        said = pipe.read().decode()
    status = os.waitpid(child, 0)[1]
    return said or f"ended with status {status}, without a word"


def _still_works(context: Context) -> None:
    y = context.group.all_reduce(np.full(3, context.rank, np.int64))
    context.check(y.tolist() == [context.size * (context.size - 1) // 2] * 3, f"afterwards: {y}")
