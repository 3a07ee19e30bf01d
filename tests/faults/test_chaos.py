"""A slice of the chaos run: one round of every fault over both transports. tests/run_chaos does many."""

from __future__ import annotations

import pytest

from .chaos import FAULTS, Tally, play, table


@pytest.mark.parametrize("fault", FAULTS)
def test_one_round(fault: str, transport: str) -> None:
    tally = Tally()
    play(FAULTS[fault], transport, 3, seed=7, tally=tally)
    print(table({(fault, transport, 3): tally}))
    assert not tally.problems, "\n".join(tally.problems)
