"""torch.compile kept out of methods that C++ calls: in a compiled DistributedDataParallel it would trace them, and fail."""

from __future__ import annotations

from collections.abc import Callable
from types import CodeType, FunctionType

import torch

from arraycomm.core.base.log import log


def _marker() -> Callable[[CodeType], None] | None:
    """What marks code as to be run as it is. None, with a warning, where torch names that otherwise: it may."""
    try:
        from torch._C._dynamo import eval_frame

        skip = eval_frame._FrameExecStrategy(eval_frame._FrameAction.SKIP, eval_frame._FrameAction.SKIP)
        mark = eval_frame.set_code_exec_strategy
    except (ImportError, AttributeError) as error:
        log().warning("torch %s keeps its compiler out of code in another way (%s): a compiled DistributedDataParallel may fail "
                      "over backend 'arraycomm'", torch.__version__, error)
        return None
    return lambda code: mark(code, skip)


_MARK = _marker()


def keep_uncompiled(cls: type) -> type:
    """The class, whose methods, and what they call, run as they are. By the code's mark, which costs a call nothing;
    torch.compiler.disable would load torch's compiler."""
    for value in vars(cls).values():
        function = value.fget if isinstance(value, property) else value
        if _MARK is not None and isinstance(function, FunctionType):
            _MARK(function.__code__)
    return cls
