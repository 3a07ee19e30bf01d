"""Stores under torch's names: what is observed on torch's, and what users' own subclasses get."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

import arraycomm.distributed as dist
from arraycomm.core.base.errors import AuthFailed
from arraycomm.core.bootstrap import store as core
from arraycomm.core.bootstrap.store import connections
from tests.threads import at_once

SHORT = timedelta(milliseconds=50)
LIMIT = timedelta(seconds=30)
PORTS: list[int] = []  # of a store that a test serves


def tcp(**arguments: Any) -> dist.TCPStore:
    return dist.TCPStore("127.0.0.1", 0, **{"world_size": 1, "is_master": True, "timeout": LIMIT, **arguments})


class Bare(dist.Store):
    """What a user's store has at least."""

    def __init__(self) -> None:
        super().__init__()
        self.data: dict[str, bytes] = {}
        self.changed = threading.Condition()

    def set(self, key: str, value: Any) -> None:
        with self.changed:
            self.data[key] = value.encode() if isinstance(value, str) else value
            self.changed.notify_all()

    def get(self, key: str) -> bytes:
        with self.changed:
            if not self.changed.wait_for(lambda: key in self.data, self.timeout.total_seconds()):
                raise dist.DistStoreError("timeout")
            return self.data[key]

    def add(self, key: str, amount: int) -> int:
        with self.changed:
            total = int(self.data.get(key, b"0")) + amount
            self.data[key] = str(total).encode()
            self.changed.notify_all()
            return total


@pytest.fixture(params=["tcp", "file", "hash", "prefix", "shared"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[dist.Store]:
    made: dict[str, Callable[[], dist.Store]] = {
        "tcp": tcp, "file": lambda: dist.FileStore(str(tmp_path / "store"), 1), "hash": dist.HashStore,
        "prefix": lambda: dist.PrefixStore("one", dist.PrefixStore("two", dist.HashStore())),
        "shared": lambda: tcp(multi_tenant=True)}
    found = made[request.param]()
    yield found
    found.close()


def test_values(store: dist.Store) -> None:
    before = store.num_keys()
    store.set("k", "v")
    store.set("b", b"\0\xff")
    assert (store.get("k"), store.get("b"), store.num_keys()) == (b"v", b"\0\xff", before + 2)
    assert [store.add("n", amount) for amount in (1, 6, -9, 0)] == [1, 7, -2, -2] and store.get("n") == b"-2"
    store.append("k", "w")
    assert store.get("k") == b"vw" and store.check(["k", "b"]) and not store.check(["k", "no"]) and store.check([])
    assert store.compare_set("c", "e", "d") == b"e" and not store.check(["c"])
    assert [store.compare_set("c", *pair) for pair in (("", "d"), ("x", "y"), ("d", "z"))] == [b"d", b"d", b"z"]
    store.multi_set(["x", "y"], ["1", b"2"])
    assert store.multi_get(["x", "y"]) == [b"1", b"2"] and store.multi_get([]) == []
    assert sorted(store.list_keys()) == ["b", "c", "k", "n", "x", "y"]
    assert store.delete_key("x") and not store.delete_key("x") and not store.check(["x"])
    store.wait(["k"])
    store.wait(["k", "b"], SHORT)


def test_queues(store: dist.Store) -> None:
    assert store.queue_len("q") == 0
    store.queue_push("q", "one")
    store.queue_push("q", b"two")
    assert (store.queue_len("q"), store.queue_pop("q"), store.queue_pop(key="q", block=False)) == (2, b"one", b"two")
    with pytest.raises(dist.QueueEmptyError):
        store.queue_pop("q", False)
    store.set_timeout(SHORT)
    with pytest.raises(dist.DistStoreError, match="timeout"):
        store.queue_pop("q")


def test_waits_end(store: dist.Store) -> None:
    assert store.timeout in (LIMIT, timedelta(seconds=300))
    with pytest.raises(dist.DistStoreError, match="^wait timeout after 50ms, keys: /(two/one/)?no; "):
        store.wait(["no"], SHORT)
    store.set_timeout(SHORT)
    assert store.timeout == SHORT
    for attempt in (lambda: store.get("no"), lambda: store.wait(["no"]), lambda: store.multi_get(["no"])):
        with pytest.raises(dist.DistStoreError, match="timeout"):
            attempt()
    with pytest.raises(dist.DistStoreError, match="barrier timeout.*pair"):
        store.barrier("pair", 2)
    store.barrier("pair", 2, LIMIT)  # the second
    store.barrier("alone", 1)
    with pytest.raises(dist.DistStoreError, match=r"timeout.*no"):
        store.wait(["no"], SHORT.total_seconds())  # type: ignore[arg-type]
    store.set_timeout(0.25)
    assert store.timeout == timedelta(seconds=0.25)
    for seconds in (float("nan"), float("inf"), -float("inf"), 1e15):
        with pytest.raises(ValueError, match=f"cannot last {seconds} s;"):
            store.set_timeout(seconds)


def test_a_tcp_stores_timeout_may_be_seconds() -> None:
    """A float, as torch takes it; a whole number is refused, there and here."""
    seconds: Any = 20.5
    master = dist.TCPStore("127.0.0.1", 0, 1, True, seconds)
    shared, worker = tcp(multi_tenant=True, timeout=20.5), dist.TCPStore("127.0.0.1", master.port, None, False, seconds)
    assert [store.timeout.total_seconds() for store in (master, worker, worker.clone(), shared)] == [20.5] * 4


STORES: Any = dist  # for arguments of other types


@pytest.mark.parametrize(("make", "error", "text"), [
    (lambda path: tcp(timeout=5), TypeError, "timeout must be a datetime.timedelta, or seconds as a float, got 5"),
    (lambda path: tcp(timeout=None), TypeError, "timeout must be"), (lambda path: tcp(world_size="1"), TypeError, "world_size"),
    (lambda path: tcp(world_size=0), ValueError, "world size cannot be 0"),
    (lambda path: STORES.TCPStore("127.0.0.1", 0, 0, 2), ValueError, "world size cannot be 0"),
    (lambda path: STORES.TCPStore("127.0.0.1", 0, 1, 2), TypeError, "is_master must be True or False, got 2"),
    (lambda path: STORES.FileStore(path, "2"), TypeError, "world_size must be an int, got '2'"),
    (lambda path: STORES.FileStore(path, 2.0), TypeError, "world_size must be an int"),
    (lambda path: STORES.FileStore(3), TypeError, "str"),
    (lambda path: STORES.HashStore(5), TypeError, "argument"),
    (lambda path: STORES.PrefixStore(STORES.HashStore(), "a"), TypeError, "needs a str"),
    (lambda path: STORES.PrefixStore("a", 3), TypeError, "and a Store"),
    (lambda path: STORES.PrefixStore("a", None), ValueError, "and a Store")])
def test_wrong_constructors(tmp_path: Path, make: Callable[[str], Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        make(str(tmp_path / "store"))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("wrong", [
    lambda s: s.set("k", 1), lambda s: s.set(1, "v"), lambda s: s.set("k", None), lambda s: s.get(1), lambda s: s.add("k", 1.5),
    lambda s: s.wait("k"), lambda s: s.wait(["k"], 1), lambda s: s.set_timeout(1), lambda s: s.check("k"),
    lambda s: s.set_timeout(None), lambda s: setattr(s, "timeout", 3),
    lambda s: s.barrier("k", 1, 1)])
def test_wrong_types(store: dist.Store, wrong: Callable[[dist.Store], None]) -> None:
    with pytest.raises(TypeError):
        wrong(store)


def test_wrong_values(store: dist.Store) -> None:
    store.set("text", "abc")
    with pytest.raises(ValueError, match="not a decimal number"):
        store.add("text", 1)
    with pytest.raises(dist.DistStoreError, match="as many values as keys"):
        store.multi_set(["a", "b"], ["1"])
    assert store.get("text") == b"abc"


def test_clones(store: dist.Store) -> None:
    twin = store.clone()
    assert type(twin) is type(store) and isinstance(twin, dist.Store)
    twin.set("k", "v")
    assert store.get("k") == b"v" and twin.timeout == store.timeout and twin.has_extended_api()
    twin.close()


def test_prefixes() -> None:
    below = dist.HashStore()
    store = dist.PrefixStore("two", dist.PrefixStore("one", below))
    store.set("k", "v")
    assert below.list_keys() == ["one/two/k"] and store.list_keys() == ["k"] and store.num_keys() == 1
    assert store.underlying_store.list_keys() == ["two/k"] and store._underlying_non_prefix_store is below
    with pytest.raises(TypeError):
        dist.PrefixStore(1, below)  # type: ignore[arg-type]


def test_internal_keys_are_counted(tmp_path: Path) -> None:
    assert [store.num_keys() for store in (tcp(), dist.FileStore(tmp_path / "s", 1), dist.HashStore())] == [1, 1, 0]


def test_file_goes_with_the_last_user(tmp_path: Path) -> None:
    path = tmp_path / "s"
    stores = [dist.FileStore(str(path), 2) for _ in range(2)]
    stores[0].set("k", "v")
    assert stores[1].get("k") == b"v" and stores[0].path == str(path)
    stores.pop()
    assert path.exists()
    stores.pop()
    assert not path.exists()


def test_fallbacks_of_a_users_store() -> None:
    store = Bare()
    assert not store.has_extended_api()
    store.multi_set(["a", "b"], ["1", b"2"])
    assert store.multi_get(["a", "b"]) == [b"1", b"2"]
    store.wait(["a"])
    assert store.compare_set("c", "", "first") == b"first" == store.compare_set("c", "", "second")
    store.barrier("end", 1)
    prefixed = dist.PrefixStore("p", store)
    prefixed.set("k", "v")
    assert store.data["p/k"] == b"v" and prefixed.get("k") == b"v"
    for name, arguments in (("queue_push", ("q", "v")), ("delete_key", ("a",)), ("num_keys", ()), ("list_keys", ()),
                            ("clone", ()), ("compare_set", ("a", "1", "2")), ("check", (["a"],))):
        for asked in (store, prefixed):
            with pytest.raises(NotImplementedError, match=f"{'check' if name == 'append' else name}.*define it in Bare"):
                getattr(asked, name)(*arguments)


class Compares(Bare):
    """With compare_set() as torch's documents have it, and its values' types as a class in Python gets them."""

    def set(self, key: str, value: Any) -> None:
        assert type(value) is bytes
        super().set(key, value)

    def compare_set(self, key: str, expected: Any, desired: Any) -> bytes:
        assert type(expected) is type(desired) is bytes
        with self.changed:
            if self.data.get(key, b"") == expected:
                self.data[key] = desired
            return self.data.get(key, expected)


def test_append_by_compare_set() -> None:
    store = Compares()
    for _ in range(3):  # each time what the value already is
        store.append("k", "ab")
    store.append("k", b"")
    prefixed = dist.PrefixStore("p", store)
    prefixed.append("k", "c")
    prefixed.append("none", b"")

    def append_often(rank: int) -> None:
        for i in range(50):
            store.append("busy", f"{rank}{i} ")

    at_once(4, append_often, limit=30)
    assert not prefixed.has_extended_api() and store.data["k"] == b"ababab"
    assert store.data["p/k"] == b"c" and store.data["p/none"] == b""
    assert sorted(store.data["busy"].split()) == sorted(b"%d%d" % (rank, i) for rank in range(4) for i in range(50))


def test_a_prefix_gives_bytes() -> None:
    heard: list[tuple[Any, ...]] = []
    names = ("set", "append", "queue_push", "compare_set", "multi_set")
    store = dist.PrefixStore("p", type("Hears", (Bare,), {
        name: lambda self, *arguments, name=name: heard.append((name, *arguments)) for name in names})())
    store.set("k", "v")
    store.append("k", "v")
    store.queue_push("k", "v")
    store.compare_set("k", "a", bytearray(b"b"))  # type: ignore[arg-type]
    store.multi_set(["k"], ["v"])
    assert heard == [("set", "p/k", b"v"), ("append", "p/k", b"v"), ("queue_push", "p/k", b"v"),
                     ("compare_set", "p/k", b"a", b"b"), ("multi_set", ["p/k"], [b"v"])]


def test_a_store_with_nothing_in_it() -> None:
    """As torch documents it: RuntimeError that begins so, also for what is made of other methods."""
    class Empty(dist.Store):
        pass

    store = Empty()
    assert not store.has_extended_api()
    for call in (lambda: store.append("a", "b"), lambda: store.multi_get(["a", "b"]), lambda: store.multi_set(["a"], [b"v"]),
                 lambda: store.wait(["a"]), lambda: store.compare_set("a", "", "b"), lambda: store.barrier("a", 1)):
        with pytest.raises(RuntimeError, match=r"^Not implemented\. Empty has no \w+: define it in Empty$"):
            call()


@pytest.mark.parametrize("name", ["append", "multi_get", "multi_set", "check", "compare_set", "wait", "queue_len", "list_keys"])
def test_a_store_with_one_more_method(name: str) -> None:
    """Its own method is called, also through a prefix; the others are made of the three as before."""
    heard: list[tuple[Any, ...]] = []
    store = type("One", (Bare,), {name: lambda self, *arguments: heard.append(arguments)})()
    assert store.has_extended_api() is dist.PrefixStore("p", store).has_extended_api() is False
    arguments: dict[str, tuple[Any, ...]] = {
        "append": ("k", "v"), "multi_set": (["k"], ["v"]), "compare_set": ("k", "a", "b"), "queue_len": ("k",), "list_keys": ()}
    given = arguments.get(name, (["k"],))
    for asked in (store, dist.PrefixStore("p", store)):
        with contextlib.suppress(TypeError):  # a prefix takes its own away from a list of keys, which is None here
            getattr(asked, name)(*given)
    assert len(heard) == 2 and heard[0][: len(given)] == given
    assert name == "list_keys" or str(heard[1][0]) in ("p/k", "['p/k']")
    if name not in ("multi_set", "multi_get"):
        store.multi_set(["a"], ["1"])
        assert store.multi_get(["a"]) == [b"1"]


def test_a_world_meets_in_a_users_store() -> None:
    store = Bare()
    for _ in range(2):  # again in the same store
        dist.init_process_group("gloo", store=store, rank=0, world_size=1)
        dist.destroy_process_group()


@pytest.mark.parametrize("address", ["127.0.0.1", "localhost"])
@pytest.mark.parametrize("speaks", ["nothing", "something else"])
def test_a_port_that_is_no_store(address: str, speaks: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The timeout holds against somebody who listens there and does not answer, or answers otherwise: not the patience with a
    server that answers late, which is minutes here."""
    monkeypatch.setattr(connections, "GRACE", 300.0)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        if speaks == "something else":
            def answer() -> None:
                with contextlib.suppress(OSError):
                    while True:
                        sock = listener.accept()[0]
                        sock.sendall(b"220 mail\r\n")
                        sock.close()

            threading.Thread(target=answer, daemon=True).start()
        port = listener.getsockname()[1]
        with pytest.raises(dist.DistNetworkError):
            at_once(1, lambda _: dist.TCPStore(address, port, 2, False, timeout=timedelta(seconds=0.5)), limit=60)
        listener.shutdown(socket.SHUT_RDWR)


def test_tcp_workers_are_waited_for() -> None:
    with pytest.raises(dist.DistStoreError, match="^Timed out after 0.05 seconds waiting for clients. 1/2 clients joined"):
        tcp(world_size=2, timeout=SHORT)
    master = tcp(world_size=2, wait_for_workers=False)
    worker = dist.TCPStore("127.0.0.1", master.port, 2, False, LIMIT)
    worker.set("k", "v")
    assert master.get("k") == b"v" and (master.host, worker.port) == ("127.0.0.1", master.port)
    assert master.libuvBackend and not dist.TCPStore("127.0.0.1", master.port, use_libuv=False).libuvBackend


def test_tcp_addresses() -> None:
    master = tcp()
    with pytest.raises(dist.DistNetworkError, match="^The server socket has failed to listen.*Address already in use"):
        dist.TCPStore("127.0.0.1", master.port, 1, True, LIMIT)
    with pytest.raises(dist.DistNetworkError, match="no process serves"):
        dist.TCPStore("127.0.0.1", 1, 1, False, SHORT)
    with pytest.raises(dist.DistNetworkError, match="port 0"):
        dist.TCPStore("127.0.0.1", 0, 1, False, SHORT)
    with pytest.raises(AuthFailed, match="without a secret"):
        dist.TCPStore("0.0.0.0", 0, 1, True, SHORT)
    for wrong in (("127.0.0.1", 70000), ("127.0.0.1", "1"), (1, 1), ("127.0.0.1", 0, "2"), ("127.0.0.1", 0, 1, True, 5)):
        with pytest.raises(TypeError):
            dist.TCPStore(*wrong)


@pytest.mark.parametrize("make", [
    lambda: dist.TCPStore("localhost.late", 0, is_master=True, timeout=LIMIT),
    lambda: dist.TCPStore("localhost.late", PORTS[0], timeout=LIMIT),
    lambda: core.TCPStore("localhost.late", PORTS[0], timeout=LIMIT),
    lambda: core.TCPStore("localhost.late", 0, is_master=True, timeout=LIMIT)])
def test_tcp_names_that_come_later(make: Callable[[], dist.Store], monkeypatch: pytest.MonkeyPatch) -> None:
    """As a cluster's name server knows them once their hosts are ready; who asks before waits."""
    asked, resolve = [0], socket.getaddrinfo

    def look(host: Any, *arguments: Any, **named: Any) -> Any:
        if host != "localhost.late":
            return resolve(host, *arguments, **named)
        asked[0] += 1
        if asked[0] < 4:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return resolve("127.0.0.1", *arguments, **named)

    with contextlib.closing(tcp()) as server, monkeypatch.context() as patch:
        PORTS[:] = [server.port]
        patch.setattr(socket, "getaddrinfo", look)
        with contextlib.closing(make()) as store:
            store.set("k", "v")
            assert store.get("k") == b"v"
        patch.setattr(socket, "getaddrinfo", Mock(side_effect=socket.gaierror(socket.EAI_NONAME, "Name or service not known")))
        for master in (False, True):
            with pytest.raises(dist.DistNetworkError, match="^the client socket has timed out after 0.*never-name.*MASTER_ADDR"):
                dist.TCPStore("never-name", 1, is_master=master, timeout=SHORT)


@pytest.mark.parametrize("listening", [False, True])
def test_tcp_listens_on_a_given_socket(listening: bool) -> None:
    sock = socket.socket()
    sock.bind(("127.0.0.1", 0))
    if listening:
        sock.listen()
    port = sock.getsockname()[1]
    with pytest.raises(dist.DistStoreError, match=f"bound to port {port}"):
        tcp(master_listen_fd=sock.fileno()) if port == 0 else dist.TCPStore(
            "127.0.0.1", 1 + port % 65535, 1, True, LIMIT, master_listen_fd=sock.fileno())
    master = dist.TCPStore("127.0.0.1", port, 1, True, LIMIT, master_listen_fd=sock.detach())
    dist.TCPStore("127.0.0.1", port, timeout=LIMIT).set("k", "v")
    assert master.port == port and master.get("k") == b"v"
    with pytest.raises(dist.DistNetworkError, match="not a socket"):
        tcp(master_listen_fd=999999)


def test_tenants_share_a_server_until_the_last() -> None:
    first = tcp(multi_tenant=True)
    port = first.port
    second = dist.TCPStore("127.0.0.1", port, 1, True, LIMIT, multi_tenant=True)
    first.set("k", "v")
    first.close()
    assert second.get("k") == b"v"
    del second
    third = dist.TCPStore("127.0.0.1", port, 1, True, LIMIT, multi_tenant=True)  # the port is free again
    assert not third.check(["k"])
    third.close()


def test_tenants_wait_for_each_other_as_workers() -> None:
    """The second master is one of those that the first one waits for, and has its own timeout."""
    timeouts = [LIMIT, LIMIT * 2, LIMIT * 3]
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port = sock.getsockname()[1]

        def master(number: int) -> dist.TCPStore:
            return dist.TCPStore("127.0.0.1", port, 3, True, timeouts[number], multi_tenant=True,
                                 master_listen_fd=os.dup(sock.fileno()))

        stores = at_once(3, master, limit=20)
        stores[0].set("k", "v")
        assert [store.get("k") for store in stores] == [b"v"] * 3 and [store.timeout for store in stores] == timeouts
        for store in stores:
            store.close()
        timeouts[0] = SHORT
        with pytest.raises(dist.DistStoreError, match="1/3 clients joined"):
            master(0)
        with pytest.raises(dist.DistStoreError, match="1/3 clients joined"):
            master(0)  # who gave up serves no more
