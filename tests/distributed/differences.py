"""What is deliberately different from torch.distributed, and why.

REASONS: by a name, `Class.member`, or `module.name`. ENVIRONMENT: what a variable does here, where it does something else there.
"""

from __future__ import annotations

_DDP = "belongs to torch's DistributedDataParallel, which runs over torch.distributed.init_process_group(\"arraycomm\")"

REASONS: dict[str, str] = {
    "BuiltinCommHookType": _DDP,
    "GradBucket": _DDP,
    "Logger": _DDP,
    "ProcessGroupGloo": "the C++ class of torch's gloo backend, which is not used here; ask get_backend(group)",
    "Reducer": _DDP,
}

ENVIRONMENT: dict[str, str] = {
    "TORCH_CPP_LOG_LEVEL": "sets the level of Python's logger \"arraycomm\" (docs/reference/distributed.md, Debugging)",
    "TORCH_GLOO_LAZY_INIT": "no effect: connections are always made when they are first needed",
    "TORCH_SHOW_CPP_STACKTRACES": "the stacks are Python's",
    "USE_LIBUV": "only reported by TCPStore.libuvBackend: there is one server, in C, for as many clients as descriptors allow",
    "NCCL_SOCKET_IFNAME": "read by the NCCL library itself",
}
