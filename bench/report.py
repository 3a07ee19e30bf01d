"""The table as nccl-tests prints it, and the same figures as JSON."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from .data import label
from .sweep import Cell, Row

_REDOP_LABELS = {"product": "prod", "premul_sum": "mulsum", "": "none"}
_JSON_VERSION = 1


@dataclass(frozen=True)
class Summary:
    """The footer: wrong elements over all rows, and the mean of all bus bandwidths in GB/s."""

    wrong: int
    busbw: float

    @classmethod
    def of(cls, rows: Iterable[Row]) -> Summary:
        cells = [(row, cell) for row in rows for _, cell in row.cells()]
        moved = [cell.busbw for row, cell in cells if row.size]
        return cls(sum(cell.wrong or 0 for _, cell in cells), sum(moved) / len(moved) if moved else 0.0)


def figure(value: float, width: int) -> str:
    """A number in `width` columns with as many of two decimals as fit."""
    for decimals in (2, 1, 0):
        text = f"{value:{width}.{decimals}f}"
        if len(text) <= width:
            return text
    return f"{value:{width}.0e}"


def redop(op: str) -> str:
    return _REDOP_LABELS.get(op, op)


class Table:
    """Prints each row at once, so that a long run shows its progress. line: the output function."""

    def __init__(self, percentiles: bool, line: Callable[[str], None] | None = None) -> None:
        self.percentiles = percentiles
        self.line = line or partial(print, flush=True)

    def preamble(self, options: argparse.Namespace, ranks: Sequence[str]) -> None:
        """The parameters and the placement of the ranks."""
        step = f"{options.step_factor}(factor)" if options.step_factor else f"{options.step_bytes}(bytes)"
        self.line(f"# nRanks {len(ranks)} minBytes {options.min_bytes} maxBytes {options.max_bytes} step: {step} "
                  f"warmup iters: {options.warmup} iters: {options.calls or 'auto'} batches: {options.batches} "
                  f"validation: {options.checks}")
        self.line("#\n# Using devices")
        for rank in ranks:
            self.line(rank)

    def header(self, operation: str) -> None:
        lead, name = "# {:>10}  {:>12}  {:>8}  {:>6}  {:>6}", "  {:>7}  {:>6}  {:>6}  {:>6}"
        extra = "  {:>7}  {:>7}  {:>7}" if self.percentiles else ""
        columns, units = ["time", "algbw", "busbw", "#wrong"], ["(us)", "(GB/s)", "(GB/s)", ""]
        if self.percentiles:
            columns, units = [*columns, "p50", "p95", "p99"], [*units, "(us)", "(us)", "(us)"]
        side = len((name + extra).format(*columns))
        self.line(f"#\n# Collective test starting: {operation}\n#")
        self.line(lead.format("", "", "", "", "") + "out-of-place".center(side) + "in-place".center(side))
        self.line(lead.format("size", "count", "type", "redop", "root") + 2 * (name + extra).format(*columns))
        self.line(lead.format("(B)", "(elements)", "", "", "") + 2 * (name + extra).format(*units))

    def row(self, row: Row) -> None:
        lead = f"{row.size:12}  {row.count:12}  {label(row.dtype) or 'none':>8}  {redop(row.op):>6}  {row.root:6}"
        self.line(lead + self._cell(row.out_of_place) + self._cell(row.in_place))

    def _cell(self, cell: Cell | None) -> str:
        singles = 3 if self.percentiles else 0
        if cell is None:
            return "".join(f"  {'N/A':>{width}}" for width in (7, 6, 6, 6) + (7,) * singles)
        wrong = "N/A" if cell.wrong is None else f"{float(cell.wrong):g}"
        text = f"  {figure(cell.timing.time, 7)}  {figure(cell.algbw, 6)}  {figure(cell.busbw, 6)}  {wrong:>6}"
        points = (cell.timing.p50, cell.timing.p95, cell.timing.p99)
        return text + "".join(f"  {figure(point, 7)}" for point in points[:singles] if point is not None)

    def footer(self, summary: Summary) -> None:
        self.line(f"# Out of bounds values : {summary.wrong} {'FAILED' if summary.wrong else 'OK'}")
        self.line(f"# Avg bus bandwidth    : {summary.busbw:g}\n#")


def _figures(cell: Cell | None) -> dict[str, Any] | None:
    """nccl-tests' keys, then additional keys. Times in microseconds."""
    if cell is None:
        return None
    return {"alg_bw": cell.algbw, "bus_bw": cell.busbw, "nwrong": cell.wrong,
            **{name: value for name, value in asdict(cell.timing).items() if value is not None}}


def write_json(path: str, rows: Sequence[Row], options: argparse.Namespace, about: dict[str, Any]) -> None:
    """All rows, the configuration, and `about`: where it was measured, and with which versions."""
    summary = Summary.of(rows)
    document = {
        "version": _JSON_VERSION,
        "end_time": datetime.now().isoformat(timespec="seconds"),
        **about,
        "config": {
            "minimum_bytes": options.min_bytes, "maximum_bytes": options.max_bytes,
            "step_factor": options.step_factor or None,
            "step_bytes": None if options.step_factor else options.step_bytes,
            "warmup_iters": options.warmup, "iterations": options.calls or None, "batches": options.batches,
            "validation": options.checks, "average": options.average, "framework": options.framework,
        },
        "results": [
            {"operation": row.operation, "size": row.size, "count": row.count, "type": label(row.dtype) or None,
             "redop": redop(row.op), "root": row.root, "out_of_place": _figures(row.out_of_place),
             "in_place": _figures(row.in_place)}
            for row in rows
        ],
        "out_of_bounds": {"count": summary.wrong, "okay": summary.wrong == 0},
        "average_bus_bandwidth": {"bandwidth": summary.busbw},
    }
    Path(path).write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
