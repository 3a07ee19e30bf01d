"""One suite for every store."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arraycomm.core.base.errors import DistStoreError, QueueEmptyError, ResourceError
from arraycomm.core.bootstrap.store import FileStore, HashStore, PrefixStore, Store, TCPStore, TorchStore

from ..threads import at_once

SHORT = timedelta(milliseconds=150)
Make = Callable[[], Store]


def make_hash(_: Path) -> Iterator[Store]:
    yield HashStore()


def make_tcp(_: Path) -> Iterator[Store]:
    yield TCPStore("localhost", 0, 1, True, timeout=timedelta(seconds=10))


def make_file(path: Path) -> Iterator[Store]:
    yield FileStore(path / "store", 1)


def make_prefix(_: Path) -> Iterator[Store]:
    yield PrefixStore("two", PrefixStore("one", HashStore()))


def make_torch(_: Path) -> Iterator[Store]:
    distributed = pytest.importorskip("torch.distributed")
    server = distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    yield TorchStore("127.0.0.1", server.port, timedelta(seconds=10))


@pytest.fixture(params=[make_hash, make_tcp, make_file, make_prefix, make_torch],
                ids=lambda make: make.__name__.removeprefix("make_"))
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    making = request.param(tmp_path)
    made = next(making)
    yield made
    made.close()


def later(call: Callable[[], object]) -> threading.Timer:
    timer = threading.Timer(0.05, call)
    timer.start()
    return timer


def test_set_get(store: Store) -> None:
    store.set("text", "grüße")
    store.set("bytes", b"\0\xff")
    store.set("empty", "")
    assert store.get("text") == "grüße".encode()
    assert store.get("bytes") == b"\0\xff"
    assert store.get("empty") == b""
    store.set("text", "new")
    assert store.get("text") == b"new"


def test_get_waits_for_another_thread(store: Store) -> None:
    timer = later(lambda: store.set("late", "v"))
    assert store.get("late") == b"v"
    timer.join()


def test_the_longest_timeout(store: Store) -> None:
    store.set_timeout(timedelta.max)
    timer = later(lambda: store.set("late", "v"))
    store.wait(["late"])
    timer.join()
    assert store.get("late") == b"v"
    store.barrier("alone", 1)


def test_get_and_wait_time_out(store: Store) -> None:
    store.set_timeout(SHORT)
    start = time.monotonic()
    with pytest.raises(DistStoreError, match="timeout.*nope"):
        store.get("nope")
    with pytest.raises(DistStoreError, match="timeout.*nope"):
        store.wait(["nope"], timedelta(milliseconds=50))
    assert time.monotonic() - start >= 0.2
    store.set("after", "1")  # a connection that gave up is still in step
    assert store.get("after") == b"1"


def test_add(store: Store) -> None:
    assert [store.add("n", k) for k in (1, 41, -50, 0)] == [1, 42, -8, -8]
    assert store.get("n") == b"-8"
    store.set("m", "7")
    assert store.add("m", 1) == 8
    store.set("text", "abc")
    with pytest.raises(ValueError, match="text.*decimal"):
        store.add("text", 1)
    assert store.get("text") == b"abc"


def test_compare_set(store: Store) -> None:
    assert store.compare_set("k", "expected", "v") == b"expected"
    assert not store.check(["k"])
    assert store.compare_set("k", "", "v") == b"v"
    assert store.compare_set("k", "other", "w") == b"v"
    assert store.compare_set("k", "v", "w") == b"w"
    assert store.get("k") == b"w"


def test_wait_and_check_many(store: Store) -> None:
    store.set("a", "1")
    assert store.check(["a"]) and not store.check(["a", "b"]) and store.check([])
    timer = later(lambda: (store.set("c", "3"), store.set("b", "2")))
    store.wait(["a", "b", "c"])
    assert store.multi_get(["c", "a", "b"]) == [b"3", b"1", b"2"]
    store.wait([])
    timer.join()


def test_multi(store: Store) -> None:
    store.multi_set(["a", "b"], ["1", b"2"])
    assert store.multi_get(["b", "a", "b"]) == [b"2", b"1", b"2"]
    assert store.multi_get([]) == []
    with pytest.raises(DistStoreError, match="as many"):
        store.multi_set(["a"], [])


def test_delete_append_and_keys(store: Store) -> None:
    before = store.num_keys()
    store.append("k", "ab")
    store.append("k", b"c")
    store.set("l", "")
    assert store.get("k") == b"abc"
    assert store.num_keys() == before + 2
    assert sorted(store.list_keys()) == ["k", "l"]
    assert store.delete_key("k") and not store.delete_key("k")
    assert not store.check(["k"]) and store.list_keys() == ["l"]


def test_queues(store: Store) -> None:
    assert store.queue_len("q") == 0
    with pytest.raises(QueueEmptyError):
        store.queue_pop("q", block=False)
    store.queue_push("q", "1")
    store.queue_push("q", b"2")
    assert store.queue_len("q") == 2 and store.check(["q"])
    assert [store.queue_pop("q"), store.queue_pop("q", block=False)] == [b"1", b"2"]
    timer = later(lambda: store.queue_push("q", "late"))
    assert store.queue_pop("q") == b"late"
    timer.join()
    store.set_timeout(SHORT)
    with pytest.raises(DistStoreError, match="timeout"):
        store.queue_pop("q")


def test_large_values(store: Store) -> None:
    value = bytes(range(256)) * (1 << 12)
    store.multi_set(["a", "b"], [value, value[::-1]])
    assert store.multi_get(["a", "b"]) == [value, value[::-1]]


def test_wrong_types(store: Store) -> None:
    for call in (lambda: store.set(1, "v"), lambda: store.set("k", 1), lambda: store.get(b"k"),  # type: ignore
                 lambda: store.wait("k"), lambda: store.check("k"), lambda: store.add("k", 1.5),  # type: ignore
                 lambda: store.set("k", None), lambda: store.multi_get("ab")):  # type: ignore
        with pytest.raises(TypeError):
            call()


def test_clone_is_the_same_data(store: Store) -> None:
    twin = store.clone()
    assert type(twin) is type(store)
    twin.set("k", "v")
    assert store.get("k") == b"v"
    timer = later(lambda: twin.set("late", "1"))
    store.wait(["late"])
    timer.join()
    twin.close()
    assert store.get("k") == b"v"


def test_many_threads(store: Store) -> None:
    """Every thread waits for its neighbour's key while all count together."""
    def work(rank: int) -> None:
        for step in range(10):
            store.add("count", 1)
            store.set(f"{step}/{rank}", str(rank))
            assert store.get(f"{step}/{(rank + 1) % 16}") == str((rank + 1) % 16).encode()

    at_once(16, work)
    assert store.add("count", 0) == 160


keys = st.sampled_from(["a", "b", "c"])
values = st.binary(max_size=8)
steps = st.one_of(
    st.tuples(st.just("set"), keys, values), st.tuples(st.just("append"), keys, values),
    st.tuples(st.just("compare_set"), keys, values, values), st.tuples(st.just("delete_key"), keys),
    st.tuples(st.just("add"), keys, st.integers(-5, 5)), st.tuples(st.just("check"), st.lists(keys, max_size=3)),
    st.tuples(st.just("queue_push"), keys, values), st.tuples(st.just("queue_pop"), keys, st.just(False)),
    st.tuples(st.just("queue_len"), keys), st.tuples(st.just("list_keys")))


def outcome(store: Store, step: tuple[object, ...]) -> object:
    try:
        result = getattr(store, str(step[0]))(*step[1:])
    except (ValueError, QueueEmptyError) as error:
        return type(error)
    return sorted(result) if isinstance(result, list) else result


@pytest.fixture(scope="module")
def trio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Store]]:
    made: list[Store] = [HashStore(), TCPStore("localhost", 0, is_master=True),
                         FileStore(tmp_path_factory.mktemp("trio") / "s", 1)]
    yield made
    for store in made:
        store.close()


@given(sequence=st.lists(steps, max_size=20), name=st.uuids())
@settings(max_examples=40, deadline=None)
def test_all_stores_agree(trio: list[Store], sequence: list[tuple[object, ...]], name: object) -> None:
    results = [[outcome(PrefixStore(str(name), store), step) for step in sequence] for store in trio]
    assert results[0] == results[1] == results[2]


@pytest.mark.parametrize("make", [make_hash, make_tcp, make_file])
def test_quotas(make: Callable[[Path], Iterator[Store]], tmp_path: Path) -> None:
    making = make(tmp_path)
    store = next(making)
    with pytest.raises(ResourceError, match="9000 bytes.*8192"):
        store.set("k" * 9000, "")
    with pytest.raises(ResourceError, match=f"{(8 << 20) + 1} bytes.*{8 << 20}"):
        store.set("k", bytes((8 << 20) + 1))
    assert store.list_keys() == []
    store.set("k" * 8192, "v")
    assert store.get("k" * 8192) == b"v"
    store.close()


def test_total_quota() -> None:
    store = HashStore()
    for index in range(31):
        store.set(f"{index}", bytes(8 << 20))
    with pytest.raises(ResourceError, match="full"):
        store.multi_set(["x", "y"], [bytes(8 << 20), bytes(8 << 20)])
    assert not store.check(["x"])
    store.delete_key("0")
    store.multi_set(["x", "y"], [b"1", bytes(8 << 20)])


def test_prefix_store() -> None:
    base = HashStore()
    store = PrefixStore("one", PrefixStore("two", base))
    store.set("k", "v")
    assert base.list_keys() == ["two/one/k"] and store.list_keys() == ["k"]
    assert isinstance(store.underlying_store, PrefixStore) and store.underlying_store.underlying_store is base
    store.set_timeout(SHORT)
    assert base.timeout == store.timeout == SHORT
    with pytest.raises(TypeError):
        PrefixStore("p", "not a store")  # type: ignore[arg-type]
