"""Collectives for JAX programs: inside jit, scan, cond, while, vmap, grad and shard_map, and outside. initialize(): JAX's own run
over arraycomm. See docs/guide/jax.md.
"""

from . import derivatives  # noqa: F401  (imported to register its rules)
from .cpu_collectives import initialize
from .errors import errors
from .jit import jit
from .operations import (
    all_gather,
    all_reduce,
    all_to_all,
    barrier,
    broadcast,
    exscan,
    permute,
    recv,
    reduce,
    reduce_scatter,
    scan,
    send,
)
from .replicate import replicate
from .trees import all_reduce_tree

__all__ = [
    "all_gather", "all_reduce", "all_reduce_tree", "all_to_all", "barrier", "broadcast", "errors", "exscan", "initialize",
    "jit", "permute", "recv", "reduce", "reduce_scatter", "replicate", "scan", "send",
]


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("_"))})
