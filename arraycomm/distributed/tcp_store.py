"""TCPStore under torch's name. It serves torch's clients too, and connects to torch's servers, by torch's wire protocol.

Between arraycomm processes it uses arraycomm's authenticated protocol (core/bootstrap/store/tcp.py): always on one host, and
between hosts unless ARRAYCOMM_TORCH_STORE=1 selects torch's protocol, which has no authentication.
"""

from __future__ import annotations

import os
import socket
import threading
import weakref
from collections.abc import Callable
from datetime import timedelta
from functools import partial

from arraycomm.core.base import settings
from arraycomm.core.base.errors import DistNetworkError, DistStoreError
from arraycomm.core.bootstrap import store as core
from arraycomm.core.bootstrap.address import is_loopback, means_loopback, resolve
from arraycomm.core.bootstrap.auth import Hello, Purpose
from arraycomm.core.bootstrap.secret import find
from arraycomm.core.bootstrap.store import inside
from arraycomm.core.bootstrap.store.base import duration
from arraycomm.core.bootstrap.store.connections import grace, retried
from arraycomm.core.bootstrap.store.forwarding import ForwardingStore
from arraycomm.core.bootstrap.store.torch import TorchStore, opener

from .store import Store

_BACKLOG = 1024
_MOST_PORT = 65535


class TCPStore(ForwardingStore, Store):
    """A store that one process (`is_master`) serves at host_name and port, and other processes join.

    Args:
        port: 0 at the master takes a free port, which the attribute `port` has.
        world_size: how many processes join, the master included.
        timeout: a timedelta for this call, and the default of blocking calls.
        wait_for_workers: False: the master does not wait for the others.
        multi_tenant: True: masters of one port in one process share a server; each is one of the workers.
        master_listen_fd: a bound socket to serve on; the store closes it.
        use_libuv: only reported by the attribute libuvBackend; there is one server.

    - Blocks: the master until world_size processes have joined, another process until the master serves.
    - Timeout: DistStoreError for workers that do not come.
    - Errors: DistNetworkError for a port that is taken or not served. AuthFailed, one of those, for an address beyond loopback
      without
      a secret. TypeError for arguments of other types, ValueError for a world_size of 0.

    Examples:
        >>> master = dist.TCPStore("127.0.0.1", 0, is_master=True)
        >>> client = dist.TCPStore(master.host, master.port)
        >>> master.set("key", "value")
        >>> client.get("key")
        b'value'
        >>> client.close(); master.close()
    """

    _inner: core.TCPStore | TorchStore

    def __init__(self, host_name: str, port: int, world_size: int | None = None, is_master: bool = False,
                 timeout: timedelta = timedelta(seconds=300), wait_for_workers: bool = True, multi_tenant: bool = False,
                 master_listen_fd: int | None = None, use_libuv: bool = True) -> None:
        _check(host_name, port, world_size, is_master)
        timeout = duration(timeout)
        self.libuvBackend = bool(use_libuv)
        size = world_size if world_size is not None and world_size > 0 else None
        self._server: _Server | None = None
        if not is_master:
            self._inner = _join(host_name, port, size, timeout)
            return

        serve = partial(_serve, host_name, port, size, timeout, master_listen_fd)
        self._inner = served = self._shared(port, timeout, master_listen_fd, serve) if multi_tenant else serve()
        try:
            if size is not None:
                served.meet(size, wait_for_workers)
        except BaseException:
            self.close()
            raise

    def _shared(self, port: int, timeout: timedelta, listen_fd: int | None, serve: Callable[[], core.TCPStore]) -> core.TCPStore:
        """A client of the server that the masters of this port share."""
        with _lock:
            server = _servers.get(port)
            if server is not None and listen_fd is not None:
                os.close(listen_fd)  # owned by this store, and not needed
            self._server = server = server or _Server(serve())
            _servers[server.store.port] = server
        client = server.store.clone()
        client.set_timeout(timeout)
        return client

    @property
    def host(self) -> str:
        """The address of the server.

        - Blocks: never, as any attribute.
        - Errors: none; it is set by the constructor.
        """
        return self._inner.host

    @property
    def port(self) -> int:
        """The port of the server.

        - Blocks: never, as any attribute.
        - Errors: none; it is set by the constructor.
        """
        return self._inner.port

    def __repr__(self) -> str:
        return f"TCPStore({self.host}, port {self.port})"

    def has_extended_api(self) -> bool:
        return True

    def clone(self) -> TCPStore:
        twin = object.__new__(type(self))
        twin.__dict__.update(self.__dict__)
        twin._inner, twin._server = self._inner.clone(), None
        return twin

    def close(self, linger: float = 0.0) -> None:
        """Closes the connection and, at the master, the server. The last of the masters that share a server closes it.

        - Blocks: a master for `linger` seconds at most, while clients are connected.
        - Errors: none; later calls of other methods fail.
        """
        self._inner.close(linger)
        self._server = None


def _check(host: str, port: int, world_size: int | None, is_master: bool) -> None:
    if not isinstance(host, str):
        raise TypeError(f"host_name must be str, got {type(host).__name__}")
    if isinstance(port, bool) or not isinstance(port, int) or not 0 <= port <= _MOST_PORT:
        raise TypeError(f"port must be a whole number from 0 to {_MOST_PORT}, got {port!r}")
    if world_size is not None and not isinstance(world_size, int):
        raise TypeError(f"world_size must be an int or None, got {type(world_size).__name__}")
    if world_size == 0:
        raise ValueError("TCPStore world size cannot be 0: give the number of workers, or None for a master that does not "
                         "wait")
    if type(is_master).__name__ not in ("bool", "bool_"):  # bool_ is NumPy's
        raise TypeError(f"is_master must be True or False, got {is_master!r}")


def _serve(host: str, port: int, size: int | None, timeout: timedelta, listen_fd: int | None) -> core.TCPStore:
    """Serves the store. Returns before the workers have joined: other masters of this process may be among them."""
    if listen_fd is not None:
        _listen_on(listen_fd, port)
    return core.TCPStore(host, port, None, True, timeout, listen_fd=listen_fd, torch=True)


def _listen_on(descriptor: int, port: int) -> None:
    if isinstance(descriptor, bool) or not isinstance(descriptor, int):
        raise TypeError(f"master_listen_fd must be an int or None, got {type(descriptor).__name__}")
    try:
        sock = socket.socket(fileno=descriptor)
    except OSError as error:
        raise DistNetworkError(f"master_listen_fd {descriptor} is not a socket: {error.strerror}") from error
    try:
        bound = sock.getsockname()[1]
        if port and bound != port:
            raise DistStoreError(f"master_listen_fd {descriptor} is bound to port {bound}, not to port {port}")
        sock.listen(_BACKLOG)
    finally:
        sock.detach()


def _join(host: str, port: int, size: int | None, timeout: timedelta) -> core.TCPStore | TorchStore:
    """Connects by the server's wire protocol: arraycomm's if the server is arraycomm's, else torch's."""
    if port == 0:
        raise DistNetworkError("port 0 is for the master; the others need the port that the master got")
    addresses = retried(lambda: resolve(host, port), timeout.total_seconds(), f"TCPStore {host} port {port}")
    if means_loopback(host) or all(is_loopback(address) for _, address in addresses):
        torch = _serves_torch(host, port, timeout)
    else:
        torch = settings.get_flag("ARRAYCOMM_TORCH_STORE")
    if torch:
        return TorchStore(host, port, timeout, counts=size is not None)
    return core.TCPStore(host, port, size, False, timeout)


def _serves_torch(host: str, port: int, timeout: timedelta) -> bool:
    """Waits for a server; whether it is torch's. An arraycomm server has a Unix socket beside its port."""
    secret, seconds = find(), grace(timeout)
    torch = opener(host, port, seconds)

    def attempt() -> bool:
        for _, address in resolve(host, port):
            sock = inside.connect(address, port, secret, Hello("", Purpose.STORE), deadline=seconds)
            if sock is not None:
                sock.close()
                return False
        torch().close()
        return True

    return retried(attempt, timeout.total_seconds(), f"TCPStore {host} port {port}")


class _Server:
    """A server shared by several stores of this process. It ends with the last of them, or when the last one is closed."""

    def __init__(self, store: core.TCPStore) -> None:
        self.store = store
        weakref.finalize(self, store.close)


# Shared servers by port, so that several masters in one process find the same server.
_servers: weakref.WeakValueDictionary[int, _Server] = weakref.WeakValueDictionary()
_lock = threading.Lock()
