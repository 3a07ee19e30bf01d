"""The exceptions of `spawn` for a failed rank, and the text for an exit status."""

from __future__ import annotations

import signal

from ..core.base.errors import DistError


class ProcessError(DistError):
    """A rank failed. Attributes: `rank`, `pid`; as torch.multiprocessing calls them, `error_index`, `error_pid`, `msg`."""

    def __init__(self, message: str, rank: int = -1, pid: int = 0) -> None:
        super().__init__(message)
        self.rank = self.error_index = rank
        self.pid = self.error_pid = pid
        self.msg = message


class ProcessRaisedException(ProcessError):
    """The function raised in a process of spawn(). The text holds the traceback.

    `__cause__` is the exception if it can be pickled.

    - Raised: by spawn() and by ProcessContext.join().
    - Afterwards: all other processes have been ended.

    Examples:
        >>> dist.ProcessRaisedException("rank 1 raised", 1).rank
        1
    """


class ProcessExitedException(ProcessError):
    """A process of spawn() ended without an exception: by a signal or by exit().

    Attributes:
        exit_code: the process's status; negative for signals.
        signal_name: None without a signal.

    - Raised: by spawn() and by ProcessContext.join().
    - Afterwards: all other processes have been ended.

    Examples:
        >>> dist.ProcessExitedException("rank 1 was killed", 1, exit_code=-9).signal_name
        'SIGKILL'
    """

    def __init__(self, message: str, rank: int = -1, pid: int = 0, exit_code: int = 0) -> None:
        super().__init__(message, rank, pid)
        self.exit_code = exit_code
        self.signal_name = signal_name(-exit_code) if exit_code < 0 else None


def signal_name(number: int) -> str:
    """SIGKILL for 9; SIGRTMIN+n and unknown ones by number."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def describe_exit(code: int) -> str:
    """'exited with code 3', or for the negative codes of subprocess and multiprocessing 'was killed by SIGKILL'."""
    return f"was killed by {signal_name(-code)}" if code < 0 else f"exited with code {code}"
