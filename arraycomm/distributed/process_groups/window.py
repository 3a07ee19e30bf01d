"""Window: one-sided operations on arrays of a group's ranks, with the names of torch's newer interface (core/group/window.py)."""

from __future__ import annotations

import enum
import time
from datetime import timedelta

from arraycomm.core.base.typed import Any
from arraycomm.core.group.window import REDUCTIONS
from arraycomm.core.group.window import Window as CoreWindow

from ..operations import arguments
from ..operations.reduce_op import ReduceOp
from ..operations.work import Several, Work
from .process_group import ProcessGroup, seconds_of


class WindowAccessType(enum.Enum):
    """UNIFIED: memory that this process reads and writes itself. SEPARATE: reached by put and get."""

    UNIFIED = 0
    SEPARATE = 1


class WindowAttr:
    """access_type: a WindowAccessType."""

    def __init__(self, access_type: WindowAccessType) -> None:
        self.access_type = access_type


class _Signal:
    """The pending Work of wait_signal(): the first wait() or done() that finds the signal consumes it."""

    def __init__(self, window: CoreWindow, rank: int, timeout: float) -> None:
        self._window, self._rank = window, rank
        self._end = time.monotonic() + timeout
        self._taken = False

    def wait(self, timeout: float | None = None) -> None:
        left = max(0.0, self._end - time.monotonic())
        limit = left if timeout is None else min(timeout, left)
        if not self._taken and not self._window.wait_signal(self._rank, limit):
            raise TimeoutError if limit < left else self._window.no_signal(self._rank)
        self._taken = True

    def done(self) -> bool:
        self._taken = self._taken or self._window.wait_signal(self._rank, 0)
        return self._taken


class Window:
    """An array of every rank that the others read and write while its owner does something else. Made by new_window().

    What one rank asks of one target takes effect in its order, accumulate() atomically. Others' writes are there after
    wait_signal() for a signal that came behind them, or after fence(). Until then, and while others may write, the owner
    leaves these elements alone.

    async_op: give a Work at once; otherwise the call waits and gives a Work that has ended. timeout: None takes the group's.
    Offsets are in elements. Raises RuntimeError for a window without a tensor and elements beyond the target's, ValueError for
    another dtype and a rank that there is not, TypeError for what is no array; PeerLost and its relatives as messages do.
    """

    def __init__(self, group: ProcessGroup) -> None:
        self._pg = group
        self._core: CoreWindow | None = None
        self._tensor: Any = None

    def tensor_register(self, tensor: Any, owning: bool = True) -> None:
        """Gives the window its array: contiguous and writable, of one dtype on all ranks. All ranks call it.

        owning: whether get_tensor() and map_remote_tensor() give the array; its memory is held either way.
        """
        if self._core is not None:
            raise RuntimeError("the window has a tensor: call tensor_deregister() first")
        self._pg._windows += 1
        self._core = CoreWindow(self._pg.core, tensor, f"window {self._pg._windows}", self._pg.core.timeout)
        self._tensor, self._kept = (tensor if owning else None), tensor

    def tensor_deregister(self) -> None:
        """Takes it away. All ranks call it; it returns when what they asked of this rank has taken effect."""
        self._there().close()
        self._core = self._tensor = self._kept = None

    def put(self, tensor: Any, dst_rank: int, target_offset_nelems: int = 0, async_op: bool = False,
            timeout: timedelta | None = None) -> Work:
        """Writes the tensor's elements there. When the Work has ended the tensor may be changed again."""
        arguments.array("tensor", tensor)
        return self._work(self._there().put(tensor, dst_rank, target_offset_nelems), (), async_op, timeout)

    def get(self, tensor: Any, src_rank: int, source_offset_nelems: int = 0, async_op: bool = False,
            timeout: timedelta | None = None) -> Work:
        """Reads elements from there into the tensor, which must be contiguous."""
        arguments.array("tensor", tensor)
        return self._work(self._there().get(tensor, src_rank, source_offset_nelems), (tensor,), async_op, timeout)

    def accumulate(self, tensor: Any, dst_rank: int, target_offset_nelems: int = 0, op: Any = ReduceOp.SUM,
                   async_op: bool = False, timeout: timedelta | None = None) -> Work:
        """As put(), but reduces each element with what is there. Not AVG and PREMUL_SUM."""
        arguments.array("tensor", tensor)
        core = self._there()
        name = arguments.reduction("accumulate", op, core.dtype).name
        if name not in REDUCTIONS:
            raise ValueError(f"accumulate takes {', '.join(REDUCTIONS)}, not {name}")
        return self._work(core.accumulate(tensor, dst_rank, target_offset_nelems, name), (), async_op, timeout)

    def signal(self, peer_rank: int, async_op: bool = False, timeout: timedelta | None = None) -> Work:
        """One more signal for peer_rank, behind what this rank asked of it before."""
        return self._work(self._there().signal(peer_rank), (), async_op, timeout)

    def wait_signal(self, peer_rank: int, async_op: bool = False, timeout: timedelta | None = None) -> Work:
        """Takes one signal of peer_rank and waits until it is there. CollectiveTimeout."""
        core = self._there()
        core.check_rank(peer_rank)
        work = Work(_Signal(core, peer_rank, self._seconds(timeout)))
        if not async_op:
            work.wait()
        return work

    def fence(self, timeout: timedelta | None = None) -> None:
        """All ranks call it: what any of them asked of any other before has taken effect when it returns."""
        self._there().fence(self._seconds(timeout))

    def map_remote_tensor(self, rank: int) -> Any:
        """The array of this rank itself. RuntimeError for others': get() reads them."""
        self._there().check_rank(rank)
        if rank != self._pg.rank() or self._tensor is None:
            raise RuntimeError("map_remote_tensor gives a rank's own tensor, if it was registered with owning=True: rank "
                               f"{rank} is reached by get() and put()")
        return self._tensor

    def get_tensor(self) -> Any:
        """The array of this rank; None without one."""
        return self._tensor

    def get_attr(self, peer_rank: int) -> WindowAttr:
        """How that rank's array is reached."""
        self._there().check_rank(peer_rank)
        return WindowAttr(WindowAccessType.UNIFIED if peer_rank == self._pg.rank() else WindowAccessType.SEPARATE)

    def get_size(self) -> int:
        """Bytes of this rank's array."""
        return self._there().buffer.nbytes

    @property
    def dtype(self) -> Any:
        return getattr(self._registered(), "dtype", None)

    @property
    def shape(self) -> list[int]:
        return list(self._registered().shape)

    @property
    def device(self) -> Any:
        return getattr(self._registered(), "device", "cpu")

    def _registered(self) -> Any:
        self._there()
        return self._kept

    def _there(self) -> CoreWindow:
        if self._core is None:
            raise RuntimeError("the window has no tensor: call tensor_register() on all ranks first")
        return self._core

    def _seconds(self, timeout: timedelta | None) -> float:
        return self._pg.core.timeout if timeout is None else seconds_of(timeout)

    def _work(self, pending: list[Any], arrays: tuple[Any, ...], async_op: bool, timeout: timedelta | None) -> Work:
        work = Work(Several(pending), arrays)
        if not async_op:
            work.wait(timedelta(seconds=self._seconds(timeout)))
        return work
