"""ARRAYCOMM_TRACE: every operation of a rank in a file that chrome://tracing and Perfetto read.

One file for each world and rank, `<world>-<run>-rank<r>.json` in the folder that the variable names: an array of events as
"Trace Event Format" (Google, 2016) has them, times in microseconds of CLOCK_MONOTONIC. Written every second and at the
end; one that was cut off is readable up to there. `python -m arraycomm.trace` merges the files of a run.

Ranks of one host share a clock. Others measure theirs against rank 0's when the world is opened.
"""

from __future__ import annotations

import atexit
import json
import os
import re
import socket
import threading
import time
import weakref
from hashlib import sha256
from io import FileIO
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..base.log import log
from ..group.exchange import gather_integers
from ..group.group import Group
from ..interface.kinds import COLLECTIVES, RECORDED
from .flight import Entry, Flight, Recording
from .watch import attach, detach

if TYPE_CHECKING:
    from .flight import Traits

_EXCHANGES = 16  # more exchanges rarely find a shorter one
_SHOWN = ("op", "root", "dest", "source", "tag")
_BITS = 63
_INTERVAL_NS, _MOST = 1_000_000_000, 4096  # between two writes, and operations that are kept
_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC


def _opened(path: Path) -> int:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return os.open(path, _FLAGS, 0o666)
    except OSError as error:
        raise OSError(error.errno, f"ARRAYCOMM_TRACE: {error.strerror}", str(path.parent)) from error


def begin(group: Group, folder: str) -> None:
    """Traces a world and the groups split from it. Collective. OSError if the folder is not writable."""
    attach(group, Trace(group, Path(folder)))


class TraceFile(Flight):
    """Operations are kept and written once a second, or many at once, from several threads. The descriptor is this object's from
    here on.

    heads: each operation's name, category and rank; teller: a Recording, and failed(errno) is called when the file ends early.
    """

    def __init__(self, descriptor: int, heads: tuple[bytes, ...], teller: Any) -> None:
        super().__init__(teller)
        self._file, self._heads = FileIO(descriptor, "w"), heads
        self._kept: list[tuple[Entry, int, bytes | None]] = []
        self._due = 0
        self._names: dict[int, bytes] = {}
        self._asynchronous = 0  # number of asynchronous operations written
        self._writing = threading.RLock()

    def add_group(self, name: bytes) -> int:
        row = len(self._names)
        self._names[row] = name
        return row

    def _end(self, entry: Entry, now: int, failed: bool, text: Any, *, counts: bool) -> None:
        self._kept.append((entry, now, text or (b',"error":"unknown: it has no text"' if failed else None)))
        if now > self._due or len(self._kept) >= _MOST:
            self._due = now + _INTERVAL_NS
            if self._writing.acquire(blocking=False):  # else another thread is writing: the next operation retries
                try:
                    self.flush()
                finally:
                    self._writing.release()

    def flush(self, last: bytes = b"") -> None:
        """No effect in a forked child: the parent writes these events."""
        if self.ours():
            with self._writing:
                with self._lock:
                    kept, self._kept = self._kept, []
                text = b"".join(self._event(*told) for told in kept) + last
                try:
                    while text and not self._file.closed:
                        text = text[self._file.write(text):]
                except OSError as error:
                    self._file.close()
                    self._teller.failed(error.errno)

    def close(self, last: bytes) -> None:
        with self._writing:
            self.flush(last)
            self._file.close()

    def _event(self, entry: Entry, ended: int, error: bytes | None) -> bytes:
        begun, called = entry.begun, entry.called
        about = b'{"group":%b%b%b%b%b}' % (
            self._names[entry.row], b',"sequence":%d' % entry.sequence if entry.sequence else b"",
            b',"called_us":%b' % _us(called - begun) if called else b"", entry.kind, error or b"")
        begin = b'%b,"tid":%d' % (self._heads[entry.operation], entry.thread)
        if not called:
            return b',\n{"ph":"X",%b,"ts":%b,"dur":%b,"args":%b}' % (begin, _us(begun), _us(ended - begun), about)
        self._asynchronous += 1
        begin += b',"id2":{"local":"%d"}' % self._asynchronous  # local: shown with the rank's other tracks
        return b',\n{"ph":"b",%b,"ts":%b,"args":%b},\n{"ph":"e",%b,"ts":%b,"args":{}}' % (
            begin, _us(begun), about, begin, _us(ended))


def _us(ns: int) -> bytes:
    return b"%d.%03d" % divmod(ns, 1000)


class Trace(Recording):
    """The trace file of one rank, and the common fields of its events."""

    def __init__(self, world: Group, folder: Path) -> None:
        run, clock, offset, doubt = _agree(world)
        name = re.sub(r"[^\w.-]+", "_", world.name)
        self._path = folder / f"{name}-{run:016x}-rank{world.rank}.json"
        self._world, self._pid = world, os.getpid()
        self._file = TraceFile(_opened(self._path), tuple(_head(name, world.rank) for name in RECORDED), self)
        self._flight = self._file
        self.rows = weakref.WeakKeyDictionary()
        atexit.register(self._file.flush)
        place = f"rank {world.rank} ({socket.gethostname()}, pid {self._pid})"
        self._file.flush(b"[\n" + self._line("process_name", {"name": place}))
        self._tell("arraycomm", {
            "run": f"{run:016x}", "world": world.name, "rank": world.rank, "size": world.size, "clock": f"{clock:016x}",
            "offset_us": offset / 1000, "doubt_us": doubt / 1000, "started": time.time()})
        self._add(world)

    def _line(self, name: str, about: dict[str, Any]) -> bytes:
        return _json({"ph": "M", "name": name, "pid": self._world.rank, "args": about})

    def _tell(self, name: str, about: dict[str, Any]) -> None:
        self._file.flush(b",\n" + self._line(name, about))

    def _add(self, group: Group) -> None:
        self._tell("group", {"group": group.name, "rank": group.rank, "size": group.size})
        self.rows[group] = self._file.add_group(json.dumps(group.name).encode())

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
        if group is not self._world or os.getpid() != self._pid:  # a forked child: the file belongs to the parent
            return
        self._file.close(b"\n]\n")
        atexit.unregister(self._file.flush)


def _head(name: str, rank: int) -> bytes:
    kind = "collective" if name in COLLECTIVES else "message"
    return _json({"name": name, "cat": kind, "pid": rank})[1:-1]


def _json(about: dict[str, Any]) -> bytes:
    return json.dumps(about, separators=(",", ":")).encode()


def _rest(about: dict[str, Any]) -> bytes:
    """The remaining fields of a JSON object, and its end."""
    return b"," + _json(about)[1:-1] if about else b""


# ---- clocks ----

def _clock() -> int:
    """An id of CLOCK_MONOTONIC, equal in processes with the same boot of the kernel and the same time namespace."""
    parts = []
    for name in ("/proc/sys/kernel/random/boot_id", "/proc/self/timens_offsets"):
        try:
            parts.append(Path(name).read_text(encoding="ascii"))
        except OSError:
            parts.append(socket.gethostname())  # the kernel has no time namespaces: one clock per host
    return int(sha256("".join(parts).encode()).hexdigest()[:16], 16) >> (64 - _BITS)


def _agree(world: Group) -> tuple[int, int, int, int]:
    """(number of the run, number of the clock, offset of rank 0's clock from this one and its uncertainty in ns)."""
    mine = [_clock(), int.from_bytes(os.urandom(8), "little") >> (64 - _BITS)]
    told = gather_integers(world._communicator, mine, None)
    offset, doubt = _measure(world) if len({clock for clock, _ in told}) > 1 else (0, 0)
    if mine[0] == told[0][0]:
        offset, doubt = 0, 0
    return told[0][1], mine[0], offset, doubt


def _measure(world: Group) -> tuple[int, int]:
    """Offset and uncertainty: rank 0 enters an exchange before any rank leaves it, and the next one after all have entered it."""
    times = []
    for _ in range(_EXCHANGES):
        begun = time.monotonic_ns()
        reference = gather_integers(world._communicator, [begun], None)[0][0]
        times.append((reference, begun, time.monotonic_ns()))
    lower = max(reference - ended for reference, _, ended in times)
    upper = min(following - begun for (_, begun, _), (following, _, _) in pairwise(times))
    return (lower + upper) // 2, (upper - lower) // 2
