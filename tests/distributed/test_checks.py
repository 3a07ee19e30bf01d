"""The facade's collectives, messages, objects and Work: checks.py, in one start of ranks for each library."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from arraycomm.launch.spawn import spawn
from tests.standin import build

from .checks import RANKS, load, serve

LIBRARIES = ("numpy", "torch", "cuda")
Failures = dict[str, dict[int, str]]


@pytest.fixture(scope="module", params=LIBRARIES)
def failures(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Failures:
    """What went wrong, by check and rank."""
    folder = tmp_path_factory.mktemp(request.param)
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "cuda":
            patch.setenv("ARRAYCOMM_CUDART_LIBRARY", build.cudart())
        method = "forkserver" if request.param == "torch" else "spawn"
        context = spawn(serve, (request.param, str(folder)), nprocs=RANKS, join=False, start_method=method)
    try:
        ended = context.join(120)
        assert ended, "the ranks hang"
    finally:
        context.close()
    found: Failures = {}
    for rank in range(RANKS):
        for name, text in json.loads(Path(folder, f"{rank}.json").read_text()).items():
            found.setdefault(name, {})[rank] = text
    return found


@pytest.mark.parametrize("name", list(load()))
def test_check(failures: Failures, name: str) -> None:
    assert name not in failures, "\n".join(f"rank {rank}: {text}" for rank, text in failures[name].items())
