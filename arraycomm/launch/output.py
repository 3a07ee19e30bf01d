"""The ranks' output: read as it comes, passed on in whole lines under the rank's name, the last lines kept."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections import deque
from collections.abc import Iterable
from io import FileIO
from typing import BinaryIO

from .ending import CONSEQUENCES

TAIL_LINES = 40
_LONGEST_LINE = 1 << 20  # bytes; longer ones are broken, so that a rank cannot fill our memory
_READ = 1 << 16


class Lines:
    """Cuts a stream into lines. A carriage return ends one too: progress bars show as they move."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that are complete now, each with its end."""
        # "\\r" at the very end may be half of "\\r\\n".
        pieces = re.findall(rb"[^\r\n]*(?:\r\n|\n|\r(?!\Z))", self._rest + data)
        self._rest = (self._rest + data)[sum(map(len, pieces)):]
        if len(self._rest) > _LONGEST_LINE:
            pieces.append(self.finish())
        return pieces

    def finish(self) -> bytes:
        """What is left without an end, given one."""
        rest, self._rest = self._rest, b""
        return rest + b"\n" if rest else b""


class Stream:
    """One rank's stdout or stderr on its way to ours, to its log file and to its tail."""

    def __init__(self, source: int, target: BinaryIO, prefix: bytes, tail: deque[bytes], log: FileIO | None) -> None:
        self.source = source
        self._target, self._prefix, self._tail, self._log = target, prefix, tail, log
        self._lines = Lines()

    def pump(self) -> bool:
        """Passes on what is there; False at the end of the stream. Call it when `source` is readable."""
        data = os.read(self.source, _READ)
        lines = self._lines.feed(data) if data else [self._lines.finish()]
        self._write([line for line in lines if line])
        return bool(data)

    def _write(self, lines: list[bytes]) -> None:
        if not lines:
            return
        self._tail.extend(lines)
        self._target.write(b"".join(self._prefix + line for line in lines))
        self._target.flush()
        if self._log is not None and not self._log.closed:
            try:
                _write_all(self._log, b"".join(lines))
            except OSError as error:  # a full disk ends the log, not the job
                print(f"arraycomm-run: the log {self._log.name} ends here: {error.strerror}", file=sys.stderr)
                with contextlib.suppress(OSError):  # the same again
                    self._log.close()  # for the rank's other stream too


def _write_all(file: FileIO, data: bytes) -> None:
    while data:
        data = data[file.write(data):]


def blames_another(tail: Iterable[bytes]) -> bool:
    """Whether the rank ended with an error that says another one failed before."""
    return any(_CONSEQUENCE.match(line) for line in tail)


_CONSEQUENCE = re.compile(rb"(?:\w+\.)*(?:%s)\b" % "|".join(CONSEQUENCES).encode())
