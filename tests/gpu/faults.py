"""What a rank with something under way on its GPU sees of a peer that dies, aborts or does not come: `python -m tests.gpu.parts
faults 2 torch`.

Each case has two ranks that are processes of their own: spawn() ends all when one dies. All cases' ranks start at once, which
takes longer than everything else, and stand idle until it is their turn, so that what is timed has the machine for itself.
"""

from __future__ import annotations

import multiprocessing
import os
import socket
import sys
import time
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import numpy as np

import arraycomm

from . import frameworks

COUNT, FEW = 1 << 22, 1 << 12  # float32; over the stand-ins
START, LONG, TIMEOUT = 60.0, 20.0, 2.0  # s: for all ranks to start; of the groups; where one does not come
SOON, OVERSUBSCRIBED = 1.0, 1.5  # s: README.md's; more over the stand-ins, beside tests
CLOSE = 2.0  # s for close(), which waits a while for a peer that lives and has not left
UNDER_WAY = 0.3  # s for which the operation goes on before


class Case(NamedTuple):
    """befalls: "is killed", "aborts" or "does not come". call: how rank 0 meets it, by wait(), or by synchronising with its GPU
    itself, amid operations of both. first: in the group's first operation on a GPU's arrays, in which NCCL connects the ranks."""

    backend: str
    befalls: str
    call: str
    first: bool = False


CASES = [Case("nccl", "is killed", "wait"), Case("nccl", "is killed", "own synchronisation"),
         Case("nccl", "is killed", "wait", first=True), Case("nccl", "aborts", "wait"),
         Case("nccl", "aborts", "own synchronisation"), Case("nccl", "does not come", "wait"),
         Case("nccl", "does not come", "wait", first=True),
         Case("socket", "is killed", "wait"), Case("socket", "is killed", "own synchronisation")]
RAISES = {"is killed": arraycomm.PeerLost, "aborts": arraycomm.Aborted, "does not come": arraycomm.CollectiveTimeout}


def start(ranks: int, framework: str) -> None:
    assert ranks == 2, f"a case has 2 ranks, not {ranks}"
    pairs = [Pair(number, port, framework) for number, port in enumerate(_ports(len(CASES)))]
    wrong = []
    try:
        for pair in pairs:
            pair.ready()
        print("| over | rank 1 | operation | seen by | rank 0 raised | s after it | close() s |\n|---|---|---|---|---|---|---|",
              flush=True)
        for case, pair in zip(CASES, pairs, strict=True):
            raised, text, took, seconds, fault = pair.happen(case)
            print(f"| {case.backend} | {case.befalls} | {'first' if case.first else 'later'} | {case.call} | {raised} | "
                  f"{took:.3f} | {seconds:.3f} |", flush=True)
            print(text, flush=True)  # no row: what the error said
            limit = SOON + (OVERSUBSCRIBED if framework == frameworks.STANDIN else 0)
            kind = RAISES[case.befalls].__name__
            wrong += [f"{case}: {fault}"] if fault else []
            wrong += [] if raised == kind else [f"{case}: {raised} instead of {kind}: {text}"]
            wrong += [] if 0 <= took < limit else [f"{case}: after {took:.2f} s, and {limit:g} is the limit"]
            wrong += [] if seconds < CLOSE else [f"{case}: close() took {seconds:.2f} s"]
    finally:
        for pair in pairs:
            pair.end()
    assert not wrong, "\n".join(wrong)


def _ports(number: int) -> list[int]:
    """That nobody listens on, each another."""
    sockets = [socket.socket() for _ in range(number)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


class Pair:
    """The ranks of one case, seen from the process that started them."""

    def __init__(self, number: int, port: int, framework: str) -> None:
        self._processes: list[Any] = []
        self._ends: list[Any] = []
        context = multiprocessing.get_context("spawn")
        for rank in range(2):
            ours, theirs = context.Pipe()
            process = context.Process(target=work, args=(rank, port, number, framework, theirs), daemon=True)
            process.start()
            theirs.close()  # so that the end of a rank is the end of its pipe
            self._processes.append(process)
            self._ends.append(ours)

    def _told(self, rank: int) -> Any:
        assert self._ends[rank].poll(START), f"rank {rank} says nothing for {START:.0f} s"
        return self._ends[rank].recv()

    def ready(self) -> None:
        for rank in range(2):
            assert self._told(rank) == "ready"

    def happen(self, case: Case) -> tuple[str, str, float, float, str]:
        """What rank 0 raised, what that said, how many seconds after what befell rank 1, how many close() took, and what else was
        wrong."""
        both = case.call != "wait"
        for rank in (0, 1) if both else (0,):
            self._ends[rank].send("go")
        begin = self._told(0)
        time.sleep(UNDER_WAY)
        if case.befalls == "is killed":
            begin = time.monotonic()  # one clock for all processes of a machine
            self._processes[1].kill()
        elif case.befalls == "aborts":
            self._ends[1].send("abort")
            begin = self._told(1)
        else:
            begin += TIMEOUT
        raised, text, when, seconds, fault = self._told(0)
        self._processes[0].join(LONG)
        if self._processes[0].exitcode != 0:
            fault += f"; the process of rank 0 ended with {self._processes[0].exitcode}"
        return raised, text, when - begin, seconds, fault

    def end(self) -> None:
        for process in self._processes:
            process.kill()
            process.join()


# ---- in the ranks ----


def work(rank: int, port: int, number: int, framework: str, told: Connection) -> None:
    case = CASES[number]
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2", LOCAL_WORLD_SIZE="2", MASTER_ADDR="127.0.0.1",
                      MASTER_PORT=str(port))
    name = frameworks.use(rank, framework)[0]
    group = arraycomm.init(backend=case.backend, timeout=LONG, name=f"case {number}")
    x = frameworks.make(name, np.ones(FEW if name == frameworks.STANDIN else COUNT, np.float32))
    if not case.first:
        assert (frameworks.back(group.all_reduce(x)) == group.size).all()
    group.barrier()
    told.send("ready")
    if rank == 1:
        leave(group, x, case, told)
    else:
        survive(group, name, x, case, told)


def leave(group: arraycomm.Group, x: Any, case: Case, told: Connection) -> None:
    """Who is killed, or does not come, waits here."""
    what = told.recv()
    try:
        while what == "go" and not told.poll():
            frameworks.back(group.all_reduce(x))
        what = told.recv() if what == "go" else what
    except arraycomm.DistError as error:  # rank 0 has failed before anything happened
        sys.exit(f"rank 1, {case}: {error}")
    assert what == "abort"
    begin = time.monotonic()
    group.abort()
    told.send(begin)
    told.recv()  # for ever


def survive(group: arraycomm.Group, name: str, x: Any, case: Case, told: Connection) -> None:
    told.recv()
    told.send(time.monotonic())
    error: arraycomm.DistError | None = None
    try:
        if case.call == "wait":
            waiting = TIMEOUT if case.befalls == "does not come" else LONG
            work = group.all_reduce(x, async_op=True, timeout=waiting)
            work.wait(LONG)
        else:
            while True:  # what comes of it is not complete once the other is gone: the call after it says so
                frameworks.back(group.all_reduce(x))
    except arraycomm.DistError as caught:
        error = caught
    when = time.monotonic()
    assert error is not None, f"{case}: an operation without rank 1 has ended well"
    try:
        go_on(group, name, x, case, error)
        fault = ""
    except (AssertionError, arraycomm.DistError) as caught:
        fault = f"afterwards {type(caught).__name__}: {caught}"
    begin = time.monotonic()
    group.close()
    told.send((type(error).__name__, str(error), when, time.monotonic() - begin, fault))


def go_on(group: arraycomm.Group, name: str, x: Any, case: Case, error: arraycomm.DistError) -> None:
    """The GPU computes, later calls raise at once, and who is left has a group of its own."""
    begin = time.monotonic()
    y = frameworks.make(name, np.full(1000, 3.0, np.float32))
    assert (frameworks.back(y * 2) == 6).all(), "the GPU computes something else"
    assert (frameworks.back(x) == 1).all(), "the operation's input has changed"
    assert time.monotonic() - begin < SOON, f"the GPU went on after {time.monotonic() - begin:.2f} s"
    begin = time.monotonic()
    try:
        group.all_reduce(x)
    except arraycomm.DistError:
        assert time.monotonic() - begin < SOON, f"a later call raised after {time.monotonic() - begin:.2f} s"
    else:
        raise AssertionError("a later call raised nothing")
    if case.befalls == "is killed":
        assert getattr(error, "ranks", None) == (1,), f"the error names ranks {getattr(error, 'ranks', None)}"
        with group.subgroup([0], "who is left") as alone:
            assert (frameworks.back(alone.all_reduce(y)) == 3).all(), "all_reduce of who is left"
