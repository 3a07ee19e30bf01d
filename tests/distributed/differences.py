"""What is deliberately different from torch.distributed, and why. Keys: a name, `Class.member`, or `module.name`."""

from __future__ import annotations

_DDP = "belongs to DistributedDataParallel's C++ reducer; average gradients by all_reduce"
_OPTIONS = "an argument of ProcessGroup's C++ methods only; the functions take these values as parameters"

REASONS: dict[str, str] = {
    "BuiltinCommHookType": _DDP,
    "GradBucket": _DDP,
    "Logger": _DDP,
    "Reducer": _DDP,
}
