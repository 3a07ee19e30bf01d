"""Tasks: groups under a selection file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from arraycomm.core.interface.kinds import KINDS

from .worlds import Context

_FLOAT32 = 11  # enum acomm_dtype


def chosen(context: Context, expected: Mapping[str, Mapping[str, str]]) -> None:
    """What runs for so many elements (the keys are strings: of the whole array, 4 bytes each) of an operation."""
    engine: Any = context.group._communicator
    for operation, by_count in expected.items():
        for count, name in by_count.items():
            found = engine.algorithm(KINDS[operation].number, int(count), _FLOAT32, 0)
            context.check(found == name, f"{operation} of {count}: {found}, expected {name}")


def of_half(context: Context, operation: str, name: str) -> None:
    """A group of two has what the file says for two."""
    half = context.group.split(context.rank // 2)
    assert half is not None
    with half:
        engine: Any = half._communicator
        found = engine.algorithm(KINDS[operation].number, 1, _FLOAT32, 0)
        context.check(found == name, f"{operation} in a half: {found}, expected {name}")
        half.barrier()
