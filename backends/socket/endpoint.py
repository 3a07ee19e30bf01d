"""Endpoint: this rank's connections of one world, and its node in the engine.

Three threads: the engine's node (heartbeats, gossip; in C), the acceptor (auth.Acceptor) and the connector, which makes
the connections that the engine asks for. None is started in a world of one.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import select
import socket
import sys
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from arraycomm._engine import ffi, lib
from arraycomm.core.base import kernel, settings, threads
from arraycomm.core.base.deadline import grown
from arraycomm.core.base.errors import DistNetworkError, PeerLost, ResourceError
from arraycomm.core.base.log import log
from arraycomm.core.base.notice import Notice
from arraycomm.core.base.printable import printable
from arraycomm.core.bootstrap import address as addresses_of
from arraycomm.core.bootstrap.auth import Acceptor, HandshakeBroken, Hello, Purpose

from . import late, limits, local, peers, segment, sharing
from .arrivals import Arrivals
from .late import Registered
from .outgoing import Outgoing

_JOIN = 0.3  # s: timeout to join the connector thread, which may be blocked in connect()
_DATA_CHANNELS = (1, 2)  # enum channel of link.h

_open_endpoints: weakref.WeakSet[Endpoint] = weakref.WeakSet()  # for the fork and exit handlers


class Endpoint:
    """Collective over all `size` ranks: returns when the world's ring of control connections is complete.

    exchange: an all-gather of the ranks' records (cards).
    addresses: numeric addresses to listen on, one per interface to use.
    timeout: seconds to wait for the other ranks, here and in share_segment().

    Raises the error of `exchange` if a rank is missing, PeerLost if one fails meanwhile, DistNetworkError or AuthFailed if
    one is unreachable (the text has rank, address and remedy), ResourceError.
    """

    def __init__(self, rank: int, size: int, exchange: Callable[[peers.Peer], peers.Peers], secret: bytes | None, *, job: str,
                 name: str, timeout: float, addresses: Sequence[str]) -> None:
        self.rank, self.size, self.job, self.name, self.timeout = rank, size, job, name, timeout
        self.node: Any = ffi.NULL
        self.closed = False
        self._secret = secret
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)  # a segment was fetched, or a peer's state changed
        self._groups: dict[int, Registered] = {}
        self._offers = segment.Offers()
        self._arrivals = Arrivals(timeout)
        self.fabric: Any = ffi.NULL  # transport between hosts, if not TCP
        self._arrived = False  # the control connection from the previous rank
        self._acceptor: Acceptor | None = None
        self._connector: threading.Thread | None = None
        self._path = ""
        self._pid = os.getpid()
        _open_endpoints.add(self)
        try:
            self._open(exchange, list(addresses))
        except BaseException as error:
            self.close(type(error).__name__)
            raise

    # ---- opening ----

    def _open(self, exchange: Callable[[peers.Peer], peers.Peers], addresses: list[str]) -> None:
        self.tuning = peers.tuning()
        if self.size == 1:
            self.peers = peers.alone([("127.0.0.1", 0)])
            self.connections = 1
            return
        limits.require_descriptors(self.rank, len(addresses) + 2)
        self._open_node()
        listeners = self._listen(addresses)
        names = [(addresses_of.own_address(listener), listener.getsockname()[1]) for listener in listeners
                 if listener.family != socket.AF_UNIX]
        self._acceptor = Acceptor(listeners, self._secret, self.job, self.admit, check=self.welcome,
                                  on_shortage=self._cannot_accept, name=f"{self.name}-acceptor", ranks=self.size)
        apart = settings.get_transport() != "tcp" and not segment.possible()
        self.peers = exchange(peers.this_process(names, self._path, self.tuning, apart=apart))
        self.connections = self.peers.connections
        self._outgoing = Outgoing(self.rank, self.peers, self.job, self._secret,
                                  min(self.timeout, grown(settings.get_number("ARRAYCOMM_SILENCE"), self.size)))
        if self.peers.hosts.index(self.peers.hosts[self.rank]) == self.rank:
            local.sweep(self._path)  # once per host: its lowest rank
        self._close_ring()
        self._connector = threading.Thread(target=self._connect_asked, name=f"arraycomm-{self.name}-connector",
                                           daemon=True)
        threads.start(self._connector)

    def _open_node(self) -> None:
        beat, silence = settings.get_number("ARRAYCOMM_HEARTBEAT"), settings.get_number("ARRAYCOMM_SILENCE")
        if silence < 2 * beat:
            raise ValueError(f"ARRAYCOMM_SILENCE ({silence:g} s) must be at least twice ARRAYCOMM_HEARTBEAT "
                             f"({beat:g} s)")
        out = ffi.new("acomm_node **")
        code = lib.acomm_node_open(self.rank, self.size, int(beat * 1e9), int(silence * 1e9), out)
        if code:
            raise ResourceError(f"rank {self.rank}: cannot start the thread that watches the peers: "
                                f"{os.strerror(ffi.errno)}; {kernel.advice(ffi.errno, 'see `ulimit -n` and `ulimit -u`')}")
        self.node = out[0]
        self._event = lib.acomm_node_eventfd(self.node)

    def _listen(self, addresses: list[str]) -> list[socket.socket]:
        with contextlib.ExitStack() as opened:
            listeners = [opened.enter_context(addresses_of.listen(address)) for address in addresses]
            unix, self._path = local.listen()
            opened.pop_all()  # the acceptor owns them
            return [*listeners, *unix]

    def _close_ring(self) -> None:
        """Connects to the next rank and waits for the previous one: no rank leaves before its neighbours are connected."""
        sock = self._outgoing.connect((self.rank + 1) % self.size, Purpose.CONTROL)
        lib.acomm_node_attach(self.node, (self.rank + 1) % self.size, sock.detach())
        end = time.monotonic() + self.timeout
        before = (self.rank - 1) % self.size
        notice = Notice(lambda waited: f"rank {self.rank} of {self.size} has waited {waited:.3g} s for a connection from "
                                       f"{sharing.named(self, [before])}, to {self._mine()}")
        while not self._arrived:
            if not self._await_event(min(end - time.monotonic(), notice.left())) and time.monotonic() >= end:
                raise DistNetworkError(f"rank {self.rank}: rank {before} ({self.place(before)}) did not connect "
                                       f"within {self.timeout:g} s; see what it printed, and whether it reaches "
                                       f"{self._mine()}")
            notice.tell()
            self._answer_requests()  # consumes the event, so before the checks below
            self.check_failed(" while the group was set up")
            if lib.acomm_node_peer(self.node, before, ffi.new("char **")):
                break  # an orderly shutdown: it had connected, and its connection arrives too late

    def _await_event(self, seconds: float) -> bool:
        return seconds > 0 and kernel.polled(self._event, select.POLLIN, seconds * 1000) != 0

    def check_there(self, members: Sequence[int]) -> None:
        """Raises PeerLost when one of these world ranks was lost or has left."""
        for member in members:
            if member != self.rank:
                self._check_there(member, when="")

    def check_failed(self, when: str = "") -> None:
        """Raises PeerLost for the first rank that was lost or has left by an exception. Not concurrently with close()."""
        if (first := lib.acomm_node_failed(self.node)) >= 0:
            self._check_there(first, may_leave=True, when=when)

    def await_failure(self) -> None:
        """Blocks until check_failed() raises PeerLost; returns once this endpoint is closed."""
        with self._changed:
            while not self.closed:
                self.check_failed()
                self._changed.wait()

    def await_others(self, others: Sequence[int], seconds: float) -> None:
        """Blocks until these world ranks have left or were lost."""
        text = ffi.new("char **")
        with self._changed:
            self._changed.wait_for(lambda: self.closed or all(lib.acomm_node_peer(self.node, other, text) for other in others),
                                   seconds)

    def _check_there(self, other: int, *, may_leave: bool = False, when: str = " while the group was set up") -> None:
        """Raises PeerLost if a rank was lost or has left; `may_leave`: an orderly shutdown is no error."""
        text = ffi.new("char **")
        state = lib.acomm_node_peer(self.node, other, text)
        well = state == 1 and text[0] == ffi.NULL
        if state and not (well and may_leave):
            reason = "it left" if text[0] == ffi.NULL else printable(ffi.string(text[0]))
            raise PeerLost(f"rank {self.rank} of {self.size}: rank {other} ({self.place(other)}) failed{when}: {reason}; "
                           "see what it printed", ranks=(other,))

    share_segment = sharing.share_segment

    # ---- interface for groups ----

    def place(self, rank: int) -> str:
        """"host h, pid p" of a world rank."""
        return self.peers[rank].place

    def register(self, group_id: int, members: Sequence[int], group: Any, name: str) -> None:
        """Passes the group's data connections to the engine, including those already accepted."""
        registered = Registered(group, list(members).index(self.rank), {world: rank for rank, world in enumerate(members)}, name)
        with self._lock:
            self._groups[group_id] = registered
            for sock, hello in self._arrivals.take(group_id, Purpose.DATA):
                self._attach(registered, hello.sender, sock, hello.channel, hello.stripe, outgoing=False)

    def unregister(self, group_id: int) -> None:
        """The endpoint does not access the group after this. Idempotent."""
        with self._lock:
            self._groups.pop(group_id, None)
            self._offers.withdraw(group_id)
            for purpose in (Purpose.DATA, Purpose.SEGMENT):
                for sock, _ in self._arrivals.take(group_id, purpose):
                    sock.close()

    # ---- incoming connections; in the acceptor's thread ----

    def welcome(self, hello: Hello) -> str | None:
        if hello.purpose is Purpose.STORE or hello.receiver != self.rank or not 0 <= hello.sender < self.size:
            return f"it looks for rank {hello.receiver} ({hello.purpose.value}), this is rank {self.rank} of {self.size}"
        if hello.sender == self.rank:
            return f"another process claims to be rank {self.rank}"
        if lib.acomm_node_peer(self.node, hello.sender, ffi.new("char **")):
            return f"rank {hello.sender} has left, or was declared lost"
        return None

    def admit(self, sock: socket.socket, hello: Hello) -> None:
        if hello.purpose is Purpose.CONTROL:
            self._admit_control(sock, hello)
            return
        if hello.purpose is Purpose.STACKS:
            late.answer(sock)
            return
        with self._lock:
            registered = self._groups.get(hello.group)
            if hello.purpose is Purpose.DATA and registered:
                self._attach(registered, hello.sender, sock, hello.channel, hello.stripe, outgoing=False)
            elif hello.purpose is Purpose.SEGMENT and hello.group in self._offers:
                self._offers.hand_out(sock, hello)
                self._changed.notify_all()
            else:
                self._arrivals.keep(sock, hello)

    def _admit_control(self, sock: socket.socket, hello: Hello) -> None:
        if lib.acomm_node_attach(self.node, hello.sender, sock.detach()):
            return  # lost or gone since welcome(); the engine has closed the socket
        if not self._arrived and hello.sender == (self.rank - 1) % self.size:
            self._arrived = True
            os.eventfd_write(self._event, 1)

    def _attach(self, registered: Registered, peer: int, sock: socket.socket, channel: int, stripe: int, *,
                outgoing: bool) -> None:
        """The caller holds the lock. The engine takes ownership of the socket."""
        rank = registered.ranks.get(peer, -1)
        code = lib.ACOMM_ARGUMENT
        if rank >= 0 and channel in _DATA_CHANNELS:
            code = lib.acomm_group_attach(registered.group, rank, channel, stripe, outgoing, sock.detach())
        if code:
            sock.close()
            log().warning("rank %d: a data connection with rank %d could not be used (channel %d, stripe %d, code %d)",
                         self.rank, peer, channel, stripe, code)

    # ---- outgoing connections, requested by the engine ----

    def _connect_asked(self) -> None:
        """Main function of the connector thread."""
        while not self.closed:
            kernel.polled(self._event, select.POLLIN, None)
            self.answer()

    def answer(self) -> None:
        """Handles the engine's requests and late-rank reports, and wakes the threads that wait for a change."""
        if self.closed:
            return
        self._answer_requests()
        while waits := self._late():
            late.tell(*waits, self.peers, self._outgoing)
        with self._lock:
            self._changed.notify_all()

    def _late(self) -> tuple[late.Late, list[int]] | None:
        with self._lock:
            return None if self.closed else late.take(self.node, self.size, self._groups)

    def _answer_requests(self) -> None:
        request = ffi.new("acomm_request *")
        while True:
            with self._lock:
                if self.closed or not lib.acomm_node_request(self.node, request):
                    return
            self._answer(request)

    def _answer(self, request: Any) -> None:
        purpose = Purpose.DATA if request.channel else Purpose.CONTROL
        if purpose is Purpose.DATA and request.group not in self._groups:
            return  # the group was closed after the request
        sock = None
        while sock is None:
            try:
                sock = self._outgoing.connect(request.peer, purpose, group=request.group, channel=request.channel,
                                              stripe=request.stripe)
            except Exception as error:  # catch all: an operation waits for the answer
                if not self._may_answer_later(request, error):
                    self._refuse(request, error)
                    return
        with self._lock:
            registered = self._groups.get(request.group)
            if not self.closed and purpose is Purpose.CONTROL:
                lib.acomm_node_attach(self.node, request.peer, sock.detach())
            elif not self.closed and registered:
                self._attach(registered, request.peer, sock, request.channel, request.stripe, outgoing=True)
            else:
                sock.close()

    def _may_answer_later(self, request: Any, error: Exception) -> bool:
        """Whether to retry: the handshake was not completed but the peer is alive. Its GIL may be held for minutes."""
        wanted = not self.closed and (not request.channel or request.group in self._groups)
        return (wanted and isinstance(error.__cause__, HandshakeBroken)
                and lib.acomm_node_peer(self.node, request.peer, ffi.new("char **")) == 0)

    def _refuse(self, request: Any, error: Exception) -> None:
        number = getattr(error.__cause__, "errno", None) or 0
        with self._lock:
            if not self.closed:
                code = lib.ACOMM_RESOURCE if isinstance(error, ResourceError) else lib.ACOMM_LOST
                lib.acomm_node_refuse(self.node, request, code, number, str(error).encode(errors="backslashreplace")[:191])

    def _cannot_accept(self, error: OSError) -> None:
        """Fails the groups that wait for connections, because this rank cannot accept any."""
        text = f"rank {self.rank} cannot accept connections: {error.strerror}; raise `ulimit -n`"
        with self._lock:
            for group_id, registered in self._groups.items():
                if not self.closed and lib.acomm_group_expects(registered.group):
                    request = ffi.new("acomm_request *", {"group": group_id, "peer": self.rank, "channel": 1})
                    lib.acomm_node_refuse(self.node, request, lib.ACOMM_RESOURCE, error.errno or 0, text.encode()[:191])

    def _mine(self) -> str:
        return ", ".join(f"{address} port {port}" for address, port in self.peers[self.rank].addresses)

    # ---- closing ----

    def close(self, reason: str = "") -> None:
        """Sends the shutdown notice and frees all resources. Close the groups before. Idempotent; < 1 s.

        reason: an exception's type, or "" for an orderly shutdown.
        """
        self._leave(f"left with {reason}" if reason else "")

    def _leave(self, text: str, *, exits: bool = False) -> None:
        """exits: called at interpreter exit; the process ends right after it."""
        with self._lock:
            if self.closed:
                return
            self.closed = True
            self._changed.notify_all()
        if self._pid == os.getpid():
            self._stop(text, exits=exits)
        self._close_descriptors()

    def _stop(self, text: str, *, exits: bool) -> None:
        if self._acceptor:
            self._acceptor.close()
        if self._connector and self._connector.is_alive():
            os.eventfd_write(self._event, 1)
            self._connector.join(_JOIN)  # after a timeout it is harmless: `closed` is set
        failed = self._path and (text or self._any_lost())
        if self.node != ffi.NULL:
            (lib.acomm_node_exit if exits else lib.acomm_node_close)(self.node, text.encode(errors="backslashreplace")[:191])
        if self._path:
            local.remove(self._path)
            if failed:
                local.sweep(self._path)  # sockets of peers that were killed on this host

    def _any_lost(self) -> bool:
        text = ffi.new("char **")
        return self.node != ffi.NULL and any(lib.acomm_node_peer(self.node, other, text) < 0 for other in range(self.size))

    def _close_descriptors(self) -> None:
        self._arrivals.close()
        self._offers.close()

    def _after_fork(self) -> None:
        """In a forked child: closes its copies of the descriptors, which would keep the parent's connections open."""
        self._lock = threading.Lock()  # the old lock may be held by a thread that does not exist in the child
        self._changed = threading.Condition(self._lock)
        if self._acceptor:
            self._acceptor.close()
        self._close_descriptors()


@atexit.register
def _leave_at_exit() -> None:
    # In interactive Python the last exception may be old.
    kind = None if hasattr(sys, "ps1") else getattr(sys, "last_type", None)
    ends = sys._getframe().f_back is None  # else the program itself runs the exit handlers, and may go on
    for endpoint in list(_open_endpoints):
        endpoint._leave(f"exited with {kind.__name__}" if kind else "", exits=ends)


def _after_fork() -> None:
    for endpoint in list(_open_endpoints):
        endpoint._after_fork()


os.register_at_fork(after_in_child=_after_fork)
