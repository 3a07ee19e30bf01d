"""arraycomm-bench tune: what moves a threshold and what does not, the rows of table.h, and the command as a user runs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import pytest

from arraycomm.bench import tune, tune_choose, tune_table
from arraycomm.bench.__main__ import main
from arraycomm.bench.tune_choose import Cell, decide
from arraycomm.bench.tune_table import Place
from arraycomm.core.interface import tuning
from arraycomm.core.interface.tuning import Pick
from tests.present import present

MEASURED = sorted((Path(tune.__file__).parent / "measured").glob("xeon-*.json"))
MACHINE = {"cpu": "Intel Test", "cores": 4, "date": "2026-01-02", "arraycomm": "0.1.0"}
SIZES = (1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10)
Ratios = Sequence[float | tuple[float, ...]]  # by size: for all rounds, or one for each
TABLE = (Pick("shared", 16 << 10), Pick("direct", None))


@pytest.fixture(autouse=True)
def table(monkeypatch: pytest.MonkeyPatch) -> None:
    """all_to_all over shm: "shared" up to 16 KiB, then "direct"; "bruck" and "pairwise" never."""
    monkeypatch.setattr(tune_choose, "shipped", lambda *key: TABLE)


def cells(**ratios: Ratios) -> list[Cell]:
    """The table's algorithm takes 10 us; others as said, by size: one ratio to that for all rounds, or one for each."""
    made = []
    for number, size in enumerate(SIZES):
        own = "shared" if size <= present(TABLE[0].up_to) else "direct"
        rounds = [{own: 10.0} for _ in range(3)]
        for name, by_size in ratios.items():
            given = by_size[number]
            for times, ratio in zip(rounds, given if isinstance(given, tuple) else (given,) * 3, strict=True):
                if name != own and ratio:
                    times[name] = 10.0 / ratio
        made.append(Cell("all_to_all", "shm", 2, size, rounds))
    return made


def picks(**ratios: Ratios) -> tuple[Pick, ...]:
    return decide(cells(**ratios))[0].choice.picks


@pytest.mark.parametrize(("direct", "pairwise", "expected"), [
    ((0.5, 0.5, 0.5, 0, 0), (0.5,) * 5, TABLE),  # nothing is better
    ((0.5, 0.5, 1.2, 0, 0), (0.5,) * 5, (Pick("shared", 8 << 10), Pick("direct", None))),
    ((0.5, 0.5, 1.02, 0, 0), (0.5,) * 5, TABLE),  # too little
    ((0.5, 0.5, (0.99, 1.4, 1.4), 0, 0), (0.5,) * 5, TABLE),  # not in every round
    ((0.5, 0.5, (1.01, 1.4, 1.4), 0, 0), (0.5,) * 5, (Pick("shared", 8 << 10), Pick("direct", None))),
    ((0.5, 1.3, (0.9, 1.1, 1.2), 0, 0), (0.5,) * 5, (Pick("shared", 2 << 10), Pick("direct", None))),  # over an unclear one
    ((0.5, 1.04, 0.6, 0, 0), (0.5,) * 5, TABLE),  # too little to go there and back
    ((0.5,) * 5, (0.5, 0.5, 0.5, 0.5, 1.04), TABLE),  # too little for a new neighbour
    ((0.5,) * 5, (0.5, 0.5, 0.5, 0.5, 1.4), (*TABLE[:1], Pick("direct", 128 << 10), Pick("pairwise", None))),
    ((0.5,) * 5, (1.2, 1.2, 0.5, 0.5, 0.5), (Pick("pairwise", 8 << 10), *TABLE)),
    ((0.5,) * 5, (1.2, 1.2, 1.2, 1.2, 1.2), (Pick("pairwise", None),)),
    ((1.2, 1.2, 1.2, 0, 0), (0,) * 5, (Pick("direct", None),)),  # pairwise was hopeless
])
def test_a_threshold_moves_where_every_round_shows_a_gain(direct: Ratios, pairwise: Ratios, expected: tuple[Pick, ...]) -> None:
    assert picks(direct=direct, pairwise=pairwise) == expected


def test_the_tables_own_limits_stay_where_it_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    odd = (Pick("bruck", 8), Pick("shared", 20_000), Pick("bruck", 20_001), Pick("direct", 1 << 30), Pick("pairwise", None))
    monkeypatch.setattr(tune_choose, "shipped", lambda *key: odd)
    assert picks(pairwise=(0.5,) * 5) == odd
    assert picks(pairwise=(0.5, 0.5, 0.5, 0.5, 1.5))[:4] == (*odd[:3], Pick("direct", 128 << 10))


def test_a_decision_says_what_it_gains() -> None:
    (decision,) = decide(cells(direct=(0.5, 0.5, 2.0, 0, 0)))
    assert decision.changed and decision.regret(decision.choice.picks) == pytest.approx(1)
    assert decision.regret(decision.table) == pytest.approx(2 ** (1 / 5))
    assert [(cell.size, before, after) for cell, before, after in decision.moved()] == [(16 << 10, "shared", "direct")]
    lines = tune.lines(decision)
    marks = [line.split()[1:] for line in lines if not line.startswith("#")]
    assert marks == [["10.00*", "20.00"], ["10.00*", "20.00"], ["10.00-", "5.00+"], ["-", "10.00*"], ["-", "10.00*"]]
    assert "#   16 KiB: shared takes 2.00 (2.00-2.00) of direct's time" in lines
    assert "#   the engine's table: shared to 16 KiB, direct; 1.149" in lines


def test_together_all_numbers_of_ranks_gain() -> None:
    two, four = cells(direct=(0.5, 1.3, 1.3, 0, 0)), cells(direct=(0.5, 0.9, 1.2, 0, 0))
    for cell in four:
        cell.ranks = 4
    for together, limits in ((False, [2 << 10, 8 << 10]), (True, [8 << 10, 8 << 10])):
        assert [decision.choice.picks[0].up_to for decision in decide([*two, *four], together)] == limits


def test_samples_are_put_together() -> None:
    first = cells(direct=(0.5,) * 5)
    both = tune_choose.from_samples(tune_choose.as_samples([*first, *cells(direct=(0.7,) * 5)]), MACHINE)
    assert len(both) == len(SIZES) and all(len(cell.rounds) == 6 for cell in both)
    assert {(cell.machine, cell.cores, cell.dedicated) for cell in both} == {("Intel Test, 4 processors", 4, True)}
    assert both[0].ratios("shared", "direct")[0] == pytest.approx(0.5)


def test_between_hosts_the_table_is_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tune_choose, "shipped", tuning.shipped)
    measured = []
    for transport in ("loopback", "tcp"):
        rounds = [dict.fromkeys(tuning.names(transport)["all_reduce"], 10.0)] * 3
        measured += [Cell("all_reduce", transport, 4, size, rounds) for size in SIZES]
    decisions = decide(tune_choose.from_samples(tune_choose.as_samples(measured), MACHINE))
    assert [decision.choice.transport for decision in decisions] == ["loopback", "tcp"]
    for decision in decisions:
        where = decision.choice.transport
        assert decision.choice.picks == decision.table == tuning.shipped("all_reduce", where, 4, where == "loopback")
    assert decisions[0].table != decisions[1].table


def test_machines_are_decided_apart_and_the_table_for_all() -> None:
    other = {**MACHINE, "cpu": "AMD Test"}
    samples = [tune_choose.as_samples(cells(direct=direct)) for direct in ((0.5, 1.3, 1.3, 0, 0), (0.5, 0.9, 1.2, 0, 0))]
    found = [*tune_choose.from_samples(samples[0], MACHINE), *tune_choose.from_samples(samples[1], other)]
    for together, limits in ((False, [8 << 10, 2 << 10]), (True, [8 << 10, 8 << 10])):  # AMD, Intel
        assert [decision.choice.picks[0].up_to for decision in decide(found, together)] == limits


def test_a_machine_that_shares_processors_is_not_set_beside_one_that_does_not() -> None:
    found = []
    for cores, direct in ((2, (0.5, 1.3, 1.3, 0, 0)), (1, (0.5, 0.9, 1.2, 0, 0))):
        found += tune_choose.from_samples(tune_choose.as_samples(cells(direct=direct)), {**MACHINE, "cores": cores})
    assert [decision.choice.picks[0].up_to for decision in decide(found, together=True)] == [8 << 10, 2 << 10]


def test_what_the_table_loses_is_told_by_machine() -> None:
    lines = tune.losses(decide(tune_choose.from_samples(tune_choose.as_samples(cells(direct=(0.5, 0.5, 2.0, 0, 0))), MACHINE)))
    assert lines[1:] == ["# Intel Test, 4 processors", f"# {'':14}{'shm 2':>15}", f"# {'all_to_all':14}{'1.149 (2.00)':>15}",
                         "# all 5 cells: 1.149 (2.00)"]


# ---- the shipped table ----

LEFT = {("all_reduce", "shm", 2): 1.05}  # "sliced" above 32 KiB, which gains bfloat16 a quarter
# Over links their times are from before these ran ahead of the comparison of calls, which "binomial" and "chain" gain by.
AHEAD = {row.kind for row in tuning.rows() if row.ahead}


@pytest.mark.parametrize("path", MEASURED, ids=lambda path: path.stem)
def test_the_table_loses_little_where_it_was_measured(monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
    """At most 3% in geometric mean, of each operation, transport and number of ranks (its cells' sizes); of the machine whose
    rounds differ by more, 5% of all cells."""
    monkeypatch.setattr(tune_choose, "shipped", tuning.shipped)
    found = json.loads(path.read_text())
    rows = {}
    for decision in decide(tune_choose.from_samples(found["cells"], found["machine"])):
        if decision.choice.transport != "loopback" or decision.choice.operation not in AHEAD:
            rows[decision.choice[:3]] = decision.losses(decision.table)
    assert rows and geometric_mean([loss for losses in rows.values() for loss in losses]) <= 1.05
    assert found["machine"]["cores"] == 2 or {row: round(geometric_mean(losses), 3) for row, losses in rows.items()
                                              if geometric_mean(losses) > LEFT.get(row, 1.03)} == {}
    assert tuning.is_measured(found["machine"])


def test_the_machines_of_the_table_are_those_of_its_samples() -> None:
    machines = {(cpu, cores) for cpu, cores in tuning.MEASURED
                for about in [json.loads(path.read_text())["machine"] for path in MEASURED]
                if about["cpu"].startswith(cpu) and about["cores"] == cores}
    assert machines == {(cpu, cores) for cpu, cores in tuning.MEASURED if cpu != "AMD"}  # whose samples were not kept


# ---- the rows of table.h ----


def test_lines_are_those_of_the_source() -> None:
    source = Path(tune.__file__).parents[1] / "backends" / "engine" / "collectives" / "table.h"
    assert tune_table.lines([]) == [line for line in source.read_text().splitlines() if line.startswith("ROW(")]


def rows_of(kind: str) -> list[tuning.Row]:
    return [row for row in tuning.rows() if row.kind == kind]


@pytest.mark.parametrize("kind", tuning.operations())
def test_rows_derived_from_the_table_say_what_it_says(kind: str) -> None:
    given = rows_of(kind)
    choices = {(place, ranks): tuning.shipped(kind, place.transport, ranks, place.dedicated)
               for place in tune_table._SECTIONS for ranks in (2, 4)}
    made = tune_table.derived(given, choices)
    assert len(made) <= len(given) + 1
    for place in tune_table._PLACES:
        for ranks in (2, 3, 7, 8, 9, 16, 17, 100):
            for size in (0, 1024, 8192, 8193, 100_000, 1 << 20, 1 << 30):
                wanted = tune_table.first(given, place, 4 if place in tune_table._SECTIONS and 2 < ranks <= 8 else ranks, size)
                assert tune_table.first(made, place, ranks, size) == wanted


def test_rows_say_what_was_chosen_and_no_more() -> None:
    made = tune_table.derived(rows_of("all_gather"), {
        (Place("loopback"), 2): (Pick("bruck", 1 << 20), Pick("ring", None)),
        (Place("loopback"), 4): (Pick("bruck", 100), Pick("ring", None)),
        (Place("symmetric"), 2): (Pick("shared", 8 << 10), Pick("direct", None)),
        (Place("shm", True), 4): (Pick("direct", None),)})
    found = {(place, ranks, size): tune_table.first(made, place, ranks, size)
             for place in (Place("shm"), Place("shm", True), Place("symmetric"), Place("loopback")) for ranks in (2, 3, 8, 9)
             for size in (50, 32 << 10, 1 << 20, 1 << 30)}
    assert [found[Place("loopback"), ranks, 1 << 20] for ranks in (2, 3, 8, 9)] == ["bruck", "ring", "ring", "ring"]
    assert [found[Place("loopback"), ranks, 32 << 10] for ranks in (2, 3, 8, 9)] == ["bruck", "ring", "ring", "bruck"]
    assert [found[Place("symmetric"), ranks, 32 << 10] for ranks in (2, 3, 8, 9)] == ["direct", "direct", "shared", "shared"]
    assert [found[Place("shm"), ranks, 32 << 10] for ranks in (2, 3, 8, 9)] == ["shared"] * 4
    assert [found[Place("shm", True), ranks, 50] for ranks in (2, 3, 8, 9)] == ["direct"] * 3 + ["shared"]
    assert tune_table.line(made[0]) == 'ROW(ALL_GATHER, "shared", shared_all_gather, SYMMETRIC, CHECKS, KiB(8), 4)'


def test_several_hosts_have_a_section() -> None:
    made = tune_table.derived(rows_of("reduce_scatter"),
                              {(Place("hosts"), 4): (Pick("pairwise", 100), Pick("leaders", None))})
    first = [tune_table.first(made, place, 4, size)
             for place in (Place("hosts"), Place("hosts", uneven=True), Place("tcp")) for size in (50, 1 << 30)]
    assert first == ["pairwise", "leaders", "pairwise", "pairwise", "bruck", "pairwise"]
    assert ('ROW(REDUCE_SCATTER, "leaders", hierarchical_reduce_scatter, EVEN_HOSTS, CHECKS, ALWAYS, 0)'
            in map(tune_table.line, made))


# ---- the command ----


def run(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    return subprocess.run([sys.executable, "-m", *arguments], capture_output=True, text=True, timeout=120,
                          env={**clean, **environ})


BRIEF = ["--sizes=64,4K", "--rounds=3"]


def test_as_a_user_runs_it(tmp_path: Path) -> None:
    file, samples = tmp_path / "tuning.json", tmp_path / "samples.json"
    done = run("arraycomm.bench", "tune", "--np=2,3", "--ops=all_reduce,scatter,barrier", *BRIEF, "-o", str(file), "--samples",
               str(samples), ARRAYCOMM_TUNING="/is/not/looked/at")
    assert done.returncode == 0, done.stderr
    made = tuning.read(str(file))
    assert {choice[:3] for choice in made.choices} == {
        (operation, transport, ranks) for operation in ("all_reduce", "scatter", "barrier")
        for transport in tuning.INSIDE for ranks in (2, 3) if (operation, transport) != ("barrier", "loopback")}
    assert made.machine == tuning.machine()
    assert "# scatter over loopback, 3 ranks: us per call, median of 3 rounds" in done.stdout
    assert "# 2, 3 ranks; the machine should be idle otherwise" in done.stderr and "round 1 of 3: " in done.stderr
    assert f"# written: {file}, for ARRAYCOMM_TUNING" in done.stdout
    again = run("arraycomm.bench", "tune", "--np=2", "--ops=scatter", "--transport=loopback", *BRIEF, "--samples", str(samples))
    assert again.returncode == 0 and "# scatter over loopback, 2 ranks: us per call, median of 6 rounds" in again.stdout
    shown = run("arraycomm.bench", "tune", "--rounds=0", "--samples", str(samples), "--table")
    assert "# scatter over loopback, 2 ranks: us per call, median of 6 rounds" in shown.stdout
    assert f"# {tuning.machine()['cpu']}, {tuning.machine()['cores']} processors" in shown.stdout
    assert 'ROW(BARRIER, "shared", shared_barrier, ONE_HOST, CHECKS, ALWAYS, 0)' in shown.stdout.splitlines()
    used = run("arraycomm.bench", "all_reduce", "--nproc=2", "-b=64", "-e=4K", "-f=64", "-n=2", ARRAYCOMM_TUNING=str(file))
    assert "# Out of bounds values : 0 OK" in used.stdout, used.stderr
    info = run("arraycomm.info", ARRAYCOMM_TUNING=str(file))
    assert f"by {file}, {made.measured}" in info.stdout and "scatter over loopback, 3 ranks" in info.stdout


def test_under_a_launcher(tmp_path: Path) -> None:
    """On hosts that the launcher does not know of."""
    file = tmp_path / "tuning.json"
    tune_here = ["-m", "arraycomm.bench", "tune", "--ops=broadcast", *BRIEF, "-o", str(file)]
    enter = 'ARRAYCOMM_HOSTID=host$RANK exec "$@"'
    done = run("arraycomm.launch", "--nproc-per-node=2", "--no-python", "sh", "-c", enter, "-", sys.executable, *tune_here)
    assert done.returncode == 0, done.stderr
    assert [choice[:3] for choice in tuning.read(str(file)).choices] == [("broadcast", "tcp", 2)]
    assert done.stdout.count("# written:") == 1
    none = run("arraycomm.launch", "--nproc-per-node=2", "-m", "arraycomm.bench", "tune", "--transport=tcp", *BRIEF)
    assert none.returncode and "--transport tcp: 2 ranks on 1 host have shm, symmetric, loopback only" in none.stderr


def test_a_launchers_world_has_its_size(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "1")):
        monkeypatch.setenv(name, value)
    assert main(["tune", "--np=4"]) == 2
    assert "--np, but this process is a rank of a world of 2 already" in capsys.readouterr().err


@pytest.mark.parametrize(("arguments", "told"), [
    (["--ops=xor"], "unknown operation 'xor'; choose from all_reduce"), (["--transport=sea"], "unknown transport 'sea'"),
    (["--np=1"], "'1' is not a whole number of at least 2"), (["--rounds=2"], "at least 3, or 0 to measure nothing"),
    (["--transport=hosts"], "--transport hosts: 2 ranks on 1 host have shm, symmetric, loopback only"),
    (["--rounds=0"], "name the samples with --samples"), (["--samples=a", "--samples=b"], "several --samples are for --rounds 0"),
    (["--rounds=0", "--samples=/nowhere/x"], "cannot read the samples in '/nowhere/x': No such file or directory"),
    (["--sizes=x"], "'x' is not a size"),
    (["-o", "/nowhere/x"], "cannot write '/nowhere/x'")])
def test_what_cannot_work_is_told_before_any_rank_starts(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
                                                         arguments: list[str], told: str) -> None:
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.setattr(tune, "run", lambda *arguments: pytest.fail("ranks were started"))
    try:
        assert main(["tune", *arguments]) == 2
    except SystemExit as left:
        assert left.code == 2
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(("change", "told"), [
    ({"machine": {"cpu": "another", "cores": 77}}, "give --samples another name, or --rounds 0 to read only"),
    ({"arraycomm samples": 1}, "its version is 1"), ({"cells": [{}]}, "'operation'")])
def test_other_samples_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
                                   change: dict[str, Any], told: str) -> None:
    monkeypatch.delenv("RANK", raising=False)
    path = tmp_path / "samples.json"
    tune._write_samples(str(path), {"machine": tuning.machine(), "cells": tune_choose.as_samples(cells())})
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    assert main(["tune", "--samples", str(path)]) == 2
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(("cores", "numbers"), [(1, (2,)), (2, (2,)), (3, (2, 3)), (4, (2, 4)), (12, (2, 4, 8, 12)),
                                                (16, (2, 4, 8, 16))])
def test_ranks_go_up_to_the_processors(cores: int, numbers: tuple[int, ...]) -> None:
    assert tune.powers(cores) == numbers


def test_another_machines_samples_are_compared(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.setattr(tune_choose, "shipped", tuning.shipped)
    assert main(["tune", "--rounds=0", "--ops=scan,barrier", *(f"--samples={path}" for path in MEASURED), "--table"]) == 0
    shown = capsys.readouterr().out.splitlines()
    machines = [json.loads(path.read_text())["machine"] for path in MEASURED]
    assert sum(line.startswith("# all ") for line in shown) == len({(machine["cpu"], machine["cores"]) for machine in machines})
    assert 'ROW(BARRIER, "dissemination", barrier_dissemination, ANYWHERE, CHECKS, ALWAYS, 0)' in shown


def test_a_rank_that_fails_is_exit_code_1(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.setattr(tune, "samples", fail)
    assert main(["tune", "--np=2"]) == 1
    assert "LookupError: what a rank says" in capsys.readouterr().err


def fail(plan: object) -> None:
    raise LookupError("what a rank says")
