"""arraycomm-bench compare: ranking, table and files; and the command with contenders that misbehave."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from arraycomm.bench import compare, drive
from arraycomm.bench.peers import mpi
from arraycomm.bench.results import Cell, Timing, Verdict, summaries
from arraycomm.bench.table import Table, percentiles, summary_line, write_json
from tests.present import present

from .test_drive import FAKE, processes, wait_for_none

Started = Callable[..., "subprocess.Popen[str]"]


def timing(*rounds: float, wrong: int = 0) -> Timing:
    return Timing(tuple((time, time) for time in rounds), 1, wrong, 1.0, 2.0, 3.0)


def cell(ours: Sequence[float], wrong: int = 0, **peers: Sequence[float]) -> Cell:
    timings = {"ours/shm": timing(*ours, wrong=wrong), **{name: timing(*times) for name, times in peers.items()}}
    return Cell("all_gather", 4, 1 << 28, "float32", timings)


def only(found: list[Verdict]) -> Verdict:
    (verdict,) = found
    return verdict


def test_the_best_peer_is_the_fastest_and_ratios_are_of_rounds() -> None:
    verdict = only(cell([10, 20, 10], fast=[20, 20, 50], lame=[90, 90, 90]).verdicts([]))
    assert (verdict.best, verdict.ratio, verdict.low, verdict.high) == ("fast", 2, 1, 5)
    assert verdict.word == "unclear" and verdict.against == ("fast", "lame")


def test_the_ratio_is_that_of_the_times_beside_it() -> None:
    """However the rounds were paired: then the range holds it, too."""
    found = cell([10, 10, 40, 40, 10], gloo=[20, 80, 20, 80, 80])
    verdict = only(found.verdicts([]))
    assert verdict.ratio == found.timings["gloo"].time / found.timings["ours/shm"].time == 8
    assert (verdict.low, verdict.high) == (0.5, 8)
    assert only(cell([1, 9, 9, 1], gloo=[9, 1, 9, 2]).verdicts([])).ratio == 1.1


@pytest.mark.parametrize(("ours", "peer", "wrong", "word"),
                         [(1, 2, 0, "faster"), (2, 1, 0, "slower"), (1, 1, 0, "unclear"), (1, 2, 7, "WRONG")])
def test_words(ours: int, peer: int, wrong: int, word: str) -> None:
    assert only(cell([ours], wrong, gloo=[peer]).verdicts([])).word == word


def test_a_peer_with_wrong_data_spoils_the_verdict() -> None:
    found = cell([1], gloo=[2])
    found = replace(found, timings={**found.timings, "gloo": timing(2, wrong=3)})
    assert only(found.verdicts([])).word == "WRONG"


def test_launches_are_joined_by_who_took_part_in_all() -> None:
    first = cell([1, 2], wrong=1, gloo=[4, 5], gone=[9, 9])
    second = cell([3], wrong=2, gloo=[6])
    second = replace(second, timings={**second.timings, "gloo": replace(second.timings["gloo"], p50=0.5, p99=7.0)})
    joined = first.joined(second)
    assert set(joined.timings) == {"ours/shm", "gloo"}
    assert joined.timings["gloo"] == Timing(((4, 4), (5, 5), (6, 6)), 1, 0, 1.0, 2.0, 7.0)
    assert joined.timings["ours/shm"].wrong == 3
    assert only(replace(joined, timings={**joined.timings, "ours/shm": timing(1, 2, 3)}).verdicts([])).low == 2


def test_ours_over_a_network_have_rivals_there_alone() -> None:
    found = cell([1], gloo=[5], openmpi=[2])
    found = replace(found, timings={**found.timings, "ours/tcp": timing(4)})
    network = ["ours/tcp", "gloo"]
    best = {verdict.ours: verdict.best for verdict in found.verdicts(network)}
    assert best == {"ours/shm": "openmpi", "ours/tcp": "gloo"}
    table = Table([*found.timings], network)
    assert table.notes() == [
        "# ours/shm is compared with gloo, openmpi", "# ours/tcp is compared with gloo",
        "# (in brackets: a peer through shared memory beside ours through sockets, which are not compared)"]
    shm, tcp = table.lines(found)
    assert shm.split()[4:7] == ["5.00", "2.00", "openmpi"] and tcp.split()[4:7] == ["5.00", "(2.00)", "gloo"]
    assert len(shm) == len(tcp) == len(table.header())
    assert [summary_line(line).partition(":")[0] for line in summaries([found], network)] == [
        "# ours/shm beside gloo, openmpi", "# ours/tcp beside gloo"]
    assert Table(["ours/tcp", "gloo"], network).notes() == ["# ours/tcp is compared with gloo"]
    assert Table(["ours/tcp", "openmpi"], network).notes()[0] == "# ours/tcp is compared with nobody"


def test_without_a_rival_there_is_no_verdict() -> None:
    assert cell([1]).verdicts([]) == []


def test_lines_stand_under_the_header() -> None:
    table = Table(["ours/shm", "gloo", "mpich", "jax"], [])
    (line,) = table.lines(cell([123456.7], gloo=[234567.8], mpich=[1]))
    assert len(line) == len(table.header())
    assert line.split() == ["all_gather", "268435456", "ours/shm", "123456.70", "234567.80", "1.00", "-", "mpich", "0.00",
                            "0.00", "0.00", "slower"]


def test_summary_counts_and_takes_the_geometric_mean() -> None:
    (summary,) = summaries([cell([1], gloo=[2]), cell([1], gloo=[8]), cell([1, 1], gloo=[4, 4])], [])
    assert (summary.cells, summary.faster) == (3, 3) and summary.mean == pytest.approx(4)
    assert summary_line(summary) == ("# ours/shm beside gloo: 3 cells: 3 faster, 0 unclear, 0 slower, 0 wrong; geometric mean of "
                                     "the ratios 4.00")


def test_percentiles_have_a_line_for_everybody() -> None:
    assert [line.split()[3:] for line in percentiles([cell([1], gloo=[2])])[1:]] == [
        ["ours/shm", "1.00", "2.00", "3.00"], ["gloo", "1.00", "2.00", "3.00"]]


def test_files(tmp_path: Path) -> None:
    cells = [cell([1, 1], gloo=[2, 4])]
    write_json(str(tmp_path / "a.json"), cells, [], {"rounds": 2})
    document = json.loads((tmp_path / "a.json").read_text())
    assert document["rounds"] == 2
    assert document["cells"][0]["verdicts"][0]["verdict"] == "faster"
    assert document["cells"][0]["timings"]["gloo"]["rounds"] == [[2, 2], [4, 4]]
    assert document["cells"][0]["timings"]["gloo"]["time"] == 3
    assert document["summaries"][0]["cells"] == 1


def test_defaults_are_the_promised_cells() -> None:
    given = compare.parser().parse_args([])
    assert given.sizes == (8, 1 << 10, 64 << 10, 1 << 20, 16 << 20, 256 << 20)
    assert (given.np, given.against, given.ours, len(given.ops)) == ((2, 4), "gloo", ("shm", "tcp"), 9)


@pytest.mark.parametrize(
    ("option", "text"),
    [("--against=mpi9", "unknown peer 'mpi9'; choose from gloo"), ("--ops=xor", "unknown operation 'xor'"),
     ("--python=x", "'x' is not NAME=PATH"), ("--rounds=0", "not a whole number of at least 1"),
     ("--np=2,-1", "'-1' is not a whole number"),
     ("--ours=sea", "unknown variant of ours 'sea'; choose from auto, flat, records, leader, leaders, 4tcp, shm")],
)
def test_errors_name_what_was_wrong(option: str, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        compare.main([option])
    assert left.value.code == 2 and text in capsys.readouterr().err


def test_an_environment_may_be_given_by_its_folder(tmp_path: Path) -> None:
    assert compare._interpreter(str(tmp_path)) == str(tmp_path / "bin" / "python")
    assert compare._interpreter(sys.executable) == sys.executable


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Started]:
    """started(*arguments): the command as a process. Its scratch files, and so its ranks' names, are below tmp_path."""
    begun = []

    def start(*arguments: str, peers: Sequence[str] = ()) -> subprocess.Popen[str]:
        given = [f"--peer={name}={FAKE}" for name in peers] + [f"--against={','.join(peers)}", "--ours=shm", "--np=2",
                                                               "--rounds=1", "--timeout=60", *arguments]
        environ = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
        begun.append(subprocess.Popen([sys.executable, "-m", "arraycomm.bench", "compare", *given], text=True,
                                      stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=1,
                                      env=environ | {"TMPDIR": str(tmp_path)}))
        return begun[-1]

    yield start
    for process in begun:
        process.kill()
        process.communicate()


def test_the_command_goes_on_without_a_contender_that_crashes(started: Started, tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    process = started("--ops=all_reduce,broadcast", "--sizes=8", f"--json={path}", "--percentiles", peers=("slow", "crash"))
    out, err = process.communicate(timeout=300)
    assert process.returncode == 1, err
    assert "crash, 2 ranks: a rank died" in err and "crash takes no further part with 2 ranks" in err
    rows = [line.split() for line in out.splitlines() if not line.startswith("#")]
    assert [row[:3] for row in rows[:2]] == [["all_reduce", "8", "ours/shm"], ["broadcast", "8", "ours/shm"]]
    assert [row[6] for row in rows[:2]] == ["slow", "slow"]
    assert "# ours/shm beside slow: 2 cells: " in out and "# Out of bounds values : 0 OK" in out
    document = json.loads(path.read_text())
    assert document["contenders"]["slow"]["version"] == "fake 1.0 (slow)"
    assert [entry["contender"] for entry in document["failed"]] == ["crash"]
    assert set(document["cells"][1]["timings"]) == {"ours/shm", "slow"}
    assert not wait_for_none(tmp_path)


def test_launches_start_all_anew_but_who_has_failed(started: Started, tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    process = started("--ops=broadcast,barrier", "--sizes=8,8", "--launches=3", "--rounds=2", f"--json={path}",
                      peers=("good", "crash"))
    out, err = process.communicate(timeout=300)
    assert process.returncode == 1 and "its range over 6 rounds" in out
    assert [line for line in err.splitlines() if "launch " in line] == [
        f"arraycomm-bench compare: launch {launch} of 3, 2 ranks" for launch in (1, 2, 3)]
    assert err.count("crash takes no further part") == 1
    assert [line.split()[0] for line in out.splitlines() if not line.startswith("#")] == ["broadcast", "barrier"]
    document = json.loads(path.read_text())
    assert (document["launches"], document["rounds"]) == (3, 2)
    assert [{name: len(found["rounds"]) for name, found in one["timings"].items()} for one in document["cells"]] == [
        {"ours/shm": 6, "good": 6}] * 2
    assert not wait_for_none(tmp_path)


def test_what_is_absent_is_skipped_with_a_sentence_and_wrong_data_fail(started: Started) -> None:
    process = started("--ops=all_gather", "--sizes=64", peers=("absent", "wrong"))
    out, err = process.communicate(timeout=300)
    assert "absent is skipped: pip install what-is-absent" in err
    assert process.returncode == 1 and "# Out of bounds values : 2 FAILED" in out and "WRONG" in out


def test_peers_over_tcp_are_compared_with_ours_over_tcp() -> None:
    found = {name: drive.peer_class(name).network(name) for name in ("openmpi", "openmpi-tcp", "mpich-tcp", "impi-tcp")}
    assert found == {"openmpi": False, "openmpi-tcp": True, "mpich-tcp": True, "impi-tcp": True}
    assert mpi.environ("impi", sys.executable, "/", tcp=True)["I_MPI_FABRICS"] == "ofi"
    assert mpi.environ("impi", sys.executable, "/")["I_MPI_FABRICS"] == "shm"


def _running(process: int) -> int:
    """Processor time of a process, in ticks."""
    return sum(map(int, Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[11:13]))


def test_busy_processes_run_beside_the_contenders_and_end(tmp_path: Path) -> None:
    with compare.busy(2, tmp_path):
        while len(busy := processes(tmp_path)) < 2:  # a process has no command line yet while it executes its program
            os.sched_yield()
        while min(map(_running, busy)) < 5:
            os.sched_yield()
    assert not processes(tmp_path)


def test_the_table_says_what_ran_beside(started: Started, tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    out, err = started("--ops=barrier", "--beside-load=1", "--write", f"--json={path}", peers=("good",)).communicate(timeout=300)
    assert "# 2 ranks beside 1 busy processes, inputs written before each call, float32" in out, err
    about = json.loads(path.read_text())
    assert (about["beside_load"], about["write"]) == (1, True)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_interrupted_nothing_is_left(started: Started, tmp_path: Path, number: signal.Signals) -> None:
    process = started("--ops=barrier,all_reduce", "--sizes=8", "--beside-load=1", peers=("good", "orphans"))
    while "ours" not in present(process.stdout).readline():
        assert process.poll() is None
    deadline = 200
    while len(processes(tmp_path)) < 8 and deadline:
        deadline -= 1
        signal.sigtimedwait([], 0.05)
    process.send_signal(number)
    process.communicate(timeout=60)
    assert process.returncode == {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGKILL: -9}[number]
    assert not wait_for_none(tmp_path)
    if number != signal.SIGKILL:
        assert not list(tmp_path.glob("arraycomm-bench-*"))
