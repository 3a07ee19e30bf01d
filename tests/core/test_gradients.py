"""core/group/gradients.py: GradientReducer, on several ranks."""

from __future__ import annotations

import faulthandler
import threading
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import arraycomm
from arraycomm.launch.spawn import spawn
from tests.standin import build

SHAPES = [(64, 33), (), (129,), (0,), (3, 5, 7), (2000,), (1,)]


def _gradients(rank: int, dtype: Any = np.float32) -> list[Any]:
    rng = np.random.default_rng(rank)
    return [np.asarray(rng.normal(size=shape)).astype(dtype) for shape in SHAPES]


def _run(task: Callable[[arraycomm.Group], None], size: int, **environ: str) -> None:
    def rank(group: arraycomm.Group) -> None:
        task(group)
        group.barrier()

    with pytest.MonkeyPatch.context() as patch:
        for name, value in environ.items():
            patch.setenv(name, value)
        arraycomm.run(rank, size, timeout=30.0)


def _the_same_bits(group: arraycomm.Group) -> None:
    for dtype in (np.float32, np.float64, ml_dtypes.bfloat16):
        mine = _gradients(group.rank, dtype)
        expected = [group.all_reduce(x, op="avg") for x in mine]
        for limit in (1, 1000, 9000, 25 << 20):
            reducer = arraycomm.GradientReducer(group, mine, bucket_bytes=limit)
            for _ in range(2):
                for found, right in zip(reducer.reduce(mine), expected, strict=True):
                    assert found.shape == right.shape and found.dtype == right.dtype
                    assert found.tobytes() == right.tobytes(), (dtype, limit)


@pytest.mark.parametrize("environ", [{}, {"ARRAYCOMM_TRANSPORT": "tcp", "ARRAYCOMM_ALGORITHM": "all_reduce=pairwise"}])
def test_bits_do_not_depend_on_buckets(environ: dict[str, str]) -> None:
    _run(_the_same_bits, 3, **environ)


def _libraries(group: arraycomm.Group) -> None:
    import torch

    like = [np.zeros(5, np.float32), torch.zeros(3, 2), np.zeros(4, np.int64), torch.zeros(2)]
    reducer = arraycomm.GradientReducer(group, like, op="sum")
    assert reducer.buckets == [[2], [3, 1, 0]]
    given = [np.full(5, group.rank, np.float32), torch.ones(3, 2), None if group.rank else np.arange(4), torch.ones(2)]
    found = reducer.reduce(given)
    total = sum(range(group.size))
    assert isinstance(found[0], np.ndarray) and (found[0] == total).all()
    assert isinstance(found[1], torch.Tensor) and found[1].shape == (3, 2) and (found[1] == group.size).all()
    assert isinstance(found[2], np.ndarray) and (found[2] == np.arange(4)).all()
    kept = found[1].clone()
    outs = [np.empty(5, np.float32), torch.empty(3, 2), np.empty(4, np.int64), torch.empty(2)]
    again = reducer.reduce(given, out=outs)
    assert all(x is y for x, y in zip(again, outs, strict=True)) and (outs[1] == group.size).all()
    assert torch.equal(found[1], kept)  # results are the caller's


def test_libraries_missing_gradients_and_given_outputs() -> None:
    pytest.importorskip("torch")
    _run(_libraries, 2)


def _order(group: arraycomm.Group) -> None:
    mine = _gradients(group.rank)
    reducer = arraycomm.GradientReducer(group, mine, bucket_bytes=600)
    expected = [x.copy() for x in reducer.reduce(mine)]
    for index in np.random.default_rng(group.rank).permutation(len(mine)):  # another order on each rank
        reducer.push(int(index), mine[index])
    assert all((x == y).all() for x, y in zip(reducer.finish(), expected, strict=True))
    with pytest.raises(ValueError, match=r"arrays \[0, 1"):
        reducer.finish()
    with pytest.raises(ValueError, match="the reducer was made for float32 of shape"):
        reducer.push(0, np.zeros(3, np.float32))
    for wrong in ({"arrays": [mine[1], *mine[1:]]}, {"arrays": mine, "out": [np.zeros(3), *mine[1:]]}):
        with pytest.raises(ValueError, match="array 0 is"):
            reducer.reduce(**wrong)  # nothing was sent, and nothing counts as pushed
    assert all((x == y).all() for x, y in zip(reducer.reduce(mine), expected, strict=True))
    reducer.push(6, mine[6])
    with pytest.raises(ValueError, match="pushed twice"):
        reducer.push(6, mine[6])


@pytest.mark.parametrize("index", ["0", 0.0, None])
def test_an_index_is_an_integer(index: Any) -> None:
    with arraycomm.init(rank=0, world_size=1) as group:
        reducer = arraycomm.GradientReducer(group, [np.ones(3)])
        with pytest.raises(TypeError, match="integer"):
            reducer.push(index, np.ones(3))


def test_arrays_may_come_in_any_order() -> None:
    _run(_order, 3)


def _on_devices(rank: int) -> None:
    from tests.standin import arrays

    faulthandler.dump_traceback_later(60, exit=True)
    arrays.cuda().tell("standin_reset", 2)
    with arraycomm.init(timeout=30) as group, arrays.as_cupy() as cupy:
        for kind in (arrays.Array, arrays.Frozen, cupy):
            _on_several_devices(group, kind)
            _on_another_stream(group, kind)
        _between_host_and_device(group)
        group.barrier()


def _on_several_devices(group: arraycomm.Group, kind: Any) -> None:
    """Beside arrays in host memory; new results are of the same library on the same device, others lie where out says."""
    from tests.standin import arrays

    places = [None, 0, 1, None, 1, 0, None]

    def placed(values: list[Any]) -> list[Any]:
        return [x if device is None else arrays.asarray(x, device=device, kind=kind)
                for x, device in zip(values, places, strict=True)]

    host = _gradients(group.rank)
    expected, mine = [group.all_reduce(x, op="avg") for x in host], placed(host)
    reducer = arraycomm.GradientReducer(group, mine)
    assert reducer.buckets == [[5], [4], [2], [1], [6, 3, 0]]
    for _ in range(2):
        found = reducer.reduce(mine)
        for x, right, device in zip(found, expected, places, strict=True):
            assert device is None or (x.ordinal == device and isinstance(x, kind if kind.__module__ == "cupy" else arrays.Array))
            assert (x if device is None else x.numpy()).tobytes() == right.tobytes()
    if kind is arrays.Frozen:
        with pytest.raises(ValueError, match="read-only"):
            reducer.reduce(mine, out=mine)  # nothing was sent
        return
    for out in (placed([np.zeros_like(x) for x in host]), mine):
        assert all(x is y for x, y in zip(reducer.reduce(mine, out=out), out, strict=True))
        for x, right in zip(out, expected, strict=True):
            assert (x if isinstance(x, np.ndarray) else x.numpy()).tobytes() == right.tobytes()


def _on_another_stream(group: arraycomm.Group, kind: Any) -> None:
    """A gradient is in order on the stream of its push, which may not be the current one when its bucket's turn comes."""
    from tests.standin import arrays

    x = arrays.asarray(np.ones(1000, np.float32), kind=kind)
    x.numpy()
    reducer = arraycomm.GradientReducer(group, [x, x], op="sum")
    stream, until = arrays.cuda().make("cudaStreamCreateWithFlags", 1), threading.Event()
    with arrays.use_stream(stream):
        arrays.compute(lambda: until.wait(20), stream)
        reducer.push(0, x + float(group.rank))
    threading.Timer(0.2, until.set).start()
    reducer.push(1, x * 2)
    first, second = reducer.finish()
    assert (first.numpy() == 3).all() and (second.numpy() == 4).all()


def _between_host_and_device(group: arraycomm.Group) -> None:
    from tests.standin import arrays

    host = [np.ones(3, np.float32), np.ones(4, np.float32)]
    device = [arrays.asarray(x) for x in host]
    reducers = [arraycomm.GradientReducer(group, like, op="sum") for like in (host, device)]
    for reducer, given, out, text in (
            (0, device, None, "array 0 lies on a device; the reducer was made for one in host memory"),
            (0, host, device, "array 0 lies on a device; the reducer was made for one in host memory"),
            (1, host, None, "array 0 lies in host memory; the reducer was made for one on a device"),
            (1, device, host, "array 0 lies in host memory; the reducer was made for one on a device"),
            (1, [None, device[1]], None, "array 0 lies on a device: push zeros there")):
        with pytest.raises(ValueError, match=text):
            reducers[reducer].reduce(given, out=out)
    assert [x.tolist() for x in reducers[0].reduce(host)] == [x.numpy().tolist() for x in reducers[1].reduce(device)]
    with pytest.raises(arraycomm.CollectiveMismatch, match="ranks 0 and 1 give a GradientReducer other shapes, dtypes, kinds"):
        arraycomm.GradientReducer(group, device if group.rank else host)


def test_arrays_on_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """In new processes: a forked one has the CUDA runtime that this one has found, or has looked for."""
    monkeypatch.setenv("ARRAYCOMM_CUDART_LIBRARY", build.cudart())
    spawn(_on_devices, nprocs=2)


def _unlike(group: arraycomm.Group) -> None:
    with pytest.raises(arraycomm.CollectiveMismatch, match="ranks 0 and 1 give a GradientReducer other shapes") as caught:
        arraycomm.GradientReducer(group, [np.zeros(3 + (group.rank == 1))])
    assert caught.value.ranks == (1,)
    with pytest.raises(TypeError, match="band"):
        arraycomm.GradientReducer(group, [np.zeros(3)], op="band")


def test_ranks_that_differ() -> None:
    _run(_unlike, 3)
