"""TCPStore: a store that one process serves over TCP, authenticated."""

from __future__ import annotations

import errno
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta

from ...base.errors import AuthFailed, DistNetworkError, DistStoreError
from ...base.notice import Notice
from ..address import listen, listen_addresses, resolve
from ..auth import Hello, Purpose, connect
from ..secret import find, require
from . import inside
from .connections import GRACE, Connections, RemoteStore, grace, retried
from .request import key_bytes, value_bytes
from .server import StoreServer, keep_alive
from .table import Op

WORKERS = b"init/"  # the counter of workers; torch's name
_LOOK = 0.01  # s: polling interval for the number of workers


class TCPStore(RemoteStore):
    """Connects to the store at `host_name` and `port`; `is_master` makes this process serve it.

    Port 0 at the master takes a free port, which `port` then tells. With `wait_for_workers` and a `world_size` the
    master returns when that many stores, itself included, have connected. The server listens on what `host_name`
    resolves to and nowhere else, and ends with the store.

    `secret` None takes the environment's (see core/bootstrap/secret.py), b"" none. `job` tells jobs without a secret apart.
    `listen_fd` is a socket that listens already, which the store then owns. `torch`: clients of torch.distributed's
    TCPStore are let in too (see server.py), on loopback or as ARRAYCOMM_TORCH_STORE says.

    Raises DistNetworkError when the address cannot be served, or nobody serves it within `timeout`; AuthFailed for
    another job's store; DistStoreError when the server is gone or workers do not come. Threads may share a store: each
    request under way has a connection of its own. In a child made by fork it must not be used.
    """

    _called, _tells = "TCPStore", True

    def __init__(self, host_name: str, port: int, world_size: int | None = None, is_master: bool = False,
                 timeout: timedelta = timedelta(seconds=300), wait_for_workers: bool = True, *,
                 secret: bytes | None = None, job: str = "", listen_fd: int | None = None,
                 torch: bool = False) -> None:
        super().__init__(timeout)
        self.host, self.port = host_name, port
        self._secret = find() if secret is None else (secret or None)
        self._job = job
        server = self._serve(listen_fd, torch) if is_master else None
        attempt = _opener(host_name, self.port, self._secret, job, grace(self.timeout))
        self._connections = Connections(attempt, self._where(), server)
        try:
            if self.port == 0:
                raise ValueError("port 0 is for the master; the others need the port that the master got")
            self._connections.wait_for_server(self.timeout.total_seconds())
            if world_size is not None:
                self.meet(world_size, wait_for_workers and is_master)
        except BaseException:
            self.close()
            raise

    def _serve(self, listen_fd: int | None, torch: bool) -> StoreServer:
        if listen_fd is not None:
            listeners = [socket.socket(fileno=listen_fd)]
        else:
            retried(lambda: resolve(self.host), self.timeout.total_seconds(), self._where())
            listeners = self._listen(listen_addresses(self.host))
        names = [listener.getsockname()[:2] for listener in listeners]
        for address, _ in names:
            require(self._secret, address)
        self.port = int(names[0][1])
        return StoreServer([*listeners, *filter(None, (inside.listen(*name) for name in names))], self._secret, self._job,
                           torch=torch)

    def _listen(self, addresses: Sequence[str]) -> list[socket.socket]:
        """One socket per address of this machine. Port 0: the first gets a free port; the others try the same."""
        any_port = self.port == 0
        listeners: list[socket.socket] = []
        reasons: list[str] = []
        try:
            for address in addresses:
                require(self._secret, address)
                try:
                    listeners.append(listen(address, self.port))
                except DistNetworkError as error:
                    if not _foreign(error) and not (any_port and listeners):
                        raise
                    reasons.append(str(error))
                    continue
                self.port = int(listeners[0].getsockname()[1])
        except BaseException:
            for listener in listeners:
                listener.close()
            raise
        if not listeners:
            raise DistNetworkError("; ".join(reasons))
        return listeners

    def meet(self, world_size: int, wait: bool) -> None:
        """Counts this store as one of `world_size` workers, and waits until all are counted. Raises DistStoreError."""
        if self._came(1) < world_size and wait:
            self._await_workers(world_size)

    def _await_workers(self, world_size: int) -> None:
        seconds = self.timeout.total_seconds()
        notice = Notice(lambda waited: f"has waited {waited:.3g} s for the workers of the {self._where()}: {self._came(0)} of "
                                       f"{world_size} have joined")
        end = time.monotonic() + seconds
        while self._came(0) < world_size:
            if time.monotonic() > end:
                raise DistStoreError(f"Timed out after {seconds:g} seconds waiting for clients. {self._came(0)}/{world_size} "
                                     f"clients joined. They are expected at the {self._where()}")
            time.sleep(_LOOK)
            notice.tell()

    def _came(self, more: int) -> int:
        return int(self._now(Op.ADD, WORKERS, more)[0])

    def _will(self, name: str, entries: Mapping[str, str]) -> bool:
        fields = [key_bytes(name), b""]
        for key, value in entries.items():
            fields += key_bytes(key), value_bytes(value)
        self._now(Op.WILL, *fields)
        return True

    def clone(self) -> TCPStore:
        """Another client of the same server, which the original keeps serving."""
        return TCPStore(self.host, self.port, None, False, self.timeout, False, secret=self._secret or b"",
                        job=self._job)


def _opener(host: str, port: int, secret: bytes | None, job: str, seconds: float) -> Callable[[], socket.socket]:
    """Not a method: the connections must not keep the store alive that owns them."""
    hello = Hello(job, Purpose.STORE)

    def attempt() -> socket.socket:
        """Tries the host's addresses once. Raises the last one's error, or an AuthFailed if there was one."""
        failure: OSError | DistNetworkError = DistNetworkError(f"no address for {host}")
        for _, address in resolve(host, port):
            require(secret, address)
            try:
                sock = inside.connect(address, port, secret, hello, deadline=seconds)
                if sock is None:
                    sock = connect(address, port, secret, hello, deadline=seconds)
                    keep_alive(sock)
                sock.settimeout(GRACE)
                return sock
            except (OSError, AuthFailed) as error:
                if not isinstance(failure, AuthFailed):
                    failure = error
        raise failure

    return attempt


def _foreign(error: DistNetworkError) -> bool:
    """Whether listening failed because this machine does not have the address (or the family)."""
    cause = error.__cause__
    return isinstance(cause, OSError) and cause.errno in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
