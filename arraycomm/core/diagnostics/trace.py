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
import time
import weakref
from array import array
from pathlib import Path

from arraycomm._engine import TraceFile

from ..base.digest import sha256
from ..base.log import log
from ..base.typed import TYPE_CHECKING, Any
from ..group.exchange import gather_integers
from ..group.group import Group
from ..interface.kinds import COLLECTIVES, RECORDED
from .flight import Recording
from .watch import attach, detach

if TYPE_CHECKING:
    from .flight import Traits

_EXCHANGES = 16  # per rank: more find a shorter one seldom
_SHOWN = ("op", "root", "dest", "source", "tag")
_BITS = 63
_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC


def _opened(path: Path) -> int:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return os.open(path, _FLAGS, 0o666)
    except OSError as error:
        raise OSError(error.errno, f"ARRAYCOMM_TRACE: {error.strerror}", str(path.parent)) from error


def begin(group: Group, folder: str) -> None:
    """Traces a world and the groups split from it. Collective. OSError when the folder cannot be written."""
    attach(group, Trace(group, Path(folder)))


class Trace(Recording):
    """The file of one rank. Its lines are made natively (native/flight/trace.c), and what they have in common here."""

    _flight: TraceFile

    def __init__(self, world: Group, folder: Path) -> None:
        run, clock, offset, doubt = _agree(world)
        name = re.sub(r"[^\w.-]+", "_", world.name)
        self._path = folder / f"{name}-{run:016x}-rank{world.rank}.json"
        self._world, self._pid = world, os.getpid()
        self._flight = TraceFile(_opened(self._path), tuple(_head(name, world.rank) for name in RECORDED), self)
        self.rows = weakref.WeakKeyDictionary()
        atexit.register(self._flight.flush)
        place = f"rank {world.rank} ({socket.gethostname()}, pid {self._pid})"
        self._flight.append(b"[\n" + self._line("process_name", {"name": place}))
        self._tell("arraycomm", {
            "run": f"{run:016x}", "world": world.name, "rank": world.rank, "size": world.size, "clock": f"{clock:016x}",
            "offset_us": offset / 1000, "doubt_us": doubt / 1000, "measured_us": time.monotonic_ns() / 1000,
            "started": time.time()})
        self._add(world)
        self._flight.flush()

    def _line(self, name: str, about: dict[str, Any]) -> bytes:
        return _json({"ph": "M", "name": name, "pid": self._world.rank, "args": about})

    def _tell(self, name: str, about: dict[str, Any]) -> None:
        self._flight.append(b",\n" + self._line(name, about))

    def _add(self, group: Group) -> None:
        self._tell("group", {"group": group.name, "rank": group.rank, "size": group.size})
        self.rows[group] = self._flight.add_group(json.dumps(group.name).encode())

    def about(self, operation: int, traits: Traits | None, given: dict[str, Any]) -> bytes:
        told: dict[str, Any] = {}
        if traits is not None:
            told = {"dtype": traits[0], "shape": [int(n) for n in traits[1]], "bytes": traits[2]}
        told |= {name: int(given[name]) if hasattr(given[name], "__index__") else str(given[name])
                 for name in _SHOWN if given.get(name) is not None}
        return _rest(told)

    def error(self, error: BaseException) -> bytes:
        return _rest({"error": f"{type(error).__name__}: {error}"})

    def failed(self, number: int) -> None:
        """The file could not be written."""
        log().warning("the trace of rank %d ends here: %s: %s", self._world.rank, self._path, os.strerror(number))

    def follow(self, child: Group) -> None:
        self._add(child)
        attach(child, self)

    def closed(self, group: Group) -> None:
        detach(group, self)
        if group is not self._world or os.getpid() != self._pid:  # a forked child: the file is its parent's
            return
        self._flight.close(b"\n]\n")
        atexit.unregister(self._flight.flush)


def _head(name: str, rank: int) -> bytes:
    kind = "collective" if name in COLLECTIVES else "message"
    return _json({"name": name, "cat": kind, "pid": rank})[1:-1]


def _json(about: dict[str, Any]) -> bytes:
    return json.dumps(about, separators=(",", ":")).encode()


def _rest(about: dict[str, Any]) -> bytes:
    """The end of an object that has more before."""
    return b"," + _json(about)[1:-1] if about else b""


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
        world.recv(rank, out=word)
        word[0] = time.monotonic_ns()
        world.send(word, rank)


def _ask(world: Group) -> tuple[int, int]:
    word, best = array("q", [0]), (0, 1 << _BITS)
    for _ in range(_EXCHANGES):
        begun = time.monotonic_ns()
        world.send(word, 0)
        world.recv(0, out=word)
        ended = time.monotonic_ns()
        best = min(best, (word[0] - (begun + ended) // 2, (ended - begun) // 2), key=lambda found: found[1])
    return best
