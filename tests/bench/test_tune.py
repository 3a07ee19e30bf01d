"""arraycomm-bench tune: what moves a threshold and what does not, the rows of table.h, and the command as a user runs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from arraycomm.bench import tune, tune_choose, tune_table
from arraycomm.bench.__main__ import main
from arraycomm.bench.tune_choose import Cell, decide
from arraycomm.core.interface import tuning
from arraycomm.core.interface.tuning import Choice, Pick

SIZES = (1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10)
TABLE = (Pick("shared", 16 << 10), Pick("direct", None))


@pytest.fixture(autouse=True)
def table(monkeypatch):
    """all_to_all over shm: "shared" up to 16 KiB, then "direct"; "bruck" and "pairwise" never."""
    monkeypatch.setattr(tune_choose, "shipped", lambda *key: TABLE)


def cells(**ratios):
    """The table's algorithm takes 10 us; others as said, by size: one ratio to that for all rounds, or one for each."""
    made = []
    for number, size in enumerate(SIZES):
        own = "shared" if size <= TABLE[0].up_to else "direct"
        rounds = [{own: 10.0} for _ in range(3)]
        for name, by_size in ratios.items():
            given = by_size[number]
            for times, ratio in zip(rounds, given if isinstance(given, tuple) else (given,) * 3, strict=True):
                if name != own and ratio:
                    times[name] = 10.0 / ratio
        made.append(Cell("all_to_all", "shm", 2, size, rounds))
    return made


def picks(**ratios):
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
def test_a_threshold_moves_where_every_round_shows_a_gain(direct, pairwise, expected):
    assert picks(direct=direct, pairwise=pairwise) == expected


def test_the_tables_own_limits_stay_where_it_is_kept(monkeypatch):
    odd = (Pick("bruck", 8), Pick("shared", 20_000), Pick("bruck", 20_001), Pick("direct", 1 << 30), Pick("pairwise", None))
    monkeypatch.setattr(tune_choose, "shipped", lambda *key: odd)
    assert picks(pairwise=(0.5,) * 5) == odd
    assert picks(pairwise=(0.5, 0.5, 0.5, 0.5, 1.5))[:4] == (*odd[:3], Pick("direct", 128 << 10))


def test_a_decision_says_what_it_gains():
    (decision,) = decide(cells(direct=(0.5, 0.5, 2.0, 0, 0)))
    assert decision.changed and decision.regret == pytest.approx(1) and decision.table_regret == pytest.approx(2 ** (1 / 5))
    assert [(cell.size, before, after) for cell, before, after in decision.moved()] == [(16 << 10, "shared", "direct")]
    lines = tune.lines(decision)
    marks = [line.split()[1:] for line in lines if not line.startswith("#")]
    assert marks == [["10.00*", "20.00"], ["10.00*", "20.00"], ["10.00-", "5.00+"], ["-", "10.00*"], ["-", "10.00*"]]
    assert "#   16 KiB: shared takes 2.00 (2.00-2.00) of direct's time" in lines
    assert "#   the engine's table: shared to 16 KiB, direct; 1.149" in lines


def test_together_all_numbers_of_ranks_gain():
    two, four = cells(direct=(0.5, 1.3, 1.3, 0, 0)), cells(direct=(0.5, 0.9, 1.2, 0, 0))
    for cell in four:
        cell.ranks = 4
    for together, limits in ((False, [2 << 10, 8 << 10]), (True, [8 << 10, 8 << 10])):
        assert [decision.choice.picks[0].up_to for decision in decide([*two, *four], together)] == limits


def test_samples_are_put_together():
    first = cells(direct=(0.5,) * 5)
    both = tune_choose.from_samples(tune_choose.as_samples([*first, *cells(direct=(0.7,) * 5)]))
    assert len(both) == len(SIZES) and all(len(cell.rounds) == 6 for cell in both)
    assert both[0].ratios("shared", "direct")[0] == pytest.approx(0.5)


def test_between_hosts_the_table_is_theirs(monkeypatch):
    monkeypatch.setattr(tune_choose, "shipped", tuning.shipped)
    measured = []
    for transport in ("loopback", "tcp"):
        rounds = [dict.fromkeys(tuning.names(transport)["all_reduce"], 10.0)] * 3
        measured += [Cell("all_reduce", transport, 4, size, rounds) for size in SIZES]
    decisions = decide(tune_choose.from_samples(tune_choose.as_samples(measured)))
    assert [decision.choice.transport for decision in decisions] == ["loopback", "tcp"]
    for decision in decisions:
        assert decision.choice.picks == decision.table == tuning.shipped("all_reduce", decision.choice.transport, 4)
    assert decisions[0].table != decisions[1].table


# ---- the rows of table.h ----


def test_the_source_is_the_engines_table():
    rows = tune_table.source_rows()
    engine = [(row.kind, row.name, row.max_ranks, row.up_to) for row in tuning.rows() if row.kind != "recv"]  # of messages
    assert [(row.kind, row.name, row.max_ranks, None if row.up_to == 2**64 - 1 else row.up_to) for row in rows] == engine
    text = tune_table.SOURCE.read_text()
    assert all(str(row) in text for row in rows) and tune_table.rows([]) == [str(row) for row in rows]


@pytest.mark.parametrize("kind", tuning.operations())
def test_rows_derived_from_the_table_say_what_it_says(kind):
    given = [row for row in tune_table.source_rows() if row.kind == kind]
    choices = [Choice(kind, transport, ranks, tuning.shipped(kind, transport, ranks))
               for transport in tune_table._SECTIONS for ranks in (2, 4)]
    made = tune_table.derived(given, choices)
    assert len(made) <= len(given) + 1
    for transport in (*tuning.TRANSPORTS, "uneven"):
        for ranks in (2, 3, 7, 8, 9, 16, 17, 100):
            for size in (0, 1024, 8192, 8193, 100_000, 1 << 20, 1 << 30):
                assert tune_table._first(made, transport, ranks, size) == tune_table._first(given, transport, ranks, size)


def test_rows_say_what_was_chosen_and_no_more():
    given = [row for row in tune_table.source_rows() if row.kind == "all_gather"]
    made = tune_table.derived(given, [Choice("all_gather", "loopback", 2, (Pick("bruck", 1 << 20), Pick("ring", None))),
                                      Choice("all_gather", "loopback", 4, (Pick("bruck", 100), Pick("ring", None))),
                                      Choice("all_gather", "symmetric", 2, (Pick("shared", 8 << 10), Pick("direct", None)))])
    found = {(transport, ranks, size): tune_table._first(made, transport, ranks, size)
             for transport in ("shm", "symmetric", "loopback") for ranks in (2, 3, 8, 9)
             for size in (50, 32 << 10, 1 << 20, 1 << 30)}
    assert [found["loopback", ranks, 1 << 20] for ranks in (2, 3, 8, 9)] == ["bruck", "ring", "ring", "ring"]
    assert [found["loopback", ranks, 32 << 10] for ranks in (2, 3, 8, 9)] == ["bruck", "ring", "ring", "bruck"]
    assert [found["symmetric", ranks, 32 << 10] for ranks in (2, 3, 8, 9)] == ["direct", "direct", "shared", "shared"]
    assert [found["shm", ranks, 32 << 10] for ranks in (2, 3, 8, 9)] == ["shared"] * 4
    assert str(made[0]) == 'ROW(ALL_GATHER, "shared", shared_all_gather, SYMMETRIC, CHECKS, KiB(8), 4)'


def test_several_hosts_have_a_section():
    given = [row for row in tune_table.source_rows() if row.kind == "reduce_scatter"]
    made = tune_table.derived(given, [Choice("reduce_scatter", "hosts", 4, (Pick("pairwise", 100), Pick("leaders", None)))])
    first = [tune_table._first(made, where, 4, size) for where in ("hosts", "uneven", "tcp") for size in (50, 1 << 30)]
    assert first == ["pairwise", "leaders", "pairwise", "pairwise", "bruck", "pairwise"]
    assert 'ROW(REDUCE_SCATTER, "leaders", hierarchical_reduce_scatter, EVEN_HOSTS, CHECKS, ALWAYS, 0)' in map(str, made)


def test_without_a_clone_there_is_no_table(monkeypatch, tmp_path):
    monkeypatch.setattr(tune_table, "SOURCE", tmp_path / "table.h")
    with pytest.raises(ValueError, match="--table needs a clone of arraycomm"):
        tune_table.rows([])


# ---- the command ----


def run(*arguments, **environ):
    clean = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    return subprocess.run([sys.executable, "-m", *arguments], capture_output=True, text=True, timeout=120,
                          env={**clean, **environ})


BRIEF = ["--sizes=64,4K", "--rounds=3"]


def test_as_a_user_runs_it(tmp_path):
    file, samples = tmp_path / "tuning.json", tmp_path / "samples.json"
    done = run("arraycomm.bench", "tune", "--np=2,3", "--ops=all_reduce,scatter,barrier", *BRIEF, "-o", str(file), "--samples",
               str(samples), ARRAYCOMM_TUNING="/is/not/looked/at")
    assert done.returncode == 0, done.stderr
    made = tuning.read(str(file))
    assert {choice[:3] for choice in made.choices} == {
        (operation, transport, ranks) for operation in ("all_reduce", "scatter", "barrier")
        for transport in tune.INSIDE for ranks in (2, 3) if (operation, transport) != ("barrier", "loopback")}
    assert made.machine == tune.machine()
    assert "# scatter over loopback, 3 ranks: us per call, median of 3 rounds" in done.stdout
    assert f"# written: {file}, for ARRAYCOMM_TUNING" in done.stdout
    again = run("arraycomm.bench", "tune", "--np=2", "--ops=scatter", "--transport=loopback", *BRIEF, "--samples", str(samples))
    assert again.returncode == 0 and "# scatter over loopback, 2 ranks: us per call, median of 6 rounds" in again.stdout
    shown = run("arraycomm.bench", "tune", "--rounds=0", "--samples", str(samples), "--table")
    assert "# scatter over loopback, 2 ranks: us per call, median of 6 rounds" in shown.stdout
    assert 'ROW(BARRIER, "shared", shared_barrier, ONE_HOST, CHECKS, ALWAYS, 0)' in shown.stdout.splitlines()
    used = run("arraycomm.bench", "all_reduce", "--nproc=2", "-b=64", "-e=4K", "-f=64", "-n=2", ARRAYCOMM_TUNING=str(file))
    assert "# Out of bounds values : 0 OK" in used.stdout, used.stderr
    info = run("arraycomm.info", ARRAYCOMM_TUNING=str(file))
    assert f"by {file}, {made.measured}" in info.stdout and "scatter over loopback, 3 ranks" in info.stdout


def test_under_a_launcher(tmp_path):
    file = tmp_path / "tuning.json"
    done = run("arraycomm.launch", "--nproc-per-node=2", "-m", "arraycomm.bench", "tune", "--ops=broadcast",
               "--transport=loopback", *BRIEF, "-o", str(file))
    assert done.returncode == 0, done.stderr
    assert [choice[:3] for choice in tuning.read(str(file)).choices] == [("broadcast", "loopback", 2)]
    assert done.stdout.count("# written:") == 1


def test_a_launchers_world_has_its_size(capsys, monkeypatch):
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "1")):
        monkeypatch.setenv(name, value)
    assert main(["tune", "--np=4"]) == 2
    assert "--np, but this process is a rank of a world of 2 already" in capsys.readouterr().err


@pytest.mark.parametrize(("arguments", "told"), [
    (["--ops=xor"], "unknown operation 'xor'; choose from all_reduce"), (["--transport=sea"], "unknown transport 'sea'"),
    (["--np=1"], "'1' is not a whole number of at least 2"), (["--rounds=2"], "at least 3, or 0 to measure nothing"),
    (["--transport=hosts"], "--transport hosts: 2 ranks on 1 host have shm, symmetric, loopback only"),
    (["--hosts=0"], "'0' is not a whole number of at least 1"), (["--hosts=2", "--np=3"], "--np 3 cannot be dealt out evenly"),
    (["--rounds=0"], "name the samples with --samples"), (["--sizes=x"], "'x' is not a size"),
    (["-o", "/nowhere/x"], "cannot write '/nowhere/x'")])
def test_what_cannot_work_is_told_before_any_rank_starts(monkeypatch, capsys, arguments, told):
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.setattr(tune, "_world", lambda *arguments: pytest.fail("ranks were started"))
    try:
        assert main(["tune", *arguments]) == 2
    except SystemExit as left:
        assert left.code == 2
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(("change", "told"), [
    ({"machine": {"cpu": "another", "cores": 77}}, "measured on another, 77 cores, this machine is"),
    ({"arraycomm samples": 1}, "its version is 1"), ({"cells": [{}]}, "'operation'")])
def test_other_samples_are_refused(tmp_path, monkeypatch, capsys, change, told):
    monkeypatch.delenv("RANK", raising=False)
    path = tmp_path / "samples.json"
    tune._write_samples(str(path), cells())
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    assert main(["tune", "--samples", str(path)]) == 2
    assert told in capsys.readouterr().err


def test_a_rank_that_fails_is_exit_code_1(monkeypatch, capsys):
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.setattr(tune, "samples", fail)
    assert main(["tune", "--np=2"]) == 1
    assert "LookupError: what a rank says" in capsys.readouterr().err


def fail(plan):
    raise LookupError("what a rank says")
