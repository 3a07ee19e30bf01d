"""What all commands have in common: standard streams that can be used, however they were inherited, and an end as other programs
have it when nobody reads their output any more.
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

from .typed import Any

CLOSED = 128 + signal.SIGPIPE  # what a shell shows for `yes | head`


def command(main: Callable[..., int | None]) -> Callable[..., int | None]:
    """For a command's main(): CLOSED and no traceback where its stdout or stderr is a pipe whose reader has gone. What has
    failed before stays what it was: its exit code, its traceback."""

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
        if not discard_unread():  # a connection of the program's own
            raise
        return CLOSED
    except BaseException as error:
        if not _flush() and isinstance(error, SystemExit) and not error.code:  # argparse has shown its help
            return CLOSED
        raise
    return code if _flush() or code else CLOSED


def add_version(parser: argparse.ArgumentParser) -> None:
    version = f"arraycomm {sys.modules['arraycomm'].__version__}"  # the package has been imported before this module of it
    parser.add_argument("--version", action="version", version=version, help="show the version of arraycomm and exit")


def _open_closed() -> None:
    """A program that was started with descriptor 0, 1 or 2 closed would have its next file or socket there, and write into it."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest that is free, so this one


class _Patient(io.FileIO):
    """Waits until it has written all, also where the terminal or pipe does not block: who shares it may set it so at any time."""

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
    """Whether PIPE_BUF bytes can be written without waiting, or an error be had; waits for that. None: as long as it takes."""
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    return bool(poll.poll(milliseconds))


def is_patient(stream: Any) -> bool:
    """Whether it is one of a command's own, which goes to the process's stdout or stderr."""
    buffer = getattr(stream, "buffer", None)
    return isinstance(getattr(buffer, "raw", buffer), _Patient)


def _patient(stream: Any, own: Any, descriptor: int) -> Any:
    """The same stream over a _Patient, but for one that somebody has put in its place. None: its descriptor was closed."""
    if stream is not own:
        return stream
    raw = _Patient(descriptor, "w", closefd=False)
    if stream is None:  # what is told goes nowhere
        return io.TextIOWrapper(io.BufferedWriter(raw), encoding="utf-8", errors="replace")
    stream.flush()
    buffer: Any = raw if isinstance(stream.buffer, io.RawIOBase) else io.BufferedWriter(raw)  # the first by `python -u`
    return io.TextIOWrapper(buffer, encoding=stream.encoding, errors=stream.errors, line_buffering=stream.line_buffering,
                            write_through=stream.write_through)


def _flush() -> bool:
    """Whether stdout took what Python held for it; not at exit, where Python would complain and end with a code of its own."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        return not discard_unread()
    return True


def discard_unread() -> bool:
    """Whether the reader of stdout or stderr has gone. Then what Python still holds for it goes nowhere, and fails no more."""
    closed = [stream for stream in (1, 2) if _unread(stream)]
    if closed:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for stream in closed:
            os.dup2(nowhere, stream)
        os.close(nowhere)
    return bool(closed)


def _unread(descriptor: int) -> bool:
    poll = select.poll()
    poll.register(descriptor, 0)
    return any(events & select.POLLERR for _, events in poll.poll(0))
