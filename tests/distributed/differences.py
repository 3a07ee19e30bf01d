"""What is deliberately different from torch.distributed, and why. Keys: a name, `Class.member`, or `module.name`."""

from __future__ import annotations

_DDP = "belongs to DistributedDataParallel's C++ reducer; average gradients by all_reduce"
_BOXED = "wraps the C++ object for TorchScript; there is none here"

REASONS: dict[str, str] = {
    "BuiltinCommHookType": _DDP,
    "GradBucket": _DDP,
    "Logger": _DDP,
    "ProcessGroup.boxed": _BOXED,
    "ProcessGroup.merge_remote_group": "joins groups of separate worlds over torch's own stores; make one world of all ranks",
    "ProcessGroup.unbox": _BOXED,
    "ProcessGroup.use_pg_for_symm_mem_rendezvous": "of torch's symmetric memory on GPUs; Group.empty() makes ours",
    "ProcessGroupGloo": "the C++ class of torch's gloo backend, which is not what answers here; ask get_backend(group)",
    "Reducer": _DDP,
}
