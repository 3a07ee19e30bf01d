"""Worlds of real processes that die, stop, or leave: who is told what."""

from __future__ import annotations

import itertools
import math
import os
import re
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from arraycomm.backends.socket import local, outgoing, sharing
from arraycomm.backends.socket.endpoint import Endpoint
from arraycomm.core.base.errors import AuthFailed, DistError, DistNetworkError, PeerLost
from arraycomm.core.bootstrap.auth import HandshakeBroken, Purpose

from ..threads import at_once
from .world import TRANSPORTS, over


def lost(answers: list[dict[str, Any]], rank: int, words: str) -> None:
    for answer in answers:
        assert answer["error"] == "PeerLost" and answer["ranks"] == [rank], answer
        assert re.search(words, answer["text"]) and f"rank {rank} (host " in answer["text"], answer["text"]


@TRANSPORTS
@pytest.mark.parametrize("when", ["waiting", "idle"])
def test_killed_process(start: Any, transport: str, when: str, short: Path) -> None:
    world = start(4, environ=over(transport)).opened()
    assert world.results("total") == [[10.0, 10.0]] * 4
    survivors = [process for rank, process in enumerate(world.ranks) if rank != 2]
    if when == "waiting":
        for process in survivors:
            process.tell("barrier")
    world.ranks[2].signal(signal.SIGKILL)
    answers = [process.hear() for process in survivors] if when == "waiting" else world.all("barrier", but=(2,))
    lost(answers, 2, r"process died \(connection closed\)")
    assert not any("partial data" in answer["text"] for answer in answers), answers  # a barrier writes none
    lost(world.all("barrier", but=(2,)), 2, "process died")
    world.ranks[2].child.wait()
    world.results("close", but=(2,))
    assert os.listdir(short / f"arraycomm-{os.geteuid()}") == []


def test_two_killed_and_a_group_of_the_others_goes_on(start: Any) -> None:
    world = start(5).opened()
    world.results("split_off", [0, 2, 4], but=(1, 3))
    for rank in (1, 3):
        world.ranks[rank].signal(signal.SIGKILL)
    answers = world.errors("barrier", but=(1, 3))
    assert all(answer["error"] == "PeerLost" and answer["ranks"] in ([1], [3]) for answer in answers), answers
    assert world.results("split_total", but=(1, 3)) == [[9.0, 9.0]] * 3
    # The ring was cut on both sides of rank 2. It has been mended, so its death is seen too; or it is still being mended.
    world.ranks[2].signal(signal.SIGKILL)
    lost(world.errors("split_total", but=(1, 2, 3)), 1, "process (died|has ended)")


QUICK = {"ARRAYCOMM_HEARTBEAT": "0.1", "ARRAYCOMM_SILENCE": "1.5"}


@TRANSPORTS
def test_stopped_process(start: Any, transport: str) -> None:
    world = start(3, environ=over(transport, **QUICK)).opened()
    world.results("barrier")
    world.ranks[1].signal(signal.SIGSTOP)
    lost(world.errors("barrier", but=(1,)), 1, "unresponsive")
    world.ranks[1].signal(signal.SIGCONT)
    resumed = world.ranks[1]
    resumed.tell("barrier")
    resumed.hear()  # over shared memory it may end well: the others had come to it
    resumed.tell("barrier")
    kind, text = resumed.error()
    assert kind == "Aborted" and "declared lost by the others: unresponsive" in text, text
    world.results("close")


def test_short_stop_is_no_fault(start: Any) -> None:
    world = start(3, environ={"ARRAYCOMM_SILENCE": "4", "ARRAYCOMM_HEARTBEAT": "0.2"}).opened()
    for process in world.ranks[:2]:
        process.tell("barrier")
    world.ranks[2].signal(signal.SIGSTOP)
    with pytest.raises(AssertionError, match="no answer"):
        world.ranks[0].hear(2.0)
    world.ranks[2].signal(signal.SIGCONT)
    world.ranks[2].tell("barrier")
    assert [process.result() for process in world.ranks] == [None] * 3
    assert world.results("total") == [[6.0, 6.0]] * 3
    world.results("close")


def test_exception_and_exit(start: Any) -> None:
    world = start(3).opened()
    world.ranks[0].tell("leave", "key")
    lost(world.errors("barrier", but=(0,)), 0, "exited with KeyError")
    assert world.ranks[0].child.wait(10) == 1


@TRANSPORTS
def test_leaving_early_without_an_error(start: Any, transport: str) -> None:
    """Who leaves after its part harms nobody; who is needed afterwards is missed at once, not at the timeout."""
    world = start(3, environ=over(transport)).opened()
    world.results("total")
    world.ranks[0].tell("leave", "return")
    assert world.ranks[0].child.wait(10) == 0
    answers = world.errors("barrier", but=(0,))
    assert all(answer["error"] == "PeerLost" and answer["ranks"] == [0] for answer in answers), answers
    world.results("close", but=(0,))


def test_closed_group_is_missed(start: Any) -> None:
    world = start(3).opened()
    world.results("split_off", [0, 1, 2])
    world.ranks[1].ask("split_close")
    answers = world.errors("split_total", but=(1,))
    assert all(answer["error"] == "PeerLost" and answer["ranks"] == [1] for answer in answers), answers
    assert world.results("total") == [[6.0, 6.0]] * 3
    world.results("close")


def test_the_owner_of_new_shared_memory_leaves(start: Any) -> None:
    world = start(2).opened()
    world.ranks[1].tell("split_off", [0, 1])
    world.ranks[0].tell("leave", "key")
    answer = world.ranks[1].hear()
    assert answer["error"] == "PeerLost" and answer["ranks"] == [0], answer
    assert "exited with KeyError" in answer["text"], answer["text"]
    assert world.ranks[0].child.wait(10) == 1


def refused_memory(monkeypatch: pytest.MonkeyPatch, error: Exception, patience: float, states: Iterator[int]) -> Exception:
    """What fetching it raises. states: what is known of its owner, at each look."""
    endpoint, ways = object.__new__(Endpoint), SimpleNamespace(connect=Mock(side_effect=error), patience=patience)
    endpoint.__dict__.update(rank=1, size=2, timeout=1.0, node=None, _changed=threading.Condition(),
                             peers=[SimpleNamespace(place="host h, pid 7")], _outgoing=ways)
    monkeypatch.setattr("arraycomm.backends.socket.endpoint.lib", SimpleNamespace(acomm_node_peer=lambda *_: next(states)))
    with pytest.raises(DistError) as raised:
        sharing._fetch_segment(endpoint, 0, 5, (4096, 4096), lambda awaited: None, math.inf)
    return raised.value


@pytest.mark.parametrize("kind", [AuthFailed, DistNetworkError])
def test_memory_that_an_owner_who_is_there_does_not_share(monkeypatch: pytest.MonkeyPatch, kind: type[Exception]) -> None:
    error = refused_memory(monkeypatch, kind("it sent 2 descriptors, not one"), 0.2, itertools.repeat(0))
    assert type(error) is kind and "rank 0 (host h, pid 7) could not share its memory: it sent 2" in str(error)


@pytest.mark.parametrize("kind", [HandshakeBroken, DistNetworkError])
def test_memory_of_an_owner_of_whose_end_word_comes_late(monkeypatch: pytest.MonkeyPatch, kind: type[Exception]) -> None:
    """As on a busy machine, by more than a second."""
    error = refused_memory(monkeypatch, kind("it closed the connection"), 60, itertools.chain([0] * 15, [-1]))
    assert isinstance(error, PeerLost) and error.ranks == (0,) and "rank 0 (host h, pid 7) failed" in str(error)


def test_ranks_of_one_process_connect_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hundreds at once would wait for the interpreter's lock, all in vain."""
    card = SimpleNamespace(host="h", addresses=[("127.0.0.1", 1)], path="/p", place="")
    inside, most, lock, full = 0, 0, threading.Lock(), threading.Barrier(outgoing._AT_ONCE)

    def connect(*_: Any, **__: Any) -> None:
        nonlocal inside, most
        with lock:
            inside, most = inside + 1, max(most, inside + 1)
        full.wait(20)
        with lock:
            inside -= 1

    monkeypatch.setattr(local, "connect", connect)
    ours = outgoing.Outgoing(0, [card, card], "job", None, 1.0)  # type: ignore[arg-type]
    at_once(4 * outgoing._AT_ONCE, lambda _: ours.connect(1, Purpose.CONTROL))
    assert most == outgoing._AT_ONCE


def test_exit_with_an_operation_under_way(start: Any) -> None:
    world = start(2).opened()
    world.ranks[1].ask("barrier_in_thread")
    world.ranks[1].tell("leave", "return")
    assert world.ranks[1].child.wait(10) == 0
    (answer,) = world.errors("total", but=(1,))
    assert answer["error"] in ("PeerLost", "CollectiveMismatch"), answer


def test_forked_child(start: Any) -> None:
    world = start(2, environ=over("tcp")).opened()
    world.results("total")
    error, sockets = world.ranks[0].ask("use_in_child")
    assert "fork" in error
    # The group's data connections and eventfd stay, as its memory does. Listeners, control connections and the
    # node's descriptors are gone.
    assert int(sockets) <= 4, sockets
    assert world.results("total") == [[3.0, 3.0]] * 2
    child = world.ranks[0].ask("fork")
    try:
        world.ranks[0].signal(signal.SIGKILL)
        lost(world.errors("barrier", but=(0,)), 0, "process died")  # though the child lives and had its descriptors
    finally:
        os.kill(child, signal.SIGKILL)
