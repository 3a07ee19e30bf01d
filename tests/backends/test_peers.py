from __future__ import annotations

from datetime import timedelta

import pytest

from arraycomm.backends.socket import peers
from arraycomm.core.errors import DistStoreError
from arraycomm.core.store import HashStore


def test_host_numbers() -> None:
    assert peers.number_hosts([name.encode() for name in "bacab"]) == [0, 1, 2, 1, 0]
    assert peers.host_key() == peers.host_key()


def test_host_id_replaces_the_machine_only(monkeypatch: pytest.MonkeyPatch) -> None:
    before = peers.host_key()
    monkeypatch.setenv("ARRAYCOMM_HOSTID", "rack1")
    assert peers.host_key() != before
    assert peers.host_key().startswith("rack1/")


def test_exchange_refuses_what_is_no_card() -> None:
    store = HashStore(timedelta(seconds=1))
    mine = peers.this_process([("127.0.0.1", 5)], "/path")
    store.add("cards", 1)
    for text in ("[]", "nonsense", "arraycomm rank 1\0host\0001\0", "arraycomm rank 2\0host", "arraycomm rank 2\0host\0many\0"):
        store.set("peer/1", text)
        with pytest.raises(DistStoreError, match="rank 1"):
            peers.exchange(store, 0, 2, mine, 1.0)


def test_connection_count_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    assert peers.this_process([("127.0.0.1", 5), ("127.0.0.2", 6)], "").connections == 2
    monkeypatch.setenv("ARRAYCOMM_SOCKET_CONNECTIONS", "65")
    with pytest.raises(ValueError, match="ARRAYCOMM_SOCKET_CONNECTIONS"):
        peers.this_process([("127.0.0.1", 5)], "")
