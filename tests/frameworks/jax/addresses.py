"""Nothing is copied: the arrays of jaxlib's calls lie where JAX's own do. For two processes; addresses.c notes them."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from pathlib import Path

import jax
from jax import lax, shard_map
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from tests.frameworks.jax.unchanged import mesh, values

LENGTH = 70000
# XLA itself cuts the operand of all_to_all into pieces
OPERATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "psum": lambda row: lax.psum(row, "x"),
    "all_gather": lambda row: lax.all_gather(row, "x", tiled=True),
    "psum_scatter": lambda row: lax.psum_scatter(row, "x", tiled=True),
    "ppermute": lambda row: lax.ppermute(row, "x", [(0, 1), (1, 0)]),
}


def pointer(array: jax.Array) -> tuple[int, int]:
    """Where this process's part begins and ends."""
    data = array.addressable_shards[0].data
    return data.unsafe_buffer_pointer(), data.unsafe_buffer_pointer() + data.nbytes


def check(name: str, donate: bool) -> None:
    noted, sharding = ctypes.CDLL(os.environ["BETWEEN"]), NamedSharding(mesh(), P("x"))
    noted.noted_in.restype = noted.noted_out.restype = ctypes.c_size_t
    rows = values(2 * LENGTH, "float32", 1)[0]
    # made by XLA: where NumPy's memory is taken as it is, XLA copies a donated array first
    x = jax.jit(lambda x: x + 1)(jax.make_array_from_callback(rows.shape, sharding, lambda index: rows[index]))
    run = jax.jit(shard_map(OPERATIONS[name], mesh=mesh(), in_specs=P("x"), out_specs=P("x"), check_vma=False),
                  donate_argnums=0 if donate else ()).lower(x).compile()
    place = pointer(x)
    noted.noted_none()
    y = run(x).block_until_ready()
    found = [(noted.noted_in(call), noted.noted_out(call)) for call in range(noted.noted_calls())]
    assert found, "no call was noted"
    for at, (first, last) in enumerate((place, place if donate else pointer(y))):
        # XLA has the result of a donated array written into memory of its own, and copies it to where the array was
        if not (donate and at == 1):
            assert all(first <= pair[at] < last for pair in found if pair[at]), (name, donate, at, found, first, last)
    print(f"{name}{' of a donated array' * donate} copies nothing", flush=True)


def flags(address: int) -> list[str]:
    """Of the mapping that holds the address, by proc(5): "hg" is MADV_HUGEPAGE."""
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        head = line.split()[0]
        if "-" in head:
            first, last = (int(end, 16) for end in head.split("-"))
            inside = first <= address < last
        elif inside and head == "VmFlags:":
            return line.split()[1:]
    raise AssertionError(f"nothing is mapped at {address:#x}")


def check_pages() -> None:
    """Memory that XLA maps for a long result is touched by huge pages."""
    rows = values(4 << 20, "float32", 1)[0]
    x = jax.make_array_from_callback(rows.shape, NamedSharding(mesh(), P("x")), lambda index: rows[index])
    for name in ("psum", "all_gather", "ppermute"):
        run = jax.jit(shard_map(OPERATIONS[name], mesh=mesh(), in_specs=P("x"), out_specs=P("x"), check_vma=False))
        y = run(x).block_until_ready()
        first, last = pointer(y)
        assert "hg" in flags((first + last) // 2), (name, flags((first + last) // 2))
        print(f"{name} has huge pages", flush=True)


if __name__ == "__main__":
    if Path("/sys/kernel/mm/transparent_hugepage").exists():  # not in every container
        check_pages()
    for name in OPERATIONS:
        for donate in (False, True):
            check(name, donate)
