"""A rank for the tests of endpoints, as a process of its own: takes commands as lines of JSON and answers each with one.

Its first argument is the JSON of what to open. The first answer is {"ok": null} or {"error": type, "text": message}.
"""

from __future__ import annotations

import array
import contextlib
import json
import os
import sys
import threading
import time
from datetime import timedelta
from typing import Any

from arraycomm._engine import Buffer
from arraycomm.backends.socket import peers
from arraycomm.backends.socket.communicator import SocketCommunicator
from arraycomm.backends.socket.endpoint import Endpoint
from arraycomm.core.arrays.types import OPS, DType
from arraycomm.core.bootstrap.store import FileStore
from arraycomm.core.interface.kinds import KINDS

COUNT = 5000


class Rank:
    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config
        self.rank, self.size = config["rank"], config["size"]
        self.opened = 0
        self.split: SocketCommunicator | None = None
        if not config.get("late"):
            self.open()

    def open(self) -> None:
        config = self.config
        self.opened += 1
        self.store = FileStore(f"{config['path']}{self.opened}", self.size, timedelta(seconds=config["timeout"]))
        secret = bytes.fromhex(config["secret"]) or None
        self.endpoint = Endpoint(self.rank, self.size, lambda mine: self._exchange(mine, secret), secret, job=config["job"],
                                 name="test", timeout=config["timeout"], addresses=config["addresses"])
        self.world = SocketCommunicator(self.endpoint, range(self.size), "world", 20.0, owns=True)

    def _exchange(self, mine: peers.Peer, secret: bytes | None) -> peers.Peers:
        return peers.exchange(self.store, self.rank, self.size, mine, self.config["timeout"], secret, self.config["job"])

    def barrier(self, timeout: float = 20.0) -> None:
        self.world.barrier(timeout=timeout)

    def barrier_in_thread(self) -> None:
        threading.Thread(target=self.barrier, daemon=True).start()

    def total(self) -> list[float]:
        return _total(self.world, self.rank)

    def split_off(self, members: list[int]) -> None:
        self.split = self.world.split(members, "part", timeout=self.world.timeout)

    def split_total(self) -> list[float]:
        assert self.split is not None
        return _total(self.split, self.rank)

    def split_close(self) -> None:
        assert self.split is not None
        self.split.close()

    def close(self, reason: str = "") -> None:
        self.world.close(reason)
        self.store.close()

    def hosts(self) -> list[int]:
        return self.endpoint.peers.hosts_of(range(self.size))

    def local(self) -> list[int]:
        """Of the first two ranks, and of all."""
        return [self.endpoint.peers.beside(self.rank, range(n)) for n in (2, self.size)]

    def listeners(self) -> list[Any]:
        peer = self.endpoint.peers[self.rank]
        return [list(peer.addresses), peer.path]

    def offered(self) -> int:
        """Shared memory that others may fetch still, and that a descriptor is kept for."""
        return len(self.endpoint._offers._segments)

    def counts(self) -> list[int]:
        return [len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))]

    def reopen(self, times: int) -> None:
        for _ in range(times):
            self.close()
            self.open()

    def fork(self) -> int:
        """A child that lives on; its process id."""
        child = os.fork()
        if child == 0:  # without our streams, which the test reads to the end
            for descriptor in range(3):
                os.close(descriptor)
            time.sleep(30)
            os._exit(0)
        return child

    def use_in_child(self) -> list[str]:
        """What a forked child sees: the error of an operation, and how many sockets of the world it still has."""
        reading, writing = os.pipe()
        if os.fork() == 0:
            found = []
            try:
                self.barrier()
            except RuntimeError as error:
                found.append(str(error))
            with contextlib.suppress(Exception):
                self.close()
            names = [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")
                     if os.path.islink(f"/proc/self/fd/{fd}")]
            found.append(str(sum(name.startswith(("socket:", "anon_inode:[event")) for name in names)))
            os.write(writing, json.dumps(found).encode())
            os._exit(0)
        os.close(writing)
        with os.fdopen(reading, "rb") as pipe:
            answer = pipe.read()
        os.wait()
        seen: list[str] = json.loads(answer)
        return seen

    def leave(self, how: str) -> None:
        if how == "return":
            raise SystemExit(0)
        raise KeyError(how)


def _total(world: SocketCommunicator, rank: int) -> list[float]:
    """[first, last] of a sum over the ranks of rank + 1."""
    mine, out = array.array("f", [rank + 1] * COUNT), array.array("f", bytes(4 * COUNT))
    src, dst = (Buffer(values.buffer_info()[0], COUNT, DType.FLOAT32, 1, 0, False, (COUNT,), values)
                for values in (mine, out))
    world.collective(KINDS["all_reduce"], src, dst, OPS["sum"], timeout=20.0)
    return [out[0], out[-1]]


def main() -> None:
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what anybody prints goes to the test's log

    def attempt(function: Any, *arguments: Any) -> Any:
        try:
            result = function(*arguments)
        except Exception as error:
            if isinstance(error, KeyError):
                raise
            print(json.dumps({"error": type(error).__name__, "text": str(error),
                              "ranks": getattr(error, "ranks", None)}), file=answers)
            return None
        print(json.dumps({"ok": None if isinstance(result, Rank) else result}), file=answers)
        return result

    rank = attempt(Rank, json.loads(sys.argv[1]))
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        attempt(getattr(rank, name), *arguments)


if __name__ == "__main__":
    main()
