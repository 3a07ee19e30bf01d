"""A rank of test_mpi.py: a signal ends rank 0's wait in close(). Nobody takes its broadcast, nor does a later group."""

from __future__ import annotations

import os
import signal

import numpy as np

import arraycomm


def _give_up(*_: object) -> None:
    raise BlockingIOError


def main() -> None:
    with arraycomm.init(timeout=10) as group:
        me, part = group.rank, group.split(0)
        assert part is not None
        interrupted = False
        if me == 0:
            part.broadcast(np.ones(4), 0)
            signal.signal(signal.SIGALRM, _give_up)
            signal.setitimer(signal.ITIMER_REAL, 0.3)
            try:
                part.close()
            except BlockingIOError:
                interrupted = True
        group.barrier()
        part.close()
        group.barrier()
        others = [group.split(int(me > 0)) for _ in range(4)]
        gathered = [other.all_gather(np.array([me])).tolist() for other in others if other is not None]
        os.write(1, f"rank {me}: {interrupted}, with {gathered[0]} {gathered == 4 * gathered[:1]}\n".encode())


if __name__ == "__main__":
    main()
