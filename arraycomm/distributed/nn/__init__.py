"""Collectives through which gradients flow, as torch.distributed.nn has them; needs torch."""

from ..torch_only import stand_in
from . import functional
from .functional import *  # noqa: F403
from .functional import __all__ as _names

__all__ = ["RemoteModule", "functional", *_names]  # noqa: PLE0604

RemoteModule = stand_in("nn.RemoteModule")
