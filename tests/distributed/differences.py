"""What is deliberately different from torch.distributed, and why. Keys: a name, `Class.member`, or `module.name`."""

from __future__ import annotations

_DDP = "belongs to DistributedDataParallel's C++ reducer; average gradients by all_reduce"
_BOXED = "wraps the C++ object for TorchScript; there is none here"
_OPTIONS = "an argument of ProcessGroup's C++ methods only; the functions take these values as parameters"

REASONS: dict[str, str] = {
    "AllToAllOptions": _OPTIONS,
    "AllreduceCoalescedOptions": _OPTIONS,
    "AllreduceOptions": _OPTIONS,
    "BarrierOptions": _OPTIONS,
    "BroadcastOptions": _OPTIONS,
    "BuiltinCommHookType": _DDP,
    "GatherOptions": _OPTIONS,
    "GradBucket": _DDP,
    "Logger": _DDP,
    "ProcessGroup.boxed": _BOXED,
    "ProcessGroup.merge_remote_group": "joins groups of separate worlds over torch's own stores; make one world of all ranks",
    "ProcessGroup.unbox": _BOXED,
    "ProcessGroup.use_pg_for_symm_mem_rendezvous": "of torch's symmetric memory on GPUs; here Group.empty() makes symmetric arrays",
    "ProcessGroupGloo": "the C++ class of torch's gloo backend, which is not what answers here; ask get_backend(group)",
    "ReduceOptions": _OPTIONS,
    "ReduceScatterOptions": _OPTIONS,
    "Reducer": _DDP,
    "ScatterOptions": _OPTIONS,
}
