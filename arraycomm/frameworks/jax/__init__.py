"""Collectives for JAX programs: inside jit, scan, cond, while, vmap, grad and shard_map, and outside. initialize(): JAX's own run
over arraycomm. See docs/guide/jax.md.
"""

from . import derivatives  # noqa: F401  (imported to register its rules)
from .cpu_collectives import initialize as initialize
from .errors import errors as errors
from .jit import jit as jit
from .operations import all_gather as all_gather
from .operations import all_reduce as all_reduce
from .operations import all_to_all as all_to_all
from .operations import barrier as barrier
from .operations import broadcast as broadcast
from .operations import exscan as exscan
from .operations import permute as permute
from .operations import recv as recv
from .operations import reduce as reduce
from .operations import reduce_scatter as reduce_scatter
from .operations import scan as scan
from .operations import send as send
from .replicate import replicate as replicate
from .trees import all_reduce_tree as all_reduce_tree
