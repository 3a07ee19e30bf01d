"""What the log says of operations that wait for long, and where the ranks are that are waited for."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

import arraycomm
from arraycomm.backends.socket import late
from tests.logged import logged

LIMIT = 60  # s: ends what hangs


class Notices(logging.Handler):
    """The lines of this rank, and a wait for one with certain words: on a busy machine other ranks may be late at first, too."""

    def __init__(self, words: Sequence[str]) -> None:
        super().__init__()
        self.words, self.came = words, threading.Event()
        self.lines: list[str] = []
        logging.getLogger("arraycomm").addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())
        if all(word in self.lines[-1] for word in self.words):
            self.came.set()


def take_a_nap(told: str) -> None:
    """Until a rank that waits has said so: the other end of the pipe is opened then."""
    with open(told) as pipe:
        pipe.read()


def wake(notices: Notices, told: str) -> None:
    """Once a notice has come, the rank that it is about may go on."""
    assert notices.came.wait(LIMIT), notices.lines
    with open(told, "w"):
        pass


def until_told(told: str, call: Callable[[], object], *words: str) -> None:
    """Calls it, and lets the late rank go on when this one has said that it waits."""
    notices = Notices(words)
    waker = threading.Thread(target=wake, args=(notices, told))
    waker.start()
    call()
    waker.join(LIMIT)
    logging.getLogger("arraycomm").removeHandler(notices)


# Who waits, in what, for whom, and what the line says of that rank.
TURNS = ((0, "all_reduce #2 of 3 float64, sum", 2, ", last in collective #1)"),
         (0, "all_gather #4 of 3 float64", 1, ", last in collective #3)"),
         (0, "recv of 3 float64", 1, ")"),
         (1, "recv of 3 float64", None, ""),
         (0, "recv of 3 float64", 2, ")"),
         (0, "a receive, a probe or a window's wait", 1, ")"),
         (0, "all_gather #10 of 3 int64", 1, ", last in collective #9)"))


def words(waits: int, doing: str, late: int | None, last: str) -> tuple[str, ...]:
    begins = f"rank {waits} of 3 in group 'world' has waited "
    if late is None:
        return begins, f" s in {doing} for a message from any rank"
    return begins, f" s in {doing} for rank {late} (host ", f"{last}\nrank {late} is here:\n", "in take_a_nap"


def wait_for_each_other(rank: int, told: str) -> tuple[int, str, int | None, str] | None:
    late._SECONDS = LIMIT  # for an answer
    with arraycomm.init(timeout=LIMIT) as group:
        x, turns = np.ones(3), iter(TURNS)

        def take_turns(sleeps: int, call: Callable[[], object], answer: Callable[[], object] | None = None) -> None:
            turn = next(turns)
            if rank == turn[0]:
                until_told(told, call, *words(*turn))
            elif rank == sleeps:
                take_a_nap(told)
                (answer or call)()
            elif answer is None:
                call()
            group.barrier()

        group.all_reduce(x)
        take_turns(2, lambda: group.all_reduce(x))
        take_turns(1, lambda: group.all_gather(x, async_op=True).wait())
        take_turns(1, lambda: group.recv(1, like=x), lambda: group.send(x, 0))
        if os.environ["ARRAYCOMM_TRANSPORT"] == "tcp":
            return None  # the rest waits alike
        take_turns(2, lambda: group.recv(like=x), lambda: group.send(x, 1))
        take_turns(2, lambda: group.irecv(2, like=x).wait(), lambda: group.send(x, 0))
        take_turns(1, lambda: group.probe(1), lambda: group.send(x, 0))
        if rank == 0:
            group.recv(1, like=x)
        take_turns(1, lambda: group.split(0))
        return next(turns, None)


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    monkeypatch.setenv("ARRAYCOMM_WAIT_NOTICE", "0.1")
    os.mkfifo(tmp_path / "told")
    return str(tmp_path / "told")


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_who_is_late_and_where(transport: str, monkeypatch: pytest.MonkeyPatch, told: str) -> None:
    monkeypatch.setenv("ARRAYCOMM_TRANSPORT", transport)
    assert arraycomm.spawn(wait_for_each_other, (told,), 3) == [None] * 3  # and so each turn has said what it should


def in_c(rank: int, told: str) -> None:
    from ctypes import PyDLL  # whose calls keep the lock

    with arraycomm.init(timeout=LIMIT) as group:
        group.barrier()
        if rank == 0:
            until_told(told, group.barrier, " s in barrier #2 for rank 1 (host ", "\nrank 1 sent no stack: it is st")
        else:
            os.close(PyDLL(None).open(told.encode(), os.O_RDONLY))
            group.barrier()


def test_what_holds_the_interpreter_is_not_waited_for(told: str) -> None:
    """A rank in C that does not give the lock up cannot answer: the line comes all the same."""
    arraycomm.spawn(in_c, (told,), 2)


def poll(rank: int) -> list[str]:
    os.environ["ARRAYCOMM_WAIT_NOTICE"] = ("1", "0", "0.2")[rank]
    with logged() as lines, arraycomm.init(timeout=LIMIT) as group:
        x = np.ones(3)
        if rank == 0:
            work, asked = group.irecv(1, like=x), 0
            while not work.done() or asked < 15:
                with contextlib.suppress(TimeoutError):
                    work.result(0.1)
                asked += 1
                if asked == 15:
                    group.send(x, 1)
                    group.send(x, 2)
        else:
            group.recv(0, like=x)
        if rank == 1:
            group.send(x, 0)
        return [line for line in lines if "recv" in line]


def test_who_says_nothing() -> None:
    """Who polls does not wait for long; and a setting ends it."""
    polls, silent, waits = arraycomm.spawn(poll, (), 3)
    assert not polls and not silent and waits
