"""ARRAYCOMM_TORCH_AS=gloo: programs that request gloo from torch.distributed get this package's engine under gloo's name.

For programs and libraries that accept the names of torch's own backends only. See docs/guide/torch.md.
"""

from __future__ import annotations

import functools
import inspect
from datetime import timedelta
from typing import Any

from torch.distributed import distributed_c10d as c10d

from arraycomm.core.base.log import log

from .process_group import ProcessGroup


class GlooProcessGroup(ProcessGroup):
    """A group that reports gloo's name, options and class to torch and to programs."""

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        """For isinstance(), by which torch and programs look for gloo before they set a timeout."""
        return c10d.ProcessGroupGloo

    def name(self) -> str:
        return "gloo"

    _get_backend_name = name  # getBackendName, which C++ calls, stays: it would look for gloo's devices

    @property
    def options(self) -> Any:
        """ProcessGroupGloo's, with this group's timeout, ranks and name; without devices and threads."""
        options = c10d.ProcessGroupGloo._Options()
        options._timeout = timedelta(seconds=self.facade.core.timeout)
        options.global_ranks_in_group = list(self.facade.ranks)
        options.group_name = self.facade.group_name
        return options


def install() -> None:
    """Replaces gloo for every group that this process makes from now on. Idempotent."""
    make = c10d._new_process_group_helper
    if make.__module__ == __name__:
        return
    signature = inspect.signature(make)

    def make_group(*args: Any, **named: Any) -> Any:
        call = signature.bind(*args, **named)
        asked = call.arguments["backend"]
        config = c10d.BackendConfig(asked)
        rank = c10d.get_rank() if c10d.is_initialized() else call.arguments["group_rank"]
        names = set(config.get_device_backend_map().values())
        if names != {"gloo"}:
            if "gloo" in names:
                _log_once(rank, f"{config}: gloo stays torch's, because torch gives a backend written in Python the whole group")
            return make(*args, **named)
        call.arguments |= {"backend": "arraycomm", "backend_options": GlooProcessGroup}
        group, store = make(*call.args, **call.kwargs)
        if isinstance(group, GlooProcessGroup):  # this process is a member
            group.devices = tuple(config.get_device_backend_map())
            c10d._world.pg_map[group] = asked, store
            c10d._world.pg_backend_config[group] = str(config)
            _log_once(rank, "requests for torch's backend gloo get arraycomm in this program (ARRAYCOMM_TORCH_AS=gloo)")
        return group, store

    c10d._new_process_group_helper = make_group


@functools.cache
def _log_once(rank: int, text: str) -> None:
    if rank == 0:
        log().warning("%s", text)
