"""A job on this node: starts the ranks, forwards their output, and ends all of them when one fails.

One thread and one selector: output, the ends of processes (pidfd) and signals are events of the same loop.
"""

from __future__ import annotations

import contextlib
import selectors
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from typing import NamedTuple

from ..core.base.command import CLOSED
from ..core.base.lifeline import Lifeline
from .ending import Schedule, cause
from .errors import describe_exit, signal_name
from .output import Sink, Stream, blames_another
from .process import RankProcess

SIGNAL_GRACE_S = 10.0  # after a forwarded signal: time to save work; a second signal ends it at once
_PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_DRAIN_S = 1.0  # for the output of descendants that left their rank's process group


@dataclass(frozen=True)
class Plan:
    """A node's part of a job: for each local rank its command, its environment with RANK in it, and its CPU (None: any); the
    descriptors that all ranks inherit. logs: the path of a rank's log, with {} for its number. keep_going: a failed rank does not
    end the other ranks. ended: called with the rank, the pid and the exit description, to notify the ranks that still run."""

    commands: Sequence[Sequence[str]]
    environs: Sequence[Mapping[str, str]]
    cpus: Sequence[int | None]
    inherit: Sequence[int]
    prefix: bool = True
    logs: str | None = None
    keep_going: bool = False
    ended: Callable[[int, int, str], None] = lambda rank, pid, how: None


class Failure(NamedTuple):
    rank: int
    pid: int
    code: int
    tail: Sequence[bytes]

    @property
    def consequence(self) -> bool:
        return blames_another(self.tail)

    def status(self) -> int:
        """The exit code in a shell's convention."""
        return 128 - self.code if self.code < 0 else self.code or 1

    def headline(self) -> str:
        return f"rank {self.rank} (pid {self.pid} on {socket.gethostname()}) {describe_exit(self.code)}"


class Job:
    """`run()` may be called once. The exit code is the first failing rank's, 128 + n for signals, 0 if all ranks succeeded or,
    with keep_going, if any rank did."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._selector = selectors.PollSelector()  # epoll does not accept regular files
        self._out, self._err = Sink("stdout"), Sink("stderr")
        self._lifeline = Lifeline()
        self._ranks: list[RankProcess] = []
        self._well = False  # at least one rank has succeeded
        self._running = 0
        self._streams: list[Stream] = []  # open streams
        self._failures: list[Failure] = []
        self.received: int = 0  # the signal to the launcher that ends the job
        self._schedule = Schedule()
        self._ending = False  # the launcher has sent a signal: a rank that exits now has not failed by itself

    def run(self) -> int:
        try:
            with self._signals():
                self._start()
                while self._running:
                    self._turn(self._schedule.next())
                self._drain()
                code = self._conclude()
                self._drain()
            return code
        except BrokenPipeError:  # the reader of the launcher's output has closed it: end as `yes | head` does
            return CLOSED
        finally:
            self._close()

    def _drain(self) -> None:
        """Forwards the remaining output. A slow reader has no timeout, unless a signal has arrived."""
        end = time.monotonic() + _DRAIN_S
        while self._blocked() or self._streams:
            if self._blocked() and not self.received:
                self._turn(None)
                end = time.monotonic() + _DRAIN_S
            elif time.monotonic() < end:
                self._turn(end)
            else:
                return

    def _blocked(self) -> bool:
        return self._out.blocked or self._err.blocked

    @property
    def failed(self) -> bool:
        """Whether a rank has failed by itself, not because a signal ended the job."""
        return bool(self._failures) and not self.received

    def _start(self) -> None:
        for command, environ, cpu in zip(self.plan.commands, self.plan.environs, self.plan.cpus, strict=True):
            rank = RankProcess(int(environ["RANK"]), command, environ, self._lifeline, self.plan.inherit, cpu)
            self._ranks.append(rank)
            self._running += 1
            self._watch(rank.pidfd, partial(self._ended, rank), last=True)  # after its output, which explains the exit
            for stream in rank.streams(self._out, self._err, prefix=self.plan.prefix, logs=self.plan.logs):
                self._streams.append(stream)
                self._watch(stream.source, partial(self._pump, stream))

    def _watch(self, descriptor: int, action: Callable[[], None], *, last: bool = False) -> None:
        """last: run the action after all other events of the same poll."""
        self._selector.register(descriptor, selectors.EVENT_READ, (last, action))

    def _hold(self, sink: Sink) -> None:
        """Pauses reading the sink's streams until the sink has written its buffer."""
        watched = self._selector.get_map()
        if not sink.blocked or sink.fileno() in watched:
            return
        for stream in self._streams:
            if stream.target is sink and stream.source in watched:
                self._selector.unregister(stream.source)
        self._selector.register(sink.fileno(), selectors.EVENT_WRITE, (False, partial(self._go_on, sink)))

    def _go_on(self, sink: Sink) -> None:
        sink.flush()
        if not sink.blocked:
            self._selector.unregister(sink.fileno())
            for stream in self._streams:
                if stream.target is sink:
                    self._watch(stream.source, partial(self._pump, stream))

    def _turn(self, until: float | None) -> None:
        """Handles the events of one poll, or the next scheduled step if `until` is earlier."""
        events = self._selector.select(None if until is None else max(0.0, until - time.monotonic()))
        for _, action in sorted((key.data for key, _ in events), key=itemgetter(0)):
            action()
        for number in self._schedule.due():
            self._send(number)

    def _send(self, number: int) -> None:
        self._ending = True
        self._signal(number)

    def _signal(self, number: int) -> None:
        for rank in self._ranks:
            if rank.pidfd in self._selector.get_map():
                rank.signal(number)

    def _pump(self, stream: Stream) -> None:
        if stream.target.blocked:
            return  # it was unregistered since this poll began
        if not stream.pump():
            self._selector.unregister(stream.source)
            self._streams.remove(stream)
        self._hold(stream.target)

    def _ended(self, rank: RankProcess) -> None:
        self._selector.unregister(rank.pidfd)
        self._running -= 1
        code = rank.reap()
        if not self._ending:
            self.plan.ended(rank.rank, rank.pid, describe_exit(code))
        if code and not self._ending:
            self._fail(Failure(rank.rank, rank.pid, code, rank.tail))
        elif not code:
            self._well = True

    def _fail(self, failure: Failure) -> None:
        if self.plan.keep_going:
            self._say(failure.headline() + ("; the other ranks continue" if self._running else ""))
        self._failures.append(failure)
        if not self.plan.keep_going:
            self._schedule.plan_end(self._failures)

    def _conclude(self) -> int:
        for sink in (self._out, self._err):
            sink.restore()
            self._hold(sink)
        if self.received:
            self._say(f"ended by {signal_name(self.received)}")
            return 128 + self.received
        if not self._failures or (self.plan.keep_going and self._well):
            return 0
        first = cause(self._failures)
        # Repeats the failed rank's last lines, because other ranks' lines may be mixed in; a single rank needs no repetition.
        lines = first.tail if len(self._ranks) > 1 else ()
        self._say(first.headline() + ("; its last output:" if lines else ""), lines)
        return first.status()

    def _say(self, text: str, lines: Iterable[bytes] = ()) -> None:
        self._err.write(f"arraycomm-run: {text}\n".encode() + b"".join(lines))
        self._hold(self._err)

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """SIGINT, SIGTERM, SIGHUP and SIGTSTP become events of the loop. Python handles signals only in the main thread."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        ours, wakeup = socket.socketpair()
        before: dict[int, object] = {}
        with ours, wakeup:
            ours.setblocking(False)
            wakeup.setblocking(False)
            previous = signal.set_wakeup_fd(wakeup.fileno())
            for number in (*_PASSED_ON, signal.SIGTSTP):
                if signal.getsignal(number) is not signal.SIG_IGN:  # ignored for example under nohup
                    before[number] = signal.signal(number, lambda *_: None)
            self._watch(ours.fileno(), lambda: self._pass_on([n for n in ours.recv(64) if n in before]))
            try:
                yield
            finally:
                self._selector.unregister(ours)
                for passed, handler in before.items():
                    signal.signal(passed, handler)  # type: ignore[arg-type]
                signal.set_wakeup_fd(previous)

    def _pass_on(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            if number == signal.SIGTSTP:
                self._stop()
                continue
            if self.received:
                self._send(signal.SIGKILL)
                continue
            self.received = number
            self._send(number)
            self._schedule.plan((SIGNAL_GRACE_S, signal.SIGKILL))

    def _stop(self) -> None:
        """Ctrl-Z reaches only the launcher, because the ranks have their own process groups: it stops the ranks, then itself, and
        continues with them. Scheduled steps are delayed by the time stopped."""
        self._signal(signal.SIGSTOP)
        begun = time.monotonic()
        handler = signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        signal.raise_signal(signal.SIGTSTP)  # returns at SIGCONT; at once in an orphaned process group
        signal.signal(signal.SIGTSTP, handler)
        self._schedule.postpone(time.monotonic() - begun)
        self._signal(signal.SIGCONT)

    def _close(self) -> None:
        self._lifeline.close()  # kills the processes that still run, if an exception leaves this block
        for rank in self._ranks:
            if rank.pidfd in self._selector.get_map():
                rank.reap()
            rank.close()
        self._selector.close()
