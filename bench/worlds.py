"""Worlds of ranks on this host for one measurement, which return the first rank's result; and settings of their groups."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from arraycomm.launch.spawn import spawn


def run(ranks: int, function: Callable[..., Any], *arguments: Any) -> Any:
    """function(*arguments) on every rank, where it may call init(). Gives the first rank's result, as JSON carries it.

    Raises as spawn() when a rank fails.
    """
    with tempfile.TemporaryDirectory(prefix="arraycomm-bench-") as folder:
        path = Path(folder, "found")
        spawn(_rank, (function, arguments, path), ranks)
        return json.loads(path.read_text())


@contextmanager
def environment(variables: dict[str, str]) -> Iterator[None]:
    """Sets these variables for the groups that are opened inside."""
    before = {name: os.environ.get(name, "") for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.update(before)  # an empty variable counts as unset


def _rank(number: int, function: Callable[..., Any], arguments: tuple[Any, ...], path: Path) -> None:
    found = function(*arguments)
    if number == 0:
        path.write_text(json.dumps(found))
