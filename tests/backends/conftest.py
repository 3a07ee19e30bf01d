"""Worlds that are closed after their test, and a directory for sockets."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from .world import World


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Without --mpi-all, a test of several MPI libraries runs over one of them, in rotation, so that all libraries are used."""
    if config.getoption("--mpi-all"):
        return
    cases: dict[tuple[object, ...], list[pytest.Item]] = {}
    for item in items:
        parameters = getattr(getattr(item, "callspec", None), "params", {})
        if isinstance(item, pytest.Function) and item.path.parent == Path(__file__).parent and "library" in parameters:
            others = [str(value) for name, value in parameters.items() if name not in ("library", "size")]
            cases.setdefault((item.path, item.originalname, *others), []).append(item)
    left = {item for number, alike in enumerate(cases.values()) for item in alike if item is not alike[number % len(alike)]}
    config.hook.pytest_deselected(items=list(left))
    items[:] = [item for item in items if item not in left]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Any]:
    worlds: list[World] = []

    def make(size: int, **options: Any) -> World:
        worlds.append(World(tmp_path, size, **options))
        return worlds[-1]

    yield make
    for world in worlds:
        world.end()


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory with a path short enough for a Unix socket's name."""
    with tempfile.TemporaryDirectory(dir="/tmp") as directory:
        monkeypatch.setenv("XDG_RUNTIME_DIR", directory)
        yield Path(directory)
