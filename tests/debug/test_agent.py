"""The process beside a rank: what it reads while the rank writes, and how it ends."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import psutil
import pytest

import arraycomm
from arraycomm.core.bootstrap.store import HashStore
from arraycomm.core.diagnostics.watch import attach, detach
from arraycomm.debug import start_debug_server
from arraycomm.monitor.agent import Agent
from arraycomm.monitor.board import STACKS, WATCHED, Board
from arraycomm.monitor.recorder import Recorder

from .jobs import until


@pytest.fixture
def group() -> Iterator[arraycomm.Group]:
    with arraycomm.init(store=HashStore(), rank=0, world_size=1) as group:
        yield group


def _agent(board: Board) -> Agent:
    store: Any = HashStore()
    store.multi_set([STACKS, WATCHED], ["0", "0"])
    return Agent({"rank": 0, "pid": os.getpid(), "board": os.dup(board.descriptor), "signal": 0, "stacks": 0}, store)


def test_what_is_written_between_two_looks_is_known(group: arraycomm.Group, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call of a new kind comes at every moment of a report."""
    board = Board()
    made: list[Any] = []
    recorder, agent = Recorder(group, board, lambda: None), _agent(board)

    def then_called(read: Callable[[Board], Any]) -> Callable[[Board], Any]:
        def look(self: Board) -> Any:
            found = read(self)
            made.append(group.all_reduce(bytearray(len(made) + 1), async_op=True))
            return found
        return look

    for name in ("read_texts", "read_records"):
        monkeypatch.setattr(Board, name, then_called(getattr(Board, name)))
    for _ in range(3):
        assert all("shape" in record for record in [*agent.report("")["open"], *agent._records()])
    for work in made:
        work.wait()
    recorder.stop()
    board.close()


def test_a_group_that_finds_no_room_is_not_recorded(group: arraycomm.Group, caplog: pytest.LogCaptureFixture) -> None:
    board = Board()
    recorder, agent = Recorder(group, board, lambda: None), _agent(board)
    while board.text({"error": "x" * 20}):
        pass
    with caplog.at_level(logging.WARNING):
        part = group.split(0)
    assert part is not None and "no room" in caplog.text
    kinds = len(recorder._kinds)
    for nbytes in range(1, 20):
        part.all_reduce(bytearray(nbytes))
        group.all_reduce(bytearray(nbytes))
    assert len(recorder._kinds) == kinds and [about["group"] for about in agent.report("")["groups"]] == ["world"]
    recorder.stop()
    board.close()


def test_collectives_are_numbered_from_the_start(group: arraycomm.Group) -> None:
    """Ranks agree on numbers, whatever watched the group on some of them before."""
    board = Board()

    class Earlier:
        def begin(self, call: object) -> None:
            """Nothing."""

        begun = end = follow = closed = lambda self, *_: None

    earlier: Any = Earlier()
    attach(group, earlier)
    group.barrier()
    detach(group, earlier)
    recorder = Recorder(group, board, lambda: None)
    group.barrier()
    with pytest.raises(ValueError):
        group.all_reduce(bytearray(8), "no such reduction")
    assert board.read_group(0) == {"begun": 1, "ended": 1, "bytes": 0} and board.read_records()[0][5] == 1
    recorder.stop()
    board.close()


def test_who_waits_for_an_asynchronous_operation_is_in_it(group: arraycomm.Group) -> None:
    board = Board()
    recorder, agent = Recorder(group, board, lambda: None), _agent(board)
    pending = group.irecv(0, like=bytearray(8))
    states = [agent.report("")["open"][0]["state"]]
    waiting = threading.Thread(target=pending.wait)
    waiting.start()
    until(lambda: agent.report("")["open"][0]["state"] == "running")
    group.send(bytearray(8), 0)
    waiting.join()
    assert states == ["asynchronous"] and not agent.report("")["open"]
    recorder.stop()
    board.close()


FORKING = """
import os, sys
import arraycomm
from arraycomm.core.bootstrap.store import HashStore
from arraycomm.debug import start_debug_server

group = arraycomm.init(store=HashStore(), rank=0, world_size=1)
server = start_debug_server(group)
group.barrier()
child = os.fork()
if not child:
    with server:
        try:
            group.barrier()
        except RuntimeError:
            sys.exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
print(server._board.ended, len(server._board.read_records()), server._process.poll())
"""


def test_a_forked_child_writes_nothing() -> None:
    done = subprocess.run([sys.executable, "-c", FORKING], text=True, capture_output=True, timeout=60)
    assert done.stdout == "0 1 None\n", done.stdout + done.stderr


def test_it_does_not_spin_beside_another_program(group: arraycomm.Group) -> None:
    """The rank became another program (exec): its line is closed, and the process goes on."""
    with start_debug_server(group) as server:
        assert server._process is not None and server._process.stdin is not None
        process = psutil.Process(server._process.pid)
        server._process.stdin.close()
        before = process.cpu_times()[:2]
        time.sleep(1)
        after = process.cpu_times()[:2]
        assert sum(after) - sum(before) < 0.5, (before, after)


def test_close_ends_the_page_of_a_closed_group() -> None:
    group = arraycomm.init(store=HashStore(), rank=0, world_size=1)
    server = start_debug_server(group)
    assert server._process is not None
    process = psutil.Process(server._process.pid)
    group.close()
    assert process.is_running()
    for _ in range(2):
        server.close()
        assert not psutil.pid_exists(process.pid)


def test_processes_that_have_ended_are_collected(group: arraycomm.Group) -> None:
    with arraycomm.init(store=HashStore(), rank=0, world_size=1) as other:
        server = start_debug_server(other)
        assert server._process is not None
        process = psutil.Process(server._process.pid)
    until(lambda: not process.is_running() or process.status() == psutil.STATUS_ZOMBIE)
    start_debug_server(group).close()
    assert not psutil.pid_exists(process.pid)


