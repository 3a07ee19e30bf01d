"""Future beside torch.futures.Future: the same checks on both."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from arraycomm.distributed.future import Future
from arraycomm.distributed.operations.work import Work
from arraycomm.frameworks.torch.work import Futures
from arraycomm.frameworks.torch.work import Work as TorchWork

KINDS = (Future, torch.futures.Future)


@pytest.mark.parametrize("kind", KINDS)
def test_a_result(kind: Any) -> None:
    future = kind()
    assert not future.done()
    with pytest.raises(RuntimeError):
        future.value()
    seen: list[Any] = []
    future.add_done_callback(lambda done: seen.append(done.value()))
    after = future.then(lambda done: done.value() + 1).then(lambda done: done.value() * 2)
    future.set_result(3)
    assert future.done() and future.wait() == future.value() == 3 and after.wait() == 8 and seen == [3]
    future.add_done_callback(lambda done: seen.append(done.wait()))
    assert seen == [3, 3]
    with pytest.raises(RuntimeError):
        future.set_result(4)
    with pytest.raises(RuntimeError, match="Got the following error when running the callback: ZeroDivisionError: "):
        future.then(lambda done: done.value() / 0).wait()


@pytest.mark.parametrize("kind", KINDS)
def test_an_error(kind: Any) -> None:
    future = kind()
    after = future.then(lambda done: done.value())
    future.set_exception(ValueError("no"))
    assert future.done()
    for call in (future.wait, future.value):
        with pytest.raises(ValueError, match="no"):
            call()
    with pytest.raises((ValueError, RuntimeError), match="no"):
        after.wait()
    with pytest.raises(AssertionError):
        kind().set_exception("no")


@pytest.mark.parametrize("kind", KINDS)
def test_waiting_in_another_thread(kind: Any) -> None:
    future, found = kind(), []
    waiter = threading.Thread(target=lambda: found.append(future.wait()))
    waiter.start()
    future.set_result("x")
    waiter.join(20)
    assert found == ["x"]


def test_a_callback_that_raises_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    future = Future()
    future.add_done_callback(lambda done: 1 / 0)
    future.set_result(1)
    assert "ZeroDivisionError" in caplog.text and future.value() == 1


class _Pending:
    """A core's Work that ends later."""

    def __init__(self) -> None:
        self.end = threading.Event()

    def done(self) -> bool:
        return self.end.is_set()

    def wait(self, timeout: float | None = None) -> None:
        self.end.wait(10)


@pytest.mark.parametrize("kind", ["facade", "torch"])
def test_callbacks_are_on_the_caller_s_stream(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever thread calls them: a GPU's own order is that of streams. (torch.cuda is a stand-in here.)"""
    current = threading.local()

    @contextmanager
    def entered(stream: str) -> Iterator[None]:
        current.stream = stream
        yield
        del current.stream

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: current.stream)
    monkeypatch.setattr(torch.cuda, "stream", entered)
    pending, seen, futures = _Pending(), [], Futures()
    work: Any = Work(pending, [])
    if kind == "torch":
        work = TorchWork(work, futures)
    with entered("the program's"):
        future = work.get_future()
    after = future.then(lambda _: seen.append((current.stream, threading.current_thread() is threading.main_thread())))
    pending.end.set()
    after.wait()
    futures.close()
    assert seen == [("the program's", False)]
