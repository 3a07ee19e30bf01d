"""Future: what Work.get_future() gives in a process without torch, with the methods of torch.futures.Future. followed(): the
streams of a future's callbacks, of whatever kind it is."""

from __future__ import annotations

import concurrent.futures
import sys
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from arraycomm.core.base.log import log


class Future(concurrent.futures.Future[Any]):
    """A value that will be there. Made by Work.get_future() and then(); anybody may complete it, once."""

    def wait(self) -> Any:
        """Blocks until it is complete and gives the value, or raises the error."""
        return self.result()

    def value(self) -> Any:
        """The value of a completed future. Raises its error; RuntimeError when it is not complete."""
        if not self.done():
            raise RuntimeError("the Future is not complete yet; call wait(), or value() from a callback")
        return self.result()

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
        def call(_: object) -> None:
            try:
                callback(self)
            except Exception:
                log().exception("a callback of a Future raised")

        super().add_done_callback(call)

    def set_result(self, result: Any) -> None:
        """Completes it. RuntimeError when it is complete."""
        self._complete(super().set_result, result)

    def set_exception(self, result: Exception) -> None:  # type: ignore[override]
        """Completes it with an error, which wait() and value() raise."""
        if not isinstance(result, Exception):
            raise AssertionError(f"{result} is of type {type(result)}, not an Exception.")
        self._complete(super().set_exception, result)

    def _complete(self, complete: Callable[[Any], None], result: Any) -> None:
        try:
            complete(result)
        except concurrent.futures.InvalidStateError:
            raise RuntimeError("the Future is complete already, and can be completed once only") from None


def new_future() -> Any:
    """A torch future if torch is loaded, because programs pass it to torch."""
    torch = sys.modules.get("torch.futures")
    return Future() if torch is None else torch.Future()


def followed(complete: Callable[[], object]) -> Callable[[], None]:
    """complete() for another thread: it runs with the caller's current device and streams, those of torch if torch has used a
    GPU, and those of CuPy if CuPy is loaded and a GPU is present."""
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
