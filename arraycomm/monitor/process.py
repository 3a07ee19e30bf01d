"""What the kernel says of a process: whether it runs, sleeps or is stopped, and how much processor time it takes."""

from __future__ import annotations

import os
import time

from arraycomm.core.base.typed import Any

_STATES = {"R": "running", "S": "sleeping", "D": "waiting for a device", "T": "stopped", "t": "stopped by a debugger",
           "Z": "ended", "X": "ended", "I": "idle"}  # proc(5)
_TICK, _PAGE = 1 / os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")


class Process:
    """One process, looked at again and again."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._before = (time.monotonic(), 0.0)

    def look(self) -> dict[str, Any]:
        """state; cpu: processors that it took since the last look; threads; memory in bytes. Empty once it is gone."""
        try:
            with open(f"/proc/{self._pid}/stat", "rb", buffering=0) as file:
                fields = file.read().rpartition(b")")[2].split()
        except OSError:
            return {}
        state, used, now = fields[0].decode(), (int(fields[11]) + int(fields[12])) * _TICK, time.monotonic()
        then, before = self._before
        self._before = (now, used)
        return {"state": _STATES.get(state, state), "cpu": max(used - before, 0.0) / max(now - then, _TICK) if before else 0.0,
                "threads": int(fields[17]), "memory": int(fields[21]) * _PAGE}
