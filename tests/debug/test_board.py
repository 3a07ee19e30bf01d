"""The memory that a rank shares with its agent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

import arraycomm
from arraycomm.core.store import HashStore
from arraycomm.debug import board as boards
from arraycomm.debug.board import BUCKETS, CLASSES, RECORD, RECORDS, TEXT_BYTES, Board, bucket, size_class
from arraycomm.debug.recorder import Recorder
from arraycomm.debug.report import describe

from .jobs import until


@pytest.mark.parametrize("nbytes, number", [(0, 0), (1, 0), (2, 1), (4, 1), (5, 2), (16, 2), (17, 3), (1 << 20, 10),
                                            (1 << 60, CLASSES - 1)])
def test_size_classes(nbytes: int, number: int) -> None:
    assert size_class(nbytes) == number


@pytest.mark.parametrize("ns, number", [(0, 0), (999, 0), (1000, 1), (1999, 1), (2000, 2), (8_388_607_999, 23),
                                        (10**12, BUCKETS - 1)])
def test_buckets(ns: int, number: int) -> None:
    assert bucket(ns) == number


def test_another_process_reads_it() -> None:
    ours = Board()
    ours.start()
    number = ours.text({"error": "no"})
    ours.count(2, 100, 5000, True)
    RECORD.pack_into(ours.memory, ours.records, 1, 10, 20, 0, 0, 7, 100, 2)
    theirs = Board(os.dup(ours.descriptor))
    assert theirs.read_texts() == [{}, {"error": "no"}] and number == 1
    assert theirs.read_counts() == [{"name": boards.OPERATIONS[2], "size": 4, "calls": 1, "bytes": 100, "failures": 1, "ns": 5000,
                                     "buckets": {3: 1}}]
    assert theirs.read_records() == [(1, 10, 20, 0, 0, 7, 100, 2)]
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
    pending = group.all_reduce(bytearray(8), async_op=True)
    for _ in range(2 * RECORDS):
        group.barrier()
    records = board.read_records()
    texts = board.read_texts()
    about = describe(records[0], texts, {0: texts[1]}, records[0][1])
    assert len(records) == RECORDS and records[-1][0] == 2 * RECORDS + 3  # two numbers were passed over
    assert (about["number"], about["name"], about["state"], about["bytes"]) == (1, "all_reduce", "asynchronous", 8)
    pending.wait()
    count = 2 * RECORDS + 1
    assert board.read_records()[0][2] > 0 and board.read_group(0) == {"begun": count, "ended": count, "bytes": 8}
    recorder.stop()
    assert type(group) is arraycomm.Group
    group.close()
    assert not closed and board.ended == boards.OPEN
    board.close()


WRITING = """
import sys
import arraycomm
from arraycomm.core.store import HashStore
from arraycomm.core.watch import Call
from arraycomm.debug.board import RUNNING, Board
from arraycomm.debug.recorder import Recorder

group = arraycomm.init(store=HashStore(), rank=0, world_size=1)
recorder = Recorder(group, Board(int(sys.argv[1])), lambda: None)
token = recorder.begin(Call("barrier", group, {}))
while True:
    token.number += 1
    token.sequence = token.begun = token.number
    recorder._write(token, 0, RUNNING)
"""


def test_no_record_is_half_a_new_one() -> None:
    """The rank writes one record again and again, and is stopped at any moment."""
    board = Board()
    rank = subprocess.Popen([sys.executable, "-c", WRITING, str(board.descriptor)], pass_fds=[board.descriptor])
    try:
        first = board.records + RECORD.size
        until(lambda: board.memory[first + 1])  # the first hundreds have been written
        torn, whole = [], 0
        for _ in range(600):
            before = board.memory[first : first + 8]
            while board.memory[first : first + 8] == before:
                os.sched_yield()  # it goes on
            rank.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, rank.pid, os.WSTOPPED)
            for number, begun, _, _, _, sequence, _, _ in board.read_records():
                if number == begun == sequence:
                    whole += 1
                else:
                    torn.append((number, begun, sequence))
            rank.send_signal(signal.SIGCONT)
        assert not torn and whole, (len(torn), torn[0])
    finally:
        rank.kill()
        rank.wait()
        board.close()
