"""TorchStore: a client of torch.distributed's TCPStore server, spoken without torch. For joining torchrun's store.

The protocol is torch's, has no version negotiation and no authentication: whoever reaches the port reads and writes
the store. Nothing of ours that matters for admission lies in it; connections between ranks have their own handshake.
Little-endian; a request is one byte, then keys and values as u64 length and bytes.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Callable, Sequence
from datetime import timedelta

from ...base.errors import DistNetworkError, DistStoreError
from ...base.log import log
from ..address import means_loopback, resolve
from .connections import GRACE, Answer, Connections, RemoteStore, grace
from .server import keep_alive
from .table import MAGIC, Op
from .tcp import WORKERS


def opener(host: str, port: int, seconds: float) -> Callable[[], socket.socket]:
    """Not a method: the connections must not keep the store alive that owns them. seconds: for an answer to the greeting."""

    def attempt() -> socket.socket:
        failure: OSError | DistNetworkError = DistNetworkError(f"no address for {host}")
        for _, address in resolve(host, port):
            try:
                return _greet(socket.create_connection((address, port), seconds))
            except OSError as error:
                failure = error
        raise failure

    return attempt


def _greet(sock: socket.socket) -> socket.socket:
    nonce = os.urandom(4)
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        keep_alive(sock)
        sock.sendall(struct.pack("<BIB", Op.VALIDATE, MAGIC, Op.PING) + nonce)
        if Answer(sock).read(4) != nonce:
            raise ConnectionError("the server there is not torch's store")
        sock.settimeout(GRACE)
    except BaseException:
        sock.close()
        raise
    return sock


class TorchStore(RemoteStore):
    """Joins the store that a torch.distributed.TCPStore server (torchrun's agent) serves at `host` and `port`.

    Raises DistNetworkError when nobody serves it within `timeout`, DistStoreError when it is lost. Threads may share
    it, as TCPStore. `counts`: it is one of the workers that such a server waits for.
    """

    _called, _tells = "torch store at", False
    _lists_keys = False  # older servers close the connection on this request

    def __init__(self, host: str, port: int, timeout: timedelta = timedelta(seconds=300), *,
                 counts: bool = False) -> None:
        super().__init__(timeout)
        self.host, self.port = host, port
        if not means_loopback(host):
            log().warning("joining torch's store at %s port %d: its protocol has no authentication", host, port)
        self._connections = Connections(opener(host, port, grace(timeout)), self._where())
        try:
            self._connections.wait_for_server(self.timeout.total_seconds())
            if counts:
                self._now(Op.ADD, WORKERS, 1)
        except BaseException:
            self.close()
            raise

    def _call(self, op: int, fields: Sequence[bytes | int], timeout: float) -> list[bytes]:
        if not fields and op in (Op.AWAIT_VALUES, Op.WAIT, Op.CHECK):  # torch's server would never answer
            return [b"1"] if op == Op.CHECK else []
        if op == Op.AWAIT_VALUES:
            super()._call(Op.WAIT, fields, timeout)
            op = Op.MULTI_GET
        return super()._call(op, fields, timeout)

    def add(self, key: str, amount: int) -> int:
        try:
            return super().add(key, amount)
        except DistStoreError:
            # torch's server closes the connection on a value that is no number.
            if self.check([key]) and not self.get(key).lstrip(b"-").isdigit():
                raise ValueError(f"cannot add to key {key!r}: its value is not a decimal number") from None
            raise

    def clone(self) -> TorchStore:
        return TorchStore(self.host, self.port, self.timeout)
