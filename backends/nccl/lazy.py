"""LazyCommunicator: a proxy; the first collective on GPU arrays makes the NCCL communicator."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from arraycomm.core.arrays.buffer import Buffer
from arraycomm.core.base.errors import Aborted, DeviceError
from arraycomm.core.bootstrap.rendezvous import Rendezvous
from arraycomm.core.gpu.runtime import runtime
from arraycomm.core.interface import registry
from arraycomm.core.interface.backend import Communicator, Watch, Work
from arraycomm.core.interface.kinds import Kind

from . import config
from .communicator import NcclCommunicator, refuse_in_batch
from .declarations import version_text
from .library import library
from .opening import HOST, connect
from .operations import BesideHost


def open_lazily(meeting: Rendezvous, name: str, timeout: float, options: Mapping[str, Any], *,
                priority: bool) -> LazyCommunicator:
    """As opening.open_world(), but only does the rendezvous."""
    config.check(library(), options)
    host = registry.get(HOST).open(meeting, name=name, timeout=timeout)
    return LazyCommunicator(host, timeout, options, priority=priority)


def _message(name: str) -> Callable[..., Any]:
    def method(self: LazyCommunicator, *given: Any, **named: Any) -> Any:
        if self._opened is None:
            raise DeviceError(f"group {self.name!r} opens NCCL with its first collective of arrays on GPUs, which all ranks "
                              f"call, and {name} would be the first: call one before (an all_reduce), or open NCCL at once "
                              "with init_process_group(device_id=...) or backend=\"cpu:gloo,cuda:nccl\"")
        return getattr(self._opened, name)(*given, **named)

    return method


class LazyCommunicator(BesideHost):
    """See arraycomm.core.interface.backend for the contract. For groups that did not request NCCL: a program without GPU
    arrays opens nothing on a GPU.

    The first collective can make the communicator, on its array's device, because all ranks call it. A message cannot:
    only two ranks call it.
    """

    def __init__(self, host: Communicator, timeout: float, options: Mapping[str, Any], *, priority: bool) -> None:
        """Takes ownership of `host`, a communicator of the same ranks."""
        self.rank, self.size, self.name, self.timeout = host.rank, host.size, host.name, timeout
        self.shortcut = host.shortcut
        self.host, self._options, self._priority = host, options, priority
        self._opened: NcclCommunicator | None = None
        self.closed = self._in_batch = False
        self._lock = threading.Lock()

    def _open(self, what: str, device: int) -> NcclCommunicator:
        refuse_in_batch(self.name)
        if self._in_batch:
            raise DeviceError(f"group {self.name!r} opens NCCL with its first collective of arrays on GPUs, and {what} within "
                              "batch() would be the first: call one before the batch")
        with self._lock:
            if self._opened is None:
                self._opened = self._made(device)
        return self._opened

    def _made(self, device: int) -> NcclCommunicator:
        if self.closed:
            raise Aborted(f"group {self.name!r} is closed; make a new one with arraycomm.init() or split()")
        try:
            return connect(library(), runtime(), self.host, device, self.timeout, self._options, self._priority)
        except BaseException as error:
            self.host.abort(f"NCCL could not be opened: {error}")
            raise

    def collective(self, kind: Kind, src: Buffer | None, dst: Buffer | None, *given: Any, **named: Any) -> Work | None:
        opened = self._opened or self._open(kind.name, next(array.device_index for array in (src, dst) if array is not None))
        return opened.collective(kind, src, dst, *given, **named)

    send, recv = _message("send"), _message("recv")

    @property
    def about(self) -> str:
        return f"NCCL {version_text(library().version)} from the first array on a GPU on, {self.host.about}"

    def symmetric_on(self, nbytes: int, device: int, *, timeout: float | None = None) -> tuple[int, int, int] | None:
        return (self._opened or self._open("empty", device)).symmetric_on(nbytes, device, timeout=timeout)

    def batch(self) -> AbstractContextManager[None]:
        return self._unopened_batch() if self._opened is None else self._opened.batch()

    @contextmanager
    def _unopened_batch(self) -> Iterator[None]:
        self._in_batch = True
        try:
            yield
        finally:
            self._in_batch = False

    def split(self, members: Sequence[int], name: str, *, timeout: float, watch: Watch | None = None) -> LazyCommunicator:
        return LazyCommunicator(self.host.split(members, name, timeout=timeout, watch=watch), timeout, self._options,
                                priority=self._priority)

    def check_peers(self) -> None:
        (self._opened or self.host).check_peers()

    def abort(self, reason: str) -> None:
        (self._opened or self.host).abort(reason)

    def close(self, reason: str = "") -> None:
        self.closed = True
        (self._opened or self.host).close(reason)
