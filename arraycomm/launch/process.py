"""One rank as a child of the launcher: started in its own process group, watched, and killed with all its descendants."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from io import FileIO
from typing import Any

from ..core.base.kernel import process_descriptor
from ..core.base.lifeline import Lifeline, tie
from .cpus import bind
from .output import TAIL_LINES, Sink, Stream

# For Popen: a process group of its own, not a session. Linux divides CPU time among sessions first (sched_autogroup), and
# sched_yield() yields only within one session, so an oversubscribed barrier of ranks in separate sessions takes twice as long.
OWN_GROUP: dict[str, Any] = {"process_group": 0} if sys.version_info >= (3, 11) else {"preexec_fn": os.setpgrp}


class RankProcess:
    """A running rank. `pidfd` becomes readable when it has ended; then call `reap`."""

    def __init__(self, rank: int, command: Sequence[str], environ: Mapping[str, str], lifeline: Lifeline,
                 inherit: Sequence[int], cpu: int | None) -> None:
        """Raises OSError when the program cannot be started."""
        self.rank = rank
        reader = lifeline.open_reader()
        try:
            # The terminal's Ctrl-C reaches only the launcher, which forwards it once; killing the group also kills the
            # rank's own children.
            self._popen = subprocess.Popen(command, env=environ, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                           stderr=subprocess.PIPE, pass_fds=(*inherit, reader), **OWN_GROUP)
            bind(self._popen.pid, cpu)
            tie(reader, -self._popen.pid)
        finally:
            os.close(reader)
        self.pid = self._popen.pid
        self.pidfd = process_descriptor(self.pid)
        self.tail: deque[bytes] = deque(maxlen=TAIL_LINES)
        self._log: FileIO | None = None

    def streams(self, out: Sink, err: Sink, *, prefix: bool, logs: str | None) -> list[Stream]:
        """The rank's stdout and stderr as Streams into `out`, `err` and a new file."""
        label = f"[rank {self.rank}] ".encode() if prefix else b""
        if logs is not None:
            self._log = FileIO(logs.format(self.rank), "xb")
        assert self._popen.stdout is not None and self._popen.stderr is not None
        return [Stream(self._popen.stdout.fileno(), out, label, self.tail, self._log),
                Stream(self._popen.stderr.fileno(), err, label, self.tail, self._log)]

    def signal(self, number: int) -> None:
        """Sends the signal to the rank's process group."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    def reap(self) -> int:
        """Kills the rest of the process group and returns the rank's exit code, negative for a signal."""
        # Before the wait: until then the kernel cannot reuse the id.
        self.signal(signal.SIGKILL)
        return self._popen.wait()

    def close(self) -> None:
        os.close(self.pidfd)
        for file in (self._popen.stdout, self._popen.stderr, self._log):
            if file is not None:
                file.close()
