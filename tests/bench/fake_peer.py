"""A contender without a library: it knows what every rank's input is, and so every result. Its name says how it behaves.

    good      right, at once
    slow      2 ms a call
    wrong     its first element is one too large
    crash     rank 1 dies in its first batch
    raise     rank 1 raises there
    hang      rank 1 never comes back from there
    late      rank 1 never comes up
    launched  good; its ranks are started by a launcher, in sessions of their own
    orphans   hang, started so
    absent    not installed
"""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from arraycomm.bench.collectives import COLLECTIVES, Case
    from arraycomm.bench.data import expected
    from arraycomm.bench.peers.protocol import Call, Missing, Peer, sources
else:  # loaded beside the peers, under interpreters without arraycomm
    from ..collectives import COLLECTIVES, Case
    from ..data import expected
    from .protocol import Missing, Peer, sources

# What an mpirun does, but for one that does not care for its ranks.
_LAUNCHER = """
import os, subprocess, sys
ranks = [subprocess.Popen(sys.argv[2:], env={**os.environ, "RANK": str(rank), "WORLD_SIZE": sys.argv[1]},
                          start_new_session=True) for rank in range(int(sys.argv[1]))]
sys.exit(max(rank.wait() for rank in ranks))
"""


class Contender(Peer):
    dtypes = ("float32", "bfloat16")

    @classmethod
    def spread(cls, name: str, addresses: list[str], interface: str, directory: str) -> dict[str, str]:
        return {"SPREAD": ",".join(addresses)}

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.rank, self.size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        if name == "late" and self.rank == 1:
            threading.Event().wait()

    @classmethod
    def version(cls, name: str) -> str:
        if name == "absent":
            raise Missing("pip install what-is-absent")
        return f"fake 1.0 ({name})"

    @classmethod
    def command(cls, name: str, python: str, program: list[str], size: int) -> list[list[str]]:
        if name in ("launched", "orphans"):
            return [[python, "-c", _LAUNCHER, str(size), python, *program]]
        return super().command(name, python, program, size)

    def place(self, values: NDArray[np.float32], dtype: str) -> NDArray[np.float32]:
        return np.array(values)

    def call(self, operation: str, x: NDArray[np.float32], out: NDArray[np.float32]) -> Call:
        collective = COLLECTIVES[operation]
        share = len(x) // self.size if collective.splits else len(x)
        case = Case(self.rank, self.size, share, "float32", "sum" if collective.reduces else "", 0)
        found = [source for source in sources(operation, case) if source.ranks]
        result = np.concatenate([np.resize(expected(case.dtype, case.op, source, case.size), source.length) for source in found]
                                or [out])
        if self.name == "wrong":
            result[0] += 1
        checks = iter(range(2 if operation == "sendrecv" else 1))

        def call() -> None:
            out[:] = result
            if next(checks, None) is None:
                self._timed()

        return call

    def _timed(self) -> None:
        if self.name == "slow":
            time.sleep(2e-3)
        if self.rank != 1:
            return
        if self.name == "crash":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.name == "raise":
            raise LookupError("what a rank says")
        if self.name in ("hang", "orphans"):
            threading.Event().wait()

    def barrier(self) -> None:
        pass

    def close(self) -> None:
        pass
