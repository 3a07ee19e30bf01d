"""Arrays of dtypes that the engine does not know: what only moves elements takes them all, as bytes."""

from __future__ import annotations

import ctypes
import itertools
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import torch

import arraycomm
from arraycomm.core.arrays import opaque
from arraycomm.core.arrays.dlpack import allocate
from arraycomm.core.arrays.types import DType

POINT = np.dtype([("x", "<i4"), ("at", "M8[ms]"), ("name", "S3"), ("grid", ">f4", (2, 2))])
PADDED = np.dtype([("a", "i1"), ("b", "f8")], align=True)


def of_numpy(dtype: Any) -> Callable[[int, int], Any]:
    """rank, rows -> an array of these many rows, other bytes on every rank."""
    def make(rank: int, rows: int) -> Any:
        size = np.dtype(dtype).itemsize
        raw = (np.arange(rows * 2 * size, dtype=np.uint8).reshape(rows, 2 * size) + 64 * rank) % 120
        return raw.view(np.uint8).view(dtype).reshape(rows, 2)

    return make


def of_ml_dtypes(name: str) -> Callable[[int, int], Any]:
    return lambda rank, rows: ((np.arange(2 * rows).reshape(rows, 2) + rank) % 2).astype(getattr(ml_dtypes, name))


def of_torch(dtype: torch.dtype) -> Callable[[int, int], Any]:
    def make(rank: int, rows: int) -> Any:
        size = torch.empty(0, dtype=dtype).element_size()
        return torch.arange(rows * 2 * size, dtype=torch.uint8).add(64 * rank).view(dtype).reshape(rows, 2)

    return make


def of_jax(dtype: Any) -> Callable[[int, int], Any]:
    return lambda rank, rows: (jnp.arange(2 * rows).reshape(rows, 2) % 2 + rank % 2).astype(dtype)


def keys(impl: str) -> Callable[[int, int], Any]:
    return lambda rank, rows: jax.random.split(jax.random.key(rank, impl=impl), (rows, 2))


KINDS: dict[str, Callable[[int, int], Any]] = {
    **{str(dtype): of_numpy(dtype) for dtype in (
        "M8[s]", "M8[25ns]", "m8", "S5", "U2", "V7", ">f4", ">c16", ">i8", np.longdouble, np.clongdouble, POINT, PADDED)},
    **{name: of_ml_dtypes(name) for name in ("int4", "uint4", "int2", "float4_e2m1fn", "float6_e2m3fn")},
    "a field": lambda rank, rows: of_numpy(POINT)(rank, rows)["name"],
    "transposed": lambda rank, rows: of_numpy("M8[D]")(rank, rows).reshape(2, rows).T,
    "reversed": lambda rank, rows: of_numpy("S3")(rank, rows)[::-1, ::-1],
    "repeated": lambda rank, rows: np.broadcast_to(of_numpy("U1")(rank, 1), (rows, 2)),
    "records": lambda rank, rows: of_numpy(POINT)(rank, rows).view(np.recarray),
    "no bytes": lambda rank, rows: np.zeros((rows, 2), "V0"),
    "no columns": lambda rank, rows: np.zeros((rows, 0), "M8[D]"),
    **{str(dtype): of_torch(dtype) for dtype in (torch.complex32, torch.int4, torch.uint3, torch.bits16)},
    "torch, strided": lambda rank, rows: of_torch(torch.complex32)(rank, rows).reshape(2, rows).T,
    "torch, lazy": lambda rank, rows: of_torch(torch.complex32)(rank, rows).conj(),
    **{f"jax {name}": of_jax(getattr(jnp, name)) for name in ("int4", "float4_e2m1fn")},
    "keys": keys("threefry2x32"),
    "wide keys": keys("rbg"),
}


def contents(x: Any) -> tuple[Any, ...]:
    """What two equal arrays agree in."""
    if isinstance(x, torch.Tensor):
        return "torch", x.dtype, tuple(x.shape), x.resolve_conj().contiguous().unsqueeze(-1).view(torch.uint8).numpy().tobytes()
    kind = "jax" if isinstance(x, jax.Array) else "numpy"
    dtype, shape = x.dtype, x.shape
    if jnp.issubdtype(dtype, jax.dtypes.prng_key):
        x = jax.random.key_data(x)
    return kind, dtype, shape, np.asarray(x).tobytes()


def joined(arrays: list[Any]) -> Any:
    if isinstance(arrays[0], torch.Tensor):
        plain = [x.resolve_conj().contiguous().unsqueeze(-1).view(torch.uint8) for x in arrays]
        return torch.cat(plain).view(arrays[0].dtype).squeeze(-1)
    if isinstance(arrays[0], jax.Array):
        return jnp.concatenate(arrays)
    if not arrays[0].dtype.itemsize:
        return np.concatenate(arrays)
    raw = np.dtype((np.void, arrays[0].dtype.itemsize))  # NumPy does not copy what lies between fields
    return np.concatenate([np.ascontiguousarray(x).view(np.ndarray).view(raw) for x in arrays]).view(arrays[0].dtype)


def ranks(work: Callable[[arraycomm.Group], Any], size: int = 2) -> list[Any]:
    return arraycomm.run(work, size, timeout=60.0)


def every_movement(group: arraycomm.Group, make: Callable[[int, int], Any]) -> None:
    rank, size = group.rank, group.size
    mine, everybody = make(rank, 2 * size), [make(other, 2 * size) for other in range(size)]

    def same(found: Any, wanted: Any) -> None:
        assert contents(found) == contents(wanted)

    same(group.broadcast(mine, 1), everybody[1])
    same(group.broadcast(mine, 1, async_op=True).result(), everybody[1])
    same(group.all_gather(mine), joined(everybody))
    for found, wanted in zip(group.all_gather(mine, form="list"), everybody, strict=True):
        same(found, wanted)
    gathered = group.gather(mine, 0, form="stack")
    assert (gathered is None) == (rank != 0)
    if gathered is not None:
        same(gathered.reshape(size * len(mine), *mine.shape[1:]), joined(everybody))
    same(group.scatter(mine, 1, like=make(rank, 2)), everybody[1][2 * rank: 2 * rank + 2])
    same(group.all_to_all(mine), joined([x[2 * rank: 2 * rank + 2] for x in everybody]))
    uneven = [make(other, 1 + other) for other in range(size)]
    same(group.all_gather(uneven[rank], uneven=True), joined(uneven))
    gathered = group.gather(uneven[rank], 1, uneven=True)
    if rank == 1:
        same(gathered, joined(uneven))
    same(group.scatter(joined(uneven) if rank == 1 else None, 1, like=uneven[rank], uneven=True), uneven[rank])
    sends = [2 * size if other == size - 1 - rank else 0 for other in range(size)]
    same(group.all_to_all(mine, send_counts=sends), everybody[size - 1 - rank])
    with group.batch():
        group.send(mine, (rank + 1) % size, tag=5)
        work: Any = group.recv((rank - 1) % size, tag=5, like=mine)
    same(work.result().array, everybody[rank - 1])
    same(group.sendrecv(mine, (rank + 1) % size, (rank - 1) % size).array, everybody[rank - 1])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.filterwarnings("ignore:ComplexHalf")
def test_moves(kind: str) -> None:
    ranks(lambda group: every_movement(group, KINDS[kind]))


def test_three_ranks() -> None:
    ranks(lambda group: every_movement(group, of_numpy(POINT)), 3)


@pytest.mark.parametrize("make", [lambda: np.array(7, "m8[D]"), lambda: np.datetime64(7, "D"), lambda: np.longdouble(7),
                                  lambda: np.array((1, 7.0), PADDED), lambda: jax.random.key(7)],
                         ids=["0-d", "date", "longdouble", "struct", "key"])
def test_0d(make: Any) -> None:
    def work(group: arraycomm.Group) -> None:
        x = make()
        assert contents(group.broadcast(x)) == contents(x)
        assert group.all_gather(x).shape == (2,) and contents(group.all_gather(x, form="list")[1]) == contents(x)
        with pytest.raises(ValueError, match="0-d"):
            group.all_to_all(x)

    ranks(work)


def test_outputs() -> None:
    def work(group: arraycomm.Group) -> None:
        x = np.array([group.rank, 5], "M8[s]")
        out = np.zeros(2, "M8[s]")
        assert group.broadcast(x, 1, out=out) is out and out.tolist() == np.array([1, 5], "M8[s]").tolist()
        whole = np.zeros(4, "M8[s]")
        block = whole[2 * group.rank: 2 * group.rank + 2]
        block[:] = x
        assert group.all_gather(block, out=whole) is whole and whole[2] == np.datetime64(1, "s")  # in place
        assert group.recv(1, out=x).array is x if group.rank == 0 else group.send(x, 0) is None
        assert group.broadcast(x, 1, out=x) is x and x[0] == np.datetime64(1, "s")
        narrow = torch.zeros(2, dtype=torch.complex32)
        assert group.broadcast(narrow, out=narrow) is narrow

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ranks(work)


@pytest.fixture
def alone() -> Any:
    with arraycomm.init() as group:
        yield group


REFERENCES = [np.array([None, "a"]), np.zeros(2, [("a", "i4"), ("b", object)]), np.zeros(2, [("a", "O", (2,))])]
if hasattr(np.dtypes, "StringDType"):
    REFERENCES.append(np.array(["a", "long"], np.dtypes.StringDType()))


@pytest.mark.parametrize("x", REFERENCES, ids=lambda x: str(x.dtype))
def test_references_are_refused(x: Any, alone: arraycomm.Group) -> None:
    for call in (alone.broadcast, alone.all_gather, alone.gather, alone.scatter, alone.all_to_all,
                 lambda x: alone.recv(0, like=x), lambda x: alone.send(x, 0), lambda x: alone.isend(x, 0),
                 lambda x: alone.broadcast(np.zeros(2, "M8[s]"), out=x)):
        with pytest.raises(TypeError, match="holds references to memory of this process.*send_object"):
            call(x)


class Pointing(ctypes.Structure):
    _fields_ = [("number", ctypes.c_int), ("place", ctypes.POINTER(ctypes.c_int))]


@pytest.mark.parametrize("element", [ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_wchar_p,
                                     ctypes.POINTER(ctypes.c_int), ctypes.CFUNCTYPE(None), Pointing])
def test_buffers_of_references_are_refused(element: Any, alone: arraycomm.Group) -> None:
    for call in (alone.broadcast, alone.all_gather, lambda x: alone.broadcast(out=x), lambda x: alone.isend(x, 0)):
        with pytest.raises(TypeError, match="holds references to memory of this process.*send_object"):
            call((element * 2)())


@pytest.mark.filterwarnings("ignore:ComplexHalf")
@pytest.mark.parametrize("x", [np.zeros(2, "M8[s]"), np.zeros(2, ">f8"), np.zeros(2, PADDED), np.array(["a"]),
                               torch.zeros(2, dtype=torch.complex32), jnp.zeros(2, jnp.int4),
                               jax.random.split(jax.random.key(0))],
                         ids=lambda x: str(x.dtype))
def test_reductions_refuse(x: Any, alone: arraycomm.Group) -> None:
    for call in (alone.all_reduce, alone.reduce, alone.reduce_scatter):
        with pytest.raises(TypeError, match=r"moved|byte order"):
            call(x)


def test_outputs_that_do_not_fit(alone: arraycomm.Group) -> None:
    x = np.zeros((2, 2), "M8[s]")
    for out, text in ((np.zeros((2, 2), "M8[ms]"), "out is <M8.ms., but x is <M8.s."),
                      (np.zeros((2, 2)), "out is float64, but x"),
                      (np.zeros(2, "M8[s]"), r"out has shape \(2,\)"), (np.zeros((2, 2), "M8[s]").T[::-1], "C-contiguous"),
                      (np.zeros(3, "M8[s]")[:2].reshape(1, 2), "shape")):
        with pytest.raises(ValueError, match=text):
            alone.broadcast(x, out=out)
    fixed = np.zeros((2, 2), "M8[s]")
    fixed.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        alone.broadcast(x, out=fixed)
    with pytest.raises(ValueError, match="read-only"):
        alone.broadcast(fixed, out=fixed)
    overlapping = np.zeros(5, "M8[s]")
    with pytest.raises(ValueError, match="overlaps"):
        alone.broadcast(overlapping[:4], out=overlapping[1:])
    keys = jax.random.split(jax.random.key(0))
    with pytest.raises(ValueError, match="immutable"):
        alone.broadcast(keys, out=keys)
    lazy = torch.zeros(2, dtype=torch.complex32)
    with pytest.raises(ValueError, match="conjugate"):
        alone.broadcast(lazy, out=lazy.conj())


def test_masked_arrays_stay_refused(alone: arraycomm.Group) -> None:
    with pytest.raises(TypeError, match="lose its mask"):
        alone.broadcast(np.ma.masked_array(np.zeros(2, "M8[s]"), [True, False]))
    with pytest.raises(TypeError, match="int_repr"):
        alone.broadcast(torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.quint8))


# Pairs of one size in bytes: nothing else tells them apart.
ALIKE: list[Any] = ["M8[s]", "M8[ms]", "M8[us]", "M8[ns]", "M8[D]", "m8[s]", "m8[ns]", ">f8", ">i8", ">u8", ">c8", "S8", "V8",
         "U2", np.dtype("i4,f4"), np.dtype("f4,i4"), np.dtype([("a", "i4"), ("b", "f4")]), np.dtype((np.void, 8))]


def test_numbers_of_common_dtypes_differ() -> None:
    names = {opaque.numpy_name(np.dtype(dtype)) for dtype in ALIKE} | {"int4", "uint4", "complex32", "float4_e2m1fn"}
    numbers = {opaque.Opaque(allocate((0, 1), DType.UINT8), name, None, lambda x: x).dtype for name in names}
    assert len(numbers) == len(names) and min(numbers) >= 256 and max(numbers) < 1 << 20


@pytest.mark.parametrize("pair", [("M8[s]", "M8[ms]"), ("M8[s]", "i8"), ("S4", "u4"), (">f4", "f4"), ("V3", "S3"), ("U1", ">i4"),
                                  (np.dtype("i4,f4"), np.dtype("f4,i4")), ("S4", "S8")], ids=str)
@pytest.mark.parametrize("call", ["broadcast", "all_gather", "all_to_all", "gather", "uneven"])
def test_unlike_dtypes_are_a_mismatch(pair: Any, call: str) -> None:
    def work(group: arraycomm.Group) -> None:
        x = np.zeros(4, pair[group.rank])
        with pytest.raises(arraycomm.CollectiveMismatch, match="dtype|bytes"):
            if call == "uneven":
                group.all_gather(x, uneven=True)
            else:
                getattr(group, call)(x)
                group.barrier()

    ranks(work)


@pytest.mark.parametrize("pair", [("M8[s]", "M8[ms]"), ("M8[s]", "i8"), (">f4", "f4"), ("S4", "S8")], ids=str)
@pytest.mark.parametrize("rows", [1, 1 << 20])
def test_unlike_messages_are_a_mismatch(pair: Any, rows: int) -> None:
    """Also of those that are too long to be sent before they are asked for. The group stays usable."""
    def work(group: arraycomm.Group) -> None:
        x = np.zeros(rows, pair[group.rank])
        if group.rank == 0:
            if rows == 1:
                group.send(x, 1)
            else:
                with pytest.raises(arraycomm.CollectiveMismatch):
                    group.send(x, 1)
        else:
            with pytest.raises(arraycomm.CollectiveMismatch, match="differ"):
                group.recv(0, like=x)
        every_movement(group, of_numpy("M8[s]"))

    ranks(work)


def test_probe_tells_of_bytes(alone: arraycomm.Group) -> None:
    x = np.zeros(3, "M8[s]")
    alone.isend(x, 0)
    found = alone.probe(0)
    assert found is not None and found.dtype.label == "opaque" and found.elements == 24
    assert alone.recv(0, like=x).array.dtype == x.dtype
    with pytest.raises(ValueError, match="overlaps"):
        alone.sendrecv(x, 0, 0, out=x)


def test_what_is_refused_for_more_than_its_dtype(alone: arraycomm.Group) -> None:
    """In the words of a reduction, not in torch's own."""
    x = torch.ones(4)
    x.untyped_storage().resize_(0)
    for call in (alone.all_reduce, alone.broadcast, lambda x: alone.broadcast(out=x), lambda x: alone.recv(0, like=x)):
        with pytest.raises(TypeError, match="has no memory of its own"):
            call(x)


def test_buffers_of_any_format(alone: arraycomm.Group) -> None:
    """Of the same format where a memoryview can have it, else of bytes with a dimension more."""
    class Point(ctypes.Structure):
        _fields_ = [("XO&zPZ", ctypes.c_int), ("y", ctypes.c_double)]  # letters of references, as a name

    points: Any = (Point * 3)(Point(1, 2), Point(3, 4), Point(5, 6))
    found: Any = alone.broadcast(points)
    assert (found.format, found.shape) == ("B", (3, 16)) and found.tobytes() == bytes(points)
    assert [part.tobytes() for part in alone.all_gather(points, form="list")] == [bytes(points)]
    fields: Any = np.array([(1, 2 + 3j)], [("P", "i4"), ("b", "c16")])
    assert alone.broadcast(memoryview(fields)).tobytes() == fields.tobytes()
    letters: Any = memoryview(b"abcd").cast("c", (2, 2))
    found = alone.broadcast(letters)
    assert found.format == "c" and found.tolist() == letters.tolist()
    assert alone.broadcast(letters.cast("B").cast("c")[::-2]).tolist() == [b"d", b"b"]
    into = (Point * 3)()
    assert alone.broadcast(points, out=into) is into and bytes(into) == bytes(points)
    with pytest.raises(ValueError, match="read-only"):
        alone.broadcast(letters, out=letters)


def test_lists_of_buffers() -> None:
    """Which have no slices of several dimensions."""
    def work(group: arraycomm.Group) -> None:
        for dtype in ("i4", "f8"):
            x: Any = np.full((2, 3), group.rank, dtype).data
            assert [part.tolist() for part in group.all_gather(x, form="list")] == [[[r] * 3] * 2 for r in range(2)]
            parts = group.all_gather(x[: group.rank + 1], form="list", uneven=True)
            assert [part.tolist() for part in parts] == [[[r] * 3] * (r + 1) for r in range(2)]
        parts = group.all_gather(np.full(2, group.rank + 1j).data, form="list")
        assert [np.asarray(part).tolist() for part in parts] == [[0 + 1j] * 2, [1 + 1j] * 2]
        texts: list[Any] = group.all_gather(bytearray(b"x" * group.rank), form="list", uneven=True)
        assert [part.tobytes() for part in texts] == [b"", b"x"]

    ranks(work)


@pytest.mark.parametrize("dtype", ["M8[s]", POINT, ">f4", "U3"], ids=str)
def test_symmetric_arrays(dtype: Any) -> None:
    def work(group: arraycomm.Group) -> None:
        x, out = group.empty((4, 2), dtype), group.empty((4, 2), dtype)
        assert x.dtype == np.dtype(dtype) and x.shape == (4, 2)
        x[...] = of_numpy(dtype)(group.rank, 4)
        assert group.broadcast(x, 1, out=out) is out
        assert contents(out) == contents(of_numpy(dtype)(1, 4))

    ranks(work)


def test_symmetric_arrays_of_no_dtype(alone: arraycomm.Group) -> None:
    for dtype in ("nonsense", None, 5, torch.int4):
        with pytest.raises(TypeError, match="is not supported; supported are bool"):
            alone.empty(3, dtype)
    with pytest.raises(TypeError, match="holds references"):
        alone.empty(3, object)
    assert alone.empty(3, torch.int4, like=torch.empty(0)).dtype == torch.int4


def test_sequences_of_unlike_calls(alone: arraycomm.Group) -> None:
    for _, (kind, make) in itertools.product(range(3), KINDS.items()):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            x = make(1, 2)
            assert contents(alone.broadcast(x)) == contents(x), kind
            assert alone.all_reduce(np.ones(2)).tolist() == [1, 1]
