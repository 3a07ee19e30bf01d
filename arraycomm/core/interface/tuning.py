"""The selection file: which algorithm runs from how many bytes on, as `arraycomm-bench tune` measured it on a machine.

    {"arraycomm tuning": 2,
     "machine": {"cpu": "AMD EPYC", "cores": 2, "date": "2026-11-20", "arraycomm": "0.1.0"},
     "choices": [
      {"operation": "all_reduce", "transport": "shm", "ranks": 2, "use": [["whole", 4194304], ["sliced", null]]}]}

`use` is in order: an algorithm with the bytes of the whole array up to which it runs; the last has no limit. What a file
does not say, the engine's own table does. What was measured inside a host never counts between hosts: `transport` tells.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from typing import Any, NamedTuple

from arraycomm._engine import ffi, lib

from ..base import settings

VARIABLE = "ARRAYCOMM_TUNING"
FORMAT, VERSION = "arraycomm tuning", 2  # version 1 called loopback "tcp" too
# All ranks share memory, the same once arrays of group.empty() are used; sockets inside one host (ARRAYCOMM_TRANSPORT=tcp) and
# between hosts of which no two ranks share memory; hosts of which some do.
TRANSPORTS = ("shm", "symmetric", "loopback", "tcp", "hosts")
INSIDE = ("shm", "symmetric", "loopback")  # of these what one host has
_FABRIC = "FABRIC"
_RUNS = {"ANYWHERE": TRANSPORTS, "ONE_HOST": ("shm", "symmetric"), "SYMMETRIC": ("symmetric",), "HOSTS": ("hosts",),
         "EVEN_HOSTS": ("hosts",), "NEAR": INSIDE, _FABRIC: (), "DEDICATED": ("shm", "symmetric"),
         "DEDICATED_NEAR": INSIDE}  # acomm_row.where, by its number -> transports
_MACHINE = {"cpu": str, "cores": int, "date": str, "arraycomm": str}
_FIELDS = {"operation": str, "transport": str, "ranks": int, "use": list}
_FAR = 2.0  # a choice is used for at most this many times more or fewer ranks
MEASURED = (("AMD", 2), ("Intel", 2), ("Intel", 16))  # machines on which the engine's table was measured: vendor, CPUs
_ALWAYS = 2**64 - 1  # the engine's "no limit"


class Row(NamedTuple):
    """A row of the engine's table."""

    kind: str
    name: str
    function: str
    where: str  # of _RUNS
    max_ranks: int  # 0: any
    up_to: int | None  # bytes; None: any
    checks: bool  # compares the ranks' call signatures itself
    ahead: bool  # a sending root does not wait for the signature check
    ordered: bool  # reduces each element in rank order

    @property
    def transports(self) -> tuple[str, ...]:
        """The transports on which the row applies; empty: any transport by a library that has the algorithm."""
        return _RUNS[self.where]

    def fits(self, transport: str, ranks: int, dedicated: bool) -> bool:
        """Whether the row applies to this number of ranks and transport. dedicated: inside a host each rank has its own CPU."""
        here = transport in self.transports or (self.where == "NEAR" and transport == "tcp" and ranks <= 2)
        return here and (dedicated or not self.where.startswith("DEDICATED")) and (not self.max_ranks or ranks <= self.max_ranks)


class Pick(NamedTuple):
    """An algorithm, and the bytes of the whole array up to which it runs; None: no limit."""

    name: str
    up_to: int | None


class Choice(NamedTuple):
    """The algorithms for one operation, transport and number of ranks."""

    operation: str
    transport: str
    ranks: int
    picks: tuple[Pick, ...]


class Tuning(NamedTuple):
    """A validated selection file. machine: by the names of _MACHINE."""

    path: str
    digest: str
    machine: Mapping[str, Any]
    choices: tuple[Choice, ...]

    def __str__(self) -> str:
        return f"{self.digest} ({self.measured})"

    @property
    def measured(self) -> str:
        """The machine as text."""
        about = self.machine
        return f"measured on {about['cpu']}, {about['cores']} cores, {about['date']}, arraycomm {about['arraycomm']}"

    def picks(self, operation: str, transport: str, ranks: int) -> tuple[Pick, ...]:
        """The picks for the nearest number of ranks; inside a host, only with the same state of oversubscription."""
        return nearest(ranks, [(choice.ranks, choice.picks) for choice in self.choices
                               if choice.operation == operation and choice.transport == transport
                               and (transport not in INSIDE or self._dedicated(choice.ranks) == self._dedicated(ranks))])

    def _dedicated(self, ranks: int) -> bool:
        return ranks <= int(self.machine["cores"])

    def covered(self) -> str:
        """The transports and ranks with choices, as text: "shm (2, 4 ranks), loopback (2 ranks)"."""
        ranks: dict[str, set[int]] = {}
        for choice in self.choices:
            ranks.setdefault(choice.transport, set()).add(choice.ranks)
        return ", ".join(f"{transport} ({', '.join(map(str, sorted(of)))} ranks)" for transport, of in ranks.items())

    def engine_list(self, transport: str, ranks: int) -> str:
        """For acomm_group_options.tuned."""
        return ",".join(f"{operation}={pick.name}:{_ALWAYS if pick.up_to is None else pick.up_to}"
                        for operation in dict.fromkeys(choice.operation for choice in self.choices)
                        for pick in self.picks(operation, transport, ranks))


def nearest(ranks: int, lists: Iterable[tuple[int, tuple[Pick, ...]]]) -> tuple[Pick, ...]:
    """The list of the number of ranks that is nearest as a ratio (the smaller one of two), at most twice as many or as few; else
    nothing. Thresholds of two numbers cannot be interpolated: their lists may hold other algorithms."""
    near = [(max(ranks / number, number / ranks), number, picks) for number, picks in lists]
    ratio, _, picks = min(near, default=(_FAR + 1, 0, ()))
    return picks if ratio <= _FAR else ()


def machine(cores: int | None = None) -> dict[str, Any]:
    """This one, of which so many processors may be used; as it stands in the files."""
    return {"cpu": _cpu(), "cores": cores or len(os.sched_getaffinity(0)), "date": time.strftime("%Y-%m-%d"),
            "arraycomm": sys.modules["arraycomm"].__version__}


def _cpu() -> str:
    with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
        names = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
    return names[0] if names and names[0] else os.uname().machine  # AArch64 has none


def is_measured(about: Mapping[str, Any]) -> bool:
    """Whether the engine's table comes from a machine like this."""
    return any(about["cpu"].startswith(maker) and cores / _FAR <= about["cores"] <= cores * _FAR for maker, cores in MEASURED)


def rows() -> list[Row]:
    """The engine's table."""
    row = ffi.new("acomm_row *")
    found: list[Row] = []
    while lib.acomm_algorithm(len(found), row):
        kind, name, function = (ffi.string(text).decode() for text in (row.kind, row.name, row.function))
        found.append(Row(kind, name, function, list(_RUNS)[row.where], row.max_ranks,
                         None if row.up_to == _ALWAYS else row.up_to, bool(row.checks), bool(row.ahead), bool(row.ordered)))
    return found


def names(transport: str | None = None, *, library: bool = False) -> dict[str, list[str]]:
    """operation -> its algorithms (that run over a transport), in the order of the table. library: with that of MPI's own
    collectives, which a group over MPI has."""
    found: dict[str, list[str]] = {}
    for row in rows():
        found.setdefault(row.kind, [])
        here = transport is None or transport in row.transports or (library and not row.transports)
        if here and row.name not in found[row.kind]:
            found[row.kind].append(row.name)
    return found


def operations() -> list[str]:
    """Operations whose algorithm depends on size; the receive of long messages does not."""
    return [kind for kind in names() if kind != "recv"]


def shipped(operation: str, transport: str, ranks: int, dedicated: bool = False) -> tuple[Pick, ...]:
    """The engine's table, without rows that others hide."""
    return simplified([Pick(row.name, row.up_to) for row in rows()
                       if row.kind == operation and row.fits(transport, ranks, dedicated)])


def simplified(picks: Sequence[Pick]) -> tuple[Pick, ...]:
    """The same without unreachable picks, and with adjacent picks of one algorithm joined."""
    kept: list[Pick] = []
    for pick in picks:
        before = kept[-1].up_to if kept else -1
        if before is None:
            break
        if pick.up_to is not None and pick.up_to <= before:
            continue
        if kept and kept[-1].name == pick.name:
            kept.pop()
        kept.append(pick)
    return tuple(kept)


def described(picks: Sequence[Pick]) -> str:
    """As text: "whole to 4 MiB, sliced"."""
    return ", ".join(name if up_to is None else f"{name} to {size_text(up_to)}" for name, up_to in picks)


def size_text(number: int) -> str:
    """Bytes in the largest unit that leaves a whole number."""
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if number and number % unit == 0:
            return f"{number // unit} {name}"
    return f"{number} B"


def current(environ: Mapping[str, str] | None = None) -> Tuning | None:
    """The file of ARRAYCOMM_TUNING; None if it is not set. Raises ValueError for an invalid file."""
    path = settings.get(VARIABLE, environ)
    return read(path) if path else None


def read(path: str) -> Tuning:
    """Raises ValueError that names the file, the place in it and the remedy."""
    import json  # lazy: rarely needed in init()

    again = f"correct it, measure again (arraycomm-bench tune -o {path}), or unset {VARIABLE}"
    try:
        with open(path, "rb") as file:
            data = file.read()
        found = json.loads(data)
        machine, choices = _parse(found)
    except OSError as error:
        raise ValueError(f"cannot read the selection file {path!r} ({VARIABLE}): {error.strerror}; {again}") from error
    except json.JSONDecodeError as error:
        raise ValueError(f"selection file {path!r}, line {error.lineno}: {error.msg} (it is JSON); {again}") from None
    except ValueError as error:
        raise ValueError(f"selection file {path!r}: {error}; {again}") from None
    return Tuning(os.path.abspath(path), sha256(data).hexdigest()[:12], machine, choices)


def text(machine: Mapping[str, Any], choices: Sequence[Choice]) -> str:
    """The contents of a file: a line for each choice."""
    import json

    lines = [json.dumps({"operation": choice.operation, "transport": choice.transport, "ranks": choice.ranks,
                         "use": choice.picks}) for choice in choices]
    return (f'{{"{FORMAT}": {VERSION},\n "machine": {json.dumps(dict(machine))},\n "choices": [\n  '
            + ",\n  ".join(lines) + "]}\n")


def _parse(found: Any) -> tuple[Mapping[str, Any], tuple[Choice, ...]]:
    if not isinstance(found, dict) or FORMAT not in found:
        raise ValueError(f"it is none: it does not begin with {{\"{FORMAT}\": {VERSION}")
    version = found[FORMAT]
    if not isinstance(version, int) or version != VERSION:
        raise ValueError(f"its version is {version!r}, this arraycomm reads version {VERSION}")
    _fields(found, {FORMAT: int, "machine": dict, "choices": list}, "the file")
    _fields(found["machine"], _MACHINE, "machine")
    if not all(str(value).isprintable() for value in found["machine"].values()):
        raise ValueError("machine: it holds what cannot be printed")
    choices = tuple(_choice(entry, f"choices[{number}]") for number, entry in enumerate(found["choices"]))
    seen: dict[tuple[str, str, int], int] = {}
    for number, choice in enumerate(choices):
        if (first := seen.setdefault(choice[:3], number)) != number:
            raise ValueError(f"choices[{number}] is about the same as choices[{first}]: leave one of them")
    return found["machine"], choices


def _fields(entry: Any, wanted: Mapping[str, type], place: str) -> None:
    if not isinstance(entry, dict):
        raise ValueError(f"{place} must be an object with {', '.join(wanted)}")
    for name in entry:
        if name not in wanted:
            raise ValueError(f"{place}: unknown field {name!r}; there are {', '.join(wanted)}")
    for name, kind in wanted.items():
        if name not in entry:
            raise ValueError(f"{place}: {name} is missing")
        if not isinstance(entry[name], kind) or isinstance(entry[name], bool):
            raise ValueError(f"{place}: {name} must be of type {kind.__name__}, got {entry[name]!r}")


def _choice(entry: Any, place: str) -> Choice:
    _fields(entry, _FIELDS, place)
    operation, transport, ranks = entry["operation"], entry["transport"], entry["ranks"]
    place += f" ({operation} over {transport}, {ranks} ranks)"
    _known(operation, operations(), f"{place}: unknown operation")
    _known(transport, TRANSPORTS, f"{place}: unknown transport")
    if ranks < 2:
        raise ValueError(f"{place}: ranks must be at least 2")
    picks = tuple(_pick(item, names(transport)[operation], f"{place}: use[{number}]") for number, item in enumerate(entry["use"]))
    if not picks or picks[-1].up_to is not None:
        raise ValueError(f"{place}: use must end with an algorithm whose limit is null")
    limits = [-1 if pick.up_to is None else pick.up_to for pick in picks[:-1]]
    if -1 in limits or limits != sorted(set(limits)):
        raise ValueError(f"{place}: use must have rising limits, null at the end alone")
    return Choice(operation, transport, ranks, picks)


def _pick(item: Any, known: Sequence[str], place: str) -> Pick:
    if not isinstance(item, list) or len(item) != 2 or not isinstance(item[0], str):
        raise ValueError(f"{place} must be [algorithm, bytes or null], got {item!r}")
    name, up_to = item
    _known(name, known, f"{place}: unknown algorithm")
    if up_to is not None and (not isinstance(up_to, int) or isinstance(up_to, bool) or not 0 <= up_to < _ALWAYS):
        raise ValueError(f"{place}: the limit must be a number of bytes or null, got {up_to!r}")
    return Pick(name, up_to)


def _known(name: str, known: Any, what: str) -> None:
    if name not in known:
        raise ValueError(f"{what} {name!r}; there are {', '.join(known)}")
