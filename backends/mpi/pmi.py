"""A server of PMI-1, by which processes of MPICH and its relatives find each other: a line of text a request and an answer, over
a socket that the process inherits in PMI_FD. For the ranks of one host.

The protocol is described in "PMI: A Scalable Parallel Process-Management Interface" (Balaji and others, 2010).
"""

from __future__ import annotations

import os
import selectors
import socket
import threading
from collections.abc import Callable

_MAXES = "cmd=maxes kvsname_max=256 keylen_max=64 vallen_max=1024"


class PmiServer:
    """Answers from a thread of its own, until it is closed. A context manager."""

    def __init__(self, size: int, began: Callable[[int], None]) -> None:
        """began: called with the rank of each process that comes."""
        self._size, self._began = size, began
        self._space = f"arraycomm_{os.getpid()}_{os.urandom(4).hex()}"  # MPICH names shared memory after it
        # Which ranks share a host: from the first one on, one host of `size` ranks.
        self._keys = {"PMI_process_mapping": f"(vector,(0,1,{size}))"}
        self._pairs = [socket.socketpair() for _ in range(size)]
        self._ranks = {ours: rank for rank, (ours, _) in enumerate(self._pairs)}
        self._unread = dict.fromkeys((ours for ours, _ in self._pairs), b"")
        self._waiting: list[socket.socket] = []  # in the barrier
        self._selector = selectors.DefaultSelector()
        self._stop, wake = os.pipe()
        self._wake = wake
        self._selector.register(self._stop, selectors.EVENT_READ)
        for ours, _ in self._pairs:
            self._selector.register(ours, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._serve, name="arraycomm PMI", daemon=True)
        self._thread.start()

    def variables(self, rank: int) -> dict[str, str]:
        return {"PMI_RANK": str(rank), "PMI_SIZE": str(self._size), "PMI_FD": str(self._pairs[rank][1].fileno()),
                "MPI_LOCALRANKID": str(rank), "MPI_LOCALNRANKS": str(self._size)}

    def descriptors(self, rank: int) -> tuple[int, ...]:
        """What the process inherits."""
        return (self._pairs[rank][1].fileno(),)

    def __enter__(self) -> PmiServer:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._wake)
        self._thread.join()
        self._selector.close()
        os.close(self._stop)
        for pair in self._pairs:
            for end in pair:
                end.close()

    def _serve(self) -> None:
        while True:
            for key, _ in self._selector.select():
                if key.fd == self._stop:
                    return
                assert isinstance(key.fileobj, socket.socket)
                self._read(key.fileobj)

    def _read(self, peer: socket.socket) -> None:
        data = peer.recv(65536)
        if not data:
            self._selector.unregister(peer)
            return
        *lines, self._unread[peer] = (self._unread[peer] + data).split(b"\n")
        for line in lines:
            self._answer(peer, line.decode(errors="replace"))

    def _answer(self, peer: socket.socket, line: str) -> None:
        head, _, value = line.partition(" value=")  # which may hold anything else
        words = dict(word.partition("=")[::2] for word in head.split())
        command = words.get("cmd", "")
        if command == "init":
            self._began(self._ranks[peer])
        if command == "put":
            self._keys[words.get("key", "")] = value
        if command == "barrier_in":
            self._waiting.append(peer)
            if len(self._waiting) == self._size:
                for waiter in self._waiting:
                    _send(waiter, "cmd=barrier_out rc=0")
                self._waiting = []
        elif command == "get":
            found = self._keys.get(words.get("key", ""))
            _send(peer, "cmd=get_result rc=-1 msg=key_not_found value=unknown" if found is None else
                  f"cmd=get_result rc=0 msg=success value={found}")
        elif answer := self._plain(command):
            _send(peer, answer)

    def _plain(self, command: str) -> str:
        """What is answered without a look at the table."""
        known = {"init": "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0", "get_maxes": _MAXES,
                 "get_appnum": "cmd=appnum appnum=0 rc=0", "get_universe_size": f"cmd=universe_size size={self._size} rc=0",
                 "get_my_kvsname": f"cmd=my_kvsname kvsname={self._space} rc=0", "put": "cmd=put_result rc=0 msg=success",
                 "finalize": "cmd=finalize_ack rc=0", "abort": ""}  # who aborts ends by itself, and waits for no answer
        return known.get(command, f"cmd={command}_result rc=-1 msg=not_offered")


def _send(peer: socket.socket, line: str) -> None:
    try:
        peer.sendall(f"{line}\n".encode())
    except OSError:  # it has ended; its launcher has seen that
        return
