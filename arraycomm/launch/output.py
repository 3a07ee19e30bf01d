"""The ranks' output: read as it arrives, forwarded in whole lines with the rank's prefix, the last lines kept."""

from __future__ import annotations

import contextlib
import os
import re
import select
import sys
from collections import deque
from collections.abc import Iterable
from io import FileIO
from typing import TextIO

from ..core.base.command import is_patient, is_writable
from .ending import CONSEQUENCES

TAIL_LINES = 40
_LONGEST_LINE = 1 << 20  # bytes; longer lines are split, to bound the launcher's memory
_READ = 1 << 16


class Lines:
    """Splits a stream into lines. A carriage return ends a line too, so that progress bars are forwarded as they change."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that are complete now, each with its line ending."""
        # "\\r" at the very end may be half of "\\r\\n".
        pieces = re.findall(rb"[^\r\n]*(?:\r\n|\n|\r(?!\Z))", self._rest + data)
        self._rest = (self._rest + data)[sum(map(len, pieces)):]
        if len(self._rest) > _LONGEST_LINE:
            pieces.append(self.finish())
        return pieces

    def finish(self) -> bytes:
        """The rest without a line ending, with one added."""
        rest, self._rest = self._rest, b""
        return rest + b"\n" if rest else b""


class Sink:
    """The launcher's stdout or stderr. Buffers everything, and writes without blocking: a slow reader must not delay the handling
    of signals and of ranks that end."""

    def __init__(self, name: str) -> None:
        """name: stdout or stderr. A replacement object (of a notebook, of a test) is written to at once."""
        self._name = name
        self._stream: TextIO | None = getattr(sys, name)
        own = self._stream is getattr(sys, f"__{name}__") or is_patient(self._stream)
        self._fd = self._stream.fileno() if self._stream and own else -1
        self._pending = b""
        self._escaped = False
        if self._stream:
            self._stream.flush()

    @property
    def blocked(self) -> bool:
        """Whether output is pending: flush() when fileno() is writable."""
        return bool(self._pending)

    def fileno(self) -> int:
        return self._fd

    def write(self, data: bytes) -> None:
        self._escaped = self._escaped or b"\x1b" in data
        self._pending += data
        self.flush()

    def flush(self) -> None:
        """Raises BrokenPipeError if the reader has closed the pipe, OSError for other write errors."""
        if self._fd < 0:
            if self._stream:
                self._stream.write(self._pending.decode(errors="replace"))
                self._stream.flush()
            self._pending = b""
        while self._pending and is_writable(self._fd):
            try:
                self._pending = self._pending[os.write(self._fd, self._pending[:select.PIPE_BUF]):]
            except BlockingIOError:  # another process has filled the pipe
                return
            except BrokenPipeError:
                raise
            except OSError as error:
                raise OSError(error.errno, f"{error.strerror}: the ranks' output cannot be written to {self._name}") from error

    def restore(self) -> None:
        """Resets a terminal: the ranks' output may have changed its state."""
        if self._escaped and self._fd >= 0 and os.isatty(self._fd):
            self.write(_RESTORED)


# In this order: terminates a truncated sequence, leaves the alternate screen, disables mouse, focus and paste reports, selects
# the first character set, and does a soft reset, which shows the cursor, ends colours, and more.
_RESTORED = b"\x1b\\\x1b[?1047l\x1b[?1000;1002;1003;1004;1006;2004l\x0f\x1b[!p\x1b[0m\x1b[?25h"


class Stream:
    """Forwards one rank's stdout or stderr to the launcher's, to its log file and to its tail."""

    def __init__(self, source: int, target: Sink, prefix: bytes, tail: deque[bytes], log: FileIO | None) -> None:
        self.source = source
        self.target, self._prefix, self._tail, self._log = target, prefix, tail, log
        self._lines = Lines()

    def pump(self) -> bool:
        """Forwards the available bytes; False at the end of the stream. Call it when `source` is readable."""
        data = os.read(self.source, _READ)
        lines = self._lines.feed(data) if data else [self._lines.finish()]
        self._write([line for line in lines if line])
        return bool(data)

    def _write(self, lines: list[bytes]) -> None:
        if not lines:
            return
        self._tail.extend(lines)
        self.target.write(b"".join(self._prefix + line for line in lines))
        if self._log is not None and not self._log.closed:
            try:
                _write_all(self._log, b"".join(lines))
            except OSError as error:  # a full disk ends the log, not the job
                print(f"arraycomm-run: the log {self._log.name} ends here: {error.strerror}", file=sys.stderr)
                with contextlib.suppress(OSError):  # closing may raise the same error
                    self._log.close()  # the rank's other stream uses the same file


def _write_all(file: FileIO, data: bytes) -> None:
    while data:
        data = data[file.write(data):]


def blames_another(tail: Iterable[bytes]) -> bool:
    """Whether the rank ended with an error that is the consequence of another rank's failure."""
    return any(_CONSEQUENCE.match(line) for line in tail)


_CONSEQUENCE = re.compile(rb"(?:\w+\.)*(?:%s)\b" % "|".join(CONSEQUENCES).encode())
