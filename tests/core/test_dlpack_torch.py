"""From a torch tensor to a Buffer and back."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch

from arraycomm.core.arrays.dlpack import pack, resolve, resolve_out, wrap
from arraycomm.core.arrays.types import DType

from .arrays import DTYPES, SUPPORTED

TORCH_DTYPES = [d for d in DTYPES if hasattr(torch, d.label)]


@pytest.mark.parametrize("dtype", TORCH_DTYPES)
def test_torch(dtype: DType) -> None:
    x: Any = torch.zeros((2, 3), dtype=getattr(torch, dtype.label))
    x.view(torch.uint8)[:] = 1
    b = resolve(x)
    assert (b.address, b.count, b.dtype, b.shape, b.readonly) == (x.data_ptr(), 6, dtype, (2, 3), False)
    owner: Any = b.owner
    assert owner is x and resolve_out(x).address == x.data_ptr()
    p = pack(x)
    y: Any = wrap(p, x)
    assert y.dtype == x.dtype and y.shape == x.shape and y.data_ptr() == p.address
    assert torch.equal(y.view(torch.uint8), x.view(torch.uint8))
    y.view(torch.uint8)[0, 0] = 3
    assert (x.view(torch.uint8) == 1).all()


@pytest.mark.parametrize("shape", [(), (0,), (3, 0)])
def test_torch_small_shapes(shape: tuple[int, ...]) -> None:
    x = torch.ones(shape)
    assert resolve(x).shape == shape and tuple(wrap(pack(x), x).shape) == shape


def test_torch_strided() -> None:
    x = torch.arange(24.0).reshape(2, 3, 4).permute(2, 0, 1)[::2].expand(2, 2, 3)
    assert torch.equal(wrap(pack(x), x), x)
    with pytest.raises(ValueError, match="not C-contiguous"):
        resolve_out(x)


@pytest.mark.parametrize("lazy", [torch.conj, lambda c: c.conj().imag, lambda c: c.conj().imag[:1]])
def test_torch_lazy_bits(lazy: Any) -> None:
    x = lazy(torch.tensor([1 + 2j, 3 - 1j]))
    assert torch.equal(wrap(pack(x), x), x.resolve_conj().resolve_neg())
    assert resolve(x).readonly
    with pytest.raises(ValueError, match="lazy conjugate"):
        resolve_out(x)


def _asked_by_method() -> bool:
    """Whether a tensor is asked for its bits by its methods."""

    class Asked(torch.Tensor):
        asked = False

        def is_neg(self) -> bool:
            Asked.asked = True
            return True

    resolve(torch.ones(2).as_subclass(Asked))
    return Asked.asked


def test_torch_functions_are_called_where_they_are_as_expected() -> None:
    """Else methods are asked for their bits, and DLPack for the rest, which needs to know torch's dtypes of 8 bits."""
    program = """
import os, torch
def judge(own):
    from arraycomm.core.arrays import arrays
    class Other(torch.Tensor):
        is_conj = lambda self: True  # what the function says otherwise
    samples, byte, asked = arrays.torch_samples(), arrays.torch_byte, []
    given = samples[0] if own else samples[0].as_subclass(Other)
    arrays.torch_samples = lambda: (given, *samples[1:])
    arrays.torch_byte = lambda signed: asked.append(signed) or byte(signed)
    from tests.core import test_dlpack_torch as tests
    assert tests._asked_by_method() is not own
    x = torch.ones(3, dtype=torch.int8)
    assert tests.resolve(x).address == x.data_ptr() and asked == ([] if own else [True])
    tests.test_torch_lazy_bits(torch.conj)
    tests.test_torch_lazy_bits(lambda c: c.conj().imag)
    tests.test_torch_strided()
for own in (True, False):
    child = os.fork()  # torch takes seconds to import, and is looked at once in a process
    if child == 0:
        judge(own)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0, own
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


def test_torch_with_gradient() -> None:
    x = torch.nn.Parameter(torch.ones(3))
    assert resolve(x).address == x.data_ptr() == resolve_out(x).address
    y = wrap(pack(x), x)
    assert type(y) is torch.Tensor and not y.requires_grad


@pytest.mark.parametrize("name", ["int1", "int4", "uint4", "uint7", "complex32", "float4_e2m1fn_x2"])
@pytest.mark.filterwarnings("ignore")
def test_torch_dtypes_without_counterpart(name: str) -> None:
    with pytest.raises(TypeError, match=f"torch.{name} is not supported; {SUPPORTED}"):
        resolve(torch.empty(4, dtype=getattr(torch, name)))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("make", "advice"),
    [
        (lambda: torch.empty(3, device="meta"), "meta tensor has no memory"),
        (lambda: torch.eye(3).to_sparse(), "layout torch.sparse_coo.*to_dense"),
        (lambda: torch.eye(3).to_sparse_csr(), "layout torch.sparse_csr.*to_dense"),
        (lambda: torch.quantize_per_tensor(torch.ones(3), 1.0, 0, torch.qint8), "qint8.*int_repr"),
        (lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]), "nested tensors.*unbind"),
        (torch.nn.UninitializedParameter, "UninitializedParameter has no shape yet; run a forward pass"),
        (torch.nn.UninitializedBuffer, "UninitializedBuffer has no shape yet"),
    ],
)
def test_torch_tensors_without_memory(make: Any, advice: str) -> None:
    with pytest.raises(TypeError, match=advice):
        resolve(make())
