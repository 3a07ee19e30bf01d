"""The board: a rank's activity, in memory shared with the rank's agent process (agent.py).

The rank writes (BoardFlight), and never waits for the reader; the agent can read while the rank hangs, is stopped
or has died. Six parts, all of 64-bit words except the last:

    head       the process, how it ended, lengths
    groups     of each group: the last collective that began and that ended, bytes given
    counts     per operation and size class: calls, bytes, failures, nanoseconds, a histogram of durations
    links      bytes sent by messages, of each pair of a group and a rank in it
    records    the flight recorder: the last operations, a ring
    texts      append-only lines of JSON: groups, kinds of operations, errors

describe() and the keys below belong to the report that the agent sends to the server (server.py).
"""

from __future__ import annotations

import json
import mmap
import os
import struct
from typing import Any

from arraycomm.core.base.kernel import unnamed_file
from arraycomm.core.diagnostics.flight import DONE, FAILED, RUNNING, Entry, Flight
from arraycomm.core.interface.kinds import RECORDED

OPERATION_SHIFT, ERROR_SHIFT = 8, 16  # shifts of the operation and of the error text in the last word
OPEN, CLOSED, EXITED, STOPPED = range(4)  # how a rank ended; STOPPED: recording was switched off

GROUPS, LINKS, RECORDS, TEXT_BYTES = 256, 1024, 512, 1 << 17
CLASSES = 21  # size classes: class c holds up to 4**c bytes
BUCKETS = 25  # duration buckets: bucket b holds less than 2**b us, the last one all longer ones
_COUNT = 4 + BUCKETS  # words of one operation and class
RECORD = struct.Struct("=8Q")  # number from 1, begun, ended (ns; 0: not yet), kind, group, sequence, bytes, state and operation
_PID, _END, _TEXTS = range(3)
_HEAD = 8

Report = dict[str, Any]  # the agent's report to the server, through a store
INTERVAL = 0.5  # s between reports
FIELDS = {"rank", "count", "time", "host", "pid", "ended", "process", "groups", "open", "last", "counts", "links", "connections"}
STACKS, WATCHED = "ask/stacks", "ask/records"  # request counters in the store, incremented by the server


class Board:
    """The shared memory, mapped by both sides. `descriptor`: of a memory file; None makes one."""

    def __init__(self, descriptor: int | None = None) -> None:
        self.groups = _HEAD
        self.counts = self.groups + 3 * GROUPS
        self.links = self.counts + len(RECORDED) * CLASSES * _COUNT
        self.records = 8 * (self.links + LINKS)
        self.texts = self.records + RECORDS * RECORD.size
        length = self.texts + TEXT_BYTES
        self.descriptor = unnamed_file("arraycomm-debug") if descriptor is None else descriptor
        if descriptor is None:
            os.ftruncate(self.descriptor, length)
        self.memory = mmap.mmap(self.descriptor, length)
        self.words = memoryview(self.memory)[: self.texts].cast("Q")

    def close(self) -> None:
        """Releases this side's reference; the memory stays mapped while a BoardFlight writes to it."""
        os.close(self.descriptor)

    # ---- the rank's side: one thread at a time ----

    def start(self) -> None:
        self.words[_PID] = os.getpid()
        self.text({})  # number 0 means: no text, or no capacity for it

    def end(self, how: int) -> None:
        self.words[_END] = how

    def text(self, about: dict[str, Any]) -> int:
        """The number of a new line; 0 if the capacity is exhausted."""
        line, used = json.dumps(about).encode() + b"\n", self.words[_TEXTS]
        if used + len(line) > TEXT_BYTES:
            return 0
        self.memory[self.texts + used : self.texts + used + len(line)] = line
        self.words[_TEXTS] = used + len(line)
        number = self.words[_TEXTS + 1]
        self.words[_TEXTS + 1] = number + 1
        return int(number)

    # ---- the agent's side ----

    @property
    def ended(self) -> int:
        return int(self.words[_END])

    def read_texts(self) -> list[dict[str, Any]]:
        data = self.memory[self.texts : self.texts + self.words[_TEXTS]]
        return [json.loads(line) for line in data.splitlines()]

    def read_group(self, row: int) -> dict[str, int]:
        at = self.groups + 3 * row
        return dict(zip(("begun", "ended", "bytes"), self.words[at : at + 3].tolist(), strict=True))

    def read_counts(self) -> list[dict[str, Any]]:
        """The rows that are not empty; `buckets` without empty buckets."""
        found = []
        for operation, name in enumerate(RECORDED):
            for size in range(CLASSES):
                row = self.counts + (operation * CLASSES + size) * _COUNT
                calls, nbytes, failures, nanoseconds, *buckets = self.words[row : row + _COUNT].tolist()
                if calls:
                    filled = {b: n for b, n in enumerate(buckets) if n}
                    found.append({"name": name, "size": size, "calls": calls, "bytes": nbytes, "failures": failures,
                                  "ns": nanoseconds, "buckets": filled})
        return found

    def read_records(self) -> list[tuple[int, ...]]:
        """The complete records, from the oldest to the newest. A record that is being written is skipped until the next read."""
        data, again = (self.memory[self.records : self.texts] for _ in range(2))
        pairs = zip(RECORD.iter_unpack(data), RECORD.iter_unpack(again), strict=True)
        return sorted(first for first, second in pairs if first[0] and first == second)


class BoardFlight(Flight):
    """The flight recorder that writes to a board. teller: link(row, peer) gives the number, from 1, of a link."""

    def __init__(self, board: Board, teller: Any) -> None:
        super().__init__(teller)
        self._board, self._words = board, board.words
        self._last = 0  # number of the newest record
        self._open = [0] * RECORDS  # by place: the number of the operation under way in it

    def _begin(self, entry: Entry) -> None:
        """Takes the next place without an operation under way; if all are in use, the next one."""
        for _ in range(RECORDS):
            self._last += 1
            if not self._open[self._last % RECORDS]:
                break
        entry.number = self._open[self._last % RECORDS] = self._last
        if entry.sequence:
            self._words[self._board.groups + 3 * entry.row] = entry.sequence
        self._write(entry, 0, RUNNING)

    def _has_place(self, entry: Entry) -> bool:
        return self._open[entry.number % RECORDS] == entry.number

    def _write(self, entry: Entry, ended: int, what: int) -> None:
        """Number 0 is no record: this process may be stopped or killed before the rest is there."""
        at = self._board.records + entry.number % RECORDS * RECORD.size
        self._words[at // 8] = 0
        RECORD.pack_into(self._board.memory, at, 0, entry.begun, ended, entry.kind, entry.row, entry.sequence, entry.nbytes,
                         what | entry.operation << OPERATION_SHIFT)
        self._words[at // 8] = entry.number

    def mark(self, entry: Entry, state: int) -> None:
        if self.ours():
            with self._lock:
                if entry.open and self._has_place(entry):
                    self._write(entry, 0, state)

    def _end(self, entry: Entry, now: int, failed: bool, text: Any, *, counts: bool) -> None:
        if self._has_place(entry):
            self._write(entry, now, (FAILED if failed else DONE) | (text or 0) << ERROR_SHIFT)
            self._open[entry.number % RECORDS] = 0
        if entry.sequence:
            self._count_group(entry, counts)
        self._count(entry, now - entry.begun, failed)
        if entry.peer >= 0 and not failed and (link := self._teller.link(entry.row, entry.peer)):
            self._words[self._board.links + link - 1] += entry.nbytes

    def _count_group(self, entry: Entry, counts: bool) -> None:
        at = self._board.groups + 3 * entry.row
        if not counts:
            self._words[at] = entry.sequence - 1
            return
        self._words[at + 1] = max(self._words[at + 1], entry.sequence)
        self._words[at + 2] += entry.nbytes

    def _count(self, entry: Entry, ns: int, failed: bool) -> None:
        size = min(((entry.nbytes - 1).bit_length() + 1) // 2, CLASSES - 1) if entry.nbytes > 1 else 0
        at = self._board.counts + (entry.operation * CLASSES + size) * _COUNT
        for index, more in ((0, 1), (1, entry.nbytes), (2, int(failed)), (3, ns),
                            (4 + min((ns // 1000).bit_length(), BUCKETS - 1), 1)):
            self._words[at + index] += more


def no_stacks(ended: str) -> str:
    """The text in place of stacks for a rank that has ended."""
    return "No stacks: the rank " + ("is no longer recorded." if ended == "unrecorded" else f"has {ended}.")


def describe(record: tuple[int, ...], texts: list[dict[str, Any]], groups: dict[int, dict[str, Any]], now: int) -> dict[str, Any]:
    """A record as an entry of the report. now: nanoseconds on the rank's clock."""
    number, begun, ended, kind, row, sequence, nbytes, what = record
    state = what & 0xFF
    about = {"number": number, "name": RECORDED[what >> OPERATION_SHIFT & 0xFF], "group": groups[row]["group"], "bytes": nbytes,
             "state": ("running", "asynchronous", "done", "failed")[state], "age": (now - begun) / 1e9, **texts[kind]}
    if sequence:
        about["sequence"] = sequence
    if ended:
        about["seconds"], about["ended"] = (ended - begun) / 1e9, (now - ended) / 1e9
    if state == FAILED:
        about["error"] = texts[what >> ERROR_SHIFT].get("error", "an error whose text did not fit")
    return about
