"""Reductions by a device's kernels, over the stand-in's interpreter of PTX: bit for bit what docs/semantics.md says."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest

from arraycomm.core.cuda import kernels
from arraycomm.core.errors import DistBackendError
from arraycomm.core.types import DType, ReduceOp, reduce_op
from tests.gpu.kernels import EVERY_OP, KNOWN, difference_of, on_device

pytestmark = pytest.mark.usefixtures("cuda")
_SUM = reduce_op("sum")


@pytest.mark.parametrize(("dtype", "op"), KNOWN, ids=lambda value: getattr(value, "label", str(value)))
def test_every_reduction(dtype: DType, op: ReduceOp) -> None:
    assert difference_of(dtype, op) is None


def test_what_has_a_kernel() -> None:
    """Everything but what the host alone does."""
    refused = {(dtype.label, op.name) for dtype, op in itertools.product(DType, EVERY_OP) if not kernels.reduces(dtype, op, 2)}
    assert not {("float32", "sum"), ("int64", "avg"), ("bool", "bxor"), ("complex64", "sum")} & refused
    assert {("float8_e5m2", "sum"), ("complex64", "product"), ("int32", "premul_sum")} <= refused
    assert kernels.reduces(DType.FLOAT32, _SUM, 32) and not kernels.reduces(DType.FLOAT32, _SUM, 33)


def test_more_elements_than_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "_BLOCKS", 3)
    inputs = [np.arange(3000, dtype=np.float32) * (rank + 1) for rank in range(2)]
    assert np.array_equal(on_device(DType.FLOAT32, _SUM, inputs), inputs[0] * 3)


@pytest.mark.parametrize("change", [
    lambda text: text.replace("add.rn.f32", "add.rm.f32"), lambda text: text.replace("%v1, %m1", "%v9, %m1"),
    lambda text: text.replace(".reg .f32 %v", ".reg .f64 %v"), lambda text: text.replace("ld.global.f32", "ld.global.u64"),
    lambda text: text.replace("bra END", "bra ENDS"), lambda text: text.replace("ret;", "")])
def test_what_is_no_kernel(monkeypatch: pytest.MonkeyPatch, change: Callable[[str], str]) -> None:
    """The stand-in is as strict as NVIDIA's compiler, else these tests would be worth less."""
    made = kernels.source
    monkeypatch.setattr(kernels, "source", lambda *given: change(made(*given)))
    assert change(made(DType.FLOAT32, _SUM, 2)) != made(DType.FLOAT32, _SUM, 2)
    with pytest.raises(DistBackendError, match="CUDA failed to compile sum of float32 for the device: .*218"):
        on_device(DType.FLOAT32, _SUM, [np.ones(3, np.float32)] * 2)
