from __future__ import annotations

import numpy as np
import pytest

from arraycomm.bench.data import DTYPES, numpy_dtype, values
from arraycomm.bench.frameworks import open_framework


@pytest.mark.parametrize("name", ["numpy", "torch", "jax"])
def test_values_survive_the_way_there_and_back(name: str) -> None:
    pytest.importorskip(name)
    framework = open_framework(name)
    tried = [dtype for dtype in DTYPES if framework.why_not(dtype) is None]
    assert {"bool", "int64", "uint8", "float16", "bfloat16", "float64", "complex128", "float8_e5m2"} <= set(tried)
    for dtype in tried:
        host = values(dtype, "", 1, 2, 0, 100)
        array = framework.array(host)
        assert type(array).__module__.split(".")[0] in (name, "jaxlib")
        assert str(array.dtype).removeprefix("torch.") == dtype
        back = framework.host(array)
        assert back.dtype == numpy_dtype(dtype) and np.array_equal(back, host)


def test_what_torch_lacks_is_said() -> None:
    pytest.importorskip("torch")
    assert open_framework("torch").why_not("float8_e3m4") == "torch has no such dtype"


def test_outputs_of_immutable_arrays_cannot_be_given() -> None:
    pytest.importorskip("jax")
    framework = open_framework("jax")
    assert framework.immutable and framework.poisoned(8, "float32") is None


@pytest.mark.parametrize("dtype", DTYPES)
def test_no_poisoned_element_is_a_value_of_an_input(dtype: str) -> None:
    poisoned = open_framework("numpy").poisoned(1, dtype)
    exceptions = ("bool", "int8", "uint8")  # every byte is a whole number there
    given = values(dtype, "", 0, 1, 0, 1021).astype(complex)
    assert dtype in exceptions or not np.isin(poisoned.astype(complex), given)


def test_a_missing_framework_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "jax", None)
    with pytest.raises(ModuleNotFoundError, match="--framework jax needs jax: pip install jax"):
        open_framework("jax")
