"""The comparison as one HTML page that needs no other file: machine, method, summary, plots, and every cell."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from .plot import RATIO_TITLE, compare_panels, ratio_panels, short_size, short_value, svg
from .results import Cell, Verdict, summaries
from .table import transport

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 76rem; margin: 2rem auto; padding: 0 1rem; color: #222; background: #fff }
table { border-collapse: collapse; margin: 1rem 0; font-variant-numeric: tabular-nums; font-size: 14px }
th { background: #f2f2f2 }
th, td { padding: .2rem .6rem; border-bottom: 1px solid #ddd; text-align: right }
th:first-child, td:first-child, .text th, .text td { text-align: left }
.scroll { overflow-x: auto }
svg { width: 100%; height: auto }"""
_METHOD = """All libraries were alive at once and took turns, forward and back; libraries that waited slept. A time is that of one
call on the slowest rank, the median over batches of back-to-back calls. A ratio is the time of the best other library over
arraycomm's: above 1 arraycomm is faster. In brackets stand its lowest and highest value over the rounds. "Ahead" counts ratios
above 1; a cell is "faster" or "slower" only if the whole range lies on that side of 1. Every library's result was checked once in
each cell; WRONG marks data that were not right. The plots show no bound of the machine."""


def write_html(path: str, cells: Sequence[Cell], network: Sequence[str], about: Mapping[str, Any]) -> None:
    """about: as in the JSON file."""
    rounds = sorted({len(timing.rounds) for cell in cells for timing in cell.timings.values()})
    title = f"arraycomm beside other libraries, {about['dtype']}"
    facts = (f"{about['cpu']}, {about['cpus']} processors, {about['machine']}, {about['end_time']}; "
             f"rounds of a cell: {_span(rounds)}; busy processes beside: {about['beside_load']}"
             + ("; inputs written before each call" if about.get("write") else ""))
    note = f"<p><b>Note.</b> {escape(about['note'])}</p>" if "note" in about else ""
    parts = [f"<h1>{escape(title)}</h1>", f"<p><b>Machine.</b> {escape(facts)}.</p><p><b>Method.</b> {_METHOD}</p>", note,
             _table(["library", "version", "moves data by"],
                    [[name, found["version"], transport(name, network)] for name, found in about["contenders"].items()], "text"),
             *(f"<p>{escape(name)} took no part: {escape(str(reason))}</p>" for name, reason in about["skipped"].items()),
             *(f"<p>Failed: {escape(entry['error'])}</p>" for entry in about["failed"]),
             "<h2>Summary</h2>", _table(_SUMMARY, _summary(cells, network), "text"),
             "<h2>Ratios</h2>", _plot(ratio_panels(cells, network), RATIO_TITLE),
             "<h2>Times</h2>", _plot(compare_panels(cells), "time of a call"), "<h2>Every cell</h2>", *_cells(cells, network)]
    with open(path, "w", encoding="utf-8") as file:
        file.write(f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>\n'
                   f"<style>{_STYLE}</style></head>\n<body>\n" + "\n".join(parts) + "\n</body></html>\n")


def _span(numbers: Sequence[int]) -> str:
    return f"{numbers[0]}" if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]}"


def _plot(panels: Sequence[Any], title: str) -> str:
    return f'<div class="scroll">{svg(panels, title)}</div>' if panels else "<p>Nothing to compare with.</p>"


def _table(head: Sequence[str], rows: Iterable[Sequence[object]], kind: str = "") -> str:
    def line(tag: str, row: Sequence[object]) -> str:
        return f"<tr>{''.join(f'<{tag}>{escape(str(text))}</{tag}>' for text in row)}</tr>"

    lines = [line("th", head), *(line("td", row) for row in rows)]
    return "\n".join([f'<div class="scroll"><table class="{kind}">', *lines, "</table></div>"])


_SUMMARY = ("ranks", "arraycomm over", "beside", "cells", "ahead", "faster", "unclear", "slower", "wrong", "geometric mean",
            "worst cell")


def _summary(cells: Sequence[Cell], network: Sequence[str]) -> Iterable[Sequence[object]]:
    for ranks in dict.fromkeys(cell.ranks for cell in cells):
        own = [cell for cell in cells if cell.ranks == ranks]
        for found in summaries(own, network):
            verdicts = [(verdict, cell) for cell in own for verdict in cell.verdicts(network) if verdict.ours == found.ours]
            worst, its = min(verdicts, key=lambda pair: pair[0].ratio)
            yield (ranks, found.ours, ", ".join(found.against), found.cells, sum(verdict.ratio > 1 for verdict, _ in verdicts),
                   found.faster, found.unclear, found.slower, found.wrong, f"{found.mean:.2f}",
                   f"{its.operation} {_size(its)}: {_ratio(worst)} beside {worst.best}")


def _size(cell: Cell) -> str:
    return short_size(cell.size) if cell.size else ""


def _ratio(verdict: Verdict) -> str:
    return f"{verdict.ratio:.2f} ({verdict.low:.2f}\N{EN DASH}{verdict.high:.2f})"


def _cells(cells: Sequence[Cell], network: Sequence[str]) -> Iterable[str]:
    """A table for each number of ranks."""
    for ranks in dict.fromkeys(cell.ranks for cell in cells):
        own = [cell for cell in cells if cell.ranks == ranks]
        names = list(dict.fromkeys(name for cell in own for name in cell.timings))
        yield f"<h3>{ranks} ranks</h3>"
        yield _table(["operation", "size", *names, "best other", "ratio", "verdict"],
                     [row for cell in own for row in _rows(cell, names, network)])


def _rows(cell: Cell, names: Sequence[str], network: Sequence[str]) -> Iterable[Sequence[str]]:
    """A row for each verdict, or one without any."""
    times = [_time(cell, name) for name in names]
    found = [(verdict.best, f"{verdict.ours}: {_ratio(verdict)}", verdict.word) for verdict in cell.verdicts(network)]
    for last in found or [("", "", "")]:
        yield [cell.operation, _size(cell), *times, *last]


def _time(cell: Cell, name: str) -> str:
    timing = cell.timings.get(name)
    if timing is None:
        return "\N{EN DASH}"
    return "WRONG" if timing.wrong else short_value(float(f"{timing.time:.3g}"), "us")
