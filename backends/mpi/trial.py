"""A process of the trial (gpu.py): `trial DEVICE`. Two of them send each other, and themselves, what lies on devices, short and
long, and compare what came.
"""

from __future__ import annotations

import os
import sys
import traceback

from arraycomm.core.buffer import Buffer
from arraycomm.core.cuda.memory import allocate_on
from arraycomm.core.cuda.runtime import TO_DEVICE, TO_HOST, runtime
from arraycomm.core.types import DeviceType, DType

from . import MpiBackend
from .communicator import MpiCommunicator

_SIZES = (64, 5 << 20)  # bytes: what goes at once, and what is agreed on first
_PATIENCE = 30.0  # s


class _Trial:
    def __init__(self, device: int) -> None:
        self._cuda, rank = runtime(), int(os.environ["RANK"])
        self._device = (device + rank) % self._cuda.device_count()  # two devices where there are
        self._cuda.set_device(self._device)
        self._stream = self._cuda.stream(self._device)
        backend = MpiBackend()
        self._host: MpiCommunicator = backend.open(backend.meet(_PATIENCE, "trial"), name="trial", timeout=_PATIENCE)
        self._host.enter = self._cuda.enter

    def run(self) -> None:
        me = self._host.rank
        for nbytes in _SIZES:
            for peer in (1 - me, me):
                self._exchange(peer, nbytes)
        self._host.close()

    def _exchange(self, peer: int, nbytes: int) -> None:
        source, target = self._filled(_pattern(self._host.rank, nbytes)), self._filled(bytes(nbytes))
        work = self._host.recv(target, peer, async_op=True)
        self._host.send(source, peer)
        work.wait(_PATIENCE)
        if self._contents(target) != _pattern(peer, nbytes):
            raise ValueError(f"{nbytes} bytes came from rank {peer} to rank {self._host.rank} with other contents")

    def _filled(self, data: bytes) -> Buffer:
        like = Buffer(0, 0, DType.UINT8, int(DeviceType.CUDA), self._device, False, (0,), None)
        made, pinned = allocate_on(like, (len(data),)), self._cuda.host_alloc(len(data))
        self._cuda.ffi.memmove(self._cuda.ffi.cast("char *", pinned), data, len(data))
        self._copy(made.address, pinned, len(data), TO_DEVICE)
        self._cuda.free_host(pinned)
        return made

    def _contents(self, buffer: Buffer) -> bytes:
        pinned = self._cuda.host_alloc(buffer.nbytes)
        self._copy(pinned, buffer.address, buffer.nbytes, TO_HOST)
        found = bytes(self._cuda.ffi.buffer(self._cuda.ffi.cast("char *", pinned), buffer.nbytes))
        self._cuda.free_host(pinned)
        return found

    def _copy(self, to: int, source: int, nbytes: int, kind: int) -> None:
        self._cuda.copy(to, source, nbytes, kind, self._stream)
        self._cuda.synchronize(self._stream, self._device)


def _pattern(rank: int, nbytes: int) -> bytes:
    return (bytes((value * 7 + rank + 1) % 251 for value in range(251)) * (nbytes // 251 + 1))[:nbytes]


if __name__ == "__main__":
    try:
        _Trial(int(sys.argv[1])).run()
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)  # MPI_Finalize would wait for the other one
