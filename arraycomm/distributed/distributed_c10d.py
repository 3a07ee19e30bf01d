"""Every name of arraycomm.distributed, for programs that import them from torch.distributed.distributed_c10d."""

from __future__ import annotations

from . import *  # noqa: F403
from .world import default_group as _get_default_group  # noqa: F401 - what programs take from there in spite of its name
