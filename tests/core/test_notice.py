"""Waiting for ranks and stores says for whom."""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

import arraycomm.distributed as dist
from arraycomm.core.base.errors import DistStoreError, PeerLost
from arraycomm.core.bootstrap import ends
from arraycomm.core.bootstrap.rendezvous import rendezvous
from arraycomm.core.bootstrap.store import FileStore, HashStore, Store, TCPStore
from tests.threads import at_once

LIMIT = timedelta(seconds=60)  # ends what hangs
SECRET = b"\xab" * 32


class Said(logging.Handler):
    """What is logged, and a wait for a line."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self._came = threading.Condition()

    def emit(self, record: logging.LogRecord) -> None:
        with self._came:
            self.lines.append(record.getMessage())
            self._came.notify_all()

    def line(self, words: str) -> str:
        """The first with these words, which is waited for."""
        with self._came:
            assert self._came.wait_for(lambda: any(words in line for line in self.lines), LIMIT.total_seconds()), self.lines
            return next(line for line in self.lines if words in line)


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> Iterator[Said]:
    monkeypatch.setenv("ARRAYCOMM_WAIT_NOTICE", "0.1")
    handler, log = Said(), logging.getLogger("arraycomm")
    log.addHandler(handler)
    yield handler
    log.removeHandler(handler)


class Few(dist.Store):
    """A program's store that has no more than it must."""

    def __init__(self) -> None:
        super().__init__(LIMIT)
        self._inner = HashStore(LIMIT)

    def set(self, key: str, value: str | bytes) -> None:
        self._inner.set(key, value)

    def get(self, key: str) -> bytes:
        return self._inner.get(key)

    def add(self, key: str, amount: int) -> int:
        return self._inner.add(key, amount)

    def check(self, keys: list[str]) -> bool:  # type: ignore[override]
        return self._inner.check(keys)


@pytest.mark.parametrize("kind", ["HashStore", "FileStore", "TCPStore", "Few"])
def test_one_of_the_ranks_here_names_those_that_do_not_come(kind: str, said: Said, tmp_path: Path) -> None:
    with contextlib.closing(TCPStore("127.0.0.1", 0, is_master=True, secret=SECRET, timeout=LIMIT)) as tcp:
        stores: dict[str, Store] = {"HashStore": HashStore(LIMIT), "FileStore": FileStore(tmp_path / "file", 3, LIMIT),
                                    "TCPStore": tcp, "Few": Few()}

        def run(rank: int) -> str:
            if rank == 2:
                said.line("has waited" if kind != "Few" else "rank 2 gives up")
            return rendezvous(rank=rank, world_size=3, store=stores[kind], timeout=LIMIT, environ={}).job

        if kind == "Few":  # its get() ends with a value only, so that nothing can be said: it must work all the same
            threading.Timer(0.5, logging.getLogger("arraycomm").warning, ["rank 2 gives up waiting"]).start()
        jobs = at_once(3, run)
        assert len(set(jobs)) == 1
        lines = [line for line in said.lines if "has waited" in line]
        assert len({line.partition(" of ")[0] for line in lines}) == (kind != "Few")
        for line in lines:
            assert " of 3 has waited " in line and " s for rank 2; they meet in the " in line and kind in line


def test_where_they_are_expected(said: Said) -> None:
    with contextlib.closing(TCPStore("127.0.0.1", 0, is_master=True, secret=SECRET, timeout=LIMIT)) as served:
        environ = {"WORLD_SIZE": "6", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(served.port),
                   "ARRAYCOMM_STORE": "launcher", "ARRAYCOMM_SECRET": "ab" * 32}
        ends.turn_away(served, "a second launcher with --node-rank 1, on host b\33, was refused")

        def run(rank: int) -> None:
            if rank > 1:
                line = said.line("has waited")
                assert line.endswith(f" for ranks 1, 2, 3, 4, 5, of nodes 0, 1, 2 (2 ranks a node); a second launcher with "
                                     f"--node-rank 1, on host b\\x1b, was refused; they meet in the TCPStore 127.0.0.1 port "
                                     f"{served.port}")
                ends.refuse(served, "node 2 (host c) was refused: it was started with --nnodes 4", SECRET)
                return
            with pytest.raises((DistStoreError, PeerLost), match="node 2 .host c. was refused: it was started with --nnodes 4"):
                rendezvous(environ={**environ, "RANK": "0", "LOCAL_RANK": "0"}, timeout=LIMIT)

        at_once(3, lambda number: run(number if number != 1 else 2) if number else run(0))


def test_a_refusal_comes_too_late_once_all_have_met() -> None:
    with contextlib.closing(TCPStore("127.0.0.1", 0, is_master=True, secret=SECRET, timeout=LIMIT)) as served:
        environ = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(served.port), "ARRAYCOMM_STORE": "launcher",
                   "ARRAYCOMM_SECRET": "ab" * 32}

        def meet(rank: int) -> str:
            with contextlib.closing(rendezvous(environ={**environ, "RANK": str(rank)}, timeout=LIMIT)) as met:
                return met.job

        assert len(set(at_once(2, meet))) == 1
        ends.refuse(served, "node 2 was refused", SECRET)
        waits = threading.Event()

        def again(rank: int) -> str:
            if rank:
                waits.wait(1.2)  # longer than the look at what launchers note
            return meet(rank)

        assert len(set(at_once(2, again))) == 1


def test_another_world_size_ends_those_who_wait(said: Said) -> None:
    store = HashStore(LIMIT)

    def run(rank: int) -> str:
        if rank == 2:
            said.line("has waited")
            with pytest.raises(ValueError, match="world_size 9, others in this store have 3"):
                rendezvous(rank=7, world_size=9, store=store, timeout=LIMIT, environ={})
            return ""
        with pytest.raises(PeerLost, match="rank 7 .host .* ValueError: rank 7 has world_size 9, others .* have 3") as caught:
            rendezvous(rank=rank, world_size=3, store=store, timeout=LIMIT, environ={})
        assert not caught.value.ranks  # none of this world's
        return str(caught.value)

    assert all(at_once(3, run)[:2])


def test_a_store_that_nobody_serves_yet(said: Said) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]

    def run(rank: int) -> str:
        if rank == 0:
            line = said.line("which no process serves yet")
            assert line.startswith("has waited ") and f"for the TCPStore 127.0.0.1 port {port}" in line and "refused" in line
        store = TCPStore("127.0.0.1", port, is_master=rank == 0, timeout=LIMIT, secret=SECRET)
        if rank == 0:
            store.wait(["came"], LIMIT)
        else:
            store.compare_set("came", "", "1")
        store.close(linger=5)  # until the other one has left
        return "came"

    assert at_once(2, run) == ["came", "came"]


def test_workers_that_do_not_come(said: Said) -> None:
    port: list[int] = []

    def run(rank: int) -> None:
        if rank == 0:
            with socket.socket() as listener:
                listener.bind(("127.0.0.1", 0))
                listener.listen()
                port.append(listener.getsockname()[1])
                TCPStore("127.0.0.1", 0, 2, True, LIMIT, secret=SECRET, listen_fd=listener.detach()).close(linger=5)
            return
        assert "1 of 2 have joined" in said.line("for the workers of the TCPStore")
        TCPStore("127.0.0.1", port[0], 2, timeout=LIMIT, secret=SECRET).close()

    at_once(2, run)
