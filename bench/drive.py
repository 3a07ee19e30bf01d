"""The driver's side of peers/protocol.py: starts a contender's ranks and sends them one command at a time."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NoReturn

from arraycomm.launch.cpus import bind, placement
from arraycomm.launch.environ import enough_for_xla
from arraycomm.launch.process import OWN_GROUP

from .peers import LIBRARIES, contender
from .peers.protocol import LIFELINE, Missing, Peer, control, free_ports
from .results import OURS
from .spaces import Spaces, inside

_PEERS = Path(__file__).parent / "peers"
# Variables of an enclosing launcher, hidden from the contenders: each has its own launcher.
_FOREIGN = ("ARRAYCOMM_STORE", "ARRAYCOMM_SECRET", "TORCHELASTIC_", "OMPI_", "PMIX_", "PMI_", "PRTE_", "HYDRA_", "MLX_")
_END_S = 5.0
_PROBE_S = 120.0  # a first import from a cold disk
_TAIL_LINES = 15
_LOOK_S = 0.2  # interval of liveness checks while waiting for the processes' connections


class ContenderFailed(Exception):
    """A contender's rank died, raised an error or timed out; the text names the rank and the reason."""


@dataclass(frozen=True)
class Start:
    """How to start a contender. name is "ours/shm" or "gloo"; scratch a directory that only this user can enter."""

    name: str
    size: int
    scratch: Path
    python: str = sys.executable
    file: str | None = None  # a contender that is not in peers/
    timeout: float = 120.0
    spaces: Spaces | None = None  # ranks are distributed evenly over its hosts

    @property
    def program(self) -> list[str]:
        return [str(_PEERS), _file(self.name, self.file), self.name]

    @property
    def per_host(self) -> int:
        return self.size // len(self.spaces.names) if self.spaces else self.size


def _file(name: str, file: str | None) -> str:
    return os.path.abspath(file) if file else LIBRARIES.get(name) or LIBRARIES[name.partition("/")[0]]


def peer_class(name: str, file: str | None = None) -> type[Peer]:
    """The contender's class; does not import its library."""
    kind: type[Peer] = contender(_file(name, file))
    return kind


def probe(start: Start) -> str:
    """The version of the contender under its interpreter. Raises Missing with what to install, or what went wrong."""
    try:
        kind = peer_class(start.name, start.file)
        kind.command(start.name, start.python, [], start.size)
        done = subprocess.run([start.python, *start.program, "probe"], env=_environ(start, kind), capture_output=True,
                              text=True, timeout=_PROBE_S, stdin=subprocess.DEVNULL)
    except OSError as error:
        raise Missing(f"cannot run {start.python}: {error.strerror}") from error
    except subprocess.TimeoutExpired as error:
        raise Missing(f"{start.python} did not import it within {_PROBE_S:g} s") from error
    try:
        found = json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        raise Missing((done.stderr.splitlines() or [f"exit code {done.returncode}"])[-1]) from None
    if "missing" in found:
        raise Missing(found["missing"])
    return str(found["version"])


def _environ(start: Start, kind: type[Peer]) -> dict[str, str]:
    """The environment of all processes of the contender."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith(_FOREIGN)}
    if start.python != sys.executable and not start.name.startswith("ours"):
        environ.pop("PYTHONPATH", None)  # it contains paths of this interpreter's modules
    environ |= kind.environ(start.name, start.python, start.size, str(start.scratch))
    if start.spaces:
        addresses = [start.spaces.address(rank // start.per_host) for rank in range(start.size)]
        environ |= kind.spread(start.name, addresses, "eth0", str(start.scratch))
    return environ


class Contender:
    """The ranks of one library, which sleep between the commands of `ask`."""

    def __init__(self, start: Start) -> None:
        self.name, self.size, self.timeout = start.name, start.size, start.timeout
        self.kind = peer_class(start.name, start.file)
        self.directory = start.scratch / f"{start.name.replace('/', '-')}-{start.size}"
        self.directory.mkdir(mode=0o700)
        self._processes: list[subprocess.Popen[bytes]] = []
        self._connections: list[Connection] = []
        self._began = time.time()
        self._idle = False  # all ranks wait for a command
        os.mkfifo(self.directory / LIFELINE, 0o600)
        # Opened for reading and writing, so that open() does not block; every other process opens it for reading.
        self._lifeline = os.open(self.directory / LIFELINE, os.O_RDWR | os.O_CLOEXEC)
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            try:
                with control(str(self.directory)) as path:
                    listener.bind(path)
                listener.listen(start.size)
                self._launch(start)
                self._accept(listener)
            except BaseException:
                self.close()
                raise

    def _launch(self, start: Start) -> None:
        secret = self.directory / "secret"
        secret.touch(mode=0o600)
        secret.write_text(secrets.token_hex(32))
        environ = _environ(start, self.kind)
        spaces, per_host = start.spaces, start.per_host
        environ |= {"MASTER_ADDR": spaces.address(0) if spaces else "127.0.0.1",
                    "MASTER_PORT": str(free_ports(1)[0]), "ARRAYCOMM_SECRET_FILE": str(secret)}
        commands = self.kind.command(start.name, start.python, [*start.program, str(self.directory)], start.size)
        self._program = os.path.basename(commands[0][0])
        alone = len(commands) == start.size
        # As arraycomm-run binds them; the other libraries' launchers do what they do.
        cpus = placement(start.size) if alone and not spaces and start.name.startswith(OURS) else [None] * len(commands)
        environ |= enough_for_xla(environ, bound=True) if None not in cpus else {}
        with open(self.directory / "output", "wb") as output:
            for rank, command in enumerate(commands):
                own = {"RANK": rank, "LOCAL_RANK": rank % per_host, "WORLD_SIZE": start.size, "LOCAL_WORLD_SIZE": per_host,
                       "MLX_RANK": rank} if alone else {}
                command = inside(spaces.names[rank // per_host] if spaces else "") + command
                # Its own process group: the terminal's Ctrl-C reaches only the driver, which then ends all processes in order.
                self._processes.append(subprocess.Popen(command, env=environ | {k: str(v) for k, v in own.items()},
                                                        stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                                                        **OWN_GROUP))
                bind(self._processes[-1].pid, cpus[rank])

    def _accept(self, listener: socket.socket) -> None:
        listener.settimeout(_LOOK_S)
        deadline = time.monotonic() + self.timeout
        while len(self._connections) < self.size:
            self._check_alive()
            if time.monotonic() > deadline:
                self._fail(f"{len(self._connections)} of {self.size} ranks came within {self.timeout:g} s")
            try:
                sock, _ = listener.accept()
            except TimeoutError:
                continue
            sock.setblocking(True)
            self._connections.append(Connection(sock.detach()))
        ranks = self._answers("start", deadline)
        if sorted(ranks) != list(range(self.size)):
            self._fail(f"its ranks call themselves {sorted(ranks)}: it does not find the other ranks")
        self._connections = [connection for _, connection in sorted(zip(ranks, self._connections, strict=True))]
        self._idle = True

    def _check_alive(self) -> None:
        for process in self._processes:
            code = process.poll()
            if code is not None:
                self._fail(f"{self._program} (pid {process.pid}) left with exit code {code}")

    def _answers(self, what: str, deadline: float) -> list[Any]:
        """One answer of every connection, in their order. Raises as soon as a rank has failed: other ranks may wait for it."""
        pending = set(range(len(self._connections)))
        answers: list[Any] = [None] * len(pending)
        while pending:
            ready = wait([self._connections[index] for index in pending], max(0.0, deadline - time.monotonic()))
            if not ready:
                self._fail(f"no answer to {what} of ranks {sorted(pending)} within {self.timeout:g} s")
            for index in [index for index in pending if self._connections[index] in ready]:
                pending.remove(index)
                try:
                    answers[index], failure = self._connections[index].recv()
                except (EOFError, ConnectionError):
                    self._fail(f"a rank died at {what}")
                if failure:
                    self._fail(f"a rank failed at {what}:\n{failure}")
        return answers

    def _fail(self, what: str) -> NoReturn:
        """Raises ContenderFailed, with the last output of the contender's processes."""
        said = (self.directory / "output").read_text(errors="replace").strip().splitlines()[-_TAIL_LINES:]
        raise ContenderFailed("\n  ".join([f"{self.name}, {self.size} ranks: {what}", *said]))

    def ask(self, *command: Any) -> list[Any]:
        """Every rank's answer, in rank order."""
        what = " ".join(str(part) for part in command)
        self._idle = False
        try:
            for connection in self._connections:
                connection.send(command)
        except OSError:
            self._fail(f"a rank died before {what}")
        answers = self._answers(what, time.monotonic() + self.timeout)
        self._idle = True
        return answers

    def close(self) -> None:
        """Ends the ranks and their launcher: sends quit to idle ranks, then kills. Idempotent."""
        if self._lifeline < 0:
            return
        orderly = self._idle and self._leave()
        os.close(self._lifeline)  # the kernel kills every rank that is still there
        self._lifeline = -1
        for number in (signal.SIGTERM, signal.SIGKILL):
            # A launcher whose ranks are dead ends its own helpers; only it knows their process groups' ids.
            self._wait(time.monotonic() + _END_S)
            self._signal(number)
        for process in self._processes:
            process.wait()
        for connection in self._connections:
            connection.close()
        if not orderly:
            self.kind.clear(self.name, self._began)
        shutil.rmtree(self.directory)

    def _leave(self) -> bool:
        """Whether all processes ended after the quit command."""
        for connection in self._connections:
            with contextlib.suppress(OSError):  # dead already
                connection.send(("quit",))
        self._wait(time.monotonic() + _END_S)
        return all(process.poll() is not None for process in self._processes)

    def _wait(self, deadline: float) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            for process in self._processes:
                process.wait(max(0.0, deadline - time.monotonic()))

    def _signal(self, number: int) -> None:
        for process in self._processes:
            if process.poll() is None:
                os.killpg(process.pid, number)
