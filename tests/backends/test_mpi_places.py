"""backends/mpi/places.py: who has a processor of its own."""

import os
from collections.abc import Iterator

import pytest

from arraycomm.backends.mpi import places


@pytest.fixture(autouse=True)
def _same_affinity() -> Iterator[None]:
    before = os.sched_getaffinity(0)
    yield
    os.sched_setaffinity(0, before)


def _on(cpus: set[int], host: bytes = b"here") -> bytes:
    mask = sum(1 << cpu for cpu in cpus)
    return host.ljust(8) + mask.to_bytes(places.BYTES - 8, "little")


def test_here_is_where_this_process_may_run() -> None:
    cpu = min(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cpu})
    assert places.here()[8:] == _on({cpu})[8:]
    assert len(places.here()) == places.BYTES


def test_crowded() -> None:
    assert not places.crowded([_on({0}), _on({1})], 1)
    assert places.crowded([_on({0}), _on({0})], 1)


def test_other_hosts_do_not_count() -> None:
    assert not places.crowded([_on({0}, b"one"), _on({0}, b"two")], 0)
