"""Future: what Work.get_future() gives in a process without torch, with the methods of torch.futures.Future. followed(): the
streams of a future's callbacks, of whatever kind it is."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack

from arraycomm.core.base.log import log
from arraycomm.core.base.typed import Any


class Future:
    """A value that will be there. Made by Work.get_future() and then(); anybody may complete it, once."""

    def __init__(self) -> None:
        self._ended = threading.Condition()
        self._done = False
        self._value: Any = None
        self._error: BaseException | None = None
        self._callbacks: list[Callable[[Future], Any]] = []

    def done(self) -> bool:
        """Whether it has its value or its error."""
        return self._done

    def wait(self) -> Any:
        """Blocks until it is complete and gives the value, or raises the error."""
        with self._ended:
            self._ended.wait_for(lambda: self._done)
        return self.value()

    def value(self) -> Any:
        """The value of a completed future. Raises its error; RuntimeError when it is not complete."""
        if not self._done:
            raise RuntimeError("the Future is not complete yet; call wait(), or value() from a callback")
        if self._error is not None:
            raise self._error
        return self._value

    def then(self, callback: Callable[[Future], Any]) -> Future:
        """A Future of what callback(this future) returns, called once this one is complete; of a RuntimeError if that raises."""
        after = Future()

        def run(future: Future) -> None:
            try:
                value = callback(future)
            except Exception as error:
                told = RuntimeError(f"Got the following error when running the callback: {type(error).__name__}: {error}")
                told.__cause__ = error
                after.set_exception(told)
            else:
                after.set_result(value)

        self.add_done_callback(run)
        return after

    def add_done_callback(self, callback: Callable[[Future], Any]) -> None:
        """callback(this future), once it is complete; now if it is. What it raises is logged."""
        with self._ended:
            if not self._done:
                self._callbacks.append(callback)
                return
        self._call(callback)

    def set_result(self, result: Any) -> None:
        """Completes it. RuntimeError when it is complete."""
        self._complete(result, None)

    def set_exception(self, result: Exception) -> None:
        """Completes it with an error, which wait() and value() raise."""
        if not isinstance(result, Exception):
            raise AssertionError(f"{result} is of type {type(result)}, not an Exception.")
        self._complete(None, result)

    def _complete(self, value: Any, error: Exception | None) -> None:
        with self._ended:
            if self._done:
                raise RuntimeError("the Future is complete already, and can be completed once only")
            self._value, self._error, self._done = value, error, True
            self._ended.notify_all()
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            self._call(callback)

    def _call(self, callback: Callable[[Future], Any]) -> None:
        try:
            callback(self)
        except Exception:
            log().exception("a callback of a Future raised")


def new_future() -> Any:
    """torch's own where torch is loaded: programs hand it to torch."""
    torch = sys.modules.get("torch.futures")
    return Future() if torch is None else torch.Future()


def followed(complete: Callable[[], object]) -> Callable[[], None]:
    """complete(), for another thread: its current device and streams are the caller's then, of torch where it has used a GPU, of
    CuPy where it is loaded and there is one."""
    contexts: list[Any] = []
    torch, cupy = sys.modules.get("torch"), sys.modules.get("cupy")
    if torch is not None and torch.cuda.is_initialized():
        contexts.append(torch.cuda.stream(torch.cuda.current_stream()))
    if cupy is not None and cupy.cuda.is_available():
        contexts += [cupy.cuda.Device(), cupy.cuda.get_current_stream()]

    def run() -> None:
        with ExitStack() as stack:
            for context in contexts:
                stack.enter_context(context)
            complete()

    return run
