"""The recorder's hold on a group: what may happen in the middle of an operation, and in children of the rank."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any, cast

import numpy as np
import pytest

import arraycomm
from arraycomm.core.bootstrap.store import HashStore
from arraycomm.core.diagnostics.flight import ASYNCHRONOUS, DONE, FAILED
from arraycomm.core.diagnostics.watch import Watched, Watcher, attach
from arraycomm.monitor.board import LINKS, Board
from arraycomm.monitor.recorder import Recorder


@pytest.fixture
def group() -> Iterator[arraycomm.Group]:
    with arraycomm.init(store=HashStore(), rank=0, world_size=1) as made:
        yield made


class Given:
    """An array that runs a function when it is asked for its memory."""

    def __init__(self, x: Any, first: Callable[[], None]) -> None:
        self._x, self._first = x, first
        self.dtype, self.shape, self.nbytes = x.dtype, x.shape, x.nbytes

    def __dlpack_device__(self) -> Any:
        return self._x.__dlpack_device__()

    def __dlpack__(self, **given: Any) -> Any:
        first, self._first = self._first, lambda: None
        first()
        return self._x.__dlpack__(**given)


def test_a_recorder_that_is_dropped_in_the_middle_of_a_call(group: arraycomm.Group) -> None:
    """Its memory stays mapped until the call has been written there."""
    boards = [Board()]
    recorders = [Recorder(group, boards[0], lambda: None)]
    boards.pop().close()

    def drop() -> None:
        recorders.pop().stop()
        gc.collect()

    given: Any = Given(np.ones(4), drop)
    assert group.all_reduce(given).tolist() == [1.0] * 4
    assert not recorders and type(group) is arraycomm.Group


def _interrupt(*_: Any) -> Any:
    raise KeyboardInterrupt


def test_an_interrupt_is_not_swallowed(group: arraycomm.Group, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may come in Python code beside the call: an array's, which counts as a failed operation, and the recorder's."""
    board = Board()
    recorder = Recorder(group, board, lambda: None)
    with pytest.raises(KeyboardInterrupt):
        group.all_reduce(Given(np.ones(4), _interrupt))
    with monkeypatch.context() as patch:
        patch.setattr(recorder, "about", _interrupt)
        with pytest.raises(KeyboardInterrupt):
            group.all_reduce(np.ones(4))
    group.all_reduce(np.ones(4))
    assert board.read_group(0) == {"begun": 2, "ended": 2, "bytes": 64}
    assert sum(count["failures"] for count in board.read_counts()) == 1
    recorder.stop()
    board.close()


CLOSED_MEANWHILE = """
import time
import numpy as np
import arraycomm
from arraycomm.core.bootstrap.store import HashStore
from arraycomm.core.diagnostics.flight import ASYNCHRONOUS
from arraycomm.monitor.board import Board
from arraycomm.monitor.recorder import Recorder

group = arraycomm.init(store=HashStore(), rank=0, world_size=1)

class Closing(Recorder):
    def error(self, error):
        group.close()
        return 0

recorder = Closing(group, Board(), lambda: None)
forgotten = group.irecv(0, like=np.zeros(4))
del forgotten
group.abort("enough")
time.sleep(0.2)  # it ends behind the program, which cannot be told
try:
    group.irecv(0, like=np.zeros(4))
except arraycomm.DistError as error:
    print(type(error).__name__, error)
"""


def test_a_group_that_is_closed_while_a_forgotten_operation_is_told() -> None:
    """A call that begins tells first of operations that nobody asks for any more: the engine's group may be freed then."""
    run = subprocess.run([sys.executable, "-c", CLOSED_MEANWHILE], capture_output=True, text=True, timeout=60,
                         env={**os.environ, "MALLOC_PERTURB_": "165"}, check=False)
    assert run.returncode == 0 and run.stdout.startswith("Aborted group 'world' is closed"), (run.stdout, run.stderr)


def test_an_operation_of_the_long_way_whose_work_is_dropped(group: arraycomm.Group) -> None:
    """A later call of the slow path tells of its end, close() of that of the others."""
    board = Board()
    Recorder(group, board, lambda: None)  # which the group keeps
    x = np.ones((4, 4))[:, ::2]  # strided: the fast path declines

    def states() -> list[int]:
        return [record[-1] & 0xFF for record in sorted(board.read_records())]

    group.isend(x, 0)
    assert states() == [ASYNCHRONOUS]
    group.recv(0, like=x.copy())
    group.all_reduce(x)
    assert states()[0] == DONE
    group.isend(x, 0, 7)
    group.close()
    assert all(state in (DONE, FAILED) for state in states())
    board.close()


def test_messages_to_a_peer_that_is_one_of_numpys_integers(group: arraycomm.Group) -> None:
    """On the slow path too, which knows the peer from what was given."""
    board = Board()
    Recorder(group, board, lambda: None)
    for x, length in ((np.ones((4, 4)), 128), (np.ones((4, 4))[:, ::2], 64)):
        before = sum(board.words[board.links : board.links + LINKS])
        sent = group.isend(x, np.int64(0))
        group.recv(np.int64(0), like=x.copy())
        sent.wait()
        assert sum(board.words[board.links : board.links + LINKS]) - before == length
    board.close()


def test_a_child_of_the_rank_writes_nothing_on_its_board(group: arraycomm.Group) -> None:
    board = Board()
    recorder = Recorder(group, board, lambda: None)
    pending = [group.irecv(0, like=np.zeros(4)), group.irecv(0, 1, like=np.zeros(4))]
    before = bytes(board.memory)
    child = os.fork()
    if not child:
        signal.alarm(30)  # ends it where it hangs
        recorder._lock.acquire()  # as by a thread of the rank at the fork
        recorder.stop()
        try:
            pending[0].wait()
        except RuntimeError:  # it is its parent's
            os._exit(0)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    assert bytes(board.memory) == before
    for tag, work in enumerate(pending):
        group.send(np.ones(4), 0, tag)
        work.wait()
    recorder.stop()
    board.close()


def test_a_group_is_used_while_it_gets_a_watcher(group: arraycomm.Group) -> None:
    """By another thread, between any two lines."""
    used = []

    def between(frame: Any, event: str, _: object) -> Any:
        if frame.f_code is not attach.__code__:
            return None
        group.barrier()
        used.append(type(group))
        return between

    sys.settrace(between)
    try:
        attach(group, cast(Watcher, _Nothing()))
    finally:
        sys.settrace(None)
    assert Watched in used and arraycomm.Group in used


@pytest.mark.parametrize("way", ["short", "long"])
def test_who_waits_no_longer_is_not_shown_as_waiting(group: arraycomm.Group, way: str) -> None:
    """The page takes who is in an operation for one that nothing but its end lets go on."""
    board = Board()
    recorder = Recorder(group, board, lambda: None)
    if way == "long":
        attach(group, cast(Watcher, _Nothing()))
    pending = group.irecv(0, like=np.zeros(4))
    with pytest.raises(TimeoutError):
        pending.wait(0.01)
    assert [record[-1] & 0xFF for record in board.read_records()] == [ASYNCHRONOUS]
    group.send(np.ones(4), 0)
    pending.wait()
    recorder.stop()
    board.close()


class _Nothing:
    begin = begun = waits = end = follow = closed = lambda self, *_: None
