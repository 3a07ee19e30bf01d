"""ProcessGroup: torch.distributed's class over the facade's, whose checks, strided and list forms it takes over.

torch's Python code calls these methods by name; its C++ code calls them through a trampoline (PyProcessGroup), which has the
methods for DistributedDataParallel and the functional collectives.
"""

from __future__ import annotations

import functools
import sys
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from types import CodeType, FunctionType
from typing import Any

import torch
import torch.distributed as dist

from arraycomm.core.base.log import log
from arraycomm.core.interface.kinds import COLLECTIVES
from arraycomm.distributed.operations.methods import Operations
from arraycomm.distributed.operations.work import ENDED
from arraycomm.distributed.operations.work import Work as FacadeWork
from arraycomm.distributed.process_groups import options
from arraycomm.distributed.process_groups.process_group import ProcessGroup as FacadeGroup

from .work import Futures, Work


def _marker() -> Callable[[CodeType], None] | None:
    """The function that excludes code from compilation. None, with a warning, if this version of torch renamed it."""
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
    """The class, whose methods, and what they call, run as they are: in a compiled DistributedDataParallel, which calls them from
    C++, torch.compile would trace them, and fail. By the code's mark, which costs a call nothing; torch.compiler.disable would
    load torch's compiler."""
    for value in vars(cls).values():
        function = value.fget if isinstance(value, property) else value
        if _MARK is not None and isinstance(function, FunctionType):
            _MARK(function.__code__)
    return cls


_OPS = {dist.ReduceOp.SUM: "sum", dist.ReduceOp.AVG: "avg", dist.ReduceOp.PRODUCT: "product", dist.ReduceOp.MIN: "min",
        dist.ReduceOp.MAX: "max"}  # reductions that need no check of the dtype
_NO_LIMIT = timedelta(0)  # torch passes -1 ms for the group's timeout


class ProcessGroup(dist.ProcessGroup):
    """Made by torch.distributed.init_process_group("arraycomm") and new_group().

    Attributes: facade (the arraycomm.distributed.ProcessGroup that carries its operations), uses (how often each name of a
    group of these ranks was used), devices (device types, as torch has them of a group).
    """

    devices: tuple[str, ...] = ("cpu",)

    def __init__(self, facade: FacadeGroup, store: Any) -> None:
        super().__init__(facade.rank(), facade.size())  # the form with a store makes no class of Python's
        self._store = store
        self.facade = facade
        self.uses: Counter[tuple[Any, ...]] = Counter()
        self._futures = Futures()

    def name(self) -> str:
        return "arraycomm"

    getBackendName = _get_backend_name = name  # noqa: N815 - torch's names; the first for C++

    @property
    def group_name(self) -> str:
        return self.facade.group_name

    @property
    def group_desc(self) -> str:
        return self.facade.group_desc

    def _set_group_desc(self, desc: str) -> None:
        self.facade.group_desc = desc

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device(kind) for kind in self.devices]

    def _get_backend(self, device: torch.device) -> ProcessGroup:
        """This group is its own backend: torch's class has no constructor for Python."""
        if torch.device(device).type not in self.devices:
            raise RuntimeError(f"No backend type associated with device type {device}: backend 'arraycomm' moves tensors in "
                               "host memory; make another group for these: torch.distributed.new_group(backend='nccl')")
        return self

    supports_splitting = supports_coalescing = supports_time_estimate = False

    def supports_tensor_alloc(self, device: torch.device) -> bool:
        return False

    def get_group_store(self) -> Any:
        return self._store

    def set_timeout(self, timeout: timedelta) -> None:
        self.facade.set_timeout(timeout)

    _set_default_timeout = set_timeout

    def monitored_barrier(self, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
        self.facade.monitored_barrier(timeout, wait_all_ranks)

    def shutdown(self) -> None:
        """Frees the connections; destroy_process_group() calls it. First it waits for operations whose futures somebody has, and
        their callbacks, as gloo does; while an exception is handled it ends these operations."""
        self._futures.close()
        if sys.exc_info()[0] is None:
            self._futures.join()
        self.facade.shutdown()
        self._futures.join()

    def abort(self) -> None:
        self.facade.abort()

    def allreduce(self, tensors: Any, *given: Any, **named: Any) -> Work:
        """The fast path: a plain call goes directly to the core's method, and any other call takes the slow path."""
        opts: Any = given[0] if len(given) == 1 and not named else None
        if type(opts) is dist.AllreduceOptions and not torch.autograd.profiler._is_profiler_enabled:
            async_op, limit, short = opts.asyncOp, opts.timeout, self.facade._plain
            pending = NotImplemented
            if short is not None and len(tensors) == 1:
                pending = short._plain_all_reduce(tensors[0], _OPS.get(opts.reduceOp.op, ""), out=tensors[0], async_op=async_op,
                                                 timeout=None if limit < _NO_LIMIT else limit.total_seconds())
            if pending is not NotImplemented:
                return Work(FacadeWork(pending if async_op else ENDED, tensors), self._futures)
        return _long_allreduce(self, tensors, *given, **named)  # type: ignore[no-any-return]


def _passed_on(name: str) -> Any:
    """A method that calls the facade's, which accepts torch's options, and returns torch's Work."""
    theirs = getattr(Operations, name)

    @functools.wraps(theirs)
    def method(self: ProcessGroup, *args: Any, **named: Any) -> Work:
        return Work(theirs(self.facade, *args, **named), self._futures)

    return method


_long_allreduce = _passed_on("allreduce")
for _name in (*map(options.method, COLLECTIVES), *(f"{_kind}_single" for _kind in options.BASE), "send", "recv", "recv_anysource",
              "allreduce_coalesced", "allgather_coalesced", "all_gather_single_coalesced", "reduce_scatter_single_coalesced"):
    if hasattr(Operations, _name) and _name not in vars(ProcessGroup):
        setattr(ProcessGroup, _name, _passed_on(_name))
# Names that torch has deprecated and still uses.
for _old, _new in (*((_base, f"{_kind}_single") for _kind, _base in options.BASE.items()),
                   ("allgather_into_tensor_coalesced", "all_gather_single_coalesced"),
                   ("reduce_scatter_tensor_coalesced", "reduce_scatter_single_coalesced")):
    setattr(ProcessGroup, _old, getattr(ProcessGroup, _new))
keep_uncompiled(ProcessGroup)
keep_uncompiled(Work)
