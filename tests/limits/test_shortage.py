"""Too little of something: an error that says of what, on the rank that lacks it, before anything hangs."""

from __future__ import annotations

import contextlib
import re
import socket
import subprocess
import sys
import threading

import pytest

from ..faults.job import Job
from . import tasks


@pytest.mark.parametrize("spare", [0, 10, 16, 32])
def test_few_descriptors(spare: int) -> None:
    """It works, or the rank is told need and limit before it opens anything."""
    with Job(2, "tcp", opened=False, tasks=tasks) as job:
        job.call("limit_descriptors", [1], spare=spare)
        job.begin("open_group", timeout=1)
        answers = job.answers()
        if spare >= 32:
            assert not answers[0].error and not answers[1].error, answers
            job.call("cycle")
            return
        assert answers[1].error == "ResourceError", answers[1].trace
        assert re.search(r"needs \d+ descriptors .* limit is \d+, .* raise `ulimit -n`", answers[1].text), answers[1].text
        assert answers[0].error == "PeerLost" and "was set up: ResourceError" in answers[0].text, answers[0]


@pytest.mark.parametrize("spare", [0, 1])
def test_no_descriptor_for_a_connection(spare: int) -> None:
    """The group stands; what runs out later, to connect or to be connected to, ends it on all ranks.

    Only the rank that lacks it is sure to fail in this operation: another may have got all it needs.
    """
    with Job(3, "tcp", tasks=tasks) as job:
        job.call("limit_descriptors", [1], spare=spare)
        job.begin("total")
        answers = job.answers()
        assert answers[1].error == "ResourceError" and "raise `ulimit -n`" in answers[1].text, answers[1].trace
        assert all(answer.error or answer.value == 3.0 for answer in answers.values()), answers
        job.begin("total")
        assert all("raise `ulimit -n`" in answer.text for answer in job.answers().values())


def test_limited_file_size() -> None:
    """A memory file counts as one."""
    with Job(2, "shm", opened=False, tasks=tasks) as job:
        job.call("limit_file_size", size=100_000)
        job.begin("open_group", timeout=5)
        answers = job.answers()
        assert answers[0].error == "ResourceError", answers[0].trace
        assert re.search(r"\d+ bytes of shared memory: File too large; see `ulimit -f`, or set", answers[0].text), answers[0]
        assert answers[1].error, "rank 1 has no shared memory either"


@pytest.mark.parametrize("limited", [[0], [1], [0, 1]])
def test_limited_file_size_without_symmetric_arrays(limited: list[int]) -> None:
    """A memory file counts by its length, of which most is for symmetric arrays: a world does without.

    Which rank gives it its length is not settled.
    """
    with Job(2, "shm", opened=False, tasks=tasks) as job:
        job.call("limit_file_size", limited, size=1 << 30)
        job.call("open_group", timeout=20)
        job.call("total")
        job.begin("symmetric_and_window")
        answers = job.answers()
        assert not any(answer.error for answer in answers.values()), answers
        assert len({len(answer.value[1]) for answer in answers.values()}) == 1, answers
        for answer in answers.values():
            total, records = answer.value
            assert total == 3.0 and len(records) <= 1, answer
            assert all("no room for the addresses of symmetric arrays" in record for record in records)
        assert len(limited) < 2 or answers[0].value[1]


@pytest.mark.parametrize("spare", [4_000_000, 20_000_000, 60_000_000])
def test_limited_address_space(spare: int) -> None:
    """Threads need room for their stacks, the group for its segment."""
    with Job(2, "shm", opened=False, tasks=tasks) as job:
        job.call("limit_address_space", [1], spare=spare)
        job.begin("open_group", timeout=2)
        answers = job.answers()
        print(answers)
        assert answers[1].error in ("", "ResourceError"), answers[1].trace
        if answers[1].error and not answers[0].error:  # short of what it has alone: rank 0 is told when it asks
            job.begin("total", [0], timeout=5)
            assert "ResourceError" in job.answer(0).text
        else:
            assert bool(answers[0].error) == bool(answers[1].error)


@pytest.mark.parametrize("limited", [False, True])
def test_no_addresses_for_symmetric_arrays(limited: bool) -> None:
    """What one rank has no room to map are ordinary arrays on all of them, and they are told. Windows are served then."""
    with Job(2, "shm", tasks=tasks) as job:
        if limited:
            job.call("limit_address_space", [1], spare=1 << 30)
        job.begin("symmetric_and_window")
        for answer in job.answers().values():
            assert not answer.error, answer.trace
            total, records = answer.value
            assert total == 3.0 and len(records) == limited, answer
            assert not limited or "no room for the addresses of symmetric arrays (`ulimit -v`, `-f`" in records[0]


def test_symmetric_arrays_take_addresses_alone() -> None:
    """Neither a core dump nor mlockall() brings in more than what there is."""
    with Job(3, "shm", tasks=tasks) as job:
        job.call("symmetric_and_window")
        job.begin("dumped_and_writable")
        for answer in job.answers().values():
            dumped, writable = answer.value
            assert 0 < dumped < 1 << 20 and writable < 1 << 30, answer


_SERVER = """
import os, resource, socket, threading
from arraycomm.core.bootstrap.auth import Acceptor

short = threading.Event()
listener = socket.create_server(("127.0.0.1", 0))
acceptor = Acceptor([listener], b"s" * 32, "job", lambda sock, hello: sock.close(), on_shortage=lambda error: short.set())
most = len(os.listdir("/proc/self/fd"))  # counts the one that lists: one more is free
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
print(listener.getsockname()[1], flush=True)
print("told" if short.wait(20) else "not told", flush=True)
"""


def test_taking_turns_with_the_last_descriptor() -> None:
    """Each of two that come is accepted in its turn and dropped for the other: nobody gets in, and the owner is told."""
    with subprocess.Popen([sys.executable, "-c", _SERVER], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        port = int(server.stdout.readline())
        told = threading.Event()
        callers = [threading.Thread(target=_call_again_and_again, args=(port, told)) for _ in range(2)]
        for caller in callers:
            caller.start()
        answer = server.stdout.readline()
        told.set()
        for caller in callers:
            caller.join()
        assert answer == "told\n"


def _call_again_and_again(port: int, stop: threading.Event) -> None:
    while not stop.is_set():
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=5) as sock:
            sock.settimeout(0.5)
            sock.recv(1)  # says nothing itself; returns when it is dropped
