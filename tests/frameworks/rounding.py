"""What compressed_all_reduce may lose, as arraycomm/frameworks/compression.py states it, and numbers that show it."""

from __future__ import annotations

from typing import Any

import numpy as np


def contribution(rank: int, count: int) -> np.ndarray[Any, Any]:
    """A rank's float32, of twelve decimal orders."""
    rng = np.random.default_rng(rank)
    return (rng.normal(size=count) * 10.0 ** rng.integers(-6, 6, size=count)).astype(np.float32)


def rounding(x: Any, scheme: str, block: int) -> Any:
    """The module's table, per element; x is flat."""
    if scheme == "bfloat16":
        return np.abs(x) * 2.0**-8
    padded = np.zeros(-(-len(x) // block) * block)
    padded[: len(x)] = np.abs(x)
    largest = padded.reshape(-1, block).max(axis=1).repeat(block)[: len(x)]
    return largest * 2.0**-7.9 if scheme == "int8" else np.maximum(np.abs(x) * 2.0**-4, largest * 2.0**-18)
