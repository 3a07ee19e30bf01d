"""Wrong calls: what the tables of wrong_*.py say, of ours and, where torch is installed, of torch.distributed."""

from __future__ import annotations

import pytest

from .wrong import KINDS, RANKS, THEIRS, cases, mistake, run


@pytest.mark.parametrize("kind", KINDS)
def test_collectives(kind: str) -> None:
    if kind.endswith("torch"):
        pytest.importorskip("torch")
    theirs = kind.startswith(THEIRS)
    found = run("wrong_collectives", kind)
    assert all(found) and len(found) == RANKS
    wrong = [f"{case.name}, rank {rank}: {mistake(case, mine[case.name], not theirs)}" for case in cases("wrong_collectives")
             for rank, mine in enumerate(found) if case.name in mine and mistake(case, mine[case.name], not theirs)]
    assert not wrong, "\n".join(wrong)
