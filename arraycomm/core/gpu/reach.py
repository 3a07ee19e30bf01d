"""Tests whether ranks can access each other's devices by CUDA IPC, and whether that is faster than the path via the host."""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager

from ..arrays.types import DType, ReduceOp, reduce_op
from ..base import settings
from ..base.digest import sha256
from ..base.errors import DistBackendError, DistError
from ..base.log import log
from ..group.exchange import gather_integers
from ..interface.backend import Communicator
from .area import SLOT_BYTES, Area, slot
from .kernels import kernels, reduces
from .lane import Lane
from .runtime import ON_DEVICE, TO_DEVICE, TO_HOST

_TOKEN = struct.Struct("8q")  # 64 random bytes, the size of a CUDA IPC handle
_ENDS = (0, SLOT_BYTES - _TOKEN.size)  # offsets of the tokens in a slot
# Bytes for each rank on a GPU, from which on arrays go this way if they share one, where processes take turns. all_reduce on
# an H100, us by the host and from device to device: two ranks, 1, 2, 4, 8 MiB 241 and 724, 458 and 431, 632 and 627, 1106 and
# 862; four ranks, 4 and 8 MiB 1097 and 1443, 1865 and 1554.
TURN_BYTES = 2 << 20


class Reach:
    """The areas of a group's ranks, by rank."""

    def __init__(self, lane: Lane, area: Area) -> None:
        self.area, self._lane, self.gpu = area, lane, _number(lane.cuda.bus_id(lane.device))
        self._addresses: list[int] = []
        self.copies = self.reduces = False  # whether copies and reductions use this path
        self.sharing = 1  # maximum number of ranks per GPU

    def takes(self, op: ReduceOp | None, nbytes: int) -> bool:
        """Whether an operation of this size uses this path: equal on all ranks."""
        long = self.sharing == 1 or nbytes >= self.sharing * TURN_BYTES
        return long and (self.reduces if op else self.copies)

    @property
    def size(self) -> int:
        return len(self._addresses)

    def open(self, rank: int, handles: list[bytes]) -> None:
        for peer, handle in enumerate(handles):
            self._addresses.append(self.area.address if peer == rank else self._lane.cuda.ipc_open(handle))

    def slot(self, rank: int, index: int) -> int:
        return slot(self._addresses[rank], index)

    def close(self) -> None:
        """Closes the areas. No copy of this rank may be pending."""
        try:
            with self._lane.cuda.on(self._lane.device):
                while self._addresses:
                    address = self._addresses.pop()
                    if address != self.area.address:
                        self._lane.cuda.ipc_close(address)
        except DistError as error:
            log().warning("%s", error)


def find(host: Communicator, lane: Lane, deadline: float) -> Reach | None:
    """Collective, with each rank's device current. None on all ranks if the path does not work or is not faster."""
    token = os.urandom(_TOKEN.size)
    reach = _offer(lane, token, deadline) if settings.get_flag("ARRAYCOMM_CUDA_IPC") else None
    handle = reach.area.handle if reach else bytes(_TOKEN.size)
    card = [reach is not None, _machine(), reach.gpu if reach else 0, *_TOKEN.unpack(token), *_TOKEN.unpack(handle)]
    cards = gather_integers(host, card, _left(deadline))
    if reach is not None and all(card[0] and card[1] == cards[0][1] for card in cards):
        gpus = [card[2] for card in cards]
        reach.sharing = max(gpus.count(gpu) for gpu in gpus)
        offers = [(_TOKEN.pack(*card[3:11]), _TOKEN.pack(*card[11:])) for card in cards]
        _try(reach, lane, host.rank, offers, deadline)
    votes = gather_integers(host, [reach is not None and reach.copies, reach is not None and reach.reduces], _left(deadline))
    if reach is not None:
        reach.copies, reach.reduces = (all(vote[which] for vote in votes) for which in range(2))
        if reach.copies or reach.reduces:
            return reach
    if reach is not None and lane.reap():
        reach.close()
    return None


def _left(deadline: float) -> float:
    return max(0.0, deadline - time.monotonic())


def _machine() -> int:
    """A host id, as far as it can be determined; access to the devices is tested separately."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        name = settings.get("ARRAYCOMM_HOSTID") or file.read()
    return _number(name)


def _number(name: str) -> int:
    return int.from_bytes(sha256(name.encode()).digest()[:7], "big")


def _offer(lane: Lane, token: bytes, deadline: float) -> Reach | None:
    """Makes this rank's area, with the token at both ends of the first slot."""
    try:
        reach = Reach(lane, Area(lane.cuda, lane.device))
        pinned = lane.block(_TOKEN.size)
        lane.cuda.ffi.memmove(lane.cuda.ffi.cast("char *", pinned.address), token, _TOKEN.size)
        with _holding(lane, reach, pinned):
            for end in _ENDS:
                lane.cuda.copy(reach.area.address + end, pinned.address, _TOKEN.size, TO_DEVICE, lane.up)
            _ended(lane, lane.up, deadline)
        return reach
    except DistError as error:
        _refused(error)
        return None


def _refused(why: object, what: str = "arrays on GPUs") -> None:
    log().warning("%s do not go from device to device but through the host's memory: %s", what, why)


@contextmanager
def _holding(lane: Lane, *held: object) -> Iterator[None]:
    """After an error, keeps alive the memory of copies that may be pending."""
    try:
        yield
    except BaseException:
        lane.leave([], held)
        raise


def _ended(lane: Lane, stream: int, deadline: float) -> None:
    event = lane.event()
    lane.record(event, stream)
    lane.wait(event, deadline, "the trial of ways between devices")


def _try(reach: Reach, lane: Lane, rank: int, cards: list[tuple[bytes, bytes]], deadline: float) -> None:
    """Tests every peer's (token, handle): whether copies and reductions work, and whether they are faster here."""
    try:
        reach.open(rank, [handle for _, handle in cards])
        for peer, (token, _) in enumerate(cards):
            for end in _ENDS:
                if _read(reach.slot(peer, 0) + end, reach, lane, deadline) != token:
                    _refused(f"the memory of rank {peer}'s device is not what its handle opens here")
                    return
        reach.copies, reach.reduces = _wins(reach, lane, rank, len(cards), deadline)
    except DistError as error:
        _refused(error)
        return
    try:
        reach.reduces = reach.reduces and _reduced(reach, lane, rank, [token for token, _ in cards], deadline)
    except DistError as error:
        reach.reduces = False
        _refused(error, "reductions of arrays on GPUs")


def _reduced(reach: Reach, lane: Lane, rank: int, tokens: list[bytes], deadline: float) -> bool:
    """Whether the device reduces the ranks' tokens correctly."""
    op = reduce_op("bxor")
    if not reduces(DType.UINT8, op, reach.size):
        return False
    inputs, to = [reach.slot(peer, 0) for peer in range(reach.size)], reach.slot(rank, 1)
    with _holding(lane, reach):
        kernels(lane.cuda).reduce(to, inputs, _TOKEN.size, DType.UINT8, op, lane.down, lane.device)
    expected = 0
    for token in tokens:
        expected ^= int.from_bytes(token, "little")
    if _read(to, reach, lane, deadline) == expected.to_bytes(_TOKEN.size, "little"):
        return True
    raise DistBackendError("the device does not reduce as it should")


def _read(address: int, reach: Reach, lane: Lane, deadline: float) -> bytes:
    pinned = lane.block(_TOKEN.size)
    with _holding(lane, reach, pinned):
        lane.cuda.copy(pinned.address, address, _TOKEN.size, TO_HOST, lane.down)
        _ended(lane, lane.down, deadline)
    return bytes(lane.cuda.ffi.buffer(lane.cuda.ffi.cast("char *", pinned.address), _TOKEN.size))


def _wins(reach: Reach, lane: Lane, rank: int, size: int, deadline: float) -> tuple[bool, bool]:
    """Whether copies and reductions are faster. Times an exchange of one slot between all ranks, device to device and through the
    host, without the host's own work. The host uploads one slot for a reduction and one per peer for a copy."""
    mine, room, pinned = reach.slot(rank, 0), reach.slot(rank, 1), lane.block(SLOT_BYTES)
    peers = [peer for peer in range(size) if peer != rank]

    def timed(stream: int, copies: list[tuple[int, int, int]]) -> float:
        begun = time.monotonic()
        for to, source, kind in copies:
            lane.cuda.copy(to, source, SLOT_BYTES, kind, stream)
        _ended(lane, stream, deadline)
        return time.monotonic() - begun

    with _holding(lane, reach, pinned):
        for _ in range(2):  # the first run is a warm-up
            direct = timed(lane.up, [(room, mine, ON_DEVICE)] + [(room, reach.slot(peer, 0), ON_DEVICE) for peer in peers])
            down = timed(lane.down, [(pinned.address, mine, TO_HOST)])
            up = [timed(lane.up, [(room, pinned.address, TO_DEVICE)] * slots) for slots in (len(peers), 1)]
    return direct < max(down, up[0]), direct < max(down, up[1])  # downloads and uploads overlap
