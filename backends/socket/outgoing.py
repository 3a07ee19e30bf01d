"""Outgoing: connections to other ranks: choice of the transport, and errors."""

from __future__ import annotations

import errno
import os
import socket
import threading

from arraycomm.core.base.errors import AuthFailed, DistNetworkError, ResourceError
from arraycomm.core.bootstrap import auth
from arraycomm.core.bootstrap.address import from_here, is_loopback
from arraycomm.core.bootstrap.auth import Hello, Purpose

from . import local
from .peers import Peers

_AT_ONCE = 8
# One process may have hundreds of ranks as threads. Each thread that waits for the GIL requests it 200 times a second.
_turns = threading.BoundedSemaphore(_AT_ONCE)


def _renew() -> None:
    global _turns
    _turns = threading.BoundedSemaphore(_AT_ONCE)


os.register_at_fork(after_in_child=_renew)  # the holders do not exist in the child


class Outgoing:
    """The connector of one rank. patience: timeout in s of one connection, and of a peer's failure report after it."""

    def __init__(self, rank: int, peers: Peers, job: str, secret: bytes | None, patience: float) -> None:
        self._rank, self._peers, self._job, self._secret, self.patience = rank, peers, job, secret, patience

    def connect(self, peer: int, purpose: Purpose, *, group: int = 0, channel: int = 0, stripe: int = 0,
                patience: float | None = None) -> socket.socket:
        """Inside a host, control connections and segments use the Unix socket; data connections always use TCP.

        Raises DistNetworkError, AuthFailed, ResourceError.
        """
        hello = Hello(self._job, purpose, self._rank, peer, group=group, channel=channel, stripe=stripe)
        card, mine = self._peers[peer], self._peers[self._rank]
        inside = card.host == mine.host and purpose is not Purpose.DATA
        address, port = card.addresses[stripe % len(card.addresses)]
        own = mine.addresses[stripe % len(mine.addresses)][0]
        address = from_here(address, own)
        deadline = self.patience if patience is None else patience
        where = card.path if inside else f"{address} port {port}"
        try:
            with _turns:
                if inside:
                    return local.connect(card.path, self._secret, hello, deadline=deadline)
                source = own if len(mine.addresses) > 1 else None
                return auth.connect(address, port, self._secret, hello, deadline=deadline, source=source)
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                raise ResourceError(f"rank {self._rank}: no descriptor left for a connection to rank {peer}: "
                                    f"{error.strerror}; raise `ulimit -n`") from error
            raise DistNetworkError(f"rank {self._rank} cannot reach rank {peer} ({card.place}) at {where}: "
                                   f"{error.strerror or error}; {_remedy(address, inside, error)}") from error
        except AuthFailed as error:
            raise AuthFailed(f"rank {self._rank} to rank {peer} ({card.place}): {error}") from error


def _remedy(address: str, inside: bool, error: OSError) -> str:
    if inside and error.errno == errno.ECONNREFUSED:  # nobody listens on a socket that is still there
        return "its process has ended"
    if inside:
        return ("it has ended, or ARRAYCOMM_HOSTID is the same on several hosts, or its socket was removed (as cleaners of "
                "temporary files may: set XDG_RUNTIME_DIR or TMPDIR to a directory that they spare)")
    if is_loopback(address):
        return ("it has ended, or is on another host and listens on loopback only: set MASTER_ADDR or "
                "ARRAYCOMM_SOCKET_IFNAME")
    return ("it has ended, or a firewall blocks the connection: open ARRAYCOMM_PORT_RANGE, or choose the network with "
            "ARRAYCOMM_SOCKET_IFNAME")
