"""Jobs as a fixture: ended after the test, whatever happened."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from .. import ports
from .job import Job, closed_jobs


@pytest.fixture
def job() -> Iterator[Callable[..., Job]]:
    """job(size, transport, ...) -> Job."""
    yield from closed_jobs(Job)


@pytest.fixture(params=["shm", "tcp"])
def transport(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def free_port() -> int:
    return ports.free_port()
