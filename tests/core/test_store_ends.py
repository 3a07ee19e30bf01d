"""What a TCPStore's server does when clients end, and its clients when it does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import timedelta

import pytest

from arraycomm.core.base.errors import DistStoreError
from arraycomm.core.bootstrap.store import PrefixStore, TCPStore
from arraycomm.core.bootstrap.store.connections import StoreClosed

SECRET = b"s" * 32
SHORT = timedelta(milliseconds=300)
SERVER = """
import sys
from arraycomm.core.bootstrap.store import TCPStore
store = TCPStore("127.0.0.1", 0, is_master=True, secret=b"s" * 32)
print(store.port, flush=True)
sys.stdin.read()
"""


def serve() -> tuple[subprocess.Popen[bytes], int]:
    process = subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE, stdin=subprocess.PIPE)
    assert process.stdout is not None
    return process, int(process.stdout.readline())


def client_of(port: int) -> TCPStore:
    return TCPStore("127.0.0.1", port, secret=SECRET, timeout=timedelta(seconds=10))


@pytest.fixture
def master() -> Iterator[TCPStore]:
    store = TCPStore("127.0.0.1", 0, is_master=True, secret=SECRET, timeout=timedelta(seconds=10))
    yield store
    store.close()


# ---- last wills, and goodbyes ----


def test_will_is_executed_when_the_connection_ends(master: TCPStore) -> None:
    store = TCPStore("127.0.0.1", master.port, secret=SECRET)
    master.set("there", "before")
    assert store._will("mine", {"there": "mine", "end": "gone"})
    assert not master.check(["end"])
    waiting = threading.Timer(0.1, store.close)
    waiting.start()
    master.wait(["end"], timedelta(seconds=10))
    waiting.join()
    assert master.multi_get(["end", "there"]) == [b"gone", b"before"]


def test_will_is_withdrawn_and_replaced(master: TCPStore) -> None:
    """Also over another connection."""
    first, second = (TCPStore("127.0.0.1", master.port, secret=SECRET) for _ in range(2))
    first._will("a", {"a": "1"})
    first._will("b", {"b": "1"})
    first._will("c", {"c": "1"})
    second._will("a", {})
    second._will("b", {"b": "2"})
    first.close()
    master.wait(["c"], timedelta(seconds=10))
    assert not master.check(["a"]) and not master.check(["b"])
    second.close()
    master.wait(["b"], timedelta(seconds=10))
    assert master.get("b") == b"2" and not master.check(["a"])


def test_wills_of_one_name_under_several_prefixes(master: TCPStore) -> None:
    store = TCPStore("127.0.0.1", master.port, secret=SECRET)
    for prefix in ("a", "ab", "a/b"):
        PrefixStore(prefix, store)._will("mine", {"end": prefix})
    PrefixStore("ab", store)._will("mine", {})
    store.close()
    master.wait(["a/end", "a/b/end"], timedelta(seconds=10))
    assert master.multi_get(["a/end", "a/b/end"]) == [b"a", b"a/b"] and not master.check(["ab/end"])


def test_wills_are_bounded(master: TCPStore) -> None:
    with pytest.raises(ValueError, match="65536 bytes"):
        for number in range(10):
            master._will(f"{number}", {"key": "x" * 10_000})


def test_will_survives_an_interrupted_request(master: TCPStore) -> None:
    """The process goes on, so its connection does."""
    class Stop(BaseException):
        pass

    def handler(number: int, frame: object) -> None:
        raise Stop

    store = TCPStore("127.0.0.1", master.port, secret=SECRET)
    store._will("mine", {"end": "gone"})
    before = signal.signal(signal.SIGALRM, handler)
    try:
        with pytest.raises(Stop):
            signal.setitimer(signal.ITIMER_REAL, 0.1)
            store.get("nothing")
    finally:
        signal.signal(signal.SIGALRM, before)
    store.set("more", "")
    with pytest.raises(DistStoreError):
        master.wait(["end"], SHORT)
    store.close()
    master.wait(["end"], timedelta(seconds=10))


def test_closing_is_no_death(master: TCPStore) -> None:
    """Clients that wait, and those that ask afterwards, are told which it was."""
    store = TCPStore("127.0.0.1", master.port, secret=SECRET)
    closing = threading.Timer(0.1, master.close)
    closing.start()
    for _ in range(2):
        with pytest.raises(StoreClosed, match="has closed it"):
            store.get("nothing")
    closing.join()
    store.close()


# ---- large values, and processes that are killed ----


@pytest.mark.parametrize("size", [4095, 4096, 65536, 1 << 20, 5 << 20])
def test_values_longer_than_a_buffer(master: TCPStore, size: int) -> None:
    value = os.urandom(size)
    store = client_of(master.port)
    store.set("key", value)
    assert store.get("key") == value
    assert store.multi_get(["key", "key", "key"]) == [value] * 3
    store.close()


def test_what_was_set_is_there_although_the_client_is_killed(master: TCPStore) -> None:
    program = ("import os, signal, sys\nfrom arraycomm.core.bootstrap.store import TCPStore\n"
               "store = TCPStore('127.0.0.1', int(sys.argv[1]), secret=b's' * 32)\n"
               "for number in range(700):\n    store.set(f'{number}', 'v')\n"
               "os.kill(os.getpid(), signal.SIGKILL)")
    subprocess.run([sys.executable, "-c", program, str(master.port)], check=False, timeout=30)
    master.wait([f"{number}" for number in range(700)], timedelta(seconds=5))


def test_sigpipe_does_not_kill() -> None:
    """A program may have given the signal its default back, as tools in a shell's pipeline do."""
    process, port = serve()
    program = ("import signal, sys, time\nfrom arraycomm.core.bootstrap.store import TCPStore\n"
               "from arraycomm.core.base.errors import DistStoreError\n"
               "signal.signal(signal.SIGPIPE, signal.SIG_DFL)\n"
               "store = TCPStore('127.0.0.1', int(sys.argv[1]), secret=b's' * 32)\n"
               "print(flush=True)\nsys.stdin.readline()\n"
               "for call in (lambda: store.set('a', 'b'), lambda: store.get('a'), lambda: store.set('c', b'x' * 200000)):\n"
               "    try:\n        call()\n    except DistStoreError as error:\n        print(error)\n"
               "store.close()")
    client = subprocess.Popen([sys.executable, "-c", program, str(port)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert client.stdout is not None
    client.stdout.readline()
    process.kill()
    process.communicate()
    told, _ = client.communicate(b"\n", timeout=30)
    assert client.returncode == 0 and told.count(b"lost the TCPStore") == 3


def test_a_killed_server_ends_a_write_that_waits() -> None:
    process, port = serve()
    store = client_of(port)
    os.kill(process.pid, signal.SIGSTOP)
    threading.Timer(0.2, process.kill).start()
    with pytest.raises(DistStoreError, match=r"lost(?!.*does not answer)"):
        store.set("key", bytes(4 << 20))
    process.communicate()
    store.close()


def test_descriptors_come_back(master: TCPStore) -> None:
    def count() -> int:
        return len(os.listdir("/proc/self/fd"))

    client_of(master.port).close()
    end = time.monotonic() + 5
    before = count()
    for _ in range(10):
        store = client_of(master.port)
        store.set("k", "v")
        store.close()
    while count() > before and time.monotonic() < end:
        time.sleep(0.01)  # the server's part is given back by its thread
    assert count() <= before
