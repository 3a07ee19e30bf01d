"""From a JAX array to a Buffer and back."""

from __future__ import annotations

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from arraycomm.core.arrays.dlpack import allocate, pack, resolve, resolve_out, wrap
from arraycomm.core.arrays.types import DType

from .arrays import DTYPES, SUPPORTED, bits, sample


@pytest.mark.parametrize("dtype", DTYPES)
def test_jax(dtype: DType) -> None:
    with jax.enable_x64(True):
        x = jnp.asarray(sample(dtype))
        b = resolve(x)
        assert (b.address, b.count, b.dtype, b.shape) == (x.unsafe_buffer_pointer(), 6, dtype, (2, 3))
        assert b.readonly and b.device_type == 1
        p = pack(x)
        y = wrap(p, x)
        assert isinstance(y, jax.Array) and y.dtype == x.dtype and y.unsafe_buffer_pointer() == p.address
        assert bits(y) == bits(x)
        with pytest.raises(ValueError, match="JAX arrays are immutable.*omit out="):
            resolve_out(x)


@pytest.mark.parametrize("shape", [(), (0,), (3, 0)])
def test_jax_small_shapes(shape: tuple[int, ...]) -> None:
    x = jnp.ones(shape)
    assert resolve(x).shape == shape and wrap(pack(x), x).shape == shape


def test_jax_value_is_waited_for() -> None:
    x = jnp.full((700, 700), 0.5)
    slow = jax.jit(lambda v: jax.lax.fori_loop(0, 5, lambda _, m: m @ v / 350, v))
    b = resolve(slow(x))
    got = np.asarray(memoryview(b)).copy()
    assert np.allclose(got, np.asarray(slow(x)))


def test_jax_array_cannot_be_donated_while_held() -> None:
    x = jnp.arange(1000.0)
    b = resolve(x)
    y = jax.jit(lambda v: v + 1, donate_argnums=0)(x)
    y.block_until_ready()
    assert np.asarray(memoryview(b)).tolist() == list(range(1000))


def test_jax_arrays_without_a_value() -> None:
    deleted = jnp.ones(3)
    deleted.delete()
    with pytest.raises(TypeError, match="deleted or donated"):
        resolve(deleted)
    with pytest.raises(TypeError, match="tracer has no value.*frameworks.jax"):
        jax.jit(lambda v: resolve(v))(jnp.ones(3))
    with pytest.raises(TypeError, match="key_data"):
        resolve(jax.random.key(0))
    with pytest.raises(TypeError, match=f"int4 is not supported; {SUPPORTED}"):
        resolve(jnp.ones(4, jnp.int4))


def test_jax_without_64_bits() -> None:
    with jax.enable_x64(False), pytest.raises(TypeError, match="cannot hold int64 here.*jax_enable_x64"):
        wrap(allocate((3,), DType.INT64), jnp.ones(3))


MANY_DEVICES = """
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from arraycomm.core.arrays.dlpack import pack, resolve, wrap
mesh = jax.make_mesh((2,), ("x",))
for spec in (PartitionSpec("x"), PartitionSpec()):
    try:
        resolve(jax.device_put(jnp.arange(8.0), NamedSharding(mesh, spec)))
    except TypeError as error:
        assert "spread over 2 devices; pass one shard" in str(error), error
    else:
        raise AssertionError("a sharded array was read")
for dtype in (jnp.float32, jnp.bfloat16):
    x = jax.device_put(jnp.arange(8.0).astype(dtype), jax.devices()[1])
    assert (resolve(x).device_type, resolve(x).device_index) == (1, 0)
    y = wrap(pack(x), x)
    assert y.device == x.device and (y == x).all()
"""


def test_jax_with_several_devices() -> None:
    environment = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=2", "JAX_PLATFORMS": "cpu"}
    subprocess.run([sys.executable, "-c", MANY_DEVICES], env=environment, check=True, timeout=60)
