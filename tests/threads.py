"""The same work in several threads at once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


def at_once(count: int, work: Callable[[int], T], limit: float = 60.0) -> list[T]:
    """work(0) to work(count - 1), a thread each; their results in this order.

    Raises what one of them raised, TimeoutError when one has not ended within `limit` seconds of the one before.
    """
    results: list[Future[T]] = [Future() for _ in range(count)]

    def run(number: int) -> None:
        try:
            results[number].set_result(work(number))
        except BaseException as error:
            results[number].set_exception(error)

    for number in range(count):
        threading.Thread(target=run, args=(number,), daemon=True).start()  # one that hangs does not keep pytest alive
    return [result.result(limit) for result in results]
