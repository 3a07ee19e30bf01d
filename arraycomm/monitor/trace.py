"""`python -m arraycomm.trace FOLDER` merges the traces that a run's ranks wrote (ARRAYCOMM_TRACE), on rank 0's clock.

Offsets of other hosts' clocks are those that were measured when the run began. Clocks drift afterwards: see
docs/reference/distributed.md.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any

from arraycomm.core.base.command import add_version, command


class Rank:
    """The trace file of one rank: `about` (its metadata), `events`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.events: list[dict[str, Any]] = _events(path.read_text(encoding="ascii"))
        about = [event["args"] for event in self.events if event["name"] == "arraycomm"]
        if not about:
            raise ValueError(f"{path} is no trace of arraycomm")
        self.about: dict[str, Any] = about[0]


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


def read(folder: Path, run: str | None = None) -> list[Rank]:
    """The ranks of a run, in order; of the last one when none is named. ValueError when there is none."""
    ranks = [Rank(path) for path in sorted(folder.glob("*-rank*.json"))]
    runs = {rank.about["run"]: rank.about["started"] for rank in ranks}
    if not runs or (run is not None and run not in runs):
        raise ValueError(f"no trace of {f'run {run}' if run else 'any run'} in {folder}; runs there: {', '.join(runs) or 'none'}")
    chosen = max(runs, key=lambda name: runs[name]) if run is None else run
    return sorted((rank for rank in ranks if rank.about["run"] == chosen), key=lambda rank: int(rank.about["rank"]))


def offsets(ranks: Sequence[Rank]) -> dict[str, float]:
    """By clock: what is added to give rank 0's. Of the ranks with one clock the one with the least doubt counts."""
    doubtful_first = sorted(ranks, key=lambda rank: float(rank.about["doubt_us"]), reverse=True)
    return {rank.about["clock"]: rank.about["offset_us"] for rank in doubtful_first}


def merge(ranks: Sequence[Rank]) -> list[dict[str, Any]]:
    """All events in order of time, from 0 on, on one clock; their process is the rank."""
    known = offsets(ranks)
    moved = [{**event, "ts": event["ts"] + known[rank.about["clock"]]} if "ts" in event else event
             for rank in ranks for event in rank.events]
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
