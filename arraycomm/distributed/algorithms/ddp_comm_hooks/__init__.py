"""Communication hooks of arraycomm.frameworks.torch.DistributedDataParallel, where torch has its own; needs torch."""

from __future__ import annotations

import enum
from functools import partial

from arraycomm.core.base.typed import Any

from . import default_hooks, powerSGD_hook

__all__ = ["DDPCommHookType", "default_hooks", "powerSGD_hook", "register_ddp_comm_hook"]


def _register(hook: Any, model: Any, state: Any) -> None:
    model.register_comm_hook(state, hook)


class DDPCommHookType(enum.Enum):
    """Those that are here, of torch's."""

    ALLREDUCE = partial(_register, default_hooks.allreduce_hook)
    FP16_COMPRESS = partial(_register, default_hooks.fp16_compress_hook)
    BF16_COMPRESS = partial(_register, default_hooks.bf16_compress_hook)
    POWER_SGD = partial(_register, powerSGD_hook.powerSGD_hook)


def register_ddp_comm_hook(comm_hook_type: DDPCommHookType, model: Any, state: Any = None) -> None:
    """model.register_comm_hook() with the hook of that type."""
    comm_hook_type.value(model, state)
