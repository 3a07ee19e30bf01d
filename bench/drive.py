"""The driver's side of peers/protocol.py: starts a contender's ranks and lets them work one command at a time."""

from __future__ import annotations

import importlib
import os
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

_PEERS = Path(__file__).parent / "peers"
_FOREIGN = ("ARRAYCOMM_STORE", "ARRAYCOMM_SECRET", "ARRAYCOMM_SECRET_FD", "TORCHELASTIC_USE_AGENT_STORE")
_END_S = 5.0


class ContenderFailed(Exception):
    """A rank of a contender died, raised or did not answer in time; the text says which and why."""


@dataclass(frozen=True)
class Start:
    """How to start a contender. name is "ours/shm" or "gloo"; scratch a directory that only this user can enter."""

    name: str
    size: int
    scratch: Path
    python: str = sys.executable
    environ: Mapping[str, str] = field(default_factory=dict)
    timeout: float = 120.0


class Contender:
    """The ranks of one library, asleep but for the commands of `ask`."""

    def __init__(self, start: Start) -> None:
        self.name, self.size, self.timeout = start.name, start.size, start.timeout
        self._processes: list[subprocess.Popen[bytes]] = []
        self._connections: list[Connection] = []
        path = start.scratch / f"{start.name.replace('/', '-')}-{start.size}.sock"
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            listener.bind(str(path))
            listener.listen(start.size)
            try:
                self._launch(start, path)
                self._accept(listener)
            except BaseException:
                self.close()
                raise

    def _launch(self, start: Start, path: Path) -> None:
        module = importlib.import_module(f"{__package__}.peers.{start.name.partition('/')[0]}")
        commands = module.Contender.command(start.python, [str(_PEERS), start.name, str(path)], start.size)
        secret = start.scratch / "secret"
        if not secret.exists():
            secret.touch(mode=0o600)
            secret.write_text(secrets.token_hex(32))
        port = _free_port()
        for rank, command in enumerate(commands):
            environ = {name: value for name, value in os.environ.items() if name not in _FOREIGN}
            environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "ARRAYCOMM_SECRET_FILE": str(secret)}
            if len(commands) == start.size:
                environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(start.size),
                            "LOCAL_WORLD_SIZE": str(start.size)}  # fmt: skip
            environ |= start.environ
            # Libraries greet on stdout, which is the table's.
            self._processes.append(subprocess.Popen(command, env=environ, stdout=subprocess.DEVNULL))

    def _accept(self, listener: socket.socket) -> None:
        listener.settimeout(0.5)
        deadline = time.monotonic() + self.timeout
        ranks: dict[int, Connection] = {}
        while len(ranks) < self.size:
            self._check_alive()
            if time.monotonic() > deadline:
                raise ContenderFailed(f"{self.name}: {len(ranks)} of {self.size} ranks came within {self.timeout:g} s")
            try:
                sock, _ = listener.accept()
            except TimeoutError:
                continue
            sock.setblocking(True)
            connection = Connection(sock.detach())
            self._connections.append(connection)
            _, rank, failure = self._receive(connection)
            if failure:
                raise ContenderFailed(f"{self.name} did not start:\n{failure}")
            ranks[rank] = connection
        self._connections = [ranks[rank] for rank in sorted(ranks)]

    def _check_alive(self) -> None:
        for process in self._processes:
            code = process.poll()
            if code is not None:
                raise ContenderFailed(f"{self.name}: a rank (pid {process.pid}) left with exit code {code}")

    def _receive(self, connection: Connection) -> Any:
        if not wait([connection], self.timeout):
            raise ContenderFailed(f"{self.name}: no answer within {self.timeout:g} s")
        try:
            return connection.recv()
        except (EOFError, ConnectionError):
            raise ContenderFailed(f"{self.name}: a rank died") from None

    def ask(self, *command: Any) -> list[int]:
        """Every rank's answer, in rank order."""
        try:
            for connection in self._connections:
                connection.send(command)
        except OSError:
            raise ContenderFailed(f"{self.name}: a rank died") from None
        answers = [self._receive(connection) for connection in self._connections]
        for rank, (_, failure) in enumerate(answers):
            if failure:
                raise ContenderFailed(f"{self.name}: rank {rank} failed at {command}:\n{failure}")
        return [result for result, _ in answers]

    def close(self) -> None:
        """Ends the ranks: asks, then tells, then forces."""
        for connection in self._connections:
            try:
                connection.send(("quit",))
            except OSError:
                continue  # dead already
        deadline = time.monotonic() + (_END_S if self._connections else 0)
        for end in (subprocess.Popen.terminate, subprocess.Popen.kill):
            for process in self._processes:
                try:
                    process.wait(max(0.0, deadline - time.monotonic()))
                except subprocess.TimeoutExpired:
                    end(process)
            deadline = time.monotonic() + _END_S
        for process in self._processes:
            process.wait()
        for connection in self._connections:
            connection.close()


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])
