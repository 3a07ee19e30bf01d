"""Worlds of real processes: opening, connections and closing."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import struct
from pathlib import Path
from typing import Any

from .world import TRANSPORTS, over


@TRANSPORTS
def test_world_works_and_ends(start: Any, transport: str) -> None:
    world = start(3, environ=over(transport)).opened()
    assert world.results("total") == [[6.0, 6.0]] * 3
    assert world.results("hosts") == [[0, 0, 0] if transport == "shm" else [0, 1, 2]] * 3
    assert world.results("local") == [[2, 3]] * 3
    world.results("close")


def test_memory_is_offered_until_all_have_it(start: Any) -> None:
    world = start(4, environ=over("shm")).opened()
    assert world.results("total") == [[10.0, 10.0]] * 4 and world.results("offered") == [0] * 4
    world.results("close")


def test_several_hosts(start: Any) -> None:
    hosts = {rank: {"environ": {"ARRAYCOMM_HOSTID": name}} for rank, name in enumerate("aabc")}
    world = start(4, changes=hosts).opened()
    assert world.results("hosts") == [[0, 0, 1, 2]] * 4
    assert world.results("local") == [[2, 2], [2, 2], [0, 1], [0, 1]]
    assert world.results("total") == [[10.0, 10.0]] * 4
    world.results("close")


def test_several_addresses_and_connections(start: Any) -> None:
    world = start(2, environ=over("tcp", ARRAYCOMM_SOCKET_CONNECTIONS="3"), addresses=("127.0.0.1", "127.0.0.2"))
    world.opened()
    assert world.results("total") == [[3.0, 3.0]] * 2
    names = _connected_to(world.ranks[1].ask("listeners")[0])
    # Stripes 0 and 2 over the first address, 1 over the second, and each from the sender's own.
    assert sorted(names) == ["127.0.0.1 127.0.0.1", "127.0.0.1 127.0.0.1", "127.0.0.2 127.0.0.2"], names
    world.results("close")


def _connected_to(listeners: list[Any]) -> list[str]:
    """"local remote" addresses of the established connections whose remote end is one of the listeners."""
    found = []
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        ends = [(socket.inet_ntoa(struct.pack("<I", int(end[:8], 16))), int(end[9:], 16)) for end in fields[1:3]]
        if fields[3] == "01" and list(ends[1]) in listeners:
            found.append(f"{ends[0][0]} {ends[1][0]}")
    return found


@TRANSPORTS
def test_nothing_grows(start: Any, transport: str, short: Path) -> None:
    world = start(2, environ=over(transport)).opened()
    world.results("reopen", 2)  # the first time loads modules
    before = world.results("counts")
    world.results("reopen", 50)
    assert world.results("counts") == before and world.results("offered") == [0, 0]
    world.results("close")
    assert os.listdir(short / f"arraycomm-{os.geteuid()}") == []


def test_a_world_of_one_starts_nothing(start: Any) -> None:
    world = start(1).opened()
    assert world.results("total") == [[1.0, 1.0]]
    assert world.results("counts")[0][1] == 1
    world.results("close")


@TRANSPORTS
def test_leaving_as_soon_as_it_is_open(start: Any, transport: str) -> None:
    world = start(4, environ=over(transport))
    for process in world.ranks:
        process.tell("close")
    for process in world.ranks:
        assert [process.result(), process.result()] == [None, None]


def test_absent_rank_is_named(start: Any) -> None:
    world = start(3, changes={1: {"late": True}}, timeout=2.0)
    for rank in (0, 2):
        kind, text = world.ranks[rank].error()
        assert kind == "DistStoreError" and "timeout after 2 s, these ranks did not join: 1" in text, text


def test_wrong_secret(start: Any) -> None:
    world = start(3, changes={1: {"secret": secrets.token_hex(32)}}, timeout=20.0)
    errors = [rank.error() for rank in world.ranks]
    # Whoever comes first finds out, and leaves; the others may find it gone already, or hear of it.
    assert {kind for kind, _ in errors} <= {"AuthFailed", "DistNetworkError", "PeerLost"}, errors
    found = [text for kind, text in errors if kind == "AuthFailed"]
    assert any("ARRAYCOMM_SECRET" in text for text in found), errors


def test_bad_transport(start: Any) -> None:
    world = start(2, environ=over("shm"), changes={0: {"environ": {"ARRAYCOMM_HOSTID": "elsewhere"}}})
    for rank in world.ranks:
        kind, text = rank.error()
        assert kind == "ValueError" and "ARRAYCOMM_TRANSPORT=shm" in text


def test_strangers(start: Any) -> None:
    world = start(2, environ=over("tcp")).opened()
    addresses, path = world.ranks[0].ask("listeners")
    strangers = []
    for target in [tuple(addresses[0]), path] * 40:
        sock = socket.socket(socket.AF_UNIX if isinstance(target, str) else socket.AF_INET)
        sock.connect(target)
        strangers.append(sock)
    for number, sock in enumerate(strangers):
        with contextlib.suppress(OSError):  # some are refused already
            sock.send([b"GET / HTTP/1.0\r\n\r\n", os.urandom(300), b"", b"ACOM"][number % 4])
    # Data connections are made now, while strangers hold the door.
    assert world.results("total") == [[3.0, 3.0]] * 2
    for sock in strangers:
        sock.close()
    world.results("close")


def test_port_range(start: Any) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        first = min(probe.getsockname()[1], 60000)
    world = start(2, environ={"ARRAYCOMM_PORT_RANGE": f"{first}-{first + 50}"}).opened()
    for addresses, _ in world.results("listeners"):
        assert first <= addresses[0][1] <= first + 50
    world.results("close")
