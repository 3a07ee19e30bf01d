"""The rendezvous of a job's ranks: the secret, and the store that the launcher of node 0 (or spawn) hosts."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from dataclasses import dataclass
from datetime import timedelta

from ..core.base import settings
from ..core.base.errors import DistError, DistNetworkError, DistStoreError, ResourceError
from ..core.base.printable import printable
from ..core.bootstrap import ends
from ..core.bootstrap import secret as secrets
from ..core.bootstrap.address import loopback_address
from ..core.bootstrap.store import PrefixStore, Store, TCPStore
from ..core.bootstrap.store.connections import StoreLost

_JOIN = timedelta(seconds=300)  # timeout for the start of all nodes
_LEAVE = timedelta(seconds=60)  # timeout for the end of the other nodes, after node 0 has ended
_FOR_GOOD = timedelta(days=40)  # practically no timeout: close to a store's maximum
_LOST = "lost"  # in place of a node's exit code


@dataclass
class Meeting:
    """The rendezvous, open as long as ranks run."""

    nnodes: int
    node_rank: int
    store: Store
    address: str
    port: int
    secret: bytes | None

    def __post_init__(self) -> None:
        self.secret_fd = None if self.secret is None else secrets.to_descriptor(self.secret)
        self._launch = PrefixStore("arraycomm-launch", self.store)  # private to the launchers

    def agree(self, nproc: int, keep_going: bool) -> None:
        """Raises DistError when the nodes were started with different options, or twice with the same number."""
        if self.nnodes == 1:
            return
        if self._launch.add(f"node{self.node_rank}", 1) > 1:
            ends.turn_away(self.store, f"a second launcher with --node-rank {self.node_rank}, on host "
                                       f"{socket.gethostname()}, was refused")
            raise DistError(f"a launcher with --node-rank {self.node_rank} has joined this job already")
        if self.node_rank > 0:
            self._launch._will("left", {f"left{self.node_rank}": _LOST})
        mine = f"--nnodes {self.nnodes} --nproc-per-node {nproc}" + " --keep-going" * keep_going
        if self.node_rank == 0:
            self._launch.set("shape", mine)
        theirs = printable(self._launch.get("shape"))
        if theirs != mine:
            ends.refuse(self.store, f"node {self.node_rank} (host {socket.gethostname()}) was refused: it was started with "
                                    f"{mine}, node 0 with {theirs}", self.secret)
            raise DistError(f"this node was started with {mine}, node 0 with {theirs}")

    def ended(self, size: int, rank: int, pid: int, how: str) -> None:
        """Notifies the other ranks of the world, which may wait for this one. A closed store has notified them already."""
        with contextlib.suppress(StoreLost):
            ends.note(self.store, rank, size, f"host {socket.gethostname()}, pid {pid}", how, self.secret)

    def leave(self, code: int, keep_going: bool) -> None:
        """Called when this node has ended. Node 0 keeps the store open for the other nodes unless its own ranks failed; with
        keep_going it does so in any case, and as long as the other nodes run.
        """
        if self.nnodes == 1:
            return
        try:
            if self.node_rank > 0:
                self._launch.set(f"left{self.node_rank}", str(code))
            elif code == 0 or keep_going:
                self._stay(keep_going)
        except DistStoreError as error:
            if code == 0:
                print(f"arraycomm-run: this node has succeeded, but the other nodes did not report the same: {error}",
                      file=sys.stderr)

    def _stay(self, keep_going: bool) -> None:
        others = self._joined() if keep_going else range(1, self.nnodes)
        names = {f"left{rank}": rank for rank in others}
        if keep_going and not self._launch.check(list(names)):
            print("arraycomm-run: the ranks of this node have ended; the launcher continues, because other nodes' ranks use "
                  "its store", file=sys.stderr)
        self._launch.wait(list(names), _FOR_GOOD if keep_going else _LEAVE)
        lost = [str(rank) for name, rank in names.items() if self._launch.get(name).decode() == _LOST]
        if lost:
            print(f"arraycomm-run: the launcher of node {', '.join(lost)} was lost", file=sys.stderr)

    def _joined(self) -> list[int]:
        """The other nodes whose launchers have joined: a launcher that never joins would never send its shutdown notice."""
        names = {f"node{rank}": rank for rank in range(1, self.nnodes)}
        try:
            self._launch.wait(list(names), _LEAVE)
        except DistStoreError:
            absent = [str(rank) for name, rank in names.items() if not self._launch.check([name])]
            print(f"arraycomm-run: the launcher of node {', '.join(absent)} has not joined, and this node does not wait for it",
                  file=sys.stderr)
        return [rank for name, rank in names.items() if self._launch.check([name])]

    def close(self) -> None:
        """Idempotent."""
        self.store.close()
        if self.secret_fd is not None:
            os.close(self.secret_fd)
            self.secret_fd = None


def meet(nnodes: int, node_rank: int, nproc: int, address: str | None = None, port: int = 0, *,
         keep_going: bool = False) -> Meeting:
    """Hosts the store on node 0 (on loopback unless told an address) and joins it on the others. It serves torch's clients too.

    Raises DistError where several nodes have no common secret, DistNetworkError where the address cannot be bound or
    reached, DistStoreError where node 0 does not come, ResourceError for more ranks than this process can hold pipes to.
    """
    limit = os.sysconf("SC_OPEN_MAX")
    if 0 < limit < 2 * nproc:
        raise ResourceError(f"{nproc} ranks take more than {2 * nproc} descriptors here; the limit is {limit}: start fewer, or "
                            "raise `ulimit -n`")
    secret = _secret(nnodes)
    host = address or loopback_address()
    try:
        store = TCPStore(host, port, is_master=node_rank == 0, wait_for_workers=False, timeout=_JOIN, secret=secret or b"",
                         torch=True)
    except DistNetworkError as error:
        if nnodes > 1 and node_rank == 0:  # 0 is also the default of a launcher without --node-rank
            raise DistNetworkError(f"{error}. If this is not node 0 of the {nnodes}, give its --node-rank") from error
        raise
    meeting = Meeting(nnodes, node_rank, store, host, store.port, secret)
    try:
        meeting.agree(nproc, keep_going)
    except BaseException:
        meeting.close()
        raise
    return meeting


def _secret(nnodes: int) -> bytes | None:
    # A single node needs no secret from outside; an inherited descriptor may belong to an enclosing job and be closed.
    given = {name: value for name, value in os.environ.items() if nnodes > 1 or name != "ARRAYCOMM_SECRET_FD"}
    secret = secrets.find(given)
    if secret is not None:
        return secret
    if nnodes == 1:
        return secrets.new_secret()
    if settings.get_flag("ARRAYCOMM_INSECURE"):
        return None
    raise DistError("several nodes need one secret: set ARRAYCOMM_SECRET, or ARRAYCOMM_SECRET_FILE (a file of mode "
                    "0600 with it), to the same value on all of them; or run without a secret by ARRAYCOMM_INSECURE=1")
