"""What a test says whose ranks do not answer."""

from __future__ import annotations

import pytest

from .job import Job

HANGS = r"(?s)no answer of ranks \[0\] within 0.5 s\n\nrank 0:\n.*tasks.py.* in cycle\n"


def test_where_a_rank_hangs() -> None:
    with Job(2) as ranks:
        ranks.begin("cycle", ranks=[0])
        with pytest.raises(AssertionError, match=HANGS):
            ranks.answers([0], limit=0.5)
