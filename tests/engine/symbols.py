"""What the engine's objects use of each other, as `nm` shows it."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

Uses = dict[Path, dict[Path, set[str]]]  # source: {source: symbols}


def uses(objects: Mapping[Path, Path]) -> Uses:
    """`objects`: the object file of each source."""
    needed: dict[Path, set[str]] = {}
    home: dict[str, Path] = {}
    for source, target in objects.items():
        needed[source] = set()
        listed = subprocess.run(["nm", str(target)], capture_output=True, text=True, check=True, timeout=60)
        for line in listed.stdout.splitlines():
            *_, kind, symbol = line.split()
            if kind == "U":
                needed[source].add(symbol)
            elif kind in "TDBRC":
                home[symbol] = source
    graph: Uses = {source: {} for source in objects}
    for source, symbols in needed.items():
        for symbol in symbols & home.keys():
            graph[source].setdefault(home[symbol], set()).add(symbol)
    return graph


def cycles(graph: Uses) -> Iterator[set[Path]]:
    """Sets of sources each of which reaches all others of its set (strongly connected components: Tarjan, 1972)."""
    number: dict[Path, int] = {}
    lowest: dict[Path, int] = {}
    stack: list[Path] = []

    def visit(at: Path) -> Iterator[set[Path]]:
        number[at] = lowest[at] = len(number)
        stack.append(at)
        for to in graph[at]:
            if to not in number:
                yield from visit(to)
                lowest[at] = min(lowest[at], lowest[to])
            elif to in stack:
                lowest[at] = min(lowest[at], number[to])
        if lowest[at] == number[at]:
            members = stack[stack.index(at):]
            del stack[stack.index(at):]
            yield set(members)

    for source in graph:
        if source not in number:
            yield from visit(source)
