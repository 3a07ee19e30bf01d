from __future__ import annotations

import os
import subprocess
import sys
from contextlib import nullcontext
from datetime import timedelta

import pytest

from arraycomm.backends.socket import peers
from arraycomm.core.base.errors import AuthFailed, DistStoreError
from arraycomm.core.bootstrap.gathering import sign
from arraycomm.core.bootstrap.store import HashStore

SECRET = bytes(range(32))


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
    for text in ("[]", "nonsense", "arraycomm rank 1\0host\0001\0", "arraycomm rank 6\0host",
                 "arraycomm rank 6\0host\0many\0003\0rest", "arraycomm rank 6\0host\0001\0everywhere\0rest",
                 "arraycomm rank 3\0host\0001\0003\0rest"):
        store.set("cards/1", sign(SECRET, peers._about("job", 1), text.encode()))
        with pytest.raises(DistStoreError, match="rank 1"):
            peers.exchange(store, 0, 2, mine, 1.0, SECRET, "job")


@pytest.mark.parametrize("pid", ["", "x", "0", "-7", "2147483648", "9" * 5000, "7\0"])
def test_a_card_without_a_process(pid: str) -> None:
    mine = peers.this_process([("127.0.0.1", 5)], "/path")
    card = peers.encode(mine)
    known = peers.Peers([card, card.replace(f"\0{mine.pid}\0".encode(), f"\0{pid}\0".encode())], mine)
    assert known.process(0) == mine.pid
    if pid.startswith("7"):
        assert known.process(1) == 7
        return
    with pytest.raises(DistStoreError, match="rank 1 .it names no process"):
        known.process(1)


@pytest.mark.parametrize("locale", ["C", "C.UTF-8"])
def test_names_that_are_no_utf8(locale: str) -> None:
    """Of folders and hosts: bytes to the system. Each rank has its own locale."""
    program = """
import os, sys
from arraycomm.backends.socket import peers
mine = peers.this_process([("127.0.0.1", 5)], os.fsdecode(b"/caf\\xe9/\\xc3\\xbc"))
card = peers.encode(mine)
assert b"/caf\\xe9/\\xc3\\xbc\\0" in card and b"k\\xe9/" in card, card
found = peers.Peers([card], mine)[0]
assert (found.path, found.pid) == (mine.path, mine.pid)
"""
    environ = {**os.environb, b"LC_ALL": locale.encode(), b"PYTHONCOERCECLOCALE": b"0", b"PYTHONUTF8": b"0",
               b"ARRAYCOMM_HOSTID": b"rack\xe9"}
    done = subprocess.run([sys.executable, "-c", program], env=environ, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_cards_that_somebody_else_wrote() -> None:
    """Nobody who can write to the store, and no rank under another's number, has a card believed; nor the list of all."""
    mine = peers.this_process([("127.0.0.1", 5)], "/path")
    card = peers.encode(mine)
    good = sign(SECRET, peers._about("job", 1), card)
    forged = (card, good.replace(b"127.0.0.1 5", b"127.0.0.1 6"), sign(b"other", peers._about("job", 1), card),
              sign(SECRET, peers._about("job", 0), card), sign(SECRET, peers._about("an earlier job", 1), card),
              sign(SECRET, "the end of stage 'cards' of 2 ranks", card), good[:-1], good + b"0", b"", b"x")
    for value in (good, *forged):
        store = HashStore(timedelta(seconds=1))
        store.add("cards", 1)
        store.set("cards/1", value)
        with pytest.raises(AuthFailed, match="rank 1 of job job.*ARRAYCOMM_SECRET") if value != good else nullcontext():
            assert peers.exchange(store, 0, 2, mine, 1.0, SECRET, "job")[1] == mine
    for end in (b"complete", b"complete" + peers._pack([good, good]), b"1\0host\0it has ended", b"", b"x" * 70):
        store = HashStore(timedelta(seconds=1))
        store.set("cards/end", end)
        with pytest.raises(AuthFailed, match="end of stage 'cards'"):
            peers.exchange(store, 0, 2, mine, 1.0, SECRET, "job")


def test_connection_count_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    assert peers.this_process([("127.0.0.1", 5), ("127.0.0.2", 6)], "").connections == 2
    monkeypatch.setenv("ARRAYCOMM_SOCKET_CONNECTIONS", "65")
    with pytest.raises(ValueError, match="ARRAYCOMM_SOCKET_CONNECTIONS"):
        peers.this_process([("127.0.0.1", 5)], "")


def _cards(*places: tuple[str, int]) -> peers.Peers:
    """Of ranks by their hosts and, as bits, the processors that they may run on."""
    mine = peers.this_process([("127.0.0.1", 5)], "/path")
    made = [peers.Peer(host, 1, mask, *mine[3:]) for host, mask in places]
    return peers.Peers([peers.encode(one) for one in made], made[0])


def test_ranks_that_a_launcher_has_bound_have_a_processor_each() -> None:
    bound = _cards(("a", 1), ("a", 2), ("b", 1), ("a", 2))
    assert [bound.hosts, bound.connections] == [[b"a", b"a", b"b", b"a"], 1]
    assert not bound.oversubscribed(0, [0, 1])
    assert not bound.oversubscribed(0, [0, 1, 2])  # that one is on another host
    assert bound.oversubscribed(1, [1, 2, 3])  # two on one processor
    assert not bound.oversubscribed(2, [1, 2, 3])
    assert bound[2].processors == 1


def test_ranks_that_nobody_has_bound_are_counted() -> None:
    free = _cards(("a", 3), ("a", 3), ("a", 3))
    assert not free.oversubscribed(1, [0, 1])
    assert free.oversubscribed(1, [0, 1, 2])
