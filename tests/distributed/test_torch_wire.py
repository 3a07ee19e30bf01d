"""Requests in torch's store protocol, sound, mutilated and cut off at random: the server goes on for everybody else."""

from __future__ import annotations

import contextlib
import random
import socket
import struct
from datetime import timedelta

import pytest

import arraycomm.distributed as dist

GREETING = struct.pack("<BI", 0, 0x3C85F7CE)
WAIT, CANCEL, BARRIER = 6, 12, 18
# What each request holds. k: key, v: value, n: number, 4: bytes as they are; K and P: a number of keys, of keys and values.
HOLDS = {1: "kv", 2: "kvv", 3: "k", 4: "kn", 5: "K", WAIT: "K", 7: "", 8: "k", 9: "kv", 10: "K", 11: "P", CANCEL: "", 13: "4",
         14: "kv", 15: "k", 16: "k", 17: "", BARRIER: "kn"}
KEYS = (b"/a", b"/b", b"/n", b"init/", b"x", b"", b"\0barrier/a")
NUMBERS = (0, 1, -1, 2, 2**62, -(2**63))
PATIENCE = 0.002  # s for an answer, which many requests have not


def blob(data: bytes) -> bytes:
    return struct.pack("<q", len(data)) + data


def part(what: str, chance: random.Random) -> bytes:
    if what == "k":
        return blob(chance.choice((*KEYS, b"/" + b"k" * chance.randrange(300))))
    if what == "v":
        return blob(chance.choice((b"", b"1", b"-7", b"text", chance.randbytes(chance.randrange(2000)), b"z" * 300000)))
    if what == "n":
        return struct.pack("<q", chance.choice(NUMBERS))
    if what == "4":
        return chance.randbytes(4)
    count = chance.randrange(4)
    return struct.pack("<q", count) + b"".join(part(one, chance) for _ in range(count) for one in ("k" if what == "K" else "kv"))


def request(chance: random.Random) -> bytes:
    code = chance.choice(list(HOLDS))
    said = bytes([code]) + b"".join(part(what, chance) for what in HOLDS[code])
    if chance.random() < 0.05:
        at = chance.randrange(len(said))
        said = said[:at] + chance.randbytes(1) + said[at + 1:]
    return said[:chance.randrange(len(said)) + 1] if chance.random() < 0.02 else said


def talk(sock: socket.socket, chance: random.Random) -> None:
    """Until either side has enough."""
    sock.settimeout(PATIENCE)
    sock.sendall(GREETING)
    for _ in range(chance.randrange(1, 30)):
        said = request(chance)
        cut = chance.randrange(len(said) + 1) if chance.random() < 0.3 else 0
        for piece in filter(None, (said[:cut], said[cut:])):
            sock.sendall(piece)
        try:
            if chance.random() < 0.8 and not sock.recv(1 << 20):
                return
        except TimeoutError:
            if said[0] in (WAIT, BARRIER):
                sock.sendall(bytes([CANCEL]))


@pytest.mark.parametrize("seed", range(4))
def test_random_requests(seed: int) -> None:
    chance = random.Random(seed)
    server = dist.TCPStore("127.0.0.1", 0, 2, True, timedelta(seconds=30), wait_for_workers=False)
    try:
        for _ in range(10):
            with socket.create_connection(("127.0.0.1", server.port)) as sock, contextlib.suppress(OSError):
                talk(sock, chance)
        server.set("alive", "1")
        assert server.get("alive") == b"1"
    finally:
        server.close()
