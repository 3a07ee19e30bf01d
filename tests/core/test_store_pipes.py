"""TCPStore inside a host: requests and answers through pipes, which the client hands over on its Unix socket."""

from __future__ import annotations

import array
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import timedelta

import pytest

from arraycomm.core.base.errors import DistStoreError
from arraycomm.core.bootstrap.auth import Hello, Purpose
from arraycomm.core.bootstrap.store import TCPStore, inside
from arraycomm.core.bootstrap.store.table import POSTED, Op, decode, encode

PIPES = 14
OK, BAD_REQUEST = 0, 2
SERVER = """
import resource, sys
from arraycomm.core.bootstrap.store import TCPStore
if {limit}:
    resource.setrlimit(resource.RLIMIT_NOFILE, ({limit}, {limit}))
store = TCPStore("127.0.0.1", 0, is_master=True, secret=b"s")
print(store.port, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def master() -> Iterator[TCPStore]:
    store = TCPStore("127.0.0.1", 0, is_master=True, secret=b"s", timeout=timedelta(seconds=10))
    yield store
    store.close()


def client_of(port: int) -> TCPStore:
    return TCPStore("127.0.0.1", port, secret=b"s", timeout=timedelta(seconds=10))


def unix_client(master: TCPStore) -> socket.socket:
    sock = inside.connect("127.0.0.1", master.port, b"s", Hello("", Purpose.STORE), deadline=5)
    assert sock is not None
    sock.settimeout(5)
    return sock


def offer(sock: socket.socket, descriptors: list[int], more: bytes = b"") -> int:
    """The code of the answer."""
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
    sock.sendmsg([encode(PIPES, []) + more], rights)
    return decode(sock.recv(100))[0]


def serve(limit: int = 0) -> tuple[subprocess.Popen[bytes], int]:
    process = subprocess.Popen([sys.executable, "-c", SERVER.format(limit=limit)], stdout=subprocess.PIPE, stdin=subprocess.PIPE)
    assert process.stdout is not None
    return process, int(process.stdout.readline())


def uses_pipes(store: TCPStore) -> bool:
    return store._connections.post("looked at", "")  # a socket declines


def test_pipes_by_default(master: TCPStore) -> None:
    assert uses_pipes(master) and master.get("looked at") == b""


def test_sockets_where_the_server_is_short_of_descriptors() -> None:
    process, port = serve(limit=64)
    stores = [client_of(port) for _ in range(24)]
    used = [uses_pipes(store) for store in stores]
    assert used[0] and not used[-1]
    for number, store in enumerate(stores):
        store.set(f"{number}", "x" * number)
        assert stores[-number].get(f"{number}") == b"x" * number
    for store in stores:
        store.close()
    process.communicate()


@pytest.mark.parametrize("size", [4095, 4096, 65536, 1 << 20, 5 << 20])
def test_values_longer_than_a_pipe(master: TCPStore, size: int) -> None:
    value = os.urandom(size)
    store = client_of(master.port)
    store.set("key", value)
    assert store.get("key") == value
    assert store.multi_get(["key", "key", "key"]) == [value] * 3
    store.close()


def test_more_posted_than_a_pipe_holds(master: TCPStore) -> None:
    stores = [client_of(master.port) for _ in range(4)]
    for number in range(5000):
        for store in stores:
            store.set("last", f"{number} " + "x" * 100)
    for store in stores:
        assert store.get("last").startswith(b"4999 ")
        store.close()


def test_what_was_posted_arrives_although_the_client_is_killed(master: TCPStore) -> None:
    program = ("import os, signal, sys\nfrom arraycomm.core.bootstrap.store import TCPStore\n"
               "store = TCPStore('127.0.0.1', int(sys.argv[1]), secret=b's')\n"
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
               "store = TCPStore('127.0.0.1', int(sys.argv[1]), secret=b's')\n"
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


def test_offers_that_are_no_pipes(master: TCPStore) -> None:
    sock = unix_client(master)
    with open(os.devnull, "rb") as file:
        assert offer(sock, []) == BAD_REQUEST
        assert offer(sock, [file.fileno(), file.fileno()]) == BAD_REQUEST
        assert offer(sock, [sock.fileno(), file.fileno(), file.fileno()]) == BAD_REQUEST
    read, write = os.pipe()
    assert offer(sock, [read]) == BAD_REQUEST
    sock.sendall(encode(Op.SET, [b"k", b"v"]))  # it goes on as before
    assert decode(sock.recv(100))[0] == OK
    os.close(read)
    os.close(write)
    sock.close()
    assert master.get("k") == b"v"


def test_nothing_follows_an_offer_on_the_socket(master: TCPStore) -> None:
    sock = unix_client(master)
    (requests, to), (source, answers) = os.pipe(), os.pipe()
    sock.sendmsg([encode(PIPES, []) + encode(Op.SET | POSTED, [b"k", b"v"])],
                 [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [requests, answers]))])
    assert sock.recv(100) == b""
    for descriptor in (requests, to, source, answers):
        os.close(descriptor)
    sock.close()
    assert not master.check(["k"])


def test_nonsense_through_pipes_hurts_only_its_sender(master: TCPStore) -> None:
    sock = unix_client(master)
    (requests, to), (source, answers) = os.pipe(), os.pipe()
    assert offer(sock, [requests, answers]) == OK
    os.close(answers)
    os.write(to, b"\xff" * 8 + os.urandom(300))  # a length that no request has: of a possible one the server would await the rest
    assert os.read(source, 100) == b""  # it was dropped
    for descriptor in (requests, to, source):
        os.close(descriptor)
    sock.close()
    assert master.add("alive", 1) == 1


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


def test_both_pipes_end_at_one_moment() -> None:
    """Of a client that dies with an answer under way: it has gone at the first of the two events."""
    process, port = serve()
    store = client_of(port)
    store.set("large", bytes(1 << 20))
    for _ in range(10):
        sock = inside.connect("127.0.0.1", port, b"s", Hello("", Purpose.STORE), deadline=5)
        assert sock is not None
        (requests, to), (source, answers) = os.pipe(), os.pipe()
        assert offer(sock, [requests, answers]) == OK
        os.close(requests)
        os.close(answers)
        os.write(to, encode(Op.GET, [b"large"]))
        os.read(source, 1)  # the rest has no room in the pipe
        os.kill(process.pid, signal.SIGSTOP)
        os.close(to)
        os.close(source)
        os.kill(process.pid, signal.SIGCONT)
        assert store.get("large") == bytes(1 << 20)
        sock.close()
    process.communicate()
    assert process.returncode == 0
    store.close()
