"""arraycomm-bench tune: measures which algorithm is fastest here from how many bytes on, and writes a selection file.

    arraycomm-bench tune -o tuning.json
    ARRAYCOMM_TUNING=tuning.json arraycomm-run ...

A limit moves away from the engine's own table only where every round shows a gain. Under a launcher (arraycomm-run, torchrun,
mpirun ...) the launcher's ranks are measured: over several hosts, the network between them. --hosts has network namespaces
for hosts.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Any

from arraycomm.core.bootstrap.environment import Place, detect
from arraycomm.core.interface import tuning

from . import tune_hosts, tune_table
from .arguments import at_least, numbers, parse_sizes, some_of
from .collectives import COLLECTIVES
from .options import require_writable
from .report import figure
from .spaces import SpaceError, obstacle
from .tune_choose import Cell, Decision, as_samples, at, decide, from_samples
from .tune_measure import Plan, measure
from .worlds import run

OPERATIONS = tuple(name for name in tuning.operations() if name in COLLECTIVES)  # that it can measure
INSIDE = ("shm", "symmetric", "loopback")  # what one host has
SIZES = "64,256,1K,4K,16K,64K,256K,1M,4M,16M"
_LEAST_ROUNDS = 3  # a range over fewer says nothing
_SAMPLES = "arraycomm samples"
_VERSION = 2  # version 1 called loopback "tcp" too


def _rounds(text: str) -> int:
    if not text.isdecimal() or 0 < int(text) < _LEAST_ROUNDS:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of rounds: at least {_LEAST_ROUNDS}, or 0 to measure nothing")
    return int(text)


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="arraycomm-bench tune", description=__doc__,
                                   formatter_class=argparse.RawDescriptionHelpFormatter)
    add = made.add_argument
    add("--ops", type=some_of(OPERATIONS, "operation"), default=OPERATIONS, metavar="OP,...",
        help=f"some of {', '.join(OPERATIONS)} (all)")
    add("--np", type=numbers(2), default=None, metavar="N,...", help="numbers of ranks; groups of others take the nearest (2,4)")
    add("--transport", type=some_of(tuning.TRANSPORTS, "transport"), default=(), metavar="WAY,...",
        help=f"some of {', '.join(INSIDE)}; symmetric: arrays of group.empty(), loopback: ARRAYCOMM_TRANSPORT=tcp (all; over "
             "several hosts what they have: tcp for one rank each, else hosts)")
    add("--hosts", type=at_least(1), default=1, metavar="N",
        help="network namespaces that the ranks are dealt out to; needs root (1)")
    add("--rate", metavar="RATE", help="with --hosts: what a host may send, as tc's tbf takes it, e.g. 1gbit (no limit)")
    add("--sizes", type=lambda text: tuple(sorted(set(parse_sizes(text)))), default=SIZES,
        metavar="SIZE,...", help=f"bytes of the whole array; the largest stands for all that are longer ({SIZES})")
    add("--rounds", type=_rounds, default=7, help="0: none, only what --samples holds (7)")
    add("--samples", metavar="FILE", help="adds the times to this file, and chooses by all times in it: to measure in slices")
    add("-o", "--output", metavar="FILE", help="the selection file, for ARRAYCOMM_TUNING")
    add("--table", action="store_true",
        help="print the rows of collectives/table.h; what moves in them is a gain for every number of ranks that was measured")
    return made


def main(arguments: list[str]) -> int:
    """The exit code: 0, 1 when a rank failed, 2 for what cannot be done."""
    made = parser()
    given = made.parse_args(arguments)
    if not given.rounds and not given.samples:
        made.error("--rounds 0 measures nothing: name the samples with --samples")
    try:
        place = detect(os.environ)
        leads = place is None or place.rank == 0
        _check_layout(given, place)
        known = _read(given.samples) if given.samples and leads else []
        if given.table and leads:
            tune_table.source_rows()
        for path in filter(None, (given.output, given.samples) if leads else ()):
            require_writable(path)
    except ValueError as error:
        print(f"arraycomm-bench tune: {error}", file=sys.stderr)
        return 2
    try:
        return _run(given, known, place, leads)
    except SpaceError as error:
        print(f"arraycomm-bench tune: {error}", file=sys.stderr)
        return 2


def _check_layout(given: argparse.Namespace, place: Place | None) -> None:
    """Raises ValueError where what was asked for has no ranks to be measured with. Fills in np."""
    if place is not None:
        if given.np not in (None, (place.size,)) or given.hosts > 1:
            raise ValueError(f"--{'hosts' if given.hosts > 1 else 'np'}, but this process is a rank of a world of {place.size} "
                             f"already ({place.launcher}); leave it out to measure that")
        given.np, hosts = (place.size,), place.size // (place.local_size or place.size)
    else:
        given.np, hosts = given.np or ((2 * given.hosts,) if given.hosts > 1 else (2, 4)), given.hosts
        if reason := obstacle(hosts, given.np):
            raise ValueError(reason)
    for ranks in given.np:
        has = _layout(ranks, hosts)
        for way in given.transport:
            if way not in has:
                raise ValueError(f"--transport {way}: {ranks} ranks on {hosts} host{'s' * (hosts > 1)} have "
                                 f"{', '.join(has)} only")


def _layout(ranks: int, hosts: int) -> tuple[str, ...]:
    """The transports that there are."""
    return INSIDE if hosts == 1 else ("tcp",) if hosts == ranks else ("hosts",)


def _run(given: argparse.Namespace, known: list[Cell], place: Place | None, leads: bool) -> int:
    measured: list[Cell] = []
    for ranks in given.np if given.rounds else ():
        hosts = given.hosts if place is None else ranks // (place.local_size or ranks)
        plan = Plan(given.ops, given.transport or _layout(ranks, hosts), given.sizes, given.rounds)
        if place is not None:
            measured = _measure_here(plan)
            continue
        found = _world(ranks, plan) if hosts == 1 else tune_hosts.measure(hosts, given.rate, ranks, plan)
        if found is None:
            return 1
        measured += found
    if leads:
        _finish(given, from_samples(as_samples([*known, *measured])))
    return 0


def _measure_here(plan: Plan) -> list[Cell]:
    """As a rank of the world that the environment names."""
    import arraycomm

    for name in (tuning.VARIABLE, "ARRAYCOMM_ALGORITHM"):
        os.environ.pop(name, None)  # the engine's own table is what others are measured beside
    group: Any
    with arraycomm.init() as group:
        return measure(group, plan)


def samples(plan: Plan) -> list[dict[str, Any]]:
    """As a rank of ours: what all have measured."""
    return as_samples(_measure_here(plan))


def _world(ranks: int, plan: Plan) -> list[Cell] | None:
    """None when a rank failed, which has been reported."""
    from arraycomm.launch.errors import ProcessError

    try:
        return from_samples(run(ranks, samples, plan))
    except ProcessError as error:
        print(f"arraycomm-bench tune: {error}", file=sys.stderr)
        return None


def _finish(given: argparse.Namespace, cells: list[Cell]) -> None:
    decisions = decide(cells, together=given.table)
    for decision in decisions:
        for line in lines(decision):
            print(line)
    if given.samples:
        _write_samples(given.samples, cells)
    if given.output:
        Path(given.output).write_text(tuning.text(machine(), [decision.choice for decision in decisions]))
        print(f"# written: {given.output}, for ARRAYCOMM_TUNING")
    for line in tune_table.rows([decision.choice for decision in decisions]) if given.table else []:
        print(line)
    if given.table and any(decision.choice.transport == "tcp" for decision in decisions):
        print("# the rows say nothing of what was measured over tcp between hosts: that is of this network, and for a file (-o)")


def lines(decision: Decision) -> list[str]:
    """Times of all algorithms; what is chosen is marked, by + where the engine's table has another, which then has a -."""
    choice = decision.choice
    measured = {name for cell in decision.cells for name in cell.names}
    names = [name for name in tuning.names()[choice.operation] if name in measured]
    where = f"{choice.operation} over {choice.transport}, {choice.ranks} ranks"
    made = [f"# {where}: us per call, median of {min(len(cell.rounds) for cell in decision.cells)} rounds",
            "# " + f"{'size':>12}" + "".join(f"  {name:>13} " for name in names)]
    for cell in decision.cells:
        before, after = at(decision.table, cell.size), at(choice.picks, cell.size)
        marks = {before: "-", after: "*" if before == after else "+"}
        made.append(f"{cell.size:14}" + "".join(f"  {_time(cell.time(name))}{marks.get(name, ' ')}" for name in names))
    made.append(f"# {where}: {tuning.described(choice.picks)}; times over the best {decision.regret:.3f}")
    if decision.changed:
        made.append(f"#   the engine's table: {tuning.described(decision.table)}; {decision.table_regret:.3f}")
    for cell, before, after in decision.moved():
        ratios = cell.ratios(before, after)
        made.append(f"#   {tuning.size_text(cell.size)}: {before} takes {ratios[len(ratios) // 2]:.2f} ({ratios[0]:.2f}-"
                    f"{ratios[-1]:.2f}) of {after}'s time")
    return made


def _time(value: float | None) -> str:
    return f"{'-':>13}" if value is None else figure(value, 13)


def machine() -> dict[str, Any]:
    """Of the file's own "machine"."""
    from arraycomm import __version__

    return {"cpu": _cpu(), "cores": len(os.sched_getaffinity(0)), "date": date.today().isoformat(), "arraycomm": __version__}


def _cpu() -> str:
    with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
        names = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
    return names[0] if names and names[0] else platform.machine()  # AArch64 has none


def _read(path: str) -> list[Cell]:
    """The samples of a file that may not be there yet. Raises ValueError for those of another machine, and for another file."""
    try:
        found: Mapping[str, Any] = json.loads(Path(path).read_text())
        if found[_SAMPLES] != _VERSION:
            raise ValueError(f"its version is {found[_SAMPLES]!r}, this arraycomm knows {_VERSION}")
        here, there = ({name: about[name] for name in ("cpu", "cores")} for about in (machine(), found["machine"]))
        if here != there:
            raise ValueError(f"measured on {there['cpu']}, {there['cores']} cores, this machine is {here['cpu']}, "
                             f"{here['cores']} cores")
        return from_samples(found["cells"])
    except FileNotFoundError:
        return []
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"cannot add to the samples in {path!r}: {error!s}; give --samples another name") from error


def _write_samples(path: str, cells: list[Cell]) -> None:
    entries = ",\n  ".join(json.dumps(entry) for entry in as_samples(cells))
    Path(path).write_text(f'{{"{_SAMPLES}": {_VERSION},\n "machine": {json.dumps(machine())},\n "cells": [\n  {entries}]}}\n')
