"""Worlds of ranks on this host for one measurement, which return the first rank's result; and settings of their groups."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from arraycomm.launch.spawn import spawn


def run(ranks: int, function: Callable[..., Any], *arguments: Any) -> Any:
    """function(*arguments) on every rank, where it may call init(). Gives the first rank's result. Raises as spawn()."""
    return spawn(_rank, (function, *arguments), ranks)[0]


@contextmanager
def environment(variables: dict[str, str]) -> Iterator[None]:
    """Sets these variables for the groups that are opened inside."""
    before = {name: os.environ.get(name, "") for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.update(before)  # an empty variable counts as unset


def _rank(_: int, function: Callable[..., Any], *arguments: Any) -> Any:
    return function(*arguments)
