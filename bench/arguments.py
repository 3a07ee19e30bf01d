"""Option types for argparse: they return the value, or raise ArgumentTypeError with the valid values."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial

from arraycomm.launch import job

_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


def parse_size(text: str) -> int:
    """Bytes from "8", "64K", "1.5M" or "1G"."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmg]?)(?:i?b)?", text.strip().lower())
    if not match:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size; write 8, 64K, 1.5M or 1G")
    return int(float(match[1]) * _UNITS[match[2]])


def parse_sizes(text: str) -> tuple[int, ...]:
    """The sizes of a comma-separated list."""
    return tuple(map(parse_size, text.split(",")))


def at_least(low: int) -> Callable[[str], int]:
    """A type for whole numbers from `low` on."""
    return partial(job.at_least, low)


def numbers(low: int) -> Callable[[str], tuple[int, ...]]:
    """A type for comma-separated whole numbers, each once."""
    one = at_least(low)
    return lambda text: tuple(dict.fromkeys(map(one, text.split(","))))


def some_of(known: Collection[str], what: str,
            others: Mapping[str, Sequence[str]] | None = None) -> Callable[[str], tuple[str, ...]]:
    """A type for comma-separated names, each once. others: the expansion of further words."""
    meaning = {**{name: (name,) for name in known}, **(others or {})}

    def names(text: str) -> tuple[str, ...]:
        chosen = text.split(",")
        for name in chosen:
            if name not in meaning:
                raise argparse.ArgumentTypeError(f"unknown {what} {name!r}; choose from {', '.join(meaning)}")
        return tuple(dict.fromkeys(one for name in chosen for one in meaning[name]))

    return names


def plot_file(text: str) -> str:
    if not text.endswith((".svg", ".png")):
        raise argparse.ArgumentTypeError(f"{text!r} must end in .svg or .png")
    return text
