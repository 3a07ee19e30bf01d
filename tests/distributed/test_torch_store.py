"""torch.distributed's TCPStore and ours over one wire, in both directions; and what the wire does to strangers."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import arraycomm.distributed as dist
from arraycomm.core.base import settings
from arraycomm.core.base.errors import AuthFailed
from arraycomm.core.bootstrap.store import TCPStore
from arraycomm.core.bootstrap.store.server import StoreServer
from arraycomm.core.bootstrap.store.torch import TorchStore

from ..ports import free_port
from ..threads import at_once

LIMIT = timedelta(seconds=30)

THEIRS = """
import sys
from datetime import timedelta
import torch.distributed as dist
SHORT = timedelta(milliseconds=100)
def fails(error, work, *arguments):
    try:
        work(*arguments)
    except error as found:
        assert type(found) is error, found
    else:
        raise AssertionError(work)
store = dist.TCPStore("127.0.0.1", int(sys.argv[1]), 2, False, timedelta(seconds=30))
assert store.get("ours") == b"1"
store.set("theirs", b"\\0\\xff")
assert [store.add("n", amount) for amount in (3, -5)] == [3, -2]
assert sorted(store.list_keys()) == ["n", "ours", "theirs"] and store.num_keys() == 4
assert [store.compare_set("c", *pair) for pair in (("e", "d"), ("", "d"), ("x", "y"))] == [b"e", b"d", b"d"]
store.multi_set(["a", "b"], ["1", "2"])
assert store.multi_get(["a", "b"]) == [b"1", b"2"] and store.check(["a", "b"]) and not store.check(["a", "no"])
store.append("a", "1")
assert store.get("a") == b"11" and store.delete_key("a") and not store.delete_key("a")
for value in "12":
    store.queue_push("q", value)
assert [store.queue_len("q"), store.queue_pop("q"), store.queue_pop("q")] == [2, b"1", b"2"]
fails(dist.QueueEmptyError, store.queue_pop, "q", False)
fails(dist.DistStoreError, store.wait, ["no"], SHORT)
fails(dist.DistStoreError, store.barrier, "no pair", 2, SHORT)
store.set("big", b"x" * 5_000_000)
assert len(store.get("big")) == 5_000_000
twin = store.clone()
fails(dist.DistNetworkError, store.add, "c", 1)  # on text: the protocol has no answer for that
assert twin.get("ours") == b"1"
twin.set("ready", "")
twin.barrier("pair", 2)
server = dist.TCPStore("127.0.0.1", 0, 2, True, timedelta(seconds=30), wait_for_workers=False)
server.set("theirs", "1")
server.set("text", "abc")
twin.set("their port", str(server.port))
twin.wait(["end"])
assert server.get("ours") == b"2" and server.get("n") == b"4"
"""


@pytest.fixture
def server() -> Iterator[dist.TCPStore]:
    store = dist.TCPStore("127.0.0.1", 0, 2, True, LIMIT, wait_for_workers=False)
    yield store
    store.close()


def test_both_directions(server: dist.TCPStore) -> None:
    pytest.importorskip("torch")
    server.multi_set(["ours"], ["1"])
    torch = subprocess.Popen([sys.executable, "-c", THEIRS, str(server.port)],
                             stderr=subprocess.PIPE, text=True)
    try:
        server.wait(["ready"])
        server.barrier("pair", 2)
        assert server.get("theirs") == b"\0\xff" and len(server.get("big")) == 5_000_000
        _use_theirs(int(server.get("their port")))
        server.set("end", "")
        assert torch.wait(30) == 0
    finally:
        torch.kill()
        print(torch.communicate()[1])  # what failed there


def _use_theirs(port: int) -> None:
    store = dist.TCPStore("127.0.0.1", port, 2, False, LIMIT)  # which finds out that it is torch's
    assert isinstance(store._inner, TorchStore) and store.get("theirs") == b"1" and store.num_keys() == 3
    store.set("ours", "2")
    assert store.add("n", 4) == 4 and store.clone().get("n") == b"4"
    with pytest.raises(ValueError, match="not a decimal number"):
        store.add("text", 1)
    store.queue_push("q", "v")
    assert store.queue_pop("q") == b"v" and sorted(store.list_keys()) == ["n", "ours", "text", "theirs"]
    with pytest.raises(dist.DistStoreError, match="barrier timeout"):
        store.barrier("no pair", 2, timedelta(milliseconds=50))
    store.barrier("alone", 1)
    with pytest.raises(TypeError):
        store.wait(["no"], 1)  # type: ignore[arg-type]
    store.close()


def test_our_client_at_our_gate(server: dist.TCPStore) -> None:
    """As both are spoken by us, without torch."""
    store = TorchStore("127.0.0.1", server.port, LIMIT, counts=True)
    store.set("k", "v")
    assert server.get("k") == b"v" and store.num_keys() == 2
    with pytest.raises(dist.DistStoreError, match="timeout"):
        store.wait(["later"], timedelta(milliseconds=50))
    server.set("later", "1")
    store.wait(["later", "k"])
    with pytest.raises(dist.QueueEmptyError):
        store.queue_pop("q", False)
    with pytest.raises(ValueError, match="not a decimal number"):
        store.add("k", 1)
    store.multi_set(["x", "y"], ["1", "2"])
    assert store.multi_get(["x", "y"]) == [b"1", b"2"] and store.check(["x"]) and not store.check(["x", "z"])
    store.close()
    server.wait(["k"])


def test_workers_of_both_kinds_count() -> None:
    port = free_port()
    from_torch: list[TorchStore] = []

    def come(rank: int) -> Any:
        if rank == 0:
            return dist.TCPStore("127.0.0.1", port, 2, True, LIMIT)
        from_torch.append(TorchStore("127.0.0.1", port, LIMIT, counts=True))
        return None

    master, _ = at_once(2, come)
    master.close()
    with pytest.raises(dist.DistStoreError):
        from_torch[0].get("k")


def test_waiting_clients_end_with_the_server(server: dist.TCPStore) -> None:
    store = TorchStore("127.0.0.1", server.port, LIMIT)

    def work(number: int) -> None:
        if number == 0:
            server.wait(["waits"])
            server.close()
            return
        store.set("waits", "")
        with pytest.raises(dist.DistStoreError, match="lost"):
            store.get("never")

    at_once(2, work)


SERVER = """
import sys
from datetime import timedelta
import arraycomm.distributed as dist
store = dist.TCPStore("127.0.0.1", 0, None, True, timedelta(seconds=30))
print(store.port, flush=True)
store.wait(["waits"])
print("waits", flush=True)
sys.stdin.read()
"""


def test_waiting_clients_end_with_a_killed_server() -> None:
    server = subprocess.Popen([sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    port = int(server.stdout.readline())
    stores = [TorchStore("127.0.0.1", port, LIMIT), dist.TCPStore("127.0.0.1", port, timeout=LIMIT)]

    def work(number: int) -> None:
        if number < 2:
            with pytest.raises(dist.DistStoreError, match="lost"):
                stores[number].get("never")
            return
        stores[0].clone().set("waits", "")
        assert server.stdout is not None and server.stdout.readline() == "waits\n"
        server.kill()

    try:
        at_once(3, work, limit=20)  # far less than the stores' own patience
    finally:
        server.kill()
        server.communicate()


@pytest.mark.parametrize("said", [
    b"\0\1\2\3\4", struct.pack("<BIB", 0, 0x3C85F7CE, 99), struct.pack("<BIBQ", 0, 0x3C85F7CE, 1, 1 << 40),
    struct.pack("<BIBq", 0, 0x3C85F7CE, 6, -1), struct.pack("<BIBQ", 0, 0x3C85F7CE, 11, 1 << 40),
    struct.pack("<BIBQ1s", 0, 0x3C85F7CE, 3, 1, b"/"), b"\0" * 200])
def test_nonsense_is_disconnected(server: dist.TCPStore, said: bytes) -> None:
    with socket.create_connection(("127.0.0.1", server.port)) as sock:
        sock.settimeout(10)
        sock.sendall(said)
        with contextlib.suppress(ConnectionResetError):  # it had said more than was read
            assert sock.recv(1) == b""
    server.set("k", "v")
    assert TorchStore("127.0.0.1", server.port, LIMIT).get("k") == b"v"


def test_a_request_in_single_bytes(server: dist.TCPStore) -> None:
    said = struct.pack("<BIBI", 0, 0x3C85F7CE, 13, 77) + struct.pack("<BQ2sq", 4, 2, b"/n", 5)
    with socket.create_connection(("127.0.0.1", server.port)) as sock:
        sock.settimeout(10)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in said:
            sock.sendall(bytes([byte]))
        answer = b""
        while len(answer) < 12:
            answer += sock.recv(12 - len(answer))
    assert struct.unpack("<Iq", answer) == (77, 5) and server.get("n") == b"5"


def test_lists_in_pieces(server: dist.TCPStore) -> None:
    """Cut anywhere: what came before is not looked at again."""
    pairs = [(b"/k%d" % n, b"v" * (n % 7)) for n in range(40)]
    listed = b"".join(struct.pack("<Q", len(text)) + text for pair in pairs for text in pair)
    asked = b"".join(struct.pack("<Q", len(key)) + key for key, _ in pairs)
    said = struct.pack("<BIBQ", 0, 0x3C85F7CE, 11, len(pairs)) + listed + struct.pack("<BQ", 10, len(pairs)) + asked
    expected = b"".join(struct.pack("<Q", len(value)) + value for _, value in pairs)
    with socket.create_connection(("127.0.0.1", server.port)) as sock:
        sock.settimeout(10)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for start in range(0, len(said), 3):
            sock.sendall(said[start:start + 3])
        answer = b""
        while len(answer) < len(expected):
            answer += sock.recv(len(expected) - len(answer))
    assert answer == expected and server.get("k6") == b"v" * 6


def test_strangers_share_a_bounded_memory(server: dist.TCPStore, caplog: pytest.LogCaptureFixture) -> None:
    """Requests that never become whole: who makes them too much is disconnected, the others are served on."""
    value = struct.pack("<Q", 8 << 20) + bytes(8 << 20)
    begun = struct.pack("<BIBQ", 0, 0x3C85F7CE, 11, 1000) + 4 * (struct.pack("<Q1s", 1, b"k") + value)  # 32 MiB of it
    with contextlib.ExitStack() as stack:
        socks = [stack.enter_context(socket.create_connection(("127.0.0.1", server.port))) for _ in range(5)]
        with pytest.raises(OSError):
            for sock in socks:
                sock.settimeout(10)
                sock.sendall(begun)
            assert socks[0].recv(1) == b""  # who has sent nothing for longest
            raise ConnectionResetError
        server.set("k", "v")
        assert TorchStore("127.0.0.1", server.port, LIMIT).get("k") == b"v"
        server.close()
    assert "requests that are not whole, or wait, and answers that are not read hold more than" in caplog.text


def _greeted(port: int) -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", port))
    sock.settimeout(20)
    sock.sendall(struct.pack("<BI", 0, 0x3C85F7CE))
    return sock


def _asking(times: int, key: bytes) -> bytes:
    return struct.pack("<BQ", 10, times) + times * (struct.pack("<Q", len(key)) + key)


def _answer(sock: socket.socket) -> bytes:
    return _exactly(sock, *struct.unpack("<Q", _exactly(sock, 8)))


def _exactly(sock: socket.socket, size: int) -> bytes:
    data = bytearray(size)
    view = memoryview(data)
    while view:
        count = sock.recv_into(view)
        assert count, "the connection was closed"
        view = view[count:]
    return bytes(data)


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


def test_long_answers_are_sent_as_they_are_read(server: dist.TCPStore) -> None:
    """Who asks for much by few bytes makes the server hold one value; it comes whole, and as one would expect in between."""
    server.set("big", b"v" * (8 << 20))
    server.set("short", b"s")
    before = _resident()
    with contextlib.ExitStack() as stack:
        socks = [stack.enter_context(_greeted(server.port)) for _ in range(3)]
        for sock in socks:
            sock.sendall(_asking(30, b"/big"))
            assert sock.recv(1, socket.MSG_PEEK)
        server.set("short", b"others are served meanwhile")
        assert _resident() - before < 100 << 20
        assert all(_answer(socks[0]) == b"v" * (8 << 20) for _ in range(30))
        socks[0].sendall(struct.pack("<BI", 13, 77))
        assert _exactly(socks[0], 4) == struct.pack("<I", 77)
        last = stack.enter_context(_greeted(server.port))  # the others have not read for too long by now, maybe
        last.sendall(_asking(30, b"/big"))
        assert last.recv(1, socket.MSG_PEEK)
        server.delete_key("big")  # what is not sent yet cannot be
        assert _answer(last) == b"v" * (8 << 20)
        with contextlib.suppress(ConnectionResetError):
            while len(last.recv(1 << 20)):
                pass
    assert server.get("short") == b"others are served meanwhile"


@pytest.mark.parametrize("times", [0, 1, 5000])
def test_lists_of_short_values(server: dist.TCPStore, times: int) -> None:
    server.set("k", b"v" * 100)
    with _greeted(server.port) as sock:
        sock.sendall(_asking(times, b"/k") + struct.pack("<BI", 13, 77) * (times < 2))
        assert all(_answer(sock) == b"v" * 100 for _ in range(times))
        sock.sendall(struct.pack("<BI", 13, 77) * (times >= 2))
        assert _exactly(sock, 4) == struct.pack("<I", 77)
        sock.sendall(struct.pack("<BQQ2sQ3s", 10, 2, 2, b"/k", 3, b"/no"))
        assert _answer(sock) == b"v" * 100 and sock.recv(1) == b""  # all that is before the missing one


@pytest.mark.parametrize("asked", [struct.pack("<BQ4s", 3, 4, b"/big"), _asking(3, b"/big"),
                                   struct.pack("<BQ4sQ1sQ1s", 2, 4, b"/big", 1, b"x", 1, b"y")],
                         ids=["get", "list", "compare_set"])
def test_unread_answers_are_bounded_in_all(server: dist.TCPStore, caplog: pytest.LogCaptureFixture, asked: bytes) -> None:
    """Whoever has read nothing for longest is disconnected; the last one is served."""
    server.set("big", b"v" * (8 << 20))
    with contextlib.ExitStack() as stack:
        socks = [stack.enter_context(_greeted(server.port)) for _ in range(40)]
        for sock in socks:
            if sock is not socks[-1]:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
            sock.sendall(asked)
            assert sock.recv(1, socket.MSG_PEEK)
        assert _answer(socks[-1]) == b"v" * (8 << 20)
        with contextlib.suppress(ConnectionResetError):  # it may have more to read of before
            while socks[0].recv(1 << 20):
                pass
        server.close()
    assert "and answers that are not read hold more than" in caplog.text


def test_what_a_stranger_says_is_escaped_in_the_log(server: dist.TCPStore, caplog: pytest.LogCaptureFixture) -> None:
    """Bytes that change a terminal, and those that look like a line of somebody else."""
    key = b"/\x1b]0;owned\x07\r\nCRITICAL forged\n\xc2\x9b31m \xff \xe2\x80\xae"
    with _greeted(server.port) as sock:
        sock.sendall(struct.pack("<BQ", 1, len(key)) + key + struct.pack("<Q3s", 3, b"abc"))
        sock.sendall(struct.pack("<BQ", 4, len(key)) + key + struct.pack("<q", 1))
        assert sock.recv(1) == b""
    server.close()
    assert [record.getMessage() for record in caplog.records] == [record.getMessage() for record in caplog.records
                                                                  if record.getMessage().isprintable()]
    assert "cannot add to key '\\x1b]0;owned" in caplog.text and "(1 so far" in caplog.text


def test_a_wait_is_given_up_in_one_piece_with_it(server: dist.TCPStore) -> None:
    """As it comes where the server had no processor meanwhile. The next request is answered as usual."""
    wait = struct.pack("<BQQ3s", 6, 1, 3, b"/no")
    with socket.create_connection(("127.0.0.1", server.port)) as sock:
        sock.settimeout(10)
        sock.sendall(struct.pack("<BI", 0, 0x3C85F7CE) + wait + bytes([12]) + struct.pack("<BI", 13, 77))
        answer = b""
        while len(answer) < 5:
            answer += sock.recv(5 - len(answer))
        assert answer == b"\1" + struct.pack("<I", 77)
        server.set("no", "it comes when nobody waits any more")
        sock.sendall(struct.pack("<BI", 13, 78))
        assert sock.recv(5) == struct.pack("<I", 78)


def test_why_a_client_is_disconnected(server: dist.TCPStore, caplog: pytest.LogCaptureFixture) -> None:
    """Told to whoever runs the server; a child made by fork, which keeps the connections open, does not hold up its end."""
    store = TorchStore("127.0.0.1", server.port, LIMIT)
    store.set("text", "abc")
    child = os.fork()
    if not child:
        signal.pause()
    try:
        with pytest.raises(ValueError, match="not a decimal number"):
            store.add("text", 1)
        server.close()
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert "disconnected, as its protocol has no errors: cannot add to key 'text'" in caplog.text


def test_torch_asks_a_server_of_its_own_process(server: dist.TCPStore) -> None:
    """Its requests that are not answered, and those that release the GIL: list_keys() keeps it in torch's client."""
    torch = pytest.importorskip("torch.distributed")
    store = torch.TCPStore("127.0.0.1", server.port, 2, False, LIMIT)
    server.set("k", "v")
    store.set("l", "w")
    assert store.get("k") == b"v"  # waits for it: neither set is answered
    assert sorted(server.list_keys()) == ["k", "l"] and store.num_keys() == 3
    with pytest.raises(torch.DistStoreError):
        store.wait(["no"], timedelta(milliseconds=50))
    assert store.get("l") == b"w"


def test_stores_of_the_core_do_not_speak_it() -> None:
    with TCPStoreAlone() as store, socket.create_connection(("127.0.0.1", store.port)) as sock:
        sock.settimeout(10)
        sock.sendall(struct.pack("<BIBI", 0, 0x3C85F7CE, 13, 77))
        sock.shutdown(socket.SHUT_WR)
        assert sock.recv(1) == b""


class TCPStoreAlone:
    def __enter__(self) -> TCPStore:
        self._store = TCPStore("127.0.0.1", 0, is_master=True, secret=b"")
        return self._store

    def __exit__(self, *_: object) -> None:
        self._store.close()


def test_from_elsewhere_by_name_only(monkeypatch: pytest.MonkeyPatch) -> None:
    server = StoreServer([], None, "", torch=True)
    try:
        with pytest.raises(AuthFailed, match="ARRAYCOMM_TORCH_STORE=1"):
            server.admit_stranger(_Elsewhere())  # type: ignore[arg-type]
    finally:
        server.close()
    asked: list[str] = []
    monkeypatch.setattr("arraycomm.distributed.tcp_store.TorchStore", lambda host, *_, **__: asked.append(host))
    monkeypatch.setattr("arraycomm.distributed.tcp_store.core.TCPStore", lambda host, *_, **__: asked.append("ours"))
    for value in ("0", "1"):
        monkeypatch.setenv("ARRAYCOMM_TORCH_STORE", value)
        dist.TCPStore("192.0.2.1", 1234, timeout=LIMIT)
    assert asked == ["ours", "192.0.2.1"] and settings.get_flag("ARRAYCOMM_TORCH_STORE")


class _Elsewhere:
    def getpeername(self) -> tuple[str, int]:
        return "192.0.2.1", 1234
