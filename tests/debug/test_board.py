"""The memory that a rank shares with its agent."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import arraycomm
from arraycomm.core.bootstrap.store import HashStore
from arraycomm.core.diagnostics.flight import DONE, FAILED
from arraycomm.core.diagnostics.watch import Watcher, attach
from arraycomm.core.interface.kinds import RECORDED
from arraycomm.monitor import board as boards
from arraycomm.monitor.board import BUCKETS, CLASSES, ERROR_SHIFT, OPERATION_SHIFT, RECORDS, TEXT_BYTES, Board
from arraycomm.monitor.recorder import Recorder

from .jobs import until


class Teller:
    """Has texts for nothing but errors."""

    def __init__(self, board: Board) -> None:
        self._board = board

    def error(self, error: BaseException) -> int:
        return self._board.text({"error": str(error)})


@pytest.mark.parametrize("nbytes, number", [(0, 0), (1, 0), (2, 1), (4, 1), (5, 2), (16, 2), (17, 3), (1 << 20, 10),
                                            (1 << 60, CLASSES - 1)])
def test_size_classes(nbytes: int, number: int) -> None:
    board = Board()
    boards.BoardFlight(board, Teller(board)).begin(0, 0, -1, 0, nbytes).end(None)
    (count,) = board.read_counts()
    assert (count["size"], count["bytes"], count["calls"]) == (number, nbytes, 1)
    board.close()


def test_durations_are_counted_by_powers_of_two() -> None:
    board = Board()
    flight = boards.BoardFlight(board, Teller(board))
    for seconds in (0.0, 0.001, 0.01):
        entry = flight.begin(0, 8, -1, 0, 0)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            os.sched_yield()
        entry.end(None)
    records, (count,) = board.read_records(), board.read_counts()
    durations = [ended - begun for _, begun, ended, *_ in records]
    expected = Counter(min((ns // 1000).bit_length(), BUCKETS - 1) for ns in durations)
    assert count["ns"] == sum(durations) >= 11_000_000 and count["buckets"] == expected
    board.close()


def test_messages_are_counted_for_each_group_and_peer() -> None:
    """Of more groups than are remembered, in turns."""
    asked: list[tuple[int, int]] = []

    class Linking(Teller):
        def link(self, row: int, peer: int) -> int:
            asked.extend({(row, peer)}.difference(asked))
            return asked.index((row, peer)) + 1

    board, pairs = Board(), [(row, peer) for row in (0, 1, 64, 128, 255) for peer in (0, 31, 64)]
    flight = boards.BoardFlight(board, Linking(board))
    for _ in range(3):
        for row, peer in pairs:
            flight.begin(row, RECORDED.index("send"), peer, 0, 1 + row + 256 * peer).end(None)
    assert asked == pairs
    assert list(board.words[board.links : board.links + len(pairs)]) == [3 * (1 + row + 256 * peer) for row, peer in pairs]
    board.close()


def test_another_process_reads_it() -> None:
    ours = Board()
    ours.start()
    boards.BoardFlight(ours, Teller(ours)).begin(3, 2, -1, 7, 100).end(OSError("no"))
    theirs = Board(os.dup(ours.descriptor))
    assert theirs.read_texts() == [{}, {"error": "no"}] and theirs.read_group(3) == {"begun": 1, "ended": 1, "bytes": 100}
    (count,) = theirs.read_counts()
    assert [count[key] for key in ("name", "size", "calls", "bytes", "failures")] == [RECORDED[2], 4, 1, 100, 1]
    ((number, begun, ended, *rest),) = theirs.read_records()
    assert (number, rest, count["ns"]) == (1, [7, 3, 1, 100, FAILED | 2 << OPERATION_SHIFT | 1 << ERROR_SHIFT], ended - begun)
    for board in (ours, theirs):
        board.close()


def test_texts_that_find_no_room_are_number_0() -> None:
    board = Board()
    board.start()
    while board.text({"error": "x" * 1000}):
        pass
    assert board.read_texts()[0] == {} and TEXT_BYTES - 1100 < board.words[2] <= TEXT_BYTES
    board.close()


def test_what_is_under_way_is_not_overwritten() -> None:
    """An operation that never ends stays among the last ones, however many follow."""
    group = arraycomm.init(store=HashStore(), rank=0, world_size=1)
    board, closed = Board(), []
    recorder = Recorder(group, board, lambda: closed.append(True))
    pending = group.irecv(0, like=bytearray(8))
    for _ in range(2 * RECORDS):
        group.barrier()
    records = board.read_records()
    texts = board.read_texts()
    about = boards.describe(records[0], texts, {0: texts[1]}, records[0][1])
    assert len(records) == RECORDS and records[-1][0] == 2 * RECORDS + 3  # two numbers were passed over
    assert (about["number"], about["name"], about["state"], about["bytes"]) == (1, "irecv", "asynchronous", 8)
    group.send(bytearray(8), 0)
    pending.wait()
    count = 2 * RECORDS
    assert board.read_records()[0][2] > 0 and board.read_group(0) == {"begun": count, "ended": count, "bytes": 0}
    recorder.stop()
    assert type(group) is arraycomm.Group
    group.close()
    assert not closed and board.ended == boards.OPEN
    board.close()


class Another(Watcher):
    """By whose presence all calls take the slow path."""


def messages(group: arraycomm.Group, x: Any) -> None:
    works = [group.isend(x, 0, 3), group.isend(x, 0)]
    group.recv(0, 3, like=x)
    for work in [*works, group.irecv(like=x)]:
        work.wait()


def failed(group: arraycomm.Group, x: Any) -> None:
    works = [group.irecv(0, like=x), group.irecv(0, 1, like=x)]
    group.abort("enough")
    with pytest.raises(arraycomm.Aborted):
        works[0].wait()
    while not works[1].done():
        os.sched_yield()
    with pytest.raises(arraycomm.Aborted):
        group.barrier()


def batched(group: arraycomm.Group, x: Any) -> None:
    with group.batch():
        group.send(x, 0)
        group.recv(0, like=x)


def refused(group: arraycomm.Group, x: Any, op: str) -> None:
    with pytest.raises((TypeError, ValueError)):
        group.all_reduce(x, op)


CALLS: dict[str, Callable[[arraycomm.Group, Any], Any]] = {
    "all_reduce": lambda group, x: group.all_reduce(x),
    "in place": lambda group, x: group.all_reduce(x, "max", out=x),
    "reduce": lambda group, x: group.reduce(x, 0, op="min"),
    "broadcast": lambda group, x: group.broadcast(x, root=0, timeout=5.0),
    "all_gather": lambda group, x: group.all_gather(x),
    "scatter": lambda group, x: group.scatter(x),
    "all_to_all": lambda group, x: group.all_to_all(x),
    "barrier": lambda group, x: group.barrier(),
    "asynchronous": lambda group, x: group.reduce_scatter(x, async_op=True).result(),
    "messages": messages,
    "batch": batched,
    "refused": lambda group, x: refused(group, x, "band"),
    "unknown": lambda group, x: refused(group, x, "no such reduction"),
    "no array": lambda group, x: refused(group, object(), "sum"),
    "failed": failed,
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
def test_the_short_way_is_recorded_as_the_long_one(call: Callable[[arraycomm.Group, Any], Any]) -> None:
    """Records, counts, the group's numbers, links and texts are the same."""
    found = []
    for watchers in ([], [Another()]):
        board = Board()
        with arraycomm.init(store=HashStore(), rank=0, world_size=1) as group:
            recorder = Recorder(group, board, lambda: None)
            for watcher in watchers:
                attach(group, watcher)
            for _ in range(1 if call is failed else 3):
                call(group, np.ones((2, 3)))
            recorder.stop()
        found.append(seen(board))
        board.close()
    assert found[0] == found[1] and found[0]["records"]


def seen(board: Board) -> dict[str, Any]:
    """All that does not depend on time, or on which texts came first."""
    texts = [{name: re.sub(r"after [0-9.]+ s", "after a while", value) if isinstance(value, str) else value
              for name, value in text.items()} for text in board.read_texts()]  # an error tells how long its operation took
    records = [boards.describe(record, texts, {0: texts[1]}, 0) for record in board.read_records()]
    times = ("age", "seconds", "ended")
    return {"records": [{name: value for name, value in record.items() if name not in times} for record in records],
            "counts": [{**count, "ns": 0, "buckets": sum(count["buckets"].values())} for count in board.read_counts()],
            "group": board.read_group(0), "texts": sorted(map(json.dumps, texts)),
            "links": board.words[board.links : board.links + 4].tolist()}


WRITING = """
import sys
from arraycomm.monitor import board as boards

boards.RECORDS = 1
flight = boards.BoardFlight(boards.Board(int(sys.argv[1])), None)
number = 0
while True:
    number += 1
    flight.begin(0, 8, -1, number, number).end(None)
"""


def test_no_record_is_half_a_new_one() -> None:
    """The rank writes one record again and again, and is stopped at any moment."""
    board = Board()
    rank = subprocess.Popen([sys.executable, "-c", WRITING, str(board.descriptor)], pass_fds=[board.descriptor])
    try:
        first = board.records
        until(lambda: board.memory[first + 1])  # the first hundreds have been written
        torn, whole = [], 0
        for _ in range(600):
            before = board.memory[first : first + 8]
            while board.memory[first : first + 8] == before:
                os.sched_yield()  # it goes on
            rank.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, rank.pid, os.WSTOPPED)
            for number, begun, ended, kind, _, sequence, nbytes, state in board.read_records():
                done = state & 0xFF == DONE
                if number == kind == sequence == nbytes and (begun <= ended) == done and (ended > 0) == done:
                    whole += 1
                else:
                    torn.append((number, begun, ended, kind, sequence, nbytes, state))
            rank.send_signal(signal.SIGCONT)
        assert not torn and whole, (len(torn), torn[0])
    finally:
        rank.kill()
        rank.wait()
        board.close()
