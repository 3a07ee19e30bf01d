"""torch.compile kept out of methods that C++ calls: in a compiled DistributedDataParallel it would trace them, and fail."""

from __future__ import annotations

from types import FunctionType

from torch._C._dynamo import eval_frame

_SKIP = eval_frame._FrameExecStrategy(eval_frame._FrameAction.SKIP, eval_frame._FrameAction.SKIP)


def keep_uncompiled(cls: type) -> type:
    """The class, whose methods, and what they call, run as they are. By the code's mark, which costs a call nothing;
    torch.compiler.disable would load torch's compiler."""
    for value in vars(cls).values():
        function = value.fget if isinstance(value, property) else value
        if isinstance(function, FunctionType):
            eval_frame.set_code_exec_strategy(function.__code__, _SKIP)
    return cls
