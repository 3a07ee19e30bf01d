"""A rank of test_untouched.py: what belongs to the program's process, before init(), among collectives and after close()."""

from __future__ import annotations

import ctypes
import gc
import locale
import logging
import os
import re
import resource
import signal
import socket
import sys
import threading
import time
import warnings
from typing import Any

import numpy as np

import arraycomm
from arraycomm.backends.mpi.process import begin
from tests.threads import at_once

_STATUS = ("SigBlk", "SigIgn", "SigCgt", "Umask", "NoNewPrivs", "Seccomp", "CapEff", "Groups", "Cpus_allowed")
_PR_GET_DUMPABLE, _PR_GET_KEEPCAPS, _PR_GET_TIMERSLACK, _PR_GET_PDEATHSIG = 3, 7, 30, 2


def _c_environment(libc: ctypes.CDLL) -> list[bytes]:
    entries = ctypes.POINTER(ctypes.c_char_p).in_dll(libc, "environ")
    found: list[bytes] = []
    while (entry := entries[len(found)]) is not None:
        found.append(entry)
    return sorted(found)


def _process_facts(libc: ctypes.CDLL) -> dict[str, Any]:
    death = ctypes.c_int(-1)
    libc.prctl(_PR_GET_PDEATHSIG, ctypes.byref(death))
    return {
        "environment": dict(os.environ), "C environment": _c_environment(libc),
        "handlers": {number: signal.getsignal(number) for number in signal.valid_signals()},
        "wakeup descriptor": signal.set_wakeup_fd(-1), "timer": signal.getitimer(signal.ITIMER_REAL),
        "locale": locale.setlocale(locale.LC_ALL), "folder": os.getcwd(), "session": (os.getsid(0), os.getpgrp()),
        "limits": [resource.getrlimit(number) for number in range(16)],
        "standard streams": [os.get_blocking(number) for number in range(3)],
        "prctl": [libc.prctl(number) for number in (_PR_GET_DUMPABLE, _PR_GET_KEEPCAPS, _PR_GET_TIMERSLACK)],
        "death signal": death.value,
        "hooks": (sys.excepthook, threading.excepthook, sys.unraisablehook), "switch": sys.getswitchinterval(),
        "recursion": sys.getrecursionlimit(), "gc": (gc.isenabled(), gc.get_threshold()), "filters": list(warnings.filters),
        "logging": (logging.root.level, list(logging.root.handlers)), "socket timeout": socket.getdefaulttimeout(),
        "float errors": np.geterr(), "rounding": libc.fegetround(), "denormals": float(np.float32(1e-40) * np.float32(0.5)) > 0,
    }


def _thread_facts() -> dict[str, Any]:
    with open("/proc/thread-self/status", encoding="utf-8") as file:
        status = {name: value for name, value in re.findall(r"^(\w+):\t(.*)$", file.read(), re.M) if name in _STATUS}
    return {**status, "affinity": os.sched_getaffinity(0), "mask": signal.pthread_sigmask(signal.SIG_BLOCK, ()),
            "priority": os.getpriority(os.PRIO_PROCESS, 0), "policy": os.sched_getscheduler(0),
            "parameter": os.sched_getparam(0).sched_priority}


def _facts(libc: ctypes.CDLL) -> dict[str, Any]:
    return {**_process_facts(libc), **_thread_facts()}


def _differing(before: dict[str, Any], now: dict[str, Any]) -> str:
    return ", ".join(f"{name} was {before[name]!r} and is {now[name]!r}" for name in before if before[name] != now[name])


def _exchange(group: arraycomm.Group, elements: int) -> None:
    """Calls that wait: the last rank comes late, so that the others spin, yield and sleep."""
    right, left = (group.rank + 1) % group.size, (group.rank - 1) % group.size
    x = np.ones(elements)
    if group.rank == group.size - 1:
        time.sleep(0.02)
    group.all_reduce(x)
    group.all_to_all(np.ones((group.size, elements)))
    sent = group.isend(x, right)
    group.recv(like=x, source=left)
    sent.wait()
    group.all_reduce(x, async_op=True).wait()
    for _ in range(100):
        group.barrier()


def _check(before: dict[str, Any], now: dict[str, Any], when: str) -> None:
    assert not (told := _differing(before, now)), f"{when}: {told}"


def _in_a_thread(group: arraycomm.Group) -> None:
    """The calls of another thread of the program's."""
    def work(_: int) -> None:
        before = _thread_facts()
        _exchange(group, 1000)
        _check(before, _thread_facts(), "in a thread")

    at_once(1, work)


def main() -> None:
    libc = ctypes.CDLL(None)
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # a program's own choices
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    os.umask(0o26)
    os.nice(1)
    affinity = os.sched_getaffinity(0)
    at_once(1, lambda _: None)  # glibc handles a signal of its own from the first thread on
    if os.environ.get("ARRAYCOMM_BACKEND") == "mpi":
        begin()  # MPICH's MPI_Init takes SIGUSR1, for one; the library's own choices are none of ours
    before = _facts(libc)
    group = arraycomm.init(timeout=60)
    _check(before, _facts(libc), "after init()")
    for elements in (1, 100_000, 1_000_000):
        _exchange(group, elements)
        _check(before, _facts(libc), f"after calls of {elements} elements")
    half = group.split(group.rank % 2)
    assert half is not None
    half.all_reduce(half.empty((1000,), np.float64))
    half.close()
    _in_a_thread(group)
    os.sched_setaffinity(0, {max(affinity)})  # what a program chooses later stays, too
    _exchange(group, 1)
    assert os.sched_getaffinity(0) == {max(affinity)}
    os.sched_setaffinity(0, affinity)
    _check(before, _facts(libc), "at the end")
    group.close()
    _check(before, _facts(libc), "after close()")
    os.write(1, b"untouched\n")


if __name__ == "__main__":
    main()
