"""Every name of arraycomm.distributed, for programs that import them from torch.distributed.distributed_c10d."""

from __future__ import annotations

from . import *  # noqa: F403

# What programs take from there in spite of the names, older spellings among them.
from .coalesce import _coalescing_manager  # noqa: F401
from .collectives import all_gather_into_tensor as _all_gather_base  # noqa: F401
from .collectives import reduce_scatter_tensor as _reduce_scatter_base  # noqa: F401
from .world import default_group as _get_default_group  # noqa: F401


def _get_default_store() -> Store:  # noqa: F405
    """The world's store, in which its ranks can meet. Raises ValueError outside a world."""
    return _get_default_group().get_group_store()
