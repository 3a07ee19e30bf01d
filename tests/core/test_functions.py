"""Reductions by functions of the program's, in Python and in C. The ranks are threads of this process."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Any

import cffi
import numpy as np
import pytest

import arraycomm
from arraycomm import CollectiveMismatch, RemoteError

_FFI = cffi.FFI()
_SIGNATURE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint64, ctypes.c_int32, ctypes.c_void_p)
_AFFINE = np.dtype([("a", np.int64), ("b", np.int32), ("pad", np.uint8)])


def ranks(work: Callable[[arraycomm.Group], Any], size: int = 3) -> list[Any]:
    return arraycomm.run(work, size, timeout=60.0)


def _less(left: Any, right: Any) -> Any:
    """In no other order the same."""
    return left * 2 - right


def _then(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """One map after the other."""
    made = np.zeros_like(right)
    made["a"], made["b"] = left["a"] * right["a"], left["a"] * right["b"] + left["b"]
    return made


def _at(address: int, count: int, dtype: Any) -> np.ndarray:
    return np.frombuffer((ctypes.c_char * (count * np.dtype(dtype).itemsize)).from_address(address), dtype)


def _in_c(function: Callable[[Any, Any], Any], dtype: Any = "float64", seen: list[tuple[int, int]] | None = None) -> Any:
    """As C calls it."""
    def call(left: int, inout: int, count: int, number: int, context: int | None) -> None:
        if seen is not None:
            seen.append((number, context or 0))
        if count:
            to = _at(inout, count, dtype)
            to[:] = function(_at(left, count, dtype), to.copy())

    return _SIGNATURE(call)


@pytest.mark.parametrize("op", [_less, arraycomm.reduction(_in_c(_less))], ids=["python", "c"])
def test_in_rank_order(op: Any) -> None:
    def work(group: arraycomm.Group) -> None:
        rank, xs = group.rank, [np.arange(12.0).reshape(3, 4) * (r + 1) for r in range(3)]
        want = [xs[0], _less(xs[0], xs[1]), _less(_less(xs[0], xs[1]), xs[2])]
        x = xs[rank].copy()
        np.testing.assert_array_equal(group.all_reduce(x, op), want[2])
        np.testing.assert_array_equal(group.scan(x, op), want[rank])
        np.testing.assert_array_equal(group.exscan(x, op), want[rank - 1] if rank else np.zeros((3, 4)))
        np.testing.assert_array_equal(group.reduce_scatter(x, op), want[2][rank : rank + 1])
        np.testing.assert_array_equal(group.reduce_scatter(x, op, counts=[0, 3, 0]), want[2] if rank == 1 else np.empty((0, 4)))
        for root in range(3):
            y = group.reduce(x, root, op)
            assert (y is None) == (rank != root)
            if y is not None:
                np.testing.assert_array_equal(y, want[2])
        np.testing.assert_array_equal(x, xs[rank])
        np.testing.assert_array_equal(group.all_reduce(np.asfortranarray(x), op), want[2])
        np.testing.assert_array_equal(group.reduce_scatter(x, op, out=x[rank : rank + 1]), want[2][rank : rank + 1])
        for call, result in ((group.all_reduce, want[2]), (group.scan, want[rank])):
            out = xs[rank].copy()
            assert call(out, op, out=out) is out
            np.testing.assert_array_equal(out, result)
        assert group.all_reduce(np.array(float(rank)), op) == _less(_less(0.0, 1.0), 2.0)
        assert group.all_reduce(np.zeros((0, 2)), op).shape == (0, 2)

    ranks(work)
    ranks(lambda group: np.testing.assert_array_equal(group.all_reduce(np.ones(2), op), np.ones(2)), 1)


def test_what_is_no_number_for_the_engine() -> None:
    """Matrices, which are not multiplied element by element; structured arrays; dtypes that are moved only."""
    seen: list[tuple[int, int]] = []
    in_c = arraycomm.reduction(_in_c(_then, _AFFINE, seen))

    def work(group: arraycomm.Group) -> None:
        turns = [np.array([[r, 1], [1, 0]], np.int64) for r in range(1, 4)]
        product = functools.reduce(np.matmul, turns)
        assert (product != functools.reduce(np.matmul, turns[::-1])).any()
        np.testing.assert_array_equal(group.all_reduce(turns[group.rank], np.matmul), product)
        many = np.stack([turns[group.rank].astype(np.float32)] * 5)
        np.testing.assert_array_equal(group.scan(many, np.matmul)[4], functools.reduce(np.matmul, turns[: group.rank + 1]))
        maps = [np.array([(r + 2, r, 0), (1, 7 * r, 0)], _AFFINE) for r in range(3)]
        want = functools.reduce(_then, maps)
        for op in (_then, in_c):
            np.testing.assert_array_equal(group.all_reduce(maps[group.rank], op), want)
            part = group.reduce_scatter(maps[group.rank], op, counts=[0, 1, 1])
            np.testing.assert_array_equal(part, want[max(0, group.rank - 1) : group.rank])
            assert group.exscan(maps[group.rank], op).tolist() == (functools.reduce(_then, maps[: group.rank]) if group.rank else
                                                                   np.zeros(2, _AFFINE)).tolist()
        days = np.array(["2026-01-01", f"2026-02-0{group.rank + 1}"], "datetime64[D]")
        assert group.all_reduce(days, np.maximum)[1] == np.datetime64("2026-02-03")

    ranks(work)
    assert {number >= 256 for number, _ in seen} == {True}


def test_functions_in_c() -> None:
    seen: list[tuple[int, int]] = []
    function, place = _in_c(_less, "int32", seen), ctypes.c_int(5)
    given = (function, ctypes.cast(function, ctypes.c_void_p).value,
             _FFI.cast("void *", ctypes.cast(function, ctypes.c_void_p).value),
             type("Compiled", (), {"address": ctypes.cast(function, ctypes.c_void_p).value, "__module__": "numba"})())
    ops = [arraycomm.reduction(one, ctypes.pointer(place)) for one in given]

    def work(group: arraycomm.Group) -> None:
        for op in ops:
            assert group.all_reduce(np.full(4, group.rank, np.int32), op).tolist() == [-4] * 4

    ranks(work)
    assert set(seen) == {(int(arraycomm.DType.INT32), ctypes.addressof(place))}
    for wrong, kind in (("f", TypeError), (_less, TypeError), (1.5, TypeError), (None, TypeError), (0, ValueError)):
        with pytest.raises(kind, match="function"):
            arraycomm.reduction(wrong)


def test_its_first_argument_is_the_functions_own() -> None:
    def added(left: np.ndarray, right: np.ndarray) -> np.ndarray:
        left += right
        return left

    def work(group: arraycomm.Group) -> None:
        x = np.full(5, group.rank + 1.0)
        assert group.scan(x, added)[0] == sum(range(1, group.rank + 2)) and (x == group.rank + 1).all()
        assert group.all_reduce(x, np.add, timeout=20)[0] == 6

    ranks(work)


def _raises_on(rank: int) -> Callable[[arraycomm.Group], Any]:
    def reduction(group: arraycomm.Group) -> Any:
        def function(left: Any, right: Any) -> Any:
            if group.rank == rank:
                raise ZeroDivisionError("not today")
            return left + right
        return function

    return reduction


def test_an_error_of_the_function_is_every_ranks() -> None:
    def work(group: arraycomm.Group) -> None:
        for rank in (1, 2):
            for call in (group.all_reduce, group.scan, group.exscan, group.reduce_scatter, lambda x, op: group.reduce(x, 1, op)):
                op, x = _raises_on(rank)(group), np.ones((3, 2))
                if rank == 2 and call == group.exscan:  # the last rank's is not needed
                    call(x, op)
                    continue
                with pytest.raises(ZeroDivisionError if group.rank == rank else RemoteError, match="not today") as caught:
                    call(x, op)
                if isinstance(caught.value, RemoteError):
                    assert caught.value.type_name == "ZeroDivisionError" and f"on rank {rank}" in str(caught.value)
        for function, text in ((lambda a, b: a.astype(np.float32), "float32 of shape"), (lambda a, b: a[0], "shape"),
                               (lambda a, b: None, "expected an array"), (max, "ambiguous")):
            with pytest.raises((TypeError, ValueError, RemoteError), match=text):
                group.all_reduce(np.ones(3), function)
        assert group.all_reduce(np.ones(1))[0] == 3

    ranks(work)


def test_what_is_wrong_is_said_before_anything_is_sent() -> None:
    wrong: list[tuple[Callable[[arraycomm.Group, Any], Any], type[Exception], str]] = [
        (lambda g, x: g.all_reduce(x, _less, async_op=True), ValueError, "not asynchronous"),
        (lambda g, x: g.reduce(x, 7, _less), ValueError, "root 7"),
        (lambda g, x: g.reduce_scatter(x, _less), ValueError, "multiple of the group's size"),
        (lambda g, x: g.all_reduce(x.tolist(), _less), TypeError, "expected an array"),
        (lambda g, x: g.all_reduce(x, _less, out=x[:2]), ValueError, "shape"),
        (lambda g, x: g.all_reduce(x, _less, timeout=-1), ValueError, "timeout"),
        (lambda g, x: g.all_reduce(x, "less"), ValueError, "unknown reduction"),
    ]

    def work(group: arraycomm.Group) -> None:
        for call, kind, text in wrong:
            with pytest.raises(kind, match=text):
                call(group, np.ones(3))
        assert group.all_reduce(np.ones(1))[0] == 2
        with pytest.raises(TypeError, match="functions reduce in all_reduce"):
            arraycomm.GradientReducer(group, [np.ones(3)], op=_less)  # type: ignore[arg-type]

    ranks(work, 2)


def _unlike(first: Callable[[arraycomm.Group], Any], other: Callable[[arraycomm.Group], Any], text: str, *, usable: bool) -> None:
    def work(group: arraycomm.Group) -> None:
        with pytest.raises(CollectiveMismatch, match=text):
            (first if group.rank == 0 else other)(group)
        if usable:
            assert group.all_reduce(np.ones(1))[0] == 2

    ranks(work, 2)


def test_ranks_that_do_not_agree() -> None:
    x = np.ones(4)
    _unlike(lambda g: g.all_reduce(x, _less), lambda g: g.all_reduce(x), "all_reduce", usable=False)
    _unlike(lambda g: g.all_reduce(x, _less), lambda g: g.all_gather(np.ones(1, np.int64)), "all_gather", usable=False)
    for other in (lambda g: g.scan(x, _less), lambda g: g.all_reduce(np.ones(5), _less), lambda g: g.reduce(x, 0, _less),
                  lambda g: g.all_reduce(np.ones(4, np.float32), _less), lambda g: g.reduce_scatter(x, _less)):
        _unlike(lambda g: g.all_reduce(x, _less), other, "reduce by functions, but not alike", usable=True)
    _unlike(lambda g: g.reduce(x, 0, _less), lambda g: g.reduce(x, 1, _less), "root", usable=True)


def test_an_interrupted_function_ends_the_group() -> None:
    def work(group: arraycomm.Group) -> None:
        def function(left: Any, right: Any) -> Any:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt if group.rank == 1 else arraycomm.Aborted):
            group.all_reduce(np.ones(3), function)

    ranks(work)
