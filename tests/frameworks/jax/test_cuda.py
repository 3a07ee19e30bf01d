"""Programs on GPUs: over NCCL, and staged through the host's engine. Over stand-ins; see cuda.py."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.standin import build

from ...conformance.test_nccl import environ
from ...conformance.worlds import Settings, World


def _world(size: int, backend: str, folder: Path) -> World:
    variables = dict(environ()) | {"ARRAYCOMM_BACKEND": backend, "STANDIN_XLA": build.xla()}
    return World(Settings(size, environ=tuple(variables.items())), folder)


@pytest.fixture(scope="module")
def nccl(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with closing(_world(2, "nccl", tmp_path_factory.mktemp("nccl"))) as world:
        yield world


@pytest.mark.parametrize("task", ["operations", "lowerings", "not_waited_for", "faults"])
def test_over_nccl(nccl: World, task: str) -> None:
    nccl.run(f".frameworks.jax.cuda.{task}")


def test_staged(tmp_path: Path) -> None:
    with closing(_world(3, "socket", tmp_path)) as world:
        world.run(".frameworks.jax.cuda.operations")
