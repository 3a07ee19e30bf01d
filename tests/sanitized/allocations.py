"""Two ranks, as threads, in a process for each allocation of the extension's: that one fails. `python allocations.py TRANSPORT`

A rank then raises, with both ranks' errors in time, or does not need it. A process that does anything else says so, and so does
this one by its exit status.
"""

from __future__ import annotations

import ctypes
import os
import sys
from concurrent.futures import Future
from threading import Thread

import numpy as np

import arraycomm
from arraycomm import _engine
from arraycomm.core.base.errors import CollectiveTimeout, DistError
from arraycomm.core.bootstrap.store import HashStore
from tests.present import present

MOST = 1000  # allocations
SECONDS, HANG_SECONDS = 4.0, 20.0
_left = ctypes.c_long.in_dll(ctypes.CDLL(_engine.__file__), "allocations_left")


def everything(group: arraycomm.Group) -> None:
    other, x, long = 1 - group.rank, np.ones(4, np.float32), np.ones(300_000, np.float32)
    assert group.all_reduce(x)[0] == 2 and group.all_reduce(long)[-1] == 2
    for array in (x, long):
        group.all_gather(array)
        group.gather(array, root=0)
        group.all_to_all(array)
        group.reduce_scatter(array)
        group.broadcast(array, root=1)
        group.reduce(array, root=0)
        sent, received = group.isend(array, other), group.irecv(other, like=np.empty_like(array))
        sent.wait()
        received.wait()
    group.all_reduce(x, async_op=True).wait()
    symmetric = group.empty(1000, np.float32, like=x)
    symmetric[...] = 1
    assert group.all_reduce(symmetric)[3] == 2
    assert group.all_gather_object(group.rank) == [0, 1]
    with present(group.split(0)) as half:
        half.all_reduce(x)
    group.barrier()


def rank(number: int, store: HashStore, end: Future[BaseException | None]) -> None:
    try:
        with arraycomm.init(rank=number, world_size=2, store=store, timeout=SECONDS) as group:
            everything(group)
        end.set_result(None)
    except BaseException as error:
        end.set_result(error)


def fail(number: int) -> int:
    """With that allocation: 0; 1 when something is wrong, 2 when there are not so many."""
    store, ends = HashStore(), [Future[BaseException | None]() for _ in range(2)]
    _left.value = number
    for one, end in enumerate(ends):
        Thread(target=rank, args=(one, store, end), daemon=True).start()
    errors = [end.result(HANG_SECONDS) for end in ends]
    wrong = [error for error in errors if error and (isinstance(error, CollectiveTimeout)
                                                     or not isinstance(error, (DistError, MemoryError)))]
    if wrong:
        print(f"allocation {number}: {errors!r}", flush=True)
    return 1 if wrong else 2 if _left.value else 0


def child(number: int) -> int:
    pid = os.fork()
    if not pid:
        code = 1
        try:
            code = fail(number)
        except BaseException as error:
            print(f"allocation {number}: {error!r}", flush=True)
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


if __name__ == "__main__":
    os.environ["ARRAYCOMM_TRANSPORT"] = sys.argv[1]
    codes = [child(1)]
    while codes[-1] != 2 and len(codes) < MOST:
        codes.append(child(len(codes) + 1))
    bad = [number + 1 for number, code in enumerate(codes[:-1]) if code]
    print(f"{len(codes) - 1} allocations failed; not as they should: {bad}")
    sys.exit(bool(bad) or codes[-1] != 2 or len(codes) < 100)
