"""A call means the same on the fast path and on the slow one, which is the reference: every method with arguments as programs of
all kinds give them, one of them odd at a time, answers or raises the same."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Iterator
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import torch

import arraycomm
from arraycomm.core.bootstrap.store import HashStore

VALUES: tuple[Any, ...] = (None, True, False, 0, 1, -1, 2**31, 2**63, 2**70, 0.0, 1.5, -0.5, float("nan"), float("inf"), "", "0",
                           "sum", "max", "stack", "list", b"0", np.int32(0), np.uint64(1), np.float32(0), np.bool_(True),
                           np.array(0), [], [2], (1,), {}, object, arraycomm.premul_sum(2.0))


def read_only() -> Any:
    x = np.ones((2, 2), np.float32)
    x.flags.writeable = False
    return x


ARRAYS: dict[str, Callable[[], Any]] = {
    "plain": lambda: np.arange(4, dtype=np.float32).reshape(2, 2),
    "transposed": lambda: np.arange(4, dtype=np.float32).reshape(2, 2).T,
    "column": lambda: np.ones((2, 4), np.float32)[:, ::2], "reversed": lambda: np.ones((2, 2), np.float32)[::-1],
    "read-only": read_only, "0-d": lambda: np.array(3.0), "scalar": lambda: np.float64(2), "no elements": lambda: np.ones((0, 2)),
    "other dtype": lambda: np.ones((2, 2)), "other shape": lambda: np.ones(3, np.float32), "bool": lambda: np.ones(2, bool),
    "big-endian": lambda: np.ones((2, 2), ">f4"), "complex": lambda: np.ones(2, "c8"), "objects": lambda: np.array([None, 1]),
    "torch": lambda: torch.ones(2, 2), "torch, transposed": lambda: torch.ones(2, 3).t(), "requires_grad":
    lambda: torch.ones(2, 2, requires_grad=True), "jax": lambda: jnp.ones((2, 2)), "bytes": lambda: b"ab", "bytearray":
    lambda: bytearray(4), "ctypes": lambda: (ctypes.c_float * 4)(), "None": lambda: None, "number": lambda: 1.0,
    "text": lambda: "ab", "list": lambda: [1.0, 2.0],
    "arrays": lambda: [np.ones(2)], "dict": lambda: {}, "type": lambda: np.ndarray}

# The parameters of each method; those that are arrays begin with one that is plain.
METHODS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "all_reduce": (("x", "out"), ("op", "async_op", "timeout")),
    "reduce": (("x", "out"), ("root", "op", "async_op", "timeout")),
    "broadcast": (("x", "out"), ("root", "async_op", "timeout")),
    "all_gather": (("x", "out"), ("form", "uneven", "counts", "async_op", "timeout")),
    "gather": (("x", "out"), ("root", "form", "async_op", "timeout")),
    "scatter": (("x", "like", "out"), ("root", "async_op", "timeout")),
    "reduce_scatter": (("x", "out"), ("op", "counts", "async_op", "timeout")),
    "all_to_all": (("x", "out"), ("send_counts", "recv_counts", "async_op", "timeout")),
    "barrier": ((), ("async_op", "timeout")),
    "isend": (("x",), ("dest", "tag", "timeout")),
}
NEEDED = {"isend": {"dest": 0}}


def calls(name: str) -> Iterator[dict[str, Any]]:
    """Keyword arguments, the arrays by their names in ARRAYS: a plain call with one argument, or two, of another kind."""
    arrays, others = METHODS[name]
    plain = {"x": "plain"} if "x" in arrays else {}
    for parameter in arrays:
        for kind in ARRAYS:
            yield {**plain, **NEEDED.get(name, {}), parameter: kind}
            if parameter != "x":
                yield {**plain, **NEEDED.get(name, {}), "x": "transposed", parameter: kind}
    for parameter in others:
        for value in VALUES:
            for x in ("plain", "transposed", "torch", "0-d") if plain else ("",):
                yield {**NEEDED.get(name, {}), **({"x": x} if x else {}), parameter: value}


def outcome(name: str, given: dict[str, Any], *, fast: bool) -> tuple[Any, ...]:
    arrays = METHODS[name][0]
    made = {key: ARRAYS[value]() if key in arrays else value for key, value in given.items()}
    with arraycomm.init(store=HashStore(), rank=0, world_size=1) as group:
        if not fast:
            group._shortcut = None
        try:
            result = getattr(group, name)(**made)
            if isinstance(result, arraycomm.Work) and name != "isend":
                result = ("work", result.result(30))
        except Exception as error:
            return type(error), without_addresses(str(error))
        left = {key: described(made[key]) for key in arrays if key in made}
        return "answered", described(result), left, result is made.get("out")


def without_addresses(text: str) -> str:
    """Objects that are alike lie at different ones."""
    return re.sub(" at 0x[0-9a-f]+", "", text)


def described(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [described(one) for one in value]
    if isinstance(value, arraycomm.Work):
        return "work"
    shape = getattr(value, "shape", None)
    if shape is None:
        return type(value), without_addresses(repr(value))
    plain = value.detach() if isinstance(value, torch.Tensor) else value
    return type(value), shape, str(getattr(value, "dtype", "")), np.asarray(plain).tolist()


@pytest.mark.parametrize("name", METHODS)
def test_both_paths_answer_alike(name: str) -> None:
    seen, different = set(), []
    for given in calls(name):
        fast, slow = outcome(name, given, fast=True), outcome(name, given, fast=False)
        seen.add(fast[0])
        if repr(fast) != repr(slow):
            different.append(f"{given}:\n  fast {fast}\n  slow {slow}")
    assert not different, "\n".join(different[:20])
    assert "answered" in seen and (TypeError in seen or ValueError in seen)


def test_positions_mean_the_same() -> None:
    """None by position as by name."""
    x = np.arange(4.0).reshape(2, 2)
    with arraycomm.init(store=HashStore(), rank=0, world_size=1) as opened:
        group: Any = opened
        for y in (x, x.T):
            assert group.all_reduce(y, None).tolist() == group.broadcast(y, None).tolist() == y.tolist()
            assert group.reduce(y, None, None).tolist() == group.gather(y, None, form=None).tolist() == y.tolist()
            assert group.scatter(y, None).tolist() == group.reduce_scatter(y, None).tolist() == y.tolist()
            for call in (group.isend, group.send):
                with pytest.raises(TypeError, match="tag must be an integer, got None"):
                    call(y, 0, None)
                with pytest.raises(TypeError, match="tag must be an integer, got None"):
                    call(y, 0, tag=None)
            for dest in (None, True, 0.0, "0"):
                with pytest.raises(TypeError, match="dest must be an integer"):
                    group.isend(y, dest)
