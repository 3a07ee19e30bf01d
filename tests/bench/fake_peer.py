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

import numpy as np

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
    def spread(cls, name, addresses, interface, directory):
        return {"SPREAD": ",".join(addresses)}

    def __init__(self, name):
        super().__init__(name)
        self.rank, self.size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        if name == "late" and self.rank == 1:
            threading.Event().wait()

    @classmethod
    def version(cls, name):
        if name == "absent":
            raise Missing("pip install what-is-absent")
        return f"fake 1.0 ({name})"

    @classmethod
    def command(cls, name, python, program, size):
        if name in ("launched", "orphans"):
            return [[python, "-c", _LAUNCHER, str(size), python, *program]]
        return super().command(name, python, program, size)

    def place(self, values, dtype):
        return np.array(values)

    def call(self, operation, x, out):
        collective = COLLECTIVES[operation]
        share = len(x) // self.size if collective.splits else len(x)
        case = Case(self.rank, self.size, share, "float32", "sum" if collective.reduces else "", 0)
        found = [source for source in sources(operation, case) if source.ranks]
        result = np.concatenate([np.resize(expected(case.dtype, case.op, source, case.size), source.length) for source in found]
                                or [out])
        if self.name == "wrong":
            result[0] += 1
        checks = iter(range(2 if operation == "sendrecv" else 1))

        def call():
            out[:] = result
            if next(checks, None) is None:
                self._timed()

        return call

    def _timed(self):
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

    def barrier(self):
        pass

    def close(self):
        pass
