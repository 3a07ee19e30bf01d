"""The examples of the documents about stores, as they stand there but for their timeouts."""

from __future__ import annotations

import threading
from datetime import timedelta
from pathlib import Path

import pytest

import arraycomm.distributed as dist


@pytest.fixture
def store() -> dist.TCPStore:
    return dist.TCPStore("127.0.0.1", 0, 1, True, timedelta(seconds=30))


def test_counters_and_text(store: dist.TCPStore) -> None:
    store.add("first_key", 1)
    assert store.check(["first_key"])
    store.add("first_key", 6)
    assert store.get("first_key") == b"7"
    store.append("second_key", "po")
    store.append("second_key", "tato")
    assert store.get("second_key") == b"potato"


def test_compare_set(store: dist.TCPStore) -> None:
    store.set("key", "first_value")
    store.compare_set("key", "first_value", "second_value")
    assert store.get("key") == b"second_value"


def test_deleting_and_counting(store: dist.TCPStore) -> None:
    store.set("first_key", "first_value")
    assert store.num_keys() == 2
    assert store.delete_key("first_key") and not store.delete_key("bad_key")


def test_several_at_once(store: dist.TCPStore) -> None:
    store.multi_set(["first_key", "second_key"], ["po", "tato"])
    assert store.get("first_key") == b"po" and store.multi_get(["first_key", "second_key"]) == [b"po", b"tato"]


def test_timeouts(store: dist.TCPStore) -> None:
    with pytest.raises(dist.DistStoreError):
        store.wait(["bad_key"], timedelta(seconds=0.05))
    store.set_timeout(timedelta(seconds=0.05))
    with pytest.raises(dist.DistStoreError):
        store.wait(["bad_key"])


def test_barriers(store: dist.TCPStore) -> None:
    store.barrier("my_barrier", 1)
    store.barrier("my_barrier2", 1, timedelta(seconds=10))


def test_server_and_client() -> None:
    servers: list[dist.TCPStore] = []
    probe = dist.TCPStore("127.0.0.1", 0, None, True)
    port = probe.port
    probe.close()
    process_1 = threading.Thread(target=lambda: servers.append(dist.TCPStore("127.0.0.1", port, 2, True, timedelta(seconds=30))))
    process_1.start()
    client_store = dist.TCPStore("127.0.0.1", port, 2, False)
    process_1.join(30)
    servers[0].set("first_key", "first_value")
    assert client_store.get("first_key") == b"first_value"


def test_files_and_threads(tmp_path: Path) -> None:
    store1 = dist.FileStore(str(tmp_path / "filestore"), 2)
    store2 = dist.FileStore(str(tmp_path / "filestore"), 2)
    store1.set("first_key", "first_value")
    assert store2.get("first_key") == b"first_value"
    store = dist.HashStore()
    thread = threading.Thread(target=store.set, args=("first_key", "first_value"))
    thread.start()
    assert store.get("first_key") == b"first_value"
    thread.join()
