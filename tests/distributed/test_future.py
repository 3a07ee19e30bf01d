"""Future beside torch.futures.Future: the same checks on both."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

from arraycomm.distributed.future import Future

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
