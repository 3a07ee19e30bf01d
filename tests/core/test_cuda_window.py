"""Windows and arrays on CUDA devices: put into them and got from them. Over the stand-in for CUDA's runtime."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from arraycomm.core.group.window import Window
from tests.dist2.groups import on_ranks
from tests.standin import arrays

pytestmark = pytest.mark.usefixtures("cuda")
LONG = 3 << 20  # float32: several pieces


@pytest.fixture(params=["auto", "tcp"], autouse=True)
def transport(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("ARRAYCOMM_TRANSPORT", request.param)
    return str(request.param)


def _ended(pending: list[Any]) -> None:
    for work in pending:
        work.wait()


@pytest.mark.parametrize("count", [5, LONG])
def test_they_are_copied_through_host_memory(count: int, transport: str) -> None:
    values = np.arange(count, dtype=np.float32)

    def work(group: Any) -> None:
        me, peer = group.rank(), 1 - group.rank()
        window = Window(group.core, mine := np.zeros(count + 1, np.float32), "test")
        _ended(window.put(arrays.asarray(values + me), peer, 1))
        _ended(window.accumulate(arrays.asarray(values), peer, 1, "sum"))
        window.fence(20)
        assert mine[0] == 0 and np.array_equal(mine[1:], 2 * values + peer)
        got = arrays.asarray(np.zeros(count, np.float32))
        _ended(window.get(got, peer, 1))
        assert np.array_equal(got.numpy(), 2 * values + me)
        window.fence(20)
        window.close()

    on_ranks(2, work)


def test_threads_get_what_each_of_them_asked_for() -> None:
    def work(group: Any) -> None:
        window = Window(group.core, np.arange(4, dtype=np.float32), "test")
        wrong: list[Any] = []

        def ask(place: int) -> None:
            for _ in range(30):
                got = arrays.asarray(np.zeros(1, np.float32))
                _ended(window.get(got, 1 - group.rank(), place))
                if got.numpy()[0] != place:
                    wrong.append((place, got.numpy()))

        threads = [threading.Thread(target=ask, args=(place,)) for place in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wrong
        window.fence(20)
        window.close()

    on_ranks(2, work)
