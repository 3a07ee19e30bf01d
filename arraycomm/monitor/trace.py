"""`python -m arraycomm.trace FOLDER` merges the traces that a run's ranks wrote (ARRAYCOMM_TRACE), on rank 0's clock.

Offsets of other hosts' clocks were measured when the run began, and the clocks drift. No rank can leave a barrier, all_reduce
and so on before every rank has entered it: each such operation bounds the offset between two clocks from both sides. The
measured offset is kept, and clamped to the bounds of each operation in turn.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, count
from pathlib import Path
from typing import Any, NamedTuple

from arraycomm.core.base.command import add_version, command
from arraycomm.core.interface.kinds import KINDS

_MEETINGS = {kind.name for kind in KINDS.values() if not kind.rooted and not kind.message}  # left after all have entered


class Bound(NamedTuple):
    """The bounds from one operation: the other clock plus an offset is rank 0's, and lower <= offset <= upper. Microseconds."""

    time: float
    lower: float
    upper: float


class Rank:
    """The trace file of one rank: `about` (its metadata), `events`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.events: list[dict[str, Any]] = _events(path.read_text(encoding="ascii"))
        about = [event["args"] for event in self.events if event["name"] == "arraycomm"]
        if not about:
            raise ValueError(f"{path} is no trace of arraycomm")
        self.about: dict[str, Any] = about[0]

    def meetings(self) -> dict[tuple[str, int], tuple[float, float]]:
        """(begin, end) by group and sequence number."""
        return {(event["args"]["group"], event["args"]["sequence"]): (event["ts"], event["ts"] + event["dur"])
                for event in self.events
                if event["ph"] == "X" and event["name"] in _MEETINGS and "error" not in event["args"]}


def _events(text: str) -> list[dict[str, Any]]:
    """The events of a file; if its writer was killed, up to the last complete line."""
    try:
        return list(json.loads(text))
    except json.JSONDecodeError:
        lines = [line.rstrip(",") for line in text.splitlines()[1:]]
    found = []
    for line in lines:
        try:
            found.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return found


# ---- clocks ----

def bounds(reference: Iterable[Rank], other: Iterable[Rank]) -> list[Bound]:
    """The bounds from the operations in which ranks of both clocks took part, in order of time."""
    left, right = _spans(reference), _spans(other)
    found = []
    for key in left.keys() & right.keys():
        (first, last), (begun, ended) = left[key], right[key]
        found.append(Bound(max(begun), max(first) - min(ended), min(last) - max(begun)))
    return sorted(found)


def _spans(ranks: Iterable[Rank]) -> dict[tuple[str, int], tuple[list[float], list[float]]]:
    spans: dict[tuple[str, int], tuple[list[float], list[float]]] = defaultdict(lambda: ([], []))
    for rank in ranks:
        for key, (begin, end) in rank.meetings().items():
            spans[key][0].append(begin)
            spans[key][1].append(end)
    return spans


class Clock:
    """Knots (time, offset), one for each operation; between them the offset is interpolated linearly."""

    def __init__(self, offset: float, said: Sequence[Bound] = ()) -> None:
        """offset: the measured one. Before the first operation, too, it is clamped to that operation's bounds."""
        clamped = accumulate(said, lambda last, bound: min(max(last, bound.lower), bound.upper), initial=offset)
        self.offsets = list(clamped)[1:] or [offset]
        self.times = [bound.time for bound in said]

    def at(self, time: float) -> float:
        """The time on rank 0's clock."""
        place = bisect_right(self.times, time)
        if place in (0, len(self.times)):
            return time + self.offsets[max(place - 1, 0)]
        t0, t1, a, b = *self.times[place - 1 : place + 1], *self.offsets[place - 1 : place + 1]
        return time + a + (b - a) * (time - t0) / (t1 - t0)


def clocks(ranks: Sequence[Rank]) -> dict[str, Clock]:
    """The clocks by name. The reference clock is rank 0's, or that of the lowest rank with a trace."""
    groups: dict[str, list[Rank]] = defaultdict(list)
    for rank in ranks:
        groups[rank.about["clock"]].append(rank)
    reference = ranks[0].about["clock"]
    made = {reference: Clock(0.0)}
    for name, members in groups.items():
        if name != reference:
            about = min((rank.about for rank in members), key=lambda about: about["doubt_us"])
            made[name] = Clock(about["offset_us"], bounds(groups[reference], members))
    return made


# ---- merging ----

def read(folder: Path, run: str | None = None) -> list[Rank]:
    """The ranks of a run, in order; of the last one when none is named. ValueError when there is none."""
    ranks = [Rank(path) for path in sorted(folder.glob("*-rank*.json"))]
    runs = {rank.about["run"]: rank.about["started"] for rank in ranks}
    if not runs or (run is not None and run not in runs):
        raise ValueError(f"no trace of {f'run {run}' if run else 'any run'} in {folder}; runs there: {', '.join(runs) or 'none'}")
    chosen = max(runs, key=lambda name: runs[name]) if run is None else run
    return sorted((rank for rank in ranks if rank.about["run"] == chosen), key=lambda rank: int(rank.about["rank"]))


def merge(ranks: Sequence[Rank]) -> list[dict[str, Any]]:
    """All events in order of time, from 0 on, on one clock; their process is the rank."""
    known = clocks(ranks)
    moved = []
    for rank in ranks:
        clock = known[rank.about["clock"]]
        for event in rank.events:
            moved.append({**event, "ts": clock.at(event["ts"])} if "ts" in event else event)
    start = min((event["ts"] for event in moved if "ts" in event), default=0.0)
    for event in moved:
        if "ts" in event:
            event["ts"] = round(event["ts"] - start, 3)
    return sorted(moved, key=lambda event: event.get("ts", -1.0))


def _merged(folder: Path) -> Iterator[Path]:
    """Candidate names for the result: an existing file belongs to another run, or has a user's changes."""
    yield folder / "merged.json"
    yield from (folder / f"merged-{number}.json" for number in count(2))


@command
def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser("arraycomm-trace", description="Merges the traces that ARRAYCOMM_TRACE made.")
    parser.add_argument("folder", type=Path, help="what ARRAYCOMM_TRACE named; copy the files of all hosts there")
    parser.add_argument("-o", "--output", type=Path,
                        help="FOLDER/merged.json by default, or the next free merged-N.json; for ui.perfetto.dev or chrome://tracing")
    parser.add_argument("--run", help="one of several; the last one by default")
    add_version(parser)
    given = parser.parse_args(arguments)
    try:
        ranks = read(given.folder, given.run)
        output = given.output or next(path for path in _merged(given.folder) if not os.path.lexists(path))
        if any(output.exists() and output.samefile(rank.path) for rank in ranks):
            parser.error(f"-o {output} is the trace of a rank, which is kept: choose another name")
        events = merge(ranks)
        with output.open("w" if given.output else "x", encoding="ascii") as file:
            file.write(json.dumps({"traceEvents": events, "displayTimeUnit": "ns"}))
    except (ValueError, OSError) as error:
        print(f"arraycomm-trace: {error}", file=sys.stderr)
        return 1
    missing = sorted(set(range(ranks[0].about["size"])) - {rank.about["rank"] for rank in ranks})
    print(f"{output}: {len(events)} events of {len(ranks)} of {ranks[0].about['size']} ranks on "
          f"{len({rank.about['clock'] for rank in ranks})} clocks" + (f"; missing are ranks {missing}" if missing else ""))
    return 0


if __name__ == "__main__":
    sys.exit(main())
