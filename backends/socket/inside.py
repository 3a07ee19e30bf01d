"""Worlds whose ranks are threads of one process: opened by one thread for all of them, without a store, listeners or a handshake.

Ranks are connected by socket pairs, made on demand. One thread per world handles the engine's requests of all
ranks.
"""

from __future__ import annotations

import contextlib
import io
import os
import select
import socket
import threading
from collections.abc import Sequence
from typing import Any

from arraycomm._engine import lib
from arraycomm.core.base import threads
from arraycomm.core.base.errors import DistNetworkError
from arraycomm.core.bootstrap.auth import Hello, Purpose
from arraycomm.core.interface.backend import Watch

from . import late, peers, segment
from .communicator import SocketCommunicator
from .endpoint import Endpoint

_JOIN = 0.3  # s: timeout to join the connector thread


def open_inside(size: int, name: str, timeout: float) -> list[SocketCommunicator]:
    """One communicator per rank. Raises ResourceError, as Endpoint does."""
    world = _World(size)
    with contextlib.ExitStack() as opened:
        opened.callback(world.close_memory)
        for rank in range(size):
            world.ranks.append(_Rank(rank, world, name, timeout))
            opened.push(lambda kind, *_, end=world.ranks[-1]: end.close(kind.__name__ if kind else ""))
        world.begin(name)
        made = []
        for end in world.ranks:
            made.append(SocketCommunicator(end, range(size), name, timeout, owns=True))
            opened.push(lambda kind, *_, communicator=made[-1]: communicator.close(kind.__name__ if kind else ""))
        opened.pop_all()
    world.close_memory()
    return made


class _World:
    """The state that the ranks of one world share."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.job = os.urandom(16).hex()
        self.ranks: list[_Rank] = []
        self.lock = threading.RLock()  # held while a rank connects or handles requests, so that no rank is closed meanwhile
        self.tuning = peers.tuning()
        mine = peers.this_process([("127.0.0.1", 0)], "inside", self.tuning)
        self.peers = peers.Peers([peers.encode(mine)] * size, mine)
        self._memory: io.FileIO | None = None
        self._serving: dict[int, _Rank] = {}  # by eventfd

    def memory(self, size: int, least: int) -> io.FileIO:
        if self._memory is None:
            self._memory = segment.create(size, least)
        return io.FileIO(os.dup(self._memory.fileno()), "r+")

    def close_memory(self) -> None:
        if self._memory:
            self._memory.close()

    def begin(self, name: str) -> None:
        """Connects the control ring and starts the connector thread; called when all ranks exist."""
        if self.size == 1:
            return
        self._poll = select.epoll()
        self._ends, self._end = socket.socketpair()
        for end in self.ranks:
            end.close_ring()
            self._serving[end.event] = end
            self._poll.register(end.event, select.EPOLLIN)
        self._poll.register(self._ends, select.EPOLLIN)
        self._thread = threading.Thread(target=self._serve, name=f"arraycomm-{name}-connector", daemon=True)
        threads.start(self._thread)

    def _serve(self) -> None:
        while self._serving:
            for event, _ in self._poll.poll():
                with self.lock:
                    if event in self._serving:
                        self._serving[event].answer()

    def leave(self, end: _Rank) -> None:
        """Removes a rank: it no longer accepts connections or handles requests. The last one stops the thread."""
        with self.lock:
            if end.event not in self._serving:
                return
            del self._serving[end.event]
            self._poll.unregister(end.event)
            if self._serving:
                return
        self._end.close()
        if self._thread.is_alive():  # false if the start failed
            self._thread.join(_JOIN)
        if not self._thread.is_alive():  # otherwise they are freed with the thread
            self._ends.close()
            self._poll.close()


class _Pairs:
    """Replaces Outgoing: in one process neither addresses nor authentication are needed."""

    def __init__(self, world: _World, rank: int) -> None:
        self._world, self._rank = world, rank

    def connect(self, peer: int, purpose: Purpose, *, group: int = 0, channel: int = 0, stripe: int = 0,
                patience: float | None = None) -> socket.socket:
        hello = Hello(self._world.job, purpose, self._rank, peer, group=group, channel=channel, stripe=stripe)
        with self._world.lock:
            other = self._world.ranks[peer]
            why = "it has left" if other.closed else other.welcome(hello)
            if why:
                raise DistNetworkError(f"rank {self._rank} cannot reach rank {peer}: {why}")
            mine, theirs = socket.socketpair()
            other.admit(theirs, hello)
            return mine


class _Rank(Endpoint):
    """The endpoint of one rank."""

    _outgoing: Any

    def __init__(self, rank: int, world: _World, name: str, timeout: float) -> None:
        self._world, self.event = world, -1
        super().__init__(rank, world.size, lambda mine: world.peers, None, job=world.job, name=name, timeout=timeout,
                         addresses=())

    def _open(self, exchange: Any, addresses: list[str]) -> None:
        if self.size == 1:
            super()._open(exchange, addresses)
            return
        self.tuning, self.peers, self.connections = self._world.tuning, self._world.peers, 1
        self._open_node()
        self.event = self._event
        self._outgoing = _Pairs(self._world, self.rank)

    def close_ring(self) -> None:
        after = (self.rank + 1) % self.size
        lib.acomm_node_attach(self.node, after, self._outgoing.connect(after, Purpose.CONTROL).detach())

    def admit(self, sock: socket.socket, hello: Hello) -> None:
        if hello.purpose is Purpose.STACKS:
            late.answer(sock, f"rank {self.rank} of {self.size}")  # the thread's name as run() sets it
        else:
            super().admit(sock, hello)

    def share_segment(self, group_id: int, members: Sequence[int], local_members: Sequence[int], size: int, least: int, *,
                      world: bool = False, watch: Watch | None = None) -> io.FileIO:
        if world:
            return self._world.memory(size, least)
        return super().share_segment(group_id, members, local_members, size, least, watch=watch)

    def _stop(self, text: str, *, exits: bool) -> None:
        self._world.leave(self)
        super()._stop(text, exits=exits)
