"""What all commands have in common: they end as other programs do when nobody reads their output any more."""

from __future__ import annotations

import functools
import os
import select
import signal
import sys
from collections.abc import Callable

CLOSED = 128 + signal.SIGPIPE  # what a shell shows for `yes | head`


def command(main: Callable[..., int | None]) -> Callable[..., int | None]:
    """For a command's main(): CLOSED and no traceback where its stdout or stderr is a pipe whose reader has gone. What has
    failed before stays what it was: its exit code, its traceback."""

    @functools.wraps(main)
    def run(*args: object, **options: object) -> int | None:
        for name in ("stdout", "stderr"):
            if getattr(sys, name) is None:  # the program was started with it closed: what is told goes nowhere
                setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 - open as long as the program runs
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

    return run


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
