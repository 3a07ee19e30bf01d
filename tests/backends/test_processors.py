"""backends/processors.py: who has a processor of its own."""

import os
from collections.abc import Iterator

import pytest

from arraycomm.backends import processors


@pytest.fixture(autouse=True)
def _same_affinity() -> Iterator[None]:
    before = os.sched_getaffinity(0)
    yield
    os.sched_setaffinity(0, before)


def _mask(cpus: set[int]) -> int:
    return sum(1 << cpu for cpu in cpus)


def test_mine_is_where_this_process_may_run() -> None:
    assert processors.mine() == _mask(os.sched_getaffinity(0))
    cpu = max(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cpu})
    assert processors.mine() == 1 << cpu


def test_nothing_is_known_where_the_system_does_not_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(pid: int) -> set[int]:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "sched_getaffinity", refuse)
    assert processors.mine() == 0
    assert processors.oversubscribed([0])
    assert processors.oversubscribed([0, 3])


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
    ([set(range(5)), {0, 1}, {2, 3}, {0}, {2}], False),  # the largest choice waits for the smaller ones
    ([set(range(4)), {0, 1}, {2, 3}, {0}, {2}], True),
    ([set(range(1000))] * 1000, False),
    ([set(range(1000))] * 1001, True),
    ([{900}], False),
    ([{5000}, {5001}], False),
    ([{5000}, {5000}], True),
])
def test_oversubscribed(ranks: list[set[int]], expected: bool) -> None:
    assert processors.oversubscribed([_mask(cpus) for cpus in ranks]) == expected
