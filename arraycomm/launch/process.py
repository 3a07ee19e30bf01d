"""One rank as a child of the launcher: started in a process group of its own, watched, ended with all its descendants."""

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
from .output import TAIL_LINES, Sink, Stream

# For Popen: a process group of its own. Not a session: Linux shares the processor among sessions first (sched_autogroup),
# and sched_yield() hands over within one only, so that 8 ranks on 2 cores in 8 sessions need twice as long for a barrier.
OWN_GROUP: dict[str, Any] = {"process_group": 0} if sys.version_info >= (3, 11) else {"preexec_fn": os.setpgrp}


class RankProcess:
    """A running rank. `pidfd` becomes readable when it has ended; then call `reap`."""

    def __init__(self, rank: int, command: Sequence[str], environ: Mapping[str, str], lifeline: Lifeline,
                 inherit: Sequence[int]) -> None:
        """Raises OSError when the program cannot be started."""
        self.rank = rank
        reader = lifeline.open_reader()
        try:
            # The terminal's Ctrl-C reaches the launcher alone, which passes it on once, and ending the group ends what
            # the rank has started too.
            self._popen = subprocess.Popen(command, env=environ, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                           stderr=subprocess.PIPE, pass_fds=(*inherit, reader), **OWN_GROUP)
            tie(reader, -self._popen.pid)
        finally:
            os.close(reader)
        self.pid = self._popen.pid
        self.pidfd = process_descriptor(self.pid)
        self.tail: deque[bytes] = deque(maxlen=TAIL_LINES)
        self._log: FileIO | None = None

    def streams(self, out: Sink, err: Sink, *, prefix: bool, logs: str | None) -> list[Stream]:
        """Its stdout and stderr, to be pumped into `out`, `err` and a new file."""
        label = f"[rank {self.rank}] ".encode() if prefix else b""
        if logs is not None:
            self._log = FileIO(logs.format(self.rank), "xb")
        assert self._popen.stdout is not None and self._popen.stderr is not None
        return [Stream(self._popen.stdout.fileno(), out, label, self.tail, self._log),
                Stream(self._popen.stderr.fileno(), err, label, self.tail, self._log)]

    def signal(self, number: int) -> None:
        """To its whole process group."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    def reap(self) -> int:
        """Ends what is left of its process group and returns its exit code, negative for a signal."""
        # Before the wait: until then the id cannot belong to anybody else.
        self.signal(signal.SIGKILL)
        return self._popen.wait()

    def close(self) -> None:
        os.close(self.pidfd)
        for file in (self._popen.stdout, self._popen.stderr, self._log):
            if file is not None:
                file.close()
