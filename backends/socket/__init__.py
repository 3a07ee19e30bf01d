"""The CPU backend: shared memory inside a host, TCP between hosts, over the C engine in engine/."""

from __future__ import annotations

from arraycomm.core.arrays.types import DeviceType
from arraycomm.core.bootstrap.rendezvous import Rendezvous

from . import peers
from .communicator import SocketCommunicator, wanted_algorithms
from .endpoint import Endpoint
from .peers import Peer, Peers

__all__ = ["SocketBackend", "SocketCommunicator"]


class SocketBackend:
    """Follows arraycomm.core.interface.backend.Backend."""

    name = "socket"
    devices = frozenset((int(DeviceType.CPU), int(DeviceType.CUDA_HOST), int(DeviceType.ROCM_HOST)))
    on_gpus = "arraycomm.core.gpu.staged:Staged"

    def unavailable(self) -> str | None:
        return None  # always available: the engine is compiled with the package

    def meet(self, timeout: float, name: str) -> Rendezvous | None:
        return None

    def inside(self, size: int, *, name: str, timeout: float) -> list[SocketCommunicator]:
        """Opens the communicators of all ranks as threads of this process."""
        from .inside import open_inside  # lazy: rarely used

        return open_inside(size, name, timeout)

    def open(self, meeting: Rendezvous, *, name: str, timeout: float) -> SocketCommunicator:
        def exchange(mine: Peer) -> Peers:
            return peers.exchange(meeting.store, meeting.rank, meeting.size, mine, timeout, meeting.secret, meeting.job)

        wanted_algorithms()  # an unknown one is refused on all ranks before they meet
        endpoint = Endpoint(meeting.rank, meeting.size, exchange, meeting.secret, job=meeting.job, name=name, timeout=timeout,
                            addresses=meeting.addresses)
        try:
            return SocketCommunicator(endpoint, range(meeting.size), name, timeout, owns=True)
        except BaseException as error:
            endpoint.close(type(error).__name__)
            raise
