"""ARRAYCOMM_TRACE: every operation of a rank in a file that chrome://tracing and Perfetto read.

One file for each world and rank, `<world>-<run>-rank<r>.json` in the folder that the variable names: an array of events as
"Trace Event Format" (Google, 2016) has them, times in microseconds of CLOCK_MONOTONIC. Written every second and at the
end; one that was cut off is readable up to there. `python -m arraycomm.trace` merges the files of a run.

Ranks of one host share a clock. Others measure theirs against rank 0's when the world is opened (F. Cristian,
"Probabilistic clock synchronization", 1989: the exchange that took least tells best). How clocks drift afterwards follows
from the operations themselves, when the files are merged.
"""

from __future__ import annotations

import atexit
import json
import os
import re
import socket
import threading
import time
from array import array
from pathlib import Path
from typing import Any

from .digest import sha256
from .exchange import gather_integers
from .group import Group
from .watch import COLLECTIVES, Call, attach, detach

_EXCHANGES = 16  # per rank: more find a shorter one seldom
_INTERVAL_NS, _MOST = 1_000_000_000, 10_000  # between writes: time, events
_SHOWN = ("op", "root", "dest", "source", "tag", "error")
_BITS = 63


def begin(group: Group, folder: str) -> None:
    """Traces a world and the groups split from it. Collective. OSError when the folder cannot be written."""
    attach(group, Trace(group, Path(folder)))


class Trace:
    """The file of one rank; a Watcher of its groups."""

    def __init__(self, world: Group, folder: Path) -> None:
        run, clock, offset, doubt = _agree(world)
        folder.mkdir(parents=True, exist_ok=True)
        name = re.sub(r"[^\w.-]+", "_", world.name)
        self._file = open(folder / f"{name}-{run:016x}-rank{world.rank}.json", "w", encoding="ascii")  # noqa: SIM115
        self._world, self._rank, self._pid = world, world.rank, os.getpid()
        self._events: list[str | _Event] = []
        self._lock = threading.Lock()
        self._asynchronous = 0
        self._separator, self._written = "[\n", 0
        atexit.register(self._flush)
        place = f"rank {world.rank} ({socket.gethostname()}, pid {self._pid})"
        self._tell("process_name", {"name": place})
        self._tell("arraycomm", {
            "run": f"{run:016x}", "world": world.name, "rank": world.rank, "size": world.size, "clock": f"{clock:016x}",
            "offset_us": offset / 1000, "doubt_us": doubt / 1000, "measured_us": time.monotonic_ns() / 1000,
            "started": time.time()})
        self._tell_group(world)
        self._flush()

    def _tell(self, name: str, about: dict[str, Any]) -> None:
        self._events.append(json.dumps({"ph": "M", "name": name, "pid": self._rank, "args": about}))

    def _tell_group(self, group: Group) -> None:
        self._tell("group", {"group": group.name, "rank": group.rank, "size": group.size})

    def begin(self, call: Call) -> _Event:
        return _Event(call, self._rank)

    def begun(self, token: _Event) -> None:
        with self._lock:
            self._asynchronous += 1
            token.number = self._asynchronous
        token.called = time.monotonic_ns()

    def waits(self, token: _Event, still: bool = True) -> None:
        """Nothing: the call has been told."""

    def end(self, token: _Event, error: BaseException | None) -> None:
        token.ended = now = time.monotonic_ns()
        if error is not None:
            token.parameters = {**token.parameters, "error": f"{type(error).__name__}: {error}"}
        self._events.append(token)
        if now - self._written > _INTERVAL_NS or len(self._events) >= _MOST:
            self._flush()

    def follow(self, child: Group) -> None:
        self._tell_group(child)
        attach(child, self)

    def closed(self, group: Group) -> None:
        detach(group, self)
        if group is not self._world or self._file.closed or os.getpid() != self._pid:  # as _flush()
            return
        self._flush()
        atexit.unregister(self._flush)
        with self._lock:
            self._file.write("\n]\n")
            self._file.close()

    def _flush(self) -> None:
        if os.getpid() != self._pid:
            return  # a forked child: what it has is its parent's to write
        with self._lock:
            events, self._events = self._events, []
            self._written = time.monotonic_ns()
            if not events or self._file.closed:
                return
            self._file.write(self._separator + ",\n".join(map(str, events)))
            self._separator = ",\n"
            self._file.flush()


class _Event:
    """One operation. Its text is made when it is written, which takes longer than to keep what is in it."""

    __slots__ = ("begun", "called", "ended", "group", "name", "number", "parameters", "rank", "sequence", "thread", "traits")

    def __init__(self, call: Call, rank: int) -> None:
        self.name, self.group, self.sequence, self.rank = call.name, call.group.name, call.sequence, rank
        self.traits, self.thread, self.number, self.ended = call.array(), threading.get_native_id(), 0, 0
        self.called = 0  # when an asynchronous call returned
        self.parameters = {name: value for name, value in call.parameters.items() if name in _SHOWN and value is not None}
        self.begun = time.monotonic_ns()

    def _about(self) -> str:
        parts = [f'{{"group":{_quoted(self.group)}']
        if self.sequence:
            parts.append(f'"sequence":{self.sequence}')
        if self.traits is not None:
            dtype, shape, size = self.traits
            parts.append(f'"dtype":"{dtype}","shape":{list(shape)},"bytes":{size}')
        if self.called:
            parts.append(f'"called_us":{(self.called - self.begun) / 1000:.3f}')
        parts += [f'"{name}":{int(value) if isinstance(value, int) else _quoted(str(value))}'
                  for name, value in self.parameters.items()]
        return ",".join(parts) + "}"

    def __str__(self) -> str:
        """A complete event, or both ends of an asynchronous one."""
        kind = "collective" if self.name in COLLECTIVES else "message"
        head = f'{{"name":"{self.name}","cat":"{kind}","pid":{self.rank},"tid":{self.thread}'
        begun, ended = self.begun / 1000, self.ended / 1000
        if not self.number:
            return f'{head},"ph":"X","ts":{begun:.3f},"dur":{ended - begun:.3f},"args":{self._about()}}}'
        head += f',"id2":{{"local":"{self.number}"}}'  # local: shown with the rank's other tracks
        return f'{head},"ph":"b","ts":{begun:.3f},"args":{self._about()}}},\n{head},"ph":"e","ts":{ended:.3f},"args":{{}}}}'


_quoted = json.encoder.encode_basestring_ascii


# ---- clocks ----

def _clock() -> int:
    """The same for all processes that read the same CLOCK_MONOTONIC: one boot of one kernel, one time namespace."""
    parts = []
    for name in ("/proc/sys/kernel/random/boot_id", "/proc/self/timens_offsets"):
        try:
            parts.append(Path(name).read_text(encoding="ascii"))
        except OSError:
            parts.append(socket.gethostname())  # no such file in this kernel: the host has one clock then
    return int(sha256("".join(parts).encode()).hexdigest()[:16], 16) >> (64 - _BITS)


def _agree(world: Group) -> tuple[int, int, int, int]:
    """(the run's number, the clock's, what to add to this clock to have rank 0's and its doubt in ns)."""
    mine = [_clock(), int.from_bytes(os.urandom(8), "little") >> (64 - _BITS)]
    told = gather_integers(world._communicator, mine, None)
    clocks = [clock for clock, _ in told]
    offset, doubt = 0, 0
    for rank in range(1, world.size):
        if clocks[rank] == clocks[0]:
            continue
        if world.rank == 0:
            _answer(world, rank)
        elif world.rank == rank:
            offset, doubt = _ask(world)
    return told[0][1], mine[0], offset, doubt


def _answer(world: Group, rank: int) -> None:
    word = array("q", [0])
    for _ in range(_EXCHANGES):
        world.recv(word, rank, out=word)
        word[0] = time.monotonic_ns()
        world.send(word, rank)


def _ask(world: Group) -> tuple[int, int]:
    word, best = array("q", [0]), (0, 1 << _BITS)
    for _ in range(_EXCHANGES):
        begun = time.monotonic_ns()
        world.send(word, 0)
        world.recv(word, 0, out=word)
        ended = time.monotonic_ns()
        best = min(best, (word[0] - (begun + ended) // 2, (ended - begun) // 2), key=lambda found: found[1])
    return best
