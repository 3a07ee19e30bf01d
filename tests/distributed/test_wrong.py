"""Wrong calls: what the tables of wrong_*.py say, of ours and, where torch is installed, of torch.distributed."""

from __future__ import annotations

import pytest

from .wrong import KINDS, MODULES, THEIRS, cases, mistake, ranks, run


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """What torch says is pinned with torch: without --torch-tables one of the tables is compared with it."""
    every = metafunc.config.getoption("--torch-tables")
    chosen = [(kind, module) for kind in KINDS for module in MODULES
              if every or module == "wrong_messages" or not kind.startswith(THEIRS)]
    metafunc.parametrize(("kind", "module"), chosen, ids=map(" ".join, chosen))


def test_wrong_calls(kind: str, module: str) -> None:
    if kind.endswith("torch"):
        torch = pytest.importorskip("torch")
        if kind.startswith(THEIRS) and torch.__version__.split("+")[0] != "2.13.0":
            pytest.skip("the tables are of torch 2.13.0")
    theirs = kind.startswith(THEIRS)
    found = run(module, kind)
    assert all(found) and len(found) == ranks(module)
    wrong = [f"{case.name}, rank {rank}: {mistake(case, mine[case.name], not theirs)}" for case in cases(module)
             for rank, mine in enumerate(found) if case.name in mine and mistake(case, mine[case.name], not theirs)]
    assert not wrong, "\n".join(wrong)
