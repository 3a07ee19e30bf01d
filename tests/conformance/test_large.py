"""Arrays beyond 32 bits. They need 10 GiB of free memory for two ranks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from .worlds import World


def _available() -> int:
    """Bytes of memory that can be had without swapping."""
    lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    return int(lines["MemAvailable"].split()[0]) * 1024


@pytest.mark.skipif(_available() < 10 << 30, reason="needs 10 GiB of free memory")
@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_large(special: Callable[..., World], transport: str) -> None:
    world = special(2, transport)
    world.run("large.more_than_2_gi_elements")
    world.run("large.more_than_4_gib")
