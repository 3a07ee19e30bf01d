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


@pytest.mark.parametrize(("ranks", "expected"), [
    ([{0}, {1}], False),  # bound, one each
    ([{0, 1}, {0, 1}], False),
    ([{0}, {0}, {1}], True),
    ([{0}, {0}, set(range(8))], True),  # the processors that one more may use are no help to the two
    ([{0}, {0, 1}, {1}], True),
    ([{0, 1}] * 3, True),
    ([{0}, {0, 1}, {2, 3}], False),
    ([{0, 1}, {0}], False),  # the first gives way
    ([{0, 1}, {1, 2}, {2, 3}, {0}, {1}], True),
    ([{0, 1}, {1, 2}, {2, 3}, {0}], False),
    ([set(range(1000))] * 1000, False),
    ([set(range(rank, rank + 2)) for rank in reversed(range(900))] + [{0}], False),
    ([{900}], False),
])
def test_crowded(ranks: list[set[int]], expected: bool) -> None:
    where = [_on(cpus) for cpus in ranks]
    assert {places.crowded(where, rank) for rank in {0, len(where) - 1}} == {expected}


def test_other_hosts_do_not_count() -> None:
    assert not places.crowded([_on({0}, b"one"), _on({0}, b"two")], 0)
