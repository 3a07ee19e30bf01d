"""How long an operation over shared memory takes by a model of the machine, made of what it can do (a roofline).

Small: every rank calls into C and learns of the others by one trip of a cache line. Ranks that share a processor do so
one after another, and all but one of the switches between them are on the way. Large: every byte that is received is
written once, at the speed of a copy, by as many ranks at once as there are processors; of a reduce_scatter, which reads
more than it writes, half of both counts. Of arrays that do not all fit into the L3 cache, as much as fits counts as copied
there. The larger of both counts: whether they can overlap is what an algorithm has to find out. It is no bound: an operation
that finds more in caches than is counted here takes less.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

_VERSION = 1


@dataclass(frozen=True)
class Limits:
    """A machine as `arraycomm-bench limits` found it. figures: machine.measure()."""

    cpus: int
    l2: int
    l3: int
    figures: Mapping[str, float | None] = field(default_factory=dict)

    def bandwidth(self, size: int, together: bool, ranks: int = 1) -> float:
        """Bytes per microsecond that a process copies when `ranks` have an array of `size` bytes and its copy each. Ranks
        that share a processor share its L2, all share the L3; what does not fit into that comes from memory."""
        suffix = "_together" if together else ""
        if 2 * size * -(-ranks // self.cpus) <= self.l2:
            return self._copy(f"l2{suffix}")
        cached = min(1.0, self.l3 / (2 * size * ranks))
        return 1 / (cached / self._copy(f"l3{suffix}") + (1 - cached) / self._copy(f"memory{suffix}", f"memory_4k{suffix}"))

    def _copy(self, *places: str) -> float:
        found = [self.figures.get(f"copy_{place}") for place in places]
        return max(figure for figure in found if figure is not None) * 1e3

    def time(self, operation: str, size: int, ranks: int) -> float:
        """Microseconds, by the model. size: bytes as in the comparison, 0 for a barrier."""
        return max(self._small(ranks), self._large(operation, size, ranks))

    def _small(self, ranks: int) -> float:
        crowd = -(-ranks // self.cpus)
        entry = (self.figures.get("call") or 0.0) + (self.figures.get("shared_memory_ping") or 0.0) / 2
        return crowd * entry + (crowd - 1) * (self.figures.get("switch") or 0.0)

    def _large(self, operation: str, size: int, ranks: int) -> float:
        # Who writes, and how much each of them.
        writers, each = {
            "reduce_scatter": (ranks, size * (1 + 1 / ranks) / 2),
            "broadcast": (ranks - 1, size),
            "sendrecv": (ranks // 2, size),
            "barrier": (ranks, 0),
        }.get(operation, (ranks, size))
        if not writers or not each:
            return 0.0
        active = min(writers, self.cpus)
        return writers * each / active / self.bandwidth(size, active > 1, ranks)


def write(path: str, limits: Limits, about: Mapping[str, Any]) -> None:
    with open(path, "w", encoding="utf-8") as file:
        json.dump({"version": _VERSION, **about, **asdict(limits)}, file, indent=1)
        file.write("\n")


def read(path: str) -> Limits:
    """What `write` wrote. Raises OSError, or ValueError with what is wrong."""
    with open(path, encoding="utf-8") as file:
        found = json.load(file)
    if not isinstance(found, dict) or found.get("version") != _VERSION:
        raise ValueError(f"{path} is not what `arraycomm-bench limits --json` writes (version {_VERSION})")
    return Limits(found["cpus"], found["l2"], found["l3"], found["figures"])
