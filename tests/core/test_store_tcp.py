from __future__ import annotations

import contextlib
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arraycomm.core.base.errors import AuthFailed, DistNetworkError, DistStoreError, ResourceError
from arraycomm.core.bootstrap import auth
from arraycomm.core.bootstrap.auth import Hello, Purpose
from arraycomm.core.bootstrap.store import TCPStore
from arraycomm.core.bootstrap.store.connections import StoreClosed
from arraycomm.core.bootstrap.store.table import CANCELLED, MAX_REQUEST, OK, Op, Table, encode, read_answer

from ..threads import at_once
from .forked import refused_after_fork

SECRET = b"s" * 32
SHORT = timedelta(milliseconds=300)


@pytest.fixture
def master() -> Iterator[TCPStore]:
    store = TCPStore("127.0.0.1", 0, is_master=True, secret=SECRET, timeout=timedelta(seconds=10))
    yield store
    store.close()


def raw_client(master: TCPStore) -> socket.socket:
    sock = auth.connect("127.0.0.1", master.port, SECRET, Hello("", Purpose.STORE), deadline=5)
    sock.settimeout(5)
    return sock


def read(sock: socket.socket, op: int, fields: int = 0) -> list[bytes]:
    """An answer without a failure."""
    assert exactly(sock, 1)[0] == OK
    return read_answer(op, fields, partial(exactly, sock))


def exactly(sock: socket.socket, size: int) -> bytes:
    """Nothing behind it, which Answer would read ahead."""
    data = bytearray()
    while len(data) < size:
        got = sock.recv(size - len(data))
        assert got, "the connection was closed"
        data += got
    return bytes(data)


@given(request=st.binary(max_size=200))
@settings(max_examples=300, deadline=None)
def test_any_bytes_are_a_request_or_refused(request: bytes) -> None:
    with contextlib.suppress(ValueError):
        Table().replay(request)


@pytest.mark.parametrize("size", [-1, MAX_REQUEST + 1, 2**62])
def test_impossible_sizes(size: int) -> None:
    with pytest.raises(ValueError, match="not what a store sends"):
        read_answer(Op.GET, 1, lambda _: struct.pack("<q", size))
    with pytest.raises(ValueError, match="do not add up"):
        Table().replay(struct.pack("<Bq", Op.GET, size) + b"key")


@given(noise=st.binary(min_size=1, max_size=300))
@settings(max_examples=40, deadline=None)
def test_nonsense_from_a_member_hurts_only_itself(shared: TCPStore, noise: bytes) -> None:
    sock = raw_client(shared)
    with contextlib.suppress(ConnectionError):
        sock.sendall(noise)
        sock.shutdown(socket.SHUT_WR)
        while sock.recv(4096):
            pass
    sock.close()
    assert shared.add("alive", 0) == 0


@pytest.fixture(scope="module")
def shared() -> Iterator[TCPStore]:
    store = TCPStore("127.0.0.1", 0, is_master=True, secret=SECRET)
    yield store
    store.close()


def test_nothing_follows_a_request_that_waits(master: TCPStore) -> None:
    sock = raw_client(master)
    sock.sendall(encode(Op.WAIT, [b"never"]) + encode(Op.NUM_KEYS, []))
    assert sock.recv(100) == b""
    sock.close()


def test_request_in_pieces(master: TCPStore) -> None:
    sock = raw_client(master)
    for byte in encode(Op.SET, [b"/k", b"v"]):
        sock.sendall(bytes([byte]))
    assert read(sock, Op.SET) == []
    assert master.get("k") == b"v"
    sock.close()


def test_garbage_on_the_port(master: TCPStore) -> None:
    for size in (1, 100, 5000):
        with socket.create_connection(("127.0.0.1", master.port)) as sock, contextlib.suppress(ConnectionError):
            sock.sendall(os.urandom(size))
    master.set("k", "v")
    assert master.clone().get("k") == b"v"


@pytest.mark.parametrize("secret", [b"x" * 32, b""])
def test_wrong_secret(master: TCPStore, secret: bytes) -> None:
    with pytest.raises(AuthFailed, match="ARRAYCOMM_SECRET"):  # and no DistNetworkError, of who tries again until the timeout
        TCPStore("127.0.0.1", master.port, secret=secret, timeout=timedelta(seconds=10))


def test_other_job_and_other_purpose(master: TCPStore) -> None:
    with pytest.raises(AuthFailed, match="another job"):
        TCPStore("127.0.0.1", master.port, secret=SECRET, job="other")
    with pytest.raises(AuthFailed, match="kind of connection"):
        auth.connect("127.0.0.1", master.port, SECRET, Hello("", Purpose.DATA), deadline=5)


def test_taken_port(master: TCPStore) -> None:
    with pytest.raises(DistNetworkError, match=f"127.0.0.1 port {master.port}.*MASTER_PORT"):
        TCPStore("127.0.0.1", master.port, is_master=True, secret=SECRET)


def test_no_listener() -> None:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port = sock.getsockname()[1]
    with pytest.raises(DistNetworkError, match=f"127.0.0.1 port {port}.*refused.*MASTER_ADDR"):
        TCPStore("127.0.0.1", port, timeout=SHORT)


def test_no_such_host_and_not_our_address(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DistNetworkError, match="no-such-host.invalid.*MASTER_ADDR"):
        TCPStore("no-such-host.invalid", 1, timeout=SHORT)
    with pytest.raises(DistNetworkError, match="rank 0 must run on the host"):
        TCPStore("198.51.100.1", 0, is_master=True, secret=SECRET)
    monkeypatch.delenv("ARRAYCOMM_INSECURE", raising=False)
    with pytest.raises(AuthFailed, match="ARRAYCOMM_INSECURE"):
        TCPStore("198.51.100.1", 1, secret=b"")
    with pytest.raises(ValueError, match="port 0"):
        TCPStore("localhost", 0)


def test_given_listening_socket() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    store = TCPStore("127.0.0.1", 0, is_master=True, listen_fd=listener.detach())
    assert store.port == port
    store.close()


def test_listens_narrowly() -> None:
    """A store on loopback is not to be found under the machine's other addresses."""
    store = TCPStore("127.0.0.1", 0, is_master=True)
    other = TCPStore("127.0.0.2", store.port, is_master=True)  # would be taken, were it all interfaces
    other.close()
    store.close()


def test_waits_for_workers() -> None:
    with pytest.raises(DistStoreError, match="Timed out after 0.3 seconds waiting for clients. 1/3 clients joined"):
        TCPStore("127.0.0.1", 0, 3, True, SHORT)
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port = sock.getsockname()[1]
    made = at_once(3, lambda rank: TCPStore("127.0.0.1", port, 3, rank == 0))
    assert {store.num_keys() for store in made} == {1} and made[0].list_keys() == []
    for store in made:
        store.close()


def test_hundreds_of_clients_wait_at_once(master: TCPStore) -> None:
    socks = [raw_client(master) for _ in range(200)]
    for sock in socks:
        sock.sendall(encode(Op.WAIT, [b"/one", b"/two"]))
    master.multi_set(["one", "other"], ["", ""])
    master.set("two", "")
    for sock in socks:
        assert read(sock, Op.WAIT) == []
        sock.close()


def test_a_full_store_is_told(master: TCPStore) -> None:
    for index in range(31):
        master.set(f"{index}", bytes(8 << 20))
    with pytest.raises(ResourceError, match="full"):
        master.set("large", bytes(8 << 20))
    master.set("rest", bytes((8 << 20) - 16_000))
    with pytest.raises(ResourceError, match="full.*small"):
        master.set("small", bytes(16_000))
    assert not master.check(["small"])


def test_requests_at_once_are_answered_in_order(master: TCPStore) -> None:
    sock = raw_client(master)
    sock.sendall(b"".join(encode(Op.SET, [b"k", b"%d" % n]) for n in range(1000)) + encode(Op.AWAIT_VALUES, [b"k"]))
    assert all(read(sock, Op.SET) == [] for _ in range(1000)) and read(sock, Op.AWAIT_VALUES, 1) == [b"999"]
    sock.close()


def test_given_up_before_and_after_the_key_came(master: TCPStore) -> None:
    sock = raw_client(master)
    sock.sendall(encode(Op.AWAIT_VALUES, [b"/k"]) + encode(Op.CANCEL, []))
    assert exactly(sock, 1)[0] == CANCELLED
    master.set("k", "v")
    sock.sendall(encode(Op.AWAIT_VALUES, [b"/k"]) + encode(Op.CANCEL, []))
    assert read(sock, Op.AWAIT_VALUES, 1) == [b"v"] and exactly(sock, 1)[0] == CANCELLED
    sock.close()


def test_a_long_answer_to_a_slow_reader(master: TCPStore) -> None:
    """It waits in the server while others are served."""
    value = os.urandom(4 << 20)
    master.multi_set(["a", "b"], [value, value])
    sock = raw_client(master)
    sock.sendall(encode(Op.AWAIT_VALUES, [b"/a", b"/b", b"/a"]))
    assert master.get("a") == value
    assert read(sock, Op.AWAIT_VALUES, 3) == [value] * 3
    sock.close()


def test_dead_waiters_are_forgotten(master: TCPStore) -> None:
    sock = raw_client(master)
    sock.sendall(encode(Op.WILL, [b"mine", b"", b"/it has gone", b""]))
    assert read(sock, Op.WILL) == []
    sock.sendall(encode(Op.WAIT, [b"/queue"]))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()
    master.wait(["it has gone"], timedelta(seconds=5))
    master.queue_push("queue", "kept")
    assert master.queue_pop("queue") == b"kept"


def test_server_death_is_told_at_once(master: TCPStore) -> None:
    client = master.clone()
    raised: list[tuple[BaseException, float]] = []

    def wait() -> None:
        try:
            client.get("never")
        except DistStoreError as error:
            raised.append((error, time.monotonic()))

    waiter = threading.Thread(target=wait)
    waiter.start()
    time.sleep(0.05)
    start = time.monotonic()
    master.close()
    waiter.join(5)
    assert raised and raised[0][1] - start < 5 and "rank 0, or the launcher" in str(raised[0][0])
    with pytest.raises(DistStoreError, match="lost"):
        client.set("k", "v")
    client.close()


def test_killed_server_process() -> None:
    program = ("from arraycomm.core.bootstrap.store import TCPStore\nimport sys\n"
               "s = TCPStore('127.0.0.1', 0, is_master=True)\nprint(s.port, flush=True)\nsys.stdin.read()")
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stdin=subprocess.PIPE)
    assert process.stdout is not None
    client = TCPStore("127.0.0.1", int(process.stdout.readline()), timeout=timedelta(seconds=10))
    threading.Timer(0.1, process.kill).start()
    with pytest.raises(DistStoreError, match="lost"):  # and not a timeout
        client.get("never")
    process.communicate()
    client.close()


@pytest.mark.parametrize("woken", [True, False])
def test_ctrl_c_and_then_go_on(master: TCPStore, woken: bool) -> None:
    """Also where the signal does not end the system call, as when it comes just before that: another thread gets it here."""
    timer = threading.Timer(0.1, lambda: signal.pthread_kill((main if woken else timer).ident or 0, signal.SIGINT))
    main = threading.main_thread()
    with pytest.raises(KeyboardInterrupt):  # before the timeout, which is a DistStoreError
        timer.start()
        master.get("never")
    master.set("k", "v")
    assert master.get("k") == b"v"


def test_use_after_close_and_after_fork(master: TCPStore) -> None:
    assert refused_after_fork(lambda: master.set("k", "v"), master.close)  # and the close does not disturb the parent's
    master.set("k", "v")
    master.close()
    master.close()
    with pytest.raises(DistStoreError, match="closed"):
        master.get("k")


def test_close_ends_requests_of_other_threads(master: TCPStore) -> None:
    client = master.clone()
    raised: list[Exception] = []

    def wait() -> None:
        try:
            client.get("never")
        except DistStoreError as error:
            raised.append(error)

    waiter = threading.Thread(target=wait)
    waiter.start()
    time.sleep(0.05)
    client.close()
    waiter.join(5)
    assert "was closed here" in str(raised[0])
    master.set("still", "open")


def test_lingers_for_clients_that_work_and_not_for_those_that_all_wait() -> None:
    """Ranks that came back for the next world, into this server, would wait for ranks that cannot come here any more."""
    master = TCPStore("127.0.0.1", 0, is_master=True, secret=SECRET, timeout=timedelta(seconds=10))
    first, second = (TCPStore("127.0.0.1", master.port, secret=SECRET, timeout=timedelta(seconds=60)) for _ in range(2))
    for client in (first, second):
        client.set("here", "")

    def run(number: int) -> object:
        if number == 0:
            master.close(linger=50)
            return ""
        time.sleep(0.3)  # while the server waits for this client, which has no request under way
        try:
            return (first if number == 1 else second).get("never")
        except StoreClosed:
            return "closed"

    assert at_once(3, run, limit=45) == ["", "closed", "closed"]  # the first has not lingered to the end
    first.close()
    second.close()


def test_nothing_is_left_behind() -> None:
    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))

    TCPStore("127.0.0.1", 0, is_master=True).close()
    before, threads = descriptors(), threading.active_count()
    for _ in range(10):
        store = TCPStore("127.0.0.1", 0, is_master=True)
        twin = store.clone()
        twin.set("k", "v")
        del twin, store  # collected, not closed
    assert descriptors() == before and threading.active_count() == threads


# ---- sets ----


@pytest.mark.parametrize("value", ["", "text", b"\0\xff", "\u00e9" * 400, "x" * 1000, "x" * 1100])
def test_set_is_seen_by_everybody_afterwards(master: TCPStore, value: str | bytes) -> None:
    store = TCPStore("127.0.0.1", master.port, secret=SECRET)
    expected = value.encode() if isinstance(value, str) else value
    for number in range(20):
        store.set("key", b"before")
        store.set("key", value)
        assert store.get("key") == expected
        store.set(f"told {number}", value)
        assert master.get(f"told {number}") == expected
    store.close()


@pytest.mark.parametrize(("key", "value", "error"), [(1, "x", TypeError), ("k", 1, TypeError),
                                                     ("k", "\ud800", UnicodeEncodeError)])
def test_set_refuses(master: TCPStore, key: Any, value: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        master.set(key, value)
    assert not master.check(["k"])


def test_set_notices_that_the_server_went(master: TCPStore) -> None:
    store = TCPStore("127.0.0.1", master.port, secret=SECRET)
    store.set("key", "x")
    master.close()
    with pytest.raises(StoreClosed, match="has closed it"):
        store.set("key", "y")
    store.close()
    with pytest.raises(DistStoreError, match="closed here"):
        store.set("key", "z")
