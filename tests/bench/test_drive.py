"""A contender's processes and its data, as the comparison drives them."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from arraycomm.bench.data import Source, count_wrong, expected, values
from arraycomm.bench.drive import Contender, ContenderFailed, Start, probe
from arraycomm.bench.peers.protocol import OPERATIONS, Missing, Peer
from arraycomm.bench.peers.protocol import Cell as PeerCell

FAKE = str(Path(__file__).parent / "fake_peer.py")
# A folder with an environment for each peer that this interpreter lacks, by name.
ENVIRONMENTS = os.environ.get("ARRAYCOMM_TEST_PEERS", "")


def fake(name: str, scratch: Path, size: int = 2, **more: Any) -> Start:
    return Start(name, size, scratch, file=FAKE, **more)


def processes(scratch: Path) -> list[int]:
    """Ids of those that have the directory on their command line, but for the dead that nobody has fetched yet."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if str(scratch).encode() in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
    return found


def wait_for_none(scratch: Path) -> list[int]:
    deadline = time.monotonic() + 20
    while processes(scratch) and time.monotonic() < deadline:
        time.sleep(0.05)
    return processes(scratch)


@pytest.mark.parametrize("name", ["good", "launched"])
def test_a_contender_comes_works_and_goes(name: str, tmp_path: Path) -> None:
    deep = tmp_path / ("long" * 30)  # longer than a Unix socket's path may be
    deep.mkdir()
    with contextlib.closing(Contender(fake(name, deep, 3))) as contender:
        assert len(processes(tmp_path)) >= 3
        for operation in OPERATIONS:
            assert contender.ask("prepare", operation, 1000, "float32") == [0, 0, 0]
            assert min(contender.ask("run", 3)) > 0
            assert [len(times) for times in contender.ask("singles", 5)] == [5, 5, 5]
            assert contender.ask("release") == [0, 0, 0]
    assert not processes(tmp_path)


@pytest.mark.parametrize(("name", "text"), [
    ("crash", "crash, 2 ranks: a rank died at run 3"),
    ("raise", "raise, 2 ranks: a rank failed at run 3:.*LookupError: what a rank says"),
    ("hang", r"hang, 2 ranks: no answer to run 3 of ranks \[(0, )?1\] within 2 s"),
    ("orphans", r"orphans, 2 ranks: no answer to run 3 of ranks \[(0, )?1\] within 2 s"),
])
def test_a_rank_that_fails_is_told_and_nothing_is_left(name: str, text: str, tmp_path: Path) -> None:
    with contextlib.closing(Contender(fake(name, tmp_path))) as contender:
        assert contender.ask("prepare", "all_reduce", 8, "float32") == [0, 0]
        contender.timeout = 2 if "within 2 s" in text else 60
        with pytest.raises(ContenderFailed, match="(?s)" + text):
            contender.ask("run", 3)
    assert not wait_for_none(tmp_path)


def test_a_rank_that_does_not_come_up_is_told_and_nothing_is_left(tmp_path: Path) -> None:
    answer = r"late, 2 ranks: (no answer to start of ranks \[[\d, ]+\]|\d of 2 ranks came) within 2 s"
    with pytest.raises(ContenderFailed, match=answer):
        Contender(fake("late", tmp_path, timeout=2))
    assert not wait_for_none(tmp_path)


def test_an_interpreter_that_leaves_is_told_with_what_it_said(tmp_path: Path) -> None:
    shim = tmp_path / "python"
    shim.write_text(f"#!/bin/sh\nexec {sys.executable} -c 'raise SystemExit(\"no library here\")'\n")
    shim.chmod(0o700)
    with pytest.raises(ContenderFailed, match=r"(?s)good, 2 ranks: python \(pid \d+\) left with exit code 1.*no library here"):
        Contender(fake("good", tmp_path, python=str(shim)))
    with pytest.raises(Missing, match="no library here"):
        probe(fake("good", tmp_path, python=str(shim)))


def test_what_is_installed_is_known_before_any_rank_starts(tmp_path: Path) -> None:
    assert probe(fake("good", tmp_path)) == "fake 1.0 (good)"
    with pytest.raises(Missing, match="pip install what-is-absent"):
        probe(fake("absent", tmp_path))
    with pytest.raises(Missing, match="cannot run /no/python: No such file"):
        probe(fake("good", tmp_path, python="/no/python"))


def test_wrong_data_are_counted(tmp_path: Path) -> None:
    with contextlib.closing(Contender(fake("wrong", tmp_path))) as contender:
        assert contender.ask("prepare", "all_gather", 1000, "float32") == [1, 1]


@pytest.mark.parametrize("operation", [name for name in OPERATIONS if name != "barrier"])
@pytest.mark.parametrize("size", [1, 2, 3, 200])
def test_known_sums_are_exact_in_bfloat16(operation: str, size: int) -> None:
    for rank in {0, size - 1}:
        cell = PeerCell(cast(Peer, SimpleNamespace(rank=rank, size=size)), operation, 8000, "float32")
        for source in cell.sources:
            if source.ranks:
                period = expected(cell.case.dtype, cell.case.op, source, size)
                assert abs(period).max() <= 256
                assert np.array_equal(period, np.round(period))


@pytest.mark.parametrize(("writes", "seen"), [(False, [0, 1, 2, 3, 4]), (True, [0, 0, 0, 0, 0])])
def test_inputs_are_written_before_each_call(writes: bool, seen: list[float]) -> None:
    """The call adds one to its input; three runs precede the timed ones."""
    found: list[float] = []

    def call(_operation: str, x: Any, _out: Any) -> Any:
        def step() -> None:
            found.append(x[0])
            x.__iadd__(1)
        return step

    peer = SimpleNamespace(rank=0, size=2, functional=False, place=lambda values, _dtype: values, call=call, barrier=lambda: None)
    cell = PeerCell(cast(Peer, peer), "all_reduce", 8, "float32", writes)
    cell.arm()
    cell.run(len(seen))
    assert found[:len(seen)] == seen


@pytest.mark.parametrize("size", [2, 130, 200])
def test_a_rank_that_gives_nothing_is_noticed(size: int) -> None:
    ranks = tuple(range(size))
    everyone, but_one = (expected("float32", "sum", Source(some, 0, 1000), size) for some in (ranks, ranks[1:]))
    assert np.any(everyone != but_one)


def test_missing_surplus_and_wrong_elements_count() -> None:
    sources = [Source((rank,), 0, 2000) for rank in range(2)]
    right = np.concatenate([values("float32", "", rank, 2, 0, 2000) for rank in range(2)])
    assert count_wrong(right, sources, "float32", "", 2) == 0
    assert count_wrong(right[:-3], sources, "float32", "", 2) == 3
    assert count_wrong(np.append(right, np.float32(0)), sources, "float32", "", 2) == 1
    right[[0, 1999, 2000]] += 1
    assert count_wrong(right, sources, "float32", "", 2) == 3


@pytest.fixture(scope="module",
                params=["ours/shm", "ours/symmetric", "ours/tcp", "gloo", "openmpi", "mpich", "impi", "openmpi-tcp",
                        "mpich-tcp", "impi-tcp", "mlx", "mlx-mpi", "jax",
                        "mpi4jax", "ours/jit", "ours/jax"])
def library(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Contender]:
    name = request.param
    inside = Path(ENVIRONMENTS, name.removesuffix("-mpi").removesuffix("-tcp"), "bin", "python")
    python = str(inside) if ENVIRONMENTS and inside.exists() else sys.executable
    start = Start(name, 3, tmp_path_factory.mktemp("scratch"), python, timeout=60)
    try:
        probe(start)
    except Missing as error:
        pytest.skip(f"{name}: {error}")
    with contextlib.closing(Contender(start)) as contender:
        yield contender


def test_libraries_are_driven_right(library: Contender) -> None:
    for dtype in library.kind.dtypes:
        for operation in library.kind.operations:
            for size in (0,) if operation == "barrier" else (4, 20_000):
                assert library.ask("prepare", operation, size, dtype) == [0, 0, 0], (operation, size, dtype)
                assert max(library.ask("run", 3)) > 0
    library.ask("release")


def _affinities(start: Start) -> list[set[int]]:
    with contextlib.closing(Contender(start)) as contender:
        return [os.sched_getaffinity(process.pid) for process in contender._processes]


def test_our_ranks_are_bound_as_the_launcher_binds_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ARRAYCOMM_BIND", raising=False)
    before = os.sched_getaffinity(0)
    few = sorted(before)[:2]
    if len(few) < 2:
        pytest.skip("one CPU: there is nothing to bind")
    size = 2 * len(few)
    os.sched_setaffinity(0, few)
    try:
        assert _affinities(Start("ours/shm", size, tmp_path)) == [{cpu} for cpu in few for _ in range(2)]
        assert _affinities(fake("good", tmp_path, size)) == [set(few)] * size
    finally:
        os.sched_setaffinity(0, before)


def _loopback() -> int:
    """Bytes that the loopback interface has received."""
    (line,) = (line for line in Path("/proc/net/dev").read_text().splitlines() if line.strip().startswith("lo:"))
    return int(line.partition(":")[2].split()[0])


def test_sockets_are_used_by_who_is_said_to_use_them(library: Contender) -> None:
    size, calls = 1 << 20, 20
    if "all_reduce" not in library.kind.operations or not library.kind.network(library.name):
        pytest.skip("its data do not cross the loopback interface")
    library.ask("prepare", "all_reduce", size, "float32")
    before = _loopback()
    library.ask("run", calls)
    assert _loopback() - before > size * calls
    library.ask("release")
