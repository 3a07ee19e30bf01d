"""launch/cpus.py: ranks that share CPUs evenly are bound, others are not."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from typing import NoReturn

import pytest

import arraycomm
from arraycomm.launch.cpus import bind, placement

LIMIT = 120.0  # s; only ends what hangs
PRINT = "import os; print(os.environ['RANK'], *os.sched_getaffinity(0), os.environ.get('PJRT_NPROC') or 'none')"


@pytest.fixture
def few() -> Iterator[list[int]]:
    """This process, and so the launcher that it starts, may use two CPUs only for a test."""
    before = os.sched_getaffinity(0)
    cpus = sorted(before)[:2]
    if len(cpus) < 2:
        pytest.skip("one CPU: there is nothing to bind")
    os.sched_setaffinity(0, cpus)
    yield cpus
    os.sched_setaffinity(0, before)


def expected(cpus: list[int]) -> list[int]:
    """Of two ranks a CPU."""
    return [cpu for cpu in cpus for _ in range(2)]


@pytest.mark.parametrize(("cpus", "ranks", "share"), [
    ({0, 1}, 4, [0, 0, 1, 1]),
    ({3, 5}, 4, [3, 3, 5, 5]),
    ({0, 1, 2, 7}, 12, [0, 0, 0, 1, 1, 1, 2, 2, 2, 7, 7, 7]),
    ({6}, 3, None),
    ({0, 1}, 1, None),
    ({0, 1}, 2, None),  # a CPU for each
    ({0, 1}, 3, None),  # one CPU would have two of them
    ({0, 1, 2, 3}, 6, None),
])
def test_placement(cpus: set[int], ranks: int, share: list[int] | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ARRAYCOMM_BIND", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: cpus)
    none: list[int | None] = [None] * ranks
    assert placement(ranks) == (share or none)
    monkeypatch.setenv("ARRAYCOMM_BIND", "0")
    assert placement(ranks) == none


def test_a_sandbox_that_tells_no_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(_: int) -> NoReturn:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "sched_getaffinity", forbidden)
    assert placement(4) == [None] * 4
    monkeypatch.setattr(os, "sched_setaffinity", lambda *_: forbidden(0))
    bind(0, 0)


def launched(bound: str, ranks: int) -> tuple[list[str], str]:
    done = subprocess.run(
        [sys.executable, "-m", "arraycomm.launch", "--no-prefix", "--no-python", "-n", str(ranks), sys.executable, "-c", PRINT],
        env={**os.environ, "ARRAYCOMM_BIND": bound, "PJRT_NPROC": ""}, capture_output=True, text=True, timeout=LIMIT, check=True)
    return sorted(done.stdout.splitlines()), done.stderr


def test_the_launcher_binds_and_says_so(few: list[int]) -> None:
    ranks = 2 * len(few)
    lines, said = launched("1", ranks)
    assert lines == [f"{rank} {cpu} 2" for rank, cpu in enumerate(expected(few))]  # XLA's programs have two threads all the same
    assert f"{ranks} ranks share {len(few)} CPUs" in said and "ARRAYCOMM_BIND=0" in said
    lines, said = launched("0", ranks)
    assert [line.split()[1:-1] for line in lines] == [[str(cpu) for cpu in few]] * ranks
    assert "bound" not in said


def affinity(rank: int) -> set[int]:
    return os.sched_getaffinity(0)


@pytest.mark.parametrize("start_method", ["spawn", "fork", "forkserver"])
def test_spawn_binds(few: list[int], start_method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ARRAYCOMM_BIND", raising=False)
    got = arraycomm.spawn(affinity, nprocs=2 * len(few), start_method=start_method)
    assert got == [{cpu} for cpu in expected(few)]
    assert os.sched_getaffinity(0) == set(few)


def test_a_rank_may_have_ended_by_then() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
        bind(ended.pid, min(os.sched_getaffinity(0)))
    assert ended.returncode == 0
