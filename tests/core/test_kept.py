"""What is kept between calls (readers of types, layouts of shapes, codes of reductions) changes no later call.

Every test makes calls that are unlike each other in one process, in an order in which one that is answered from another's
memory gives a wrong result or no error. Two ranks are threads of this process, which share all that is kept."""

from __future__ import annotations

import gc
import itertools
import random
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch

import arraycomm
from arraycomm.core.group import arguments

DTYPES = ("int8", "uint8", "bool", "int16", "uint64", "float16", "float32", "float64", "complex64")
SHAPES = ((), (0,), (1,), (5,), (7,), (2, 3), (3, 2), (2, 1, 2, 1, 3), (1, 2, 1, 2, 1, 3), (1, 2, 1, 2, 1, 5),
          (1, 1, 2, 1, 2, 1, 3), (1, 1, 2, 1, 2, 3, 1), (2, 1, 1, 1, 1, 1, 1, 1))


def ranks(work: Callable[[arraycomm.Group], Any]) -> list[Any]:
    """work(group) on two ranks; what they return."""
    return arraycomm.run(work, 2, timeout=30.0)


def values(seed: int, rank: int, shape: Sequence[int], dtype: str) -> np.ndarray[Any, Any]:
    return np.random.default_rng((seed, rank)).integers(0, 2, tuple(shape)).astype(dtype)


def strided(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The same values, every other element of their memory: what the fast path leaves to the slow one."""
    wide = np.zeros((*x.shape, 2), x.dtype)
    wide[..., 0] = x
    return wide[..., 0]


def as_torch(x: np.ndarray[Any, Any]) -> Any:
    return torch.from_numpy(x) if x.dtype != np.uint64 else x


FORMS: dict[str, Callable[[np.ndarray[Any, Any]], Any]] = {
    "array": lambda x: x,
    "strided": strided,
    "torch": as_torch,
    "torch, strided": lambda x: as_torch(strided(x)),
    "buffer": lambda x: memoryview(x),  # type: ignore[arg-type]
}
REDUCTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "sum": np.add, "max": np.maximum, "min": np.minimum, "product": np.multiply}


def one_call(group: arraycomm.Group, seed: int) -> None:
    chosen = random.Random(seed)
    dtype, shape, op = chosen.choice(DTYPES), chosen.choice(SHAPES), chosen.choice(sorted(REDUCTIONS))
    form = FORMS[chosen.choice([*FORMS][:-1] if dtype == "float16" or not shape else [*FORMS])]
    if dtype == "complex64" and op in ("max", "min"):
        op = "sum"
    given = [values(seed, rank, shape, dtype) for rank in range(2)]
    what = f"call {seed}: {dtype} {shape} {op}"
    result = np.asarray(group.all_reduce(form(given[group.rank]), op))
    np.testing.assert_array_equal(result.reshape(shape), REDUCTIONS[op](*given).astype(dtype), what)
    result = np.asarray(group.all_gather(form(given[group.rank]), form="stack"))
    np.testing.assert_array_equal(result.reshape(2, *shape), np.stack(given), what)
    root = seed % 2
    result = np.asarray(group.broadcast(form(given[group.rank]), root))
    np.testing.assert_array_equal(result.reshape(shape), given[root], what)


def test_unlike_calls_in_turns() -> None:
    """Libraries, dtypes, shapes, reductions and roots in an order that no loop has."""
    def work(group: arraycomm.Group) -> None:
        for seed in range(300):
            one_call(group, seed)

    ranks(work)


def test_groups_in_turns() -> None:
    """Two groups of the same ranks, in the other order in the second: a rank is another number there."""
    def work(group: arraycomm.Group) -> None:
        turned = group.split(0, key=-group.rank)
        assert turned is not None and turned.rank == 1 - group.rank
        with turned:
            for seed, chosen in enumerate(itertools.islice(itertools.cycle((group, turned)), 60)):
                one_call(chosen, seed)
        one_call(group, 60)  # after the other one is closed

    ranks(work)


@pytest.mark.parametrize("ndim", [1, 2, 5, 6, 7, 9])
def test_shapes_that_differ_in_one_dimension(ndim: int) -> None:
    """Ranks that call with unlike shapes are told so, after both shapes have been used: the last dimensions and the first."""
    def mismatched(one: tuple[int, ...], other: tuple[int, ...]) -> None:
        def work(group: arraycomm.Group) -> None:
            for shape in (one, other, one):
                group.all_reduce(np.ones(shape, np.float32))
            with pytest.raises(arraycomm.CollectiveMismatch):
                group.all_reduce(np.ones((one, other)[group.rank], np.float32))

        ranks(work)

    ahead = (1,) * (ndim - 2)
    if ndim == 1:
        mismatched((5,), (7,))
    else:
        mismatched((*ahead, 2, 3), (*ahead, 3, 2))
        mismatched((2, 3, *ahead), (3, 2, *ahead))
        mismatched((*ahead, 6, 1), (*ahead, 1, 6))


@pytest.mark.parametrize("ndim", [1, 6, 7])
def test_shapes_of_the_fast_path_beside_the_slow_one(ndim: int) -> None:
    """One rank goes the path that keeps what it knows of shapes, the other the path that does not: they agree on every shape,
    also on those that differ in the last dimension alone, and on more of them than are kept."""
    def work(group: arraycomm.Group) -> None:
        for last in range(1, 200):
            x = np.ones((*(1,) * (ndim - 1), last), np.int8)
            group.all_reduce(x if group.rank == last % 2 else strided(x))

    ranks(work)


class Derived(torch.Tensor):
    """None that torch's C interface is asked for."""


@pytest.mark.parametrize("order", [("int8", "uint8"), ("uint8", "int8")])
def test_bytes_of_torch_by_the_slow_path(order: tuple[str, str]) -> None:
    """torch's exporters name more than one of its dtypes int8; what tells them apart is kept for each of both."""
    def work(group: arraycomm.Group) -> None:
        for name in (*order, *order):
            dtype = getattr(torch, name)
            wide = torch.tensor([[100, 1], [3, 4]], dtype=dtype)
            for x in (wide[:, 0], wide[:, 0].as_subclass(Derived)):  # by torch's C interface, by DLPack
                total = group.all_reduce(x, "max")
                assert total.dtype == dtype and total.tolist() == [100, 3]
            assert group.all_gather(wide.t()).dtype == dtype
        if hasattr(torch, "int4"):
            with pytest.raises(TypeError):
                group.all_reduce(torch.empty(4, dtype=torch.int4))

    ranks(work)


def test_reductions_with_factors() -> None:
    """The factor is a part of the call: not the one of the call before."""
    def work(group: arraycomm.Group) -> None:
        for factor in (2.0, 0.5, 2.0, -1.0):
            assert group.all_reduce(np.ones(3), arraycomm.premul_sum(factor)).tolist() == [2 * factor] * 3
            assert group.all_reduce(np.ones(3)).tolist() == [2.0] * 3

    ranks(work)


def test_names_of_reductions_that_are_made_for_each_call() -> None:
    """One may lie where the one before lay, which nobody else held."""
    def work(group: arraycomm.Group) -> None:
        for name in ("sum", "max", "min") * 10:
            found = group.all_reduce(np.full(2, group.rank + 1.0), "".join(list(name)))
            assert found.tolist() == [{"sum": 3.0, "max": 2.0, "min": 1.0}[name]] * 2

    ranks(work)


def test_what_is_kept_does_not_grow_with_factors() -> None:
    def work(group: arraycomm.Group) -> int:
        before = len(arguments._defined)
        for factor in range(1, 101):
            group.all_reduce(strided(np.ones(2)), arraycomm.premul_sum(factor))
        return len(arguments._defined) - before

    assert ranks(work) == [0, 0]


def test_groups_that_follow_each_other() -> None:
    """What a closed group has left (numbers, memory, names) is not another one's."""
    for turn in range(5):
        def work(group: arraycomm.Group, turn: int = turn) -> Any:
            part = group.subgroup([0], "same name") if group.rank == 0 else None
            total = group.all_reduce(np.full(turn + 1, group.rank + turn, np.int64))
            if part is not None:
                assert part.all_reduce(np.full(2, 7)).tolist() == [7, 7]
                part.close()
            return total

        for total in ranks(work):
            np.testing.assert_array_equal(total, np.full(turn + 1, 2 * turn + 1))


def test_classes_are_not_kept_for_ever() -> None:
    """A program may make one for each array."""
    with arraycomm.init() as group:
        def made() -> weakref.ref[type]:
            kind = type("Exporter", (), {"__dlpack__": lambda self, **given: np.ones(1).__dlpack__(**given)})
            assert group.all_reduce(kind()).tolist() == [1]
            return weakref.ref(kind)

        known = [made() for _ in range(400)]
    gc.collect()
    assert sum(one() is not None for one in known) <= 3 * 64  # two tables here, one in C
