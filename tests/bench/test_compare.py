"""The comparison's arithmetic, with contenders that are lists of times."""

from __future__ import annotations

import argparse
import csv
import json

import pytest

from arraycomm.bench import compare
from arraycomm.bench.compare import Result


class Listed:
    """A contender of two ranks; every run takes the next of `times` (us per call) on the slower one."""

    def __init__(self, name, log, times, wrong=0):
        self.name, self.log, self.times, self.wrong, self.size = name, log, list(times), wrong, 2

    def ask(self, what, *arguments):
        if what == "prepare":
            return [0, self.wrong]
        if what == "release":
            return [0, 0]
        self.log.append(self.name)
        time = self.times.pop(0)
        return [int(time * arguments[0] * 1e3) // 2, int(time * arguments[0] * 1e3)]


def cell(ours, peer, rounds, wrong=0):
    # The first run of each finds the number of calls: 20 ms are one call.
    log = []
    contenders = [Listed("ours/shm", log, [20_000, *ours]), Listed("gloo", log, [20_000, *peer], wrong)]
    (result,) = compare._cell("all_reduce", 8, contenders, rounds)
    return result, log[2:]


def test_turns_are_there_and_back():
    _, log = cell([1] * 4, [1] * 4, 2)
    assert log == ["ours/shm", "gloo", "gloo", "ours/shm"] * 2


def test_ratios_are_of_rounds_and_times_medians():
    result, _ = cell([10, 10, 10, 30, 10, 10], [20, 20, 20, 20, 40, 60], 3)
    assert (result.ours_time, result.peer_time) == (10, 20)
    assert (result.ratio, result.low, result.high) == (2, 1, 5)
    assert result.verdict == "unclear"


@pytest.mark.parametrize(("ours", "peer", "verdict"), [(1, 2, ""), (2, 1, "slower"), (1, 1, "unclear")])
def test_verdicts(ours, peer, verdict):
    result, _ = cell([ours] * 2, [peer] * 2, 1)
    assert result.verdict == verdict


def test_wrong_data_is_told_whatever_the_speed():
    result, _ = cell([1] * 2, [2] * 2, 1, wrong=7)
    assert result.verdict == "7 WRONG"


RESULT = Result("all_gather", 4, 1 << 28, "ours/tcp", "gloo", 123456.7, 234567.8, 1.9, 1.5, 2.5, 0)


def test_line_stands_under_the_header():
    line = compare._line(RESULT)
    assert len(line) == len(compare._HEADER)
    assert line.split()[:5] == ["all_gather", "4", "268435456", "ours/tcp", "123456.70"]
    assert line.split()[5:] == ["gloo", "234567.80", "1.90", "1.50", "2.50"]


def test_footer_counts():
    text = compare._footer([RESULT, RESULT])
    assert text == "# 2 cells: 2 faster, 0 unclear, 0 slower\n# Out of bounds values : 0 OK"


def test_files(tmp_path):
    compare._write([RESULT], str(tmp_path / "a.json"), str(tmp_path / "a.csv"))
    assert json.loads((tmp_path / "a.json").read_text())[0]["verdict"] == "faster"
    assert next(csv.DictReader((tmp_path / "a.csv").open()))["ratio"] == "1.9"


def test_defaults_are_the_promised_cells():
    given = compare.parser().parse_args([])
    assert given.sizes == [8, 1 << 10, 64 << 10, 1 << 20, 16 << 20, 256 << 20]
    assert (given.np, given.against, given.transport, len(given.ops)) == ([2, 4], ["gloo"], ["shm", "tcp"], 7)


@pytest.mark.parametrize(
    ("option", "text"),
    [("--against=mpi9", "unknown contender 'mpi9'; choose from gloo"), ("--ops=xor", "unknown operation 'xor'"),
     ("--python=x", "--python takes PEER=PATH"), ("--rounds=0", "must be at least 1")],
)  # fmt: skip
def test_errors_name_what_was_wrong(option, text, capsys):
    with pytest.raises(SystemExit):
        compare.main([option])
    assert text in capsys.readouterr().err


def test_peers_are_the_files():
    assert "gloo" in compare.PEERS and "ours" not in compare.PEERS and "protocol" not in compare.PEERS
    assert isinstance(compare.parser(), argparse.ArgumentParser)
