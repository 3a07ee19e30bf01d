"""core/start.py: what init() refuses before it meets anybody, and how long it may be told to wait."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import numpy as np
import pytest

import arraycomm


@pytest.mark.parametrize(("timeout", "error", "text"), [
    (0, ValueError, "above 0"), (timedelta(0), ValueError, "above 0"), (-1.0, ValueError, "-1.0"),
    (float("nan"), ValueError, "nan"), ("1", TypeError, "number of seconds"), (True, TypeError, "True"),
    ([1], TypeError, "seconds"),
])
def test_a_timeout_that_makes_no_sense(timeout: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        arraycomm.init(timeout=timeout)


def _with_peers(rank: int) -> None:
    with arraycomm.init(timeout=float("inf")) as group:
        part = group.subgroup([0, 1], "part", timeout=float("inf"))
        assert part.all_reduce(np.array([rank])).tolist() == [1]


def test_a_timeout_without_end_with_peers() -> None:
    """What connects them takes no longer ones than the system's calls."""
    arraycomm.spawn(_with_peers, nprocs=2)


@pytest.mark.parametrize("timeout", [float("inf"), 1e30, timedelta.max, 5, np.float32(5)])
def test_a_timeout_of_any_length(timeout: Any) -> None:
    x = np.ones(3)
    with arraycomm.init(timeout=timeout) as group:
        seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
        assert group.all_reduce(x, timeout=seconds).tolist() == x.tolist()
        group.barrier(timeout=seconds)


def _spelled(rank: int) -> None:
    with arraycomm.init(backend=("socket", "cpu:socket,cuda:socket", "cuda:socket,cpu:socket", "cpu:socket")[rank]) as group:
        assert group.all_reduce(np.array([rank])).tolist() == [6]


def test_spellings_of_one_backend_mean_the_same() -> None:
    arraycomm.spawn(_spelled, nprocs=4)
