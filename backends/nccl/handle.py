"""Handle: one ncclComm_t, from init to destroy or abort. Every call that waits for peers has a timeout."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from contextlib import AbstractContextManager
from typing import Any

from arraycomm.core.base import threads
from arraycomm.core.base.errors import CollectiveTimeout, DistError

from . import config
from .library import IN_PROGRESS, Library, translate

_DEREGISTERING = 5.0  # s; a local call, it does not wait for peers
_SHORTEST, _LONGEST = 2e-5, 2e-3  # s: polling interval while a communicator is in progress: NCCL has no blocking wait


class Handle:
    """`who`: for errors, "rank 0 of 2 in group 'world'". `check`: called while waiting; raises the group's failure.
    `on`: a context manager that makes the communicator's device the current one.

    Only abort() is thread-safe: NcclCommunicator calls the others under its lock.
    """

    def __init__(self, nccl: Library, who: str, check: Callable[[], None],
                 on: Callable[[], AbstractContextManager[None]]) -> None:
        self.nccl, self.who, self.check, self._on = nccl, who, check, on
        self.comm = 0  # 0: not initialised yet, or destroyed
        self._out = nccl.ffi.new("int *")
        self._ending = threading.Lock()

    # ---- initialisation; collective ----

    def init(self, size: int, rank: int, unique_id: bytes, options: Mapping[str, Any], timeout: float) -> None:
        id_ = self.nccl.ffi.new("ncclUniqueId *")
        self.nccl.ffi.memmove(id_, unique_id, len(unique_id))
        made, alive = config.make(self.nccl, options)
        out = self.nccl.ffi.new("uintptr_t *")
        end = time.monotonic() + timeout

        def call() -> int:
            code = int(self.nccl.ncclCommInitRankConfig(out, size, id_[0], rank, made))
            del alive[:]  # NCCL has copied it
            return code

        def too_late() -> None:
            if out[0]:
                self.nccl.ncclCommAbort(out[0])

        code = self._apart("ncclCommInitRankConfig", call, timeout, too_late)
        self.comm = int(out[0]) if code in (0, IN_PROGRESS) else 0
        try:
            self.settle(code, "ncclCommInitRankConfig", end - time.monotonic())
        except BaseException:
            self.abort()
            raise

    def _apart(self, name: str, call: Callable[[], int], timeout: float, too_late: Callable[[], None] = lambda: None) -> int:
        """The code of a call that may wait for peers. It runs in a thread, so that the caller can time out. An abandoned thread
        runs until NCCL returns; then too_late is called."""
        apart: Future[int] = Future()

        def run() -> None:
            try:
                with self._on():
                    code = call()
            except BaseException as error:
                apart.set_exception(error)
            else:
                apart.set_result(code)

        threads.start(threading.Thread(target=run, name=f"arraycomm {name}", daemon=True))
        end = time.monotonic() + timeout
        try:
            while not wait([apart], _LONGEST).done:
                self.check()
                if time.monotonic() >= end:
                    raise self._late(name, timeout)
        except BaseException:
            apart.add_done_callback(lambda _: too_late())
            raise
        return apart.result()

    def _late(self, name: str, timeout: float) -> CollectiveTimeout:
        return CollectiveTimeout(f"{self.who}: {name} is still in progress after {timeout:g} s: not all ranks have called it")

    # ---- use ----

    def settle(self, code: int, name: str, timeout: float) -> None:
        """Waits until the call that returned this code is no longer in progress. Raises its error, or CollectiveTimeout."""
        if code == 0:
            return
        end, pause = time.monotonic() + timeout, _SHORTEST
        while code == IN_PROGRESS:
            self.check()
            code = self.state()
            if code == IN_PROGRESS:
                if time.monotonic() >= end:
                    raise self._late(name, timeout)
                time.sleep(pause)
                pause = min(2 * pause, _LONGEST)
        if code:
            raise self.error(code, name)

    def state(self) -> int:
        """0, IN_PROGRESS, or the code of an asynchronous error."""
        code = self.nccl.ncclCommGetAsyncError(self.comm, self._out)
        return int(code or self._out[0])

    def failed(self) -> int:
        """The code of an asynchronous error, otherwise 0."""
        code = self.state() if self.comm else 0
        return 0 if code == IN_PROGRESS else code

    def error(self, code: int, name: str) -> DistError:
        return translate(self.nccl, code, f"{self.who}: {name} failed", self.comm)

    # ---- memory ----

    def register(self, pointer: int, nbytes: int, timeout: float, flags: int) -> int:
        """A registration for deregister(); 0 if NCCL does not use it. Collective. The pointer is from ncclMemAlloc."""
        out, windows = self.nccl.ffi.new("uintptr_t *"), self.nccl.has("ncclCommWindowRegister")
        name = "ncclCommWindowRegister" if windows else "ncclCommRegister"
        arguments = (self.comm, pointer, nbytes, out, *([flags] if windows else []))
        end = time.monotonic() + timeout
        code = self._apart(name, lambda: int(getattr(self.nccl, name)(*arguments)), timeout)
        self.settle(code, name, end - time.monotonic())  # only now is the window of a non-blocking communicator valid
        return int(out[0])

    def deregister(self, registration: int) -> None:
        name = "ncclCommWindowDeregister" if self.nccl.has("ncclCommWindowRegister") else "ncclCommDeregister"
        self.settle(getattr(self.nccl, name)(self.comm, registration), name, _DEREGISTERING)

    # ---- destroy and abort ----

    def finish(self, timeout: float) -> None:
        """Orderly shutdown: waits until all ranks have completed their operations. Raises if they do not."""
        comm, end = self.comm, time.monotonic() + timeout
        code = self._apart("ncclCommFinalize", lambda: int(self.nccl.ncclCommFinalize(comm)), timeout)
        self.settle(code, "ncclCommFinalize", end - time.monotonic())
        self.comm = 0
        code = self.nccl.ncclCommDestroy(comm)
        if code:
            raise translate(self.nccl, code, f"{self.who}: ncclCommDestroy failed")

    def abort(self) -> None:
        """Aborts at once: stops kernels on the device and makes blocked calls return. Idempotent."""
        with self._ending:  # two threads may call it
            comm, self.comm = self.comm, 0
        if comm:
            self.nccl.ncclCommAbort(comm)
