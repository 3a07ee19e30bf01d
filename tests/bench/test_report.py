from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from arraycomm.bench import options, report
from arraycomm.bench.harness import Timing
from arraycomm.bench.report import Summary, Table, figure
from arraycomm.bench.sweep import Cell, Row


def cell(time: float, busbw: float, wrong: int | None = 0) -> Cell:
    return Cell(Timing(time, time - 1, time + 1, 100, time, time * 2, time * 3), busbw / 1.5, busbw, wrong)


ROWS = [
    Row("all_reduce", 8, 2, "float32", "sum", -1, cell(1.25, 0.01), cell(1.5, 0.02)),
    Row("all_reduce", 1 << 20, 1 << 18, "float32", "product", -1, cell(12345.6, 3.0), cell(100.25, 4.97)),
    Row("broadcast", 64, 16, "bfloat16", "", 3, cell(1.0, 2.0, 5), None),
    Row("barrier", 0, 0, "", "", -1, cell(2.0, 0.0, None), None),
]


@pytest.mark.parametrize(
    ("value", "text"), [(1.2345, "   1.23"), (1234.567, "1234.57"), (12345.67, "12345.7"), (1234567.8, "1234568")]
)
def test_figures_fit_their_column(value: float, text: str) -> None:
    assert figure(value, 7) == text


def test_rows_as_nccl_tests_prints_them(capsys: pytest.CaptureFixture[str]) -> None:
    table = Table(percentiles=False)
    for row in ROWS:
        table.row(row)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == ("           8             2     float     sum      -1     1.25    0.01    0.01       0"
                        "     1.50    0.01    0.02       0")
    assert lines[1].split() == ["1048576", "262144", "float", "prod", "-1", "12345.6", "2.00", "3.00", "0",
                                "100.25", "3.31", "4.97", "0"]
    assert lines[2].split() == ["64", "16", "bfloat16", "none", "3", "1.00", "1.33", "2.00", "5"] + ["N/A"] * 4
    assert lines[3].split() == ["0", "0", "none", "none", "-1", "2.00", "0.00", "0.00", "N/A"] + ["N/A"] * 4


@pytest.mark.parametrize("percentiles", [False, True])
def test_header_stands_above_its_columns(capsys: pytest.CaptureFixture[str], percentiles: bool) -> None:
    table = Table(percentiles)
    table.header("all_reduce")
    table.row(ROWS[0])
    *_, places, names, units, row = capsys.readouterr().out.splitlines()
    ends = [match.end() for match in re.finditer(r"\S+", row)]
    assert [match.end() for match in re.finditer(r"\S+", names[1:])] == [end - 1 for end in ends]
    assert "out-of-place" in places and "(GB/s)" in units
    assert names.split()[1:10] == ["size", "count", "type", "redop", "root", "time", "algbw", "busbw", "#wrong"]
    assert names.count("p99") == (2 if percentiles else 0)


def test_footer(capsys: pytest.CaptureFixture[str]) -> None:
    summary = Summary.of(ROWS)
    assert summary.wrong == 5
    assert summary.busbw == pytest.approx((0.01 + 0.02 + 3.0 + 4.97 + 2.0) / 5)  # the barrier moves nothing
    Table(percentiles=False).footer(summary)
    assert capsys.readouterr().out == "# Out of bounds values : 5 FAILED\n# Avg bus bandwidth    : 2\n#\n"
    Table(percentiles=False).footer(Summary(0, 1.5))
    assert "# Out of bounds values : 0 OK\n" in capsys.readouterr().out


def test_json_has_nccl_tests_keys(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    report.write_json(str(path), ROWS, options.parse(["all_reduce"]), {"args": ["x"]})
    document = json.loads(path.read_text())
    assert document["out_of_bounds"] == {"count": 5, "okay": False}
    first = document["results"][0]
    assert (first["size"], first["type"], first["redop"]) == (8, "float", "sum")
    assert first["out_of_place"] == {"time": 1.25, "alg_bw": pytest.approx(0.01 / 1.5), "bus_bw": 0.01, "nwrong": 0,
                                     "low": 0.25, "high": 2.25, "calls": 100, "p50": 1.25, "p95": 2.5,
                                     "p99": 3.75}
    assert document["results"][2]["in_place"] is None
