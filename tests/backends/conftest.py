"""Worlds that end with their test, and a directory for sockets."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from .world import World


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
    """A directory whose name leaves room for a socket's."""
    with tempfile.TemporaryDirectory(dir="/tmp") as directory:
        monkeypatch.setenv("XDG_RUNTIME_DIR", directory)
        yield Path(directory)
