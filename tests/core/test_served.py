"""Windows whose owners' engines do what is asked for: what goes wrong before it is asked for."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest

import arraycomm
from arraycomm.core.group import served
from arraycomm.core.group.window import Window
from tests.dist2.groups import on_ranks


@pytest.fixture(autouse=True)
def transport(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ARRAYCOMM_TRANSPORT", "tcp")


def test_a_window_that_was_not_opened_holds_no_array(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(self: Window, group: Any) -> None:
        opened(self, group)
        group.barrier()
        raise RuntimeError("a rank did not come")

    opened = Window._open
    monkeypatch.setattr(Window, "_open", fails)

    def work(group: Any) -> None:
        array = weakref.ref(mine := np.zeros(4))
        with pytest.raises(RuntimeError, match="a rank did not come"):
            group.new_window(mine)
        del mine
        gc.collect()
        assert array() is None
        assert group.core.all_reduce(np.ones(1)).tolist() == [2.0]

    on_ranks(2, work)


def test_elements_that_cannot_be_sent_are_not_taken_from_the_next_put(monkeypatch: pytest.MonkeyPatch) -> None:
    def work(group: Any) -> None:
        window = Window(group.core, mine := np.zeros(40), "test")
        group.barrier().wait()  # nobody is still opening the window when it ends
        send = window._group.isend

        def fails(x: Any, dest: int, tag: int) -> Any:
            if tag == served._ELEMENTS:
                raise MemoryError("no memory")
            return send(x, dest, tag)

        if group.rank() == 0:
            with monkeypatch.context() as patch, pytest.raises(MemoryError, match="no memory"):
                patch.setattr(window._group, "isend", fails)
                window.put(np.ones(20), 1, 0)
            with pytest.raises(arraycomm.Aborted, match="MemoryError between a window's request and its elements"):
                for pending in window.put(np.full(20, 2.0), 1, 20):
                    pending.wait()
        group.barrier().wait()
        assert mine.tolist() == [0.0] * 40

    on_ranks(2, work)
