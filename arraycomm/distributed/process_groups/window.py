"""Window: one-sided operations on arrays of a group's ranks, with the names of torch's newer interface (core/group/window.py)."""

from __future__ import annotations

import enum
import time
from datetime import timedelta
from typing import Any

from arraycomm.core.group.window import REDUCTIONS
from arraycomm.core.group.window import Window as CoreWindow

from ..operations import arguments
from ..operations.reduce_op import ReduceOp
from ..operations.work import Several, Work
from .process_group import ProcessGroup, seconds_of


class WindowAccessType(enum.Enum):
    """UNIFIED: memory that this process reads and writes itself. SEPARATE: memory that put() and get() reach.

    - Blocks: never; it is an enumeration.
    - Errors: none; Window.get_attr() gives one of the two.

    Examples:
        >>> list(dist2.WindowAccessType)
        [<WindowAccessType.UNIFIED: 0>, <WindowAccessType.SEPARATE: 1>]
    """

    UNIFIED = 0
    SEPARATE = 1


class WindowAttr:
    """What Window.get_attr() gives.

    Attributes:
        access_type: a WindowAccessType.

    - Blocks: never; it is a value.
    - Errors: none; any value is kept.

    Examples:
        >>> dist2.WindowAttr(dist2.WindowAccessType.UNIFIED).access_type.name
        'UNIFIED'
    """

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
    """An array of every rank that the other ranks read and write without its owner's help. Made by ProcessGroup.new_window().

    Operations of one rank on one target take effect in their order; accumulate() is atomic. A peer's writes are complete after
    wait_signal() for a signal that was sent after them, or after fence(). Until then the owner must not use these elements.
    Offsets are in elements. With async_op=True a method returns a Work at once; otherwise a Work that has ended.

    - Blocks: methods wait for their operation, without async_op. tensor_register(), tensor_deregister() and fence() wait for all
      ranks.
    - Timeout: a timedelta; None takes the group's. CollectiveTimeout or WaitTimeout.
    - Errors: RuntimeError for a window without a tensor and elements beyond the target's, ValueError for another dtype and a rank
      that
      does not exist, TypeError for what is no array. PeerLost and Aborted, as for messages.

    Examples:
        >>> def work(group):
        ...     pg = dist2.new_group("gloo", timedelta(seconds=60), "cpu", store=store, rank=group.rank, world_size=2)
        ...     window, other, y = pg.new_window(), 1 - pg.rank(), np.empty(1)
        ...     window.tensor_register(np.zeros(2))
        ...     window.put(np.ones(1), other, 1)
        ...     window.accumulate(np.ones(1), other, 1)
        ...     window.signal(other)
        ...     window.wait_signal(other)
        ...     window.get(y, other, 1)
        ...     window.fence()
        ...     found = (window.get_tensor().tolist(), y.item(), window.map_remote_tensor(pg.rank()) is window.get_tensor(),
        ...              window.get_attr(other).access_type.name, window.get_size(), str(window.dtype), window.shape,
        ...              str(window.device))
        ...     window.tensor_deregister()
        ...     pg.shutdown()
        ...     return found
        >>> store = dist.HashStore()
        >>> arraycomm.run(work, 2)[0]
        ([0.0, 2.0], 2.0, True, 'SEPARATE', 16, 'float64', [2], 'cpu')
    """

    def __init__(self, group: ProcessGroup) -> None:
        self._pg = group
        self._core: CoreWindow | None = None
        self._tensor: Any = None

    def tensor_register(self, tensor: Any, owning: bool = True) -> None:
        """Gives the window its array. All ranks call it.

        Args:
            owning: whether get_tensor() and map_remote_tensor() give the array. Its memory is kept either way.

        - Shapes: any; may differ between ranks.
        - Dtypes: one on all ranks.
        - Memory: tensor must be contiguous and writable. The window keeps it.
        - Blocks: until every rank has called it.
        - Errors: RuntimeError for a window that has an array already.
        """
        if self._core is not None:
            raise RuntimeError("the window has a tensor: call tensor_deregister() first")
        self._pg._windows += 1
        self._core = CoreWindow(self._pg.core, tensor, f"window {self._pg._windows}", self._pg.core.timeout)
        self._tensor, self._kept = (tensor if owning else None), tensor

    def tensor_deregister(self) -> None:
        """Removes the array from the window. All ranks call it.

        - Blocks: until the peers' operations on this rank's array have taken effect.
        - Errors: RuntimeError for a window without a tensor.
        """
        self._there().close()
        self._core = self._tensor = self._kept = None

    def put(self, tensor: Any, dst_rank: int, target_offset_nelems: int = 0, async_op: bool = False,
            timeout: timedelta | None = None) -> Work:
        """Writes the tensor's elements into rank dst_rank's array.

        - Shapes: any; the target has so many elements from the offset on.
        - Dtypes: that of the window.
        - Memory: tensor may be changed when the Work has ended.
        - Blocks: until the Work has ended, without async_op.
        - Timeout: a timedelta; None takes the group's. WaitTimeout after it.
        - Errors: as listed for Window.
        """
        arguments.array("tensor", tensor)
        return self._work(self._there().put(tensor, dst_rank, target_offset_nelems), (), async_op, timeout)

    def get(self, tensor: Any, src_rank: int, source_offset_nelems: int = 0, async_op: bool = False,
            timeout: timedelta | None = None) -> Work:
        """Reads elements of rank src_rank's array into the tensor.

        - Shapes: any; the source has so many elements from the offset on.
        - Dtypes: that of the window.
        - Memory: tensor must be contiguous and writable.
        - Blocks: until the Work has ended, without async_op.
        - Timeout: a timedelta; None takes the group's. WaitTimeout after it.
        - Errors: as listed for Window.
        """
        arguments.array("tensor", tensor)
        return self._work(self._there().get(tensor, src_rank, source_offset_nelems), (tensor,), async_op, timeout)

    def accumulate(self, tensor: Any, dst_rank: int, target_offset_nelems: int = 0, op: Any = ReduceOp.SUM,
                   async_op: bool = False, timeout: timedelta | None = None) -> Work:
        """Reduces the tensor's elements into rank dst_rank's array. Each element is updated atomically.

        - Shapes: any; the target has so many elements from the offset on.
        - Dtypes: that of the window; op must be defined for it.
        - Memory: tensor may be changed when the Work has ended.
        - Blocks: until the Work has ended, without async_op.
        - Timeout: a timedelta; None takes the group's. WaitTimeout after it.
        - Errors: as listed for Window, and ValueError for AVG and PREMUL_SUM.
        """
        arguments.array("tensor", tensor)
        core = self._there()
        name = arguments.reduction("accumulate", op, core.dtype).name
        if name not in REDUCTIONS:
            raise ValueError(f"accumulate takes {', '.join(REDUCTIONS)}, not {name}")
        return self._work(core.accumulate(tensor, dst_rank, target_offset_nelems, name), (), async_op, timeout)

    def signal(self, peer_rank: int, async_op: bool = False, timeout: timedelta | None = None) -> Work:
        """Sends peer_rank one signal, which arrives after this rank's earlier operations on peer_rank.

        - Blocks: until the Work has ended, without async_op.
        - Timeout: a timedelta; None takes the group's. WaitTimeout after it.
        - Errors: as listed for Window.
        """
        return self._work(self._there().signal(peer_rank), (), async_op, timeout)

    def wait_signal(self, peer_rank: int, async_op: bool = False, timeout: timedelta | None = None) -> Work:
        """Consumes one signal of peer_rank; waits until there is one.

        - Blocks: until the signal is there, without async_op.
        - Timeout: a timedelta; None takes the group's. CollectiveTimeout after it.
        - Errors: as listed for Window.
        """
        core = self._there()
        core.check_rank(peer_rank)
        work = Work(_Signal(core, peer_rank, self._seconds(timeout)))
        if not async_op:
            work.wait()
        return work

    def fence(self, timeout: timedelta | None = None) -> None:
        """Completes all operations of all ranks that came before. All ranks call it.

        - Blocks: until every rank has called it.
        - Timeout: a timedelta; None takes the group's. CollectiveTimeout names the late ranks.
        - Errors: RuntimeError for a window without a tensor. PeerLost, Aborted.
        """
        self._there().fence(self._seconds(timeout))

    def map_remote_tensor(self, rank: int) -> Any:
        """The array of this rank itself; get() reads those of other ranks.

        - Blocks: never; nothing is sent.
        - Errors: RuntimeError for another rank, and for a tensor that was registered with owning=False.
        """
        self._there().check_rank(rank)
        if rank != self._pg.rank() or self._tensor is None:
            raise RuntimeError("map_remote_tensor gives a rank's own tensor, if it was registered with owning=True: rank "
                               f"{rank} is reached by get() and put()")
        return self._tensor

    def get_tensor(self) -> Any:
        """The array of this rank; None without one.

        - Blocks: never; nothing is sent.
        - Errors: none; it has no arguments.
        """
        return self._tensor

    def get_attr(self, peer_rank: int) -> WindowAttr:
        """How that rank's array is reached, a WindowAttr.

        - Blocks: never; nothing is sent.
        - Errors: RuntimeError for a window without a tensor, ValueError for a rank that does not exist.
        """
        self._there().check_rank(peer_rank)
        return WindowAttr(WindowAccessType.UNIFIED if peer_rank == self._pg.rank() else WindowAccessType.SEPARATE)

    def get_size(self) -> int:
        """The bytes of this rank's array.

        - Blocks: never; nothing is sent.
        - Errors: RuntimeError for a window without a tensor.
        """
        return self._there().buffer.nbytes

    @property
    def dtype(self) -> Any:
        """The dtype of this rank's array, as its library has it.

        - Blocks: never, as any attribute.
        - Errors: RuntimeError for a window without a tensor.
        """
        return getattr(self._registered(), "dtype", None)

    @property
    def shape(self) -> list[int]:
        """The lengths of this rank's array, a list.

        - Blocks: never, as any attribute.
        - Errors: RuntimeError for a window without a tensor.
        """
        return list(self._registered().shape)

    @property
    def device(self) -> Any:
        """The device of this rank's array, as its library has it.

        - Blocks: never, as any attribute.
        - Errors: RuntimeError for a window without a tensor.
        """
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
