"""The stacks of all threads of a rank, requested by the rank's agent.

The rank's faulthandler writes them, in a signal handler in C, without the GIL and without a helper thread. The signal is a
real-time signal for which the process has no other handler. A stopped rank (SIGSTOP, a debugger) answers after it is continued.
"""

from __future__ import annotations

import faulthandler
import linecache
import os
import re
import signal
import time

from arraycomm.core.base.kernel import unnamed_file

_LOOK, _QUIET, _LONGEST = 0.01, 3, 1.0  # s between polls; unchanged polls that mean completion; s to wait for the first byte
_FRAME = re.compile(r'  File "(.*)", line (\d+) in (.*)')


class StackFile:
    """The rank's side: the file for its stacks, and the signal that triggers the writing."""

    def __init__(self) -> None:
        self.number = _free_signal()
        self.descriptor = unnamed_file("arraycomm-stacks")
        faulthandler.register(self.number, self.descriptor, all_threads=True, chain=False)

    def close(self) -> None:
        faulthandler.unregister(self.number)
        os.close(self.descriptor)


def _free_signal() -> int:
    """The last real-time signal that has no handler. Raises RuntimeError where all have."""
    for number in range(signal.SIGRTMAX, signal.SIGRTMIN, -1):
        if not _handled("self", number):
            return number
    raise RuntimeError("no real-time signal is free for the debug server: the program has a handler for each")


def _handled(pid: int | str, number: int) -> bool:
    """Whether a process has a handler for a signal, or ignores it."""
    with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file:
        status = dict(line.split(":\t", 1) for line in file if ":\t" in line)
    return bool((int(status["SigCgt"], 16) | int(status["SigIgn"], 16)) >> (number - 1) & 1)


def ask(pid: int, number: int, descriptor: int) -> str | None:
    """The agent's side: the stacks as faulthandler writes them, with the lines' source; None where none came."""
    if not _handled(pid, number):  # the process is exiting or has called exec(): the signal would kill it
        return None
    os.ftruncate(descriptor, 0)
    os.lseek(descriptor, 0, os.SEEK_SET)  # moves the rank's position too: one open file description
    os.kill(pid, number)
    size, quiet, until = 0, 0, time.monotonic() + _LONGEST
    while quiet < _QUIET and (size or time.monotonic() < until):
        time.sleep(_LOOK)  # polled, because the end of the handler is not notified
        now = os.fstat(descriptor).st_size
        size, quiet = now, quiet + 1 if now and now == size else 0
    return with_source(os.pread(descriptor, size, 0).decode(errors="replace")) if size else None


def with_source(text: str) -> str:
    """The stacks with the oldest (main) thread first, and with source lines: the agent reads the same files as the rank."""
    linecache.checkcache()
    threads = [thread.strip("\n") for thread in text.split("\n\n")]
    return "\n\n".join("\n".join(map(_line, thread.splitlines())) for thread in reversed(threads))


def _line(line: str) -> str:
    frame = _FRAME.fullmatch(line)
    source = linecache.getline(frame[1], int(frame[2])).strip() if frame else ""
    return f"{line}\n    {source}" if source else line
