"""init_process_group(), destroy_process_group(), and the queries that are allowed before initialization."""

from __future__ import annotations

import os
import sys
from datetime import timedelta
from typing import Any

from arraycomm.core.base.printable import numbered
from arraycomm.core.base.threads import finish
from arraycomm.core.bootstrap.rendezvous import Rendezvous, rendezvous

from ..rendezvous import place
from . import backend as backends
from . import devices
from .backend import Backend, BackendConfig
from .groups import agree
from .process_group import ProcessGroup, check_ranks, open_world, part_of, seconds_of
from .world import NOT_INITIALIZED, is_outside, resolve, state


def is_available() -> bool:
    """True: the facade works on every platform of the package.

    - Blocks: never; nothing is sent.
    - Errors: none; it has no arguments.

    Examples:
        >>> dist.is_available()
        True
    """
    return True


def is_initialized() -> bool:
    """Whether there is a default group.

    - Blocks: never; nothing is sent.
    - Errors: none; it has no arguments.

    Examples:
        On each of two ranks:

        >>> dist.is_initialized()
        True
    """
    return state.default is not None


def is_backend_available(backend: str) -> bool:
    """Whether groups can be made here under this name: a backend or pairs such as "cpu:gloo,cuda:nccl".

    - Blocks: never; it may load the backend's library.
    - Errors: none; an unknown name gives False.

    Examples:
        >>> dist.is_backend_available("gloo"), dist.is_backend_available("unknown")
        (True, False)
    """
    try:
        names = BackendConfig(backend)._names()
    except (ValueError, RuntimeError):
        return False
    return all(backends.why_unavailable(name) is None for name in names)


def is_gloo_available() -> bool:
    """True: this package's engine answers to the name "gloo".

    - Blocks: never; nothing is sent.
    - Errors: none; it has no arguments.

    Examples:
        >>> dist.is_gloo_available()
        True
    """
    return is_backend_available(Backend.GLOO)


def is_mpi_available() -> bool:
    """Whether groups over MPI can be made here.

    - Blocks: never; it may load the MPI library.
    - Errors: none; a missing library gives False.

    Examples:
        >>> dist.is_mpi_available() in (True, False)
        True
    """
    return is_backend_available(Backend.MPI)


def is_nccl_available() -> bool:
    """Whether groups over NCCL can be made here.

    - Blocks: never; it may load NCCL.
    - Errors: none; a missing library gives False.

    Examples:
        >>> dist.is_nccl_available() in (True, False)
        True
    """
    return is_backend_available(Backend.NCCL)


def is_ucc_available() -> bool:
    """Whether groups over UCC can be made here: only if a program registered a backend of this name.

    - Blocks: never; nothing is sent.
    - Errors: none; it has no arguments.

    Examples:
        >>> dist.is_ucc_available()
        False
    """
    return is_backend_available(Backend.UCC)


def is_xccl_available() -> bool:
    """Whether groups over XCCL can be made here: only if a program registered a backend of this name.

    - Blocks: never; nothing is sent.
    - Errors: none; it has no arguments.

    Examples:
        >>> dist.is_xccl_available()
        False
    """
    return is_backend_available(Backend.XCCL)


def is_torchelastic_launched() -> bool:
    """Whether torchrun started this process.

    - Blocks: never; it reads the environment.
    - Errors: none; it has no arguments.

    Examples:
        >>> dist.is_torchelastic_launched()
        False
    """
    return "TORCHELASTIC_RUN_ID" in os.environ


def get_node_local_rank(fallback_rank: int | None = None) -> int:
    """This process's rank on its host: the environment variable LOCAL_RANK, which launchers set, or else fallback_rank.

    - Blocks: never; it reads the environment.
    - Errors: RuntimeError without LOCAL_RANK and fallback_rank.

    Examples:
        >>> dist.get_node_local_rank(fallback_rank=0)
        0
    """
    if "LOCAL_RANK" in os.environ:
        return int(os.environ["LOCAL_RANK"])
    if fallback_rank is None:
        raise RuntimeError("LOCAL_RANK is not in the environment: start with a launcher that sets it (arraycomm-run, "
                           "torchrun), or pass fallback_rank")
    return int(fallback_rank)


def init_process_group(backend: str | None = None, init_method: str | None = None, timeout: timedelta | None = None,
                       world_size: int = -1, rank: int = -1, store: Any = None, group_name: str = "",
                       pg_options: Any = None, device_id: Any = None, _ranks: Any = None) -> None:
    """Makes the default group of all ranks; returns when all ranks have joined.

    Args:
        backend: "gloo" (this package's engine), "mpi", "nccl", a registered name, "cpu:gloo,cuda:nccl", or None for what is
            available.
        init_method: "env://" (the default), "tcp://host:port" or "file:///path".
        timeout: a timedelta for this call, and the default of the group's operations. None: 30 minutes, with backend "nccl" 10.
        store: instead of init_method, with rank and world_size.
        group_name: ignored, as in torch.
        pg_options: for "nccl", and for a backend that a program registered in the extended form.
        device_id: the accelerator that this process works on (a torch.device, "cuda:0" or a number). Without backend it chooses
            the
            backend.

    - Blocks: until every rank has come.
    - Timeout: DistStoreError names the ranks that did not come. There is no group then; the call may be repeated.
    - Errors: ValueError for a second call and for missing arguments. AssertionError for a store with init_method, a store without
      rank and world_size, arguments that the URL has already, and an unknown backend. RuntimeError for an unknown scheme and
      arguments of other types, TypeError for a timeout that is no timedelta. DistBackendError for a backend that cannot be used
      here.

    Examples:
        >>> dist.init_process_group(store=dist.HashStore(), rank=0, world_size=1)
        >>> dist.get_world_size()
        1
        >>> dist.destroy_process_group()
    """
    if state.default is not None:
        raise ValueError("trying to initialize the default process group twice!")
    if backend is None and device_id is not None:
        backend = backends.get_default_backend_for_device(device_id)
    asked = Backend(Backend.UNDEFINED if backend is None else backend)
    config = BackendConfig(asked)
    seconds = seconds_of(timeout, asked)
    if store is not None and init_method is not None:
        raise AssertionError("Cannot specify both init_method and store.")
    if store is not None and world_size <= 0:
        raise AssertionError("world_size must be positive if using store")
    if store is not None and rank < 0:
        raise AssertionError("rank must be non-negative if using store")
    device = devices.bound(device_id)
    for name in config._names():
        backends.check(name)
    alone = numbered(check_ranks(_ranks, sys.maxsize)) if _ranks else ""
    meeting = _meet(init_method, store, rank, world_size, seconds, f"world of {alone}" if alone else "world",
                    config._spelled())
    core = open_world(meeting, config, seconds, pg_options, device)
    name = state.next_name() if not alone else f"{alone}#0"
    state.default = ProcessGroup._of(core, range(meeting.size), name=name, desc="default_pg", backend=asked, config=config,
                                 meeting=meeting, bound_device_id=device)
    state.groups[name] = state.default
    if os.environ.get("TORCH_DIST_INIT_BARRIER") == "1":
        try:
            agree(state.default, "init_process_group", seconds)
        except BaseException:
            _destroy_all()
            raise


def _meet(init_method: str | None, store: Any, rank: int, size: int, seconds: float, world: str,
          backend: str) -> Rendezvous:
    timeout, url = timedelta(seconds=seconds), None
    if store is None:
        url, store, rank, size = place(init_method, rank, size, timeout)
    if store is None and url == "env://" and state.shared is not None:
        return part_of(state.shared, world)[0]
    return rendezvous(url if store is None else None, rank=None if rank < 0 else rank, world_size=None if size < 0 else size,
                      store=store, timeout=timeout, name=world, backend=backend)


def destroy_process_group(group: Any = None) -> None:
    """Closes a group. The default group (None) is closed with all others; then init_process_group() may be called again.

    Before the default group is closed, the call waits for operations whose futures the program holds, and for their callbacks,
    unless an exception is being handled. It does nothing for GroupMember.NON_GROUP_MEMBER.

    - Blocks: only for those futures. It is not a barrier: other ranks may still use the group.
    - Errors: AssertionError before init_process_group(), ValueError for a group that is closed.

    Examples:
        >>> dist.init_process_group(store=dist.HashStore(), rank=0, world_size=1)
        >>> dist.destroy_process_group()
        >>> dist.is_initialized()
        False
    """
    if is_outside(group):
        return
    if group is None and state.default is None:
        raise AssertionError(f"Process group cannot be None: {NOT_INITIALIZED}")
    found = resolve(group)
    if state.groups.get(found.group_name) is not found:
        raise ValueError(f"Invalid process group specified: {found} is closed already")
    if found is state.default:
        _destroy_all()
    else:
        del state.groups[found.group_name]
        _close(found)


def _destroy_all() -> None:
    if sys.exc_info()[0] is None:
        finish()
    groups = [*state.shrunk, *state.groups.values()]
    state.clear()
    for group in reversed(groups):  # the world's first group last: other groups use its connections
        _close(group)


def _close(group: ProcessGroup) -> None:
    group.shutdown()
    group.core.close()  # a program's class may not have closed it
