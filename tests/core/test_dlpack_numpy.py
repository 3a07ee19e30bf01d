"""From a NumPy array to a Buffer and back."""

from __future__ import annotations

import gc
import itertools
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arraycomm.core.arrays.dlpack import pack, resolve, resolve_out, wrap
from arraycomm.core.arrays.types import DType

from .arrays import DTYPES, SUPPORTED, bits, numpy_dtype, sample

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("dtype", DTYPES)
def test_numpy(dtype: DType) -> None:
    x = sample(dtype)
    b = resolve(x)
    assert (b.address, b.count, b.dtype, b.shape) == (x.ctypes.data, 6, dtype, (2, 3))
    assert (b.device_type, b.device_index, b.readonly) == (1, 0, False) and b.owner is x
    y = wrap(pack(x), x)
    assert type(y) is np.ndarray and y.dtype == x.dtype and y.flags.writeable and y.flags.c_contiguous
    assert bits(y) == bits(x) and y.ctypes.data != x.ctypes.data


@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (1, 1)])
def test_numpy_small_shapes(shape: tuple[int, ...]) -> None:
    x = np.ones(shape)
    assert resolve(x).shape == shape and resolve(x).count == x.size
    assert wrap(pack(x), x).shape == shape


def foreign_dtypes(name: str) -> list[np.dtype[Any]]:
    """Dtype objects that are not NumPy's own of this name."""
    one = np.dtype(name)
    others = [np.dtype(name, metadata={"of": "h5py"}), pickle.loads(pickle.dumps(np.dtype(name, metadata={"of": "another"}))),
              *(np.dtype(code) for code in np.typecodes["AllInteger"] if np.dtype(code).name == name),
              *(np.dtype((one, {"field": (one, 0)})),)]
    return [dtype for dtype in others if dtype is not one and dtype.name == name]


@pytest.mark.parametrize("name", ["int64", "uint64", "int32", "float32", "bool", "complex128"])
def test_results_have_numpys_own_dtype(name: str) -> None:
    """Whatever came before, in a process where the first array seen is an odd one."""
    code = (f"import sys; sys.path.insert(0, {str(ROOT)!r})\n"
            "import numpy as np\n"
            "from tests.core.test_dlpack_numpy import foreign_dtypes\n"
            "from arraycomm.core.arrays.dlpack import pack, resolve, wrap\n"
            f"for dtype in [*foreign_dtypes({name!r}), np.dtype({name!r})]:\n"
            "    x = np.ones(3, dtype)\n"
            f"    assert wrap(pack(x), x).dtype is np.dtype({name!r}), dtype\n"
            f"assert isinstance(wrap(pack(x), x)[0], np.dtype({name!r}).type)\n")
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_dtype_objects_without_number_are_not_kept() -> None:
    def run(start: int) -> None:
        for i in range(start, start + 300):
            for name in ("int64", "float32", "bool"):
                x = np.ones(2, np.dtype(name, metadata={"number": i}))
                y = wrap(pack(x), x)
                assert y.dtype is np.dtype(name) and y.dtype.metadata is None
            resolve(pickle.loads(pickle.dumps(np.ones(2, np.dtype("f4", metadata={"number": i})))))

    run(0)
    run(300)  # the interpreter's own free lists grow for a while
    kept = []
    for start in (600, 900, 1200, 1500):
        gc.collect()
        kept.append(sys.getallocatedblocks())
        run(start)
    assert min(after - before for before, after in itertools.pairwise(kept)) < 200  # one that stayed of each would be 300 or more
    for dtype in DTYPES:  # those that nobody has seen yet among them
        x = np.ones(3).astype(numpy_dtype(dtype))
        assert wrap(pack(x), x).dtype is numpy_dtype(dtype)


def strided(draw: Any) -> np.ndarray[Any, Any]:
    base = np.arange(2 * 3 * 4 * 5, dtype=draw(st.sampled_from(["i1", "f2", "f4", "f8", "c16"]))).reshape(2, 3, 4, 5)
    steps = [draw(st.sampled_from([1, 2, -1, -2])) for _ in range(4)]
    x = base[tuple(slice(None, None, step) for step in steps)].transpose(draw(st.permutations(range(4))))
    if draw(st.booleans()):
        x = np.broadcast_to(x[:, :1], x.shape)
    return x if draw(st.booleans()) else np.expand_dims(x, 1)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_strided_numpy_is_packed(data: st.DataObject) -> None:
    x = strided(data.draw)
    assert bits(memoryview(resolve(x))) == bits(x)
    assert np.array_equal(wrap(pack(x), x), x)


def test_field_of_a_structured_array_is_packed() -> None:
    x = np.zeros(4, "i1,f8")["f1"]
    x[:] = range(4)
    assert np.array_equal(wrap(pack(x), x), x)


def test_large_strided_array_is_packed() -> None:
    x = np.arange(1 << 18, dtype=np.int32).reshape(512, 512).T
    assert np.array_equal(wrap(pack(x), x), x)


def test_copy_of_a_strided_input_cannot_be_written() -> None:
    """Nor by whom it is handed on to."""
    x = np.ones((3, 3)).T
    made: Any
    for made, writable in ((resolve(x), False), (pack(x), True)):
        assert made.readonly != writable and np.from_dlpack(made).flags.writeable == writable


@pytest.mark.parametrize(
    ("x", "name"),
    [
        (np.array(["a"]), "<U1"),
        (np.array([None]), "object"),
        (np.array([1], "M8[ns]"), r"datetime64\[ns\]"),
        (np.zeros(2, "f4,i4"), "f0"),
        (np.ones(2, np.longdouble), "float128" if np.dtype(np.longdouble).itemsize == 16 else "longdouble"),
        (np.ones(2, ml_dtypes.int4), "int4"),
        (np.ones(2, ml_dtypes.float4_e2m1fn), "float4_e2m1fn"),
    ],
    ids=str,
)
def test_numpy_dtypes_without_counterpart(x: Any, name: str) -> None:
    with pytest.raises(TypeError, match=f"{name}.* is not supported; {SUPPORTED}"):
        resolve(x)


def test_foreign_byte_order() -> None:
    foreign = ">f4" if sys.byteorder == "little" else "<f4"
    with pytest.raises(TypeError, match=f"dtype {foreign} has foreign byte order.*astype.'float32'"):
        resolve(np.ones(3, foreign))


def test_masked_array() -> None:
    with pytest.raises(TypeError, match="would lose its mask; pass x.filled"):
        resolve(np.ma.masked_array([1.0, 2.0]))


def test_numpy_scalar_and_subclass() -> None:
    assert resolve(np.float32(3)).shape == () and resolve(np.float32(3)).readonly
    record = np.ones(2).view(np.recarray)
    assert resolve(record).address == record.ctypes.data


def test_unwritable_outputs() -> None:
    x = np.ones((3, 3))
    assert resolve_out(x).address == x.ctypes.data
    with pytest.raises(ValueError, match="output is not C-contiguous"):
        resolve_out(x.T)
    x.flags.writeable = False
    assert resolve(x).readonly
    with pytest.raises(ValueError, match="numpy.ndarray is read-only; pass a writable array, or omit out="):
        resolve_out(x)
