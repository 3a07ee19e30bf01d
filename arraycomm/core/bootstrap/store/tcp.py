"""TCPStore: a store that one process serves over TCP, authenticated."""

from __future__ import annotations

import contextlib
import errno
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta

from ...base.errors import AuthFailed, DistNetworkError, DistStoreError
from ...base.notice import Notice
from ...base.typed import TYPE_CHECKING
from ..address import listen, listen_addresses, resolve
from ..auth import Hello, Purpose, connect
from ..secret import find, require
from . import inside
from .base import wait_timeout
from .connections import Line, Lines, grace, retried
from .request import RequestStore, key_bytes, value_bytes
from .server import StoreServer, keep_alive
from .table import MAX_KEY, POSTED, TIMED_OUT, Op, failure

if TYPE_CHECKING:
    from .torch_gate import Gate

_WORKERS, _COMPLETE = b"\0workers", b"\0complete"  # as native/store/torch.c
_MAX_MILLISECONDS = 2**32 - 1
_MILLISECOND = timedelta(milliseconds=1)


class TCPStore(RequestStore):
    """Connects to the store at `host_name` and `port`; `is_master` makes this process serve it.

    Port 0 at the master takes a free port, which `port` then tells. With `wait_for_workers` and a `world_size` the
    master returns when that many stores, itself included, have connected. The server listens on what `host_name`
    resolves to and nowhere else, and ends with the store.

    `secret` None takes the environment's (see core/bootstrap/secret.py), b"" none. `job` tells jobs without a secret apart.
    `listen_fd` is a socket that listens already, which the store then owns. `gate`: lets clients of torch.distributed's
    TCPStore in too (see torch_gate.py), on loopback or as ARRAYCOMM_TORCH_STORE says.

    Raises DistNetworkError when the address cannot be served, or nobody serves it within `timeout`; AuthFailed for
    another job's store; DistStoreError when the server is gone or workers do not come. Threads may share a store: each
    request under way has a connection of its own. In a child made by fork it must not be used.
    """

    _own_keys = 1

    def __init__(self, host_name: str, port: int, world_size: int | None = None, is_master: bool = False,
                 timeout: timedelta = timedelta(seconds=300), wait_for_workers: bool = True, *,
                 secret: bytes | None = None, job: str = "", listen_fd: int | None = None,
                 gate: Gate | None = None) -> None:
        super().__init__(timeout)
        self.host, self.port = host_name, port
        self._secret = find() if secret is None else (secret or None)
        self._job = job
        server = self._serve(listen_fd, gate) if is_master else None
        self._connections = Lines(_opener(host_name, self.port, self._secret, job, grace(self.timeout)), self._where(), server)
        try:
            if self.port == 0:
                raise ValueError("port 0 is for the master; the others need the port that the master got")
            self._connections.wait_for_server(self.timeout.total_seconds())
            if world_size is not None:
                self.meet(world_size, wait_for_workers and is_master)
        except BaseException:
            self.close()
            raise

    def _serve(self, listen_fd: int | None, gate: Gate | None) -> StoreServer:
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
                           gate)

    def _listen(self, addresses: Sequence[str]) -> list[socket.socket]:
        """One socket per address that this machine has. The first chooses port 0; the others take it if they can."""
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
        came = int(self._now(Op.ADD, _WORKERS, b"1")[0])
        if came >= world_size:
            self._now(Op.SET, _COMPLETE, b"")
        elif wait:
            self._await_workers(world_size)

    def _await_workers(self, world_size: int) -> None:
        seconds = self.timeout.total_seconds()
        notice = Notice(lambda waited: f"has waited {waited:.3g} s for the workers of the {self._where()}: {self._came()} of "
                                       f"{world_size} have come")
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            with contextlib.suppress(TimeoutError):
                self._call(Op.WAIT, [_COMPLETE], min(left, notice.left()))
                return
            notice.tell()
        raise DistStoreError(f"Timed out after {seconds:g} seconds waiting for clients. {self._came()}/{world_size} clients "
                             f"joined. They are expected at the {self._where()}")

    def _came(self) -> int:
        return int(self._now(Op.ADD, _WORKERS, b"0")[0])

    def _where(self) -> str:
        return f"TCPStore {self.host} port {self.port}"

    def _now(self, op: int, *args: bytes) -> list[bytes]:
        code, strings = self._connections.request(op, args, 0)
        if code:
            raise failure(code, strings)
        return strings

    def _call(self, op: int, args: Sequence[bytes], timeout: float) -> list[bytes]:
        milliseconds = min(round(timeout * 1000), _MAX_MILLISECONDS) if timeout > 0 else 0
        code, strings = self._connections.request(op, args, milliseconds)
        if code:
            raise failure(code, strings)
        return strings

    def _wait_call(self, op: int, keys: Sequence[str], timeout: timedelta | None = None) -> list[bytes]:
        """Few calls of Python: where clients are many their caches are cold, and each costs as much as the server."""
        limit = self.timeout if timeout is None else timeout
        milliseconds = min(max(limit // _MILLISECOND, 0), _MAX_MILLISECONDS)
        code, strings = self._connections.request(op, [key_bytes(key) for key in keys], milliseconds)
        if code == TIMED_OUT:
            raise wait_timeout(keys, limit.total_seconds(), self._where())
        if code:
            raise failure(code, strings)
        return strings

    def set(self, key: str, value: str | bytes) -> None:
        if not self._connections.post(key, value):
            super().set(key, value)

    def _post(self, args: Sequence[bytes], op: int = Op.SET) -> None:
        """Requests without waiting for an answer, as torch's store sets: half the time of one that is answered."""
        if max(map(len, args), default=0) > MAX_KEY:
            self._now(op, *args)  # which the server may refuse, and say why
        else:
            self._connections.request(op | POSTED, args, 0)

    def will(self, name: str, entries: Mapping[str, str], *, posted: bool = False) -> bool:
        args = [key_bytes(name)]
        for key, value in entries.items():
            args += key_bytes(key), value_bytes(value)
        if posted:
            self._post(args, Op.WILL)
        else:
            self._now(Op.WILL, *args)
        return True

    def clone(self) -> TCPStore:
        """Another client of the same server, which the original keeps serving."""
        return TCPStore(self.host, self.port, None, False, self.timeout, False, secret=self._secret or b"",
                        job=self._job)

    def close(self, linger: float = 0.0) -> None:
        """Ends the connections and, at the master, the server. Requests under way raise DistStoreError.

        `linger`: seconds that the server, closed to newcomers, waits for its clients to leave first.
        """
        self._connections.close(linger)


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
                return Line(sock)
            except (OSError, AuthFailed) as error:
                if not isinstance(failure, AuthFailed):
                    failure = error
        raise failure

    return attempt


def _foreign(error: DistNetworkError) -> bool:
    """Whether listening failed because this machine does not have the address (or the family)."""
    cause = error.__cause__
    return isinstance(cause, OSError) and cause.errno in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
