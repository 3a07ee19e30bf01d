"""The comparison as a table and as JSON."""

from __future__ import annotations

import json
from collections.abc import Container, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from .report import figure
from .results import OURS, Cell, Summary, Timing, Verdict, rivals, summaries

_VERSION = 3


class Table:
    """Lines for the cells of one number of ranks: one for each arraycomm contender that has a rival in the cell."""

    def __init__(self, contenders: Sequence[str], network: Sequence[str]) -> None:
        self.peers = [name for name in contenders if not name.startswith(OURS)]
        self.ours = [name for name in contenders if name.startswith(OURS)]
        self.network = network

    def notes(self) -> list[str]:
        """The contenders and their rivals, printed above the header."""
        found = {name: rivals(name, self.peers, self.network) for name in self.ours}
        lines = [f"# {name} is compared with {', '.join(against) or 'nobody'}" for name, against in found.items()]
        if any(len(against) < len(self.peers) for against in found.values()):
            lines.append("# (in brackets: a peer through shared memory beside ours through sockets, which are not compared)")
        return lines

    def header(self) -> str:
        peers = "".join(f"  {name:>11}" for name in self.peers)
        return (f"# {'operation':>14}  {'size':>10}  {'ours':>14}  {'time(us)':>9}{peers}  {'best':>11}  {'ratio':>7}  "
                f"{'low':>7}  {'high':>7}  {'verdict':>7}")

    def lines(self, cell: Cell) -> list[str]:
        return [self._line(cell, verdict) for verdict in cell.verdicts(self.network)]

    def _line(self, cell: Cell, verdict: Verdict) -> str:
        time = cell.timings[verdict.ours].time
        peers = "".join("  " + _time(cell.timings.get(name), name in verdict.against) for name in self.peers)
        ratios = "  ".join(figure(ratio, 7) for ratio in (verdict.ratio, verdict.low, verdict.high))
        return (f"{cell.operation:>16}  {cell.size:10}  {verdict.ours:>14}  {figure(time, 9)}{peers}  "
                f"{verdict.best:>11}  {ratios}  {verdict.word:>7}")


def _time(timing: Timing | None, compared: bool) -> str:
    if timing is None:
        return f"{'-':>11}"
    if timing.wrong:
        return f"{'WRONG':>11}"
    return figure(timing.time, 11) if compared else f"{'(' + figure(timing.time, 7).strip() + ')':>11}"


def transport(name: str, network: Container[str]) -> str:
    """How a contender moves data."""
    return "sockets" if name in network else "shared memory"


def percentiles(cells: Sequence[Cell]) -> list[str]:
    """The percentiles of single calls, a line for each contender in each cell."""
    head = f"# {'operation':>14}  {'np':>3}  {'size':>10}  {'contender':>14}  {'p50(us)':>9}  {'p95(us)':>9}  {'p99(us)':>9}"
    rows = [f"{cell.operation:>16}  {cell.ranks:3}  {cell.size:10}  {name:>14}  "
            + "  ".join(figure(point, 9) for point in (timing.p50, timing.p95, timing.p99))
            for cell in cells for name, timing in cell.timings.items()]
    return [head, *rows]


def summary_line(summary: Summary) -> str:
    return (f"# {summary.ours} beside {', '.join(summary.against)}: {summary.cells} cells: {summary.faster} faster, "
            f"{summary.unclear} unclear, {summary.slower} slower, {summary.wrong} wrong; "
            f"geometric mean of the ratios {summary.mean:.2f}")


def write_json(path: str, cells: Sequence[Cell], network: Sequence[str], about: Mapping[str, Any]) -> None:
    """Every cell, a line each, with every batch and the verdicts; `about`: contenders, versions, what was skipped or failed."""
    lines = ",\n".join(json.dumps(_entry(cell, network)) for cell in cells)
    head = json.dumps({"version": _VERSION, **about, "summaries": [asdict(summary) for summary in summaries(cells, network)]},
                      indent=1)
    Path(path).write_text(f'{head[:-2]},\n "cells": [\n{lines}\n]}}\n', encoding="utf-8")


def _entry(cell: Cell, network: Sequence[str]) -> dict[str, Any]:
    return {"operation": cell.operation, "ranks": cell.ranks, "size": cell.size, "dtype": cell.dtype,
            "timings": {name: {"time": timing.time, **asdict(timing)} for name, timing in cell.timings.items()},
            "verdicts": [{**asdict(verdict), "verdict": verdict.word} for verdict in cell.verdicts(network)]}


def read_json(paths: Sequence[str]) -> tuple[list[Cell], list[str], dict[str, Any]]:
    """Cells by number of ranks, network and `about` of files of one machine, of which a cell counts once: the last file's."""
    documents = [json.loads(Path(path).read_text(encoding="utf-8")) for path in paths]
    cells = {}
    for entry in (entry for document in documents for entry in document["cells"]):
        timings = {name: Timing(**{part: value for part, value in timing.items() if part != "time"})
                   for name, timing in entry["timings"].items()}
        key = entry["ranks"], entry["operation"], entry["size"], entry["dtype"]
        cells[key] = Cell(entry["operation"], entry["ranks"], entry["size"], entry["dtype"], timings)
    about = {name: value for name, value in documents[-1].items() if name not in ("version", "cells", "summaries")}
    about["contenders"] = {name: {"version": found["version"], "transport": found["transport"]}
                           for document in documents for name, found in document["contenders"].items()}
    network = [name for name, found in about["contenders"].items() if found["transport"] == "sockets"]
    order = list(dict.fromkeys(operation for _, operation, _, _ in cells))
    found = sorted(cells, key=lambda key: (key[0], order.index(key[1]), key[2]))
    return [cells[key] for key in found], network, about
