"""The common part of all commands: usable standard streams, however they were inherited, and the usual exit after SIGPIPE, when
the reader of the output has gone.
"""

from __future__ import annotations

import argparse
import functools
import io
import os
import select
import signal
import sys
from collections.abc import Callable
from typing import Any

from .kernel import polled

CLOSED = 128 + signal.SIGPIPE  # the shell's exit status for `yes | head`


def command(main: Callable[..., int | None]) -> Callable[..., int | None]:
    """For a command's main(): CLOSED and no traceback where its stdout or stderr is a pipe whose reader has gone. An
    earlier failure keeps its exit code and its traceback."""

    @functools.wraps(main)
    def run(*args: object, **options: object) -> int | None:
        _open_closed()
        before = sys.stdout, sys.stderr
        sys.stdout, sys.stderr = _patient(before[0], sys.__stdout__, 1), _patient(before[1], sys.__stderr__, 2)
        try:
            return _run(main, *args, **options)
        finally:
            sys.stdout, sys.stderr = before

    return run


def _run(main: Callable[..., int | None], *args: object, **options: object) -> int | None:
    try:
        code = main(*args, **options)
    except BrokenPipeError:
        if not discard_unread():  # the broken pipe was another connection of the program
            raise
        return CLOSED
    except BaseException as error:
        if not _flush() and isinstance(error, SystemExit) and not error.code:  # argparse has printed its help
            return CLOSED
        raise
    return code if _flush() or code else CLOSED


def add_version(parser: argparse.ArgumentParser) -> None:
    version = f"arraycomm {sys.modules['arraycomm'].__version__}"  # the package is imported before its modules
    parser.add_argument("--version", action="version", version=version, help="show the version of arraycomm and exit")


def _open_closed() -> None:
    """Opens /dev/null on closed descriptors 0, 1 and 2: otherwise the next file or socket would get that number."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # open() takes the lowest free number, so this one


class _Patient(io.FileIO):
    """A raw stream that writes all data, also to a non-blocking terminal or pipe: a process that shares it may set O_NONBLOCK."""

    def write(self, data: Any) -> int:
        rest = memoryview(data).cast("B")
        while rest:
            written = super().write(rest)
            if written is None:
                is_writable(self.fileno(), None)
            else:
                rest = rest[written:]
        return len(data)


def is_writable(descriptor: int, milliseconds: int | None = 0) -> bool:
    """Waits until a write of PIPE_BUF bytes would not block (or would fail); whether that came in time. None: no timeout."""
    return bool(polled(descriptor, select.POLLOUT, milliseconds))


def is_patient(stream: Any) -> bool:
    """Whether the stream is a command's own wrapper of stdout or stderr."""
    buffer = getattr(stream, "buffer", None)
    return isinstance(getattr(buffer, "raw", buffer), _Patient)


def _patient(stream: Any, own: Any, descriptor: int) -> Any:
    """The same stream over a _Patient, unless the program has replaced the stream. None: its descriptor was closed."""
    if stream is not own:
        return stream
    raw = _Patient(descriptor, "w", closefd=False)
    if stream is None:  # the output is discarded
        return io.TextIOWrapper(io.BufferedWriter(raw), encoding="utf-8", errors="replace")
    stream.flush()
    buffer: Any = raw if isinstance(stream.buffer, io.RawIOBase) else io.BufferedWriter(raw)  # the first by `python -u`
    return io.TextIOWrapper(buffer, encoding=stream.encoding, errors=stream.errors, line_buffering=stream.line_buffering,
                            write_through=stream.write_through)


def _flush() -> bool:
    """Flushes stdout; whether that succeeded. Done before exit, where Python would print an error and change the exit code."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        return not discard_unread()
    return True


def discard_unread() -> bool:
    """Whether the reader of stdout or stderr has gone. If so, discards buffered output, so that the flush at exit cannot fail."""
    closed = [stream for stream in (1, 2) if polled(stream, 0) & select.POLLERR]
    if closed:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for stream in closed:
            os.dup2(nowhere, stream)
        os.close(nowhere)
    return bool(closed)
