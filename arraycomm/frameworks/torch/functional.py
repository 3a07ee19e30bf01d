"""The functional collectives for which torch's C++ calls a group's C++ backend, which a group in Python does not have.

They are all_gather_into_tensor_out, which torch.compile makes of all_gather_into_tensor, and batch_p2p_ops, which it makes of
batch_isend_irecv. Here they have a kernel for tensors in host memory: other backends' groups get torch's own.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed._functional_collectives  # noqa: F401 - declares the operations
from torch._C._distributed_c10d import _register_work, _resolve_process_group

from .process_group import ProcessGroup

_library = torch.library.Library("_c10d_functional", "IMPL")
_ops = torch.ops._c10d_functional


def _all_gather_into_tensor_out(group: ProcessGroup, x: torch.Tensor, size: int, *, out: torch.Tensor) -> torch.Tensor:
    _register_work(out, group.all_gather_single(out, x))
    return out


def _batch_p2p_ops(group: ProcessGroup, names: list[str], peers: list[int], tags: list[int],
                   tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Starts the messages one by one: messages of this engine do not wait for each other."""
    messages = {"isend": _ops.isend, "irecv": _ops.irecv}
    calls = list(zip(map(messages.__getitem__, names), peers, tags, tensors, strict=True))  # validated before the first send
    return [call(x, peer, tag, group.group_name) for call, peer, tag, x in calls]


def _for_ours(name: str, place: int, ours: Callable[..., Any]) -> None:
    """ours: takes an arraycomm group first, in place of the argument at `place` (torch's group or its name). Does nothing if this
    version of torch lacks the operation, because its compiler then never emits it."""
    if not hasattr(_ops, name):
        return
    theirs = getattr(_ops, name).default

    @functools.wraps(ours)
    def kernel(*given: Any, **named: Any) -> Any:
        group = _resolve_process_group(given[place]) if isinstance(given[place], str) else given[place]
        if not isinstance(group, ProcessGroup):
            return theirs._op_dk(torch._C.DispatchKey.CompositeExplicitAutograd, *given, **named)
        return ours(group, *given[:place], *given[place + 1:], **named)

    _library.impl(name, kernel, "CPU")


@functools.cache
def register() -> None:
    """Called with the first group, so that a program without groups keeps torch unchanged."""
    _for_ours("all_gather_into_tensor_out", 2, _all_gather_into_tensor_out)
    _for_ours("batch_p2p_ops", 4, _batch_p2p_ops)
