"""arraycomm-bench compare --html: one page with everything, and nothing from elsewhere."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from arraycomm.bench import compare
from arraycomm.bench.results import Cell, Timing
from arraycomm.bench.table import write_json

pytest.importorskip("matplotlib")
ABOUT = {"dtype": "float32",
         "cpu": "a <processor>", "cpus": 2, "machine": "Linux", "beside_load": 3, "note": "one <note>",
         "end_time": "2026-11-29T12:00:00",
         "contenders": {name: {"version": f"{name} 1.0", "python": "/secret", "transport": transport} for name, transport in (
             ("ours/shm", "shared memory"), ("ours/tcp", "sockets"), ("openmpi", "shared memory"), ("gloo", "sockets"))},
         "skipped": {"mpich": "pip install mpich & more"}, "failed": [{"contender": "impi", "ranks": 2, "error": "impi died"}]}
_VOID = {"meta", "br", "link", "img"}


def timing(time: float, wrong: int = 0) -> Timing:
    return Timing(((time, time), (2 * time, 2 * time)), 1, wrong, 1.0, 2.0, 3.0)


def cell(operation: str, ranks: int, size: int, wrong: int = 0, **times: float) -> Cell:
    return Cell(operation, ranks, size, "float32", {name.replace("_", "/"): timing(time, wrong) for name, time in times.items()})


CELLS = [cell("barrier", 2, 0, ours_shm=1.0, openmpi=2.0),
         cell("all_reduce", 2, 8, ours_shm=1.0, ours_tcp=10.0, openmpi=2.0, gloo=40.0),
         cell("all_reduce", 2, 3 << 20, ours_shm=800.0, openmpi=400.0), cell("scan", 4, 64, wrong=1, ours_shm=1.0, gloo=3.0),
         cell("sendrecv", 4, 1 << 10, gloo=5.0)]


class Page(HTMLParser):
    """Tags that close what they open; the tables' rows; attributes and text of everything."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.open: list[str] = []
        self.texts: list[str] = []
        self.tags: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in _VOID:
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)
        if self.open and self.open[-1] in ("td", "th"):
            self.rows[-1][-1] += data


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    """Two results of one machine: a cell of the first is measured again in the second."""
    old = [cell("barrier", 2, 0, ours_shm=77.0, openmpi=78.0), CELLS[3]]
    for name, cells in (("a.json", old), ("b.json", [CELLS[4], *CELLS[:3]])):
        write_json(str(tmp_path / name), cells, ["ours/tcp", "gloo"], ABOUT)
    return [str(tmp_path / "a.json"), str(tmp_path / "b.json")]


@pytest.fixture
def page(files: list[str], tmp_path: Path) -> Page:
    assert compare.main([f"--read={files[0]}", f"--read={files[1]}", f"--html={tmp_path / 'out.html'}"]) == 0
    text = (tmp_path / "out.html").read_text()
    found = Page(text)
    assert not found.open and text.startswith("<!DOCTYPE html>")
    return found


def test_every_cell_is_there(page: Page) -> None:
    assert [row for row in page.rows if row[0] in ("barrier", "all_reduce", "scan", "sendrecv")] == [
        ["barrier", "", "1.5 \u00b5s", "3 \u00b5s", "\u2013", "\u2013", "openmpi", "ours/shm: 2.00 (2.00\u20132.00)", "faster"],
        ["all_reduce", "8 B", "1.5 \u00b5s", "3 \u00b5s", "15 \u00b5s", "60 \u00b5s", "openmpi",
         "ours/shm: 2.00 (2.00\u20132.00)", "faster"],
        ["all_reduce", "8 B", "1.5 \u00b5s", "3 \u00b5s", "15 \u00b5s", "60 \u00b5s", "gloo",
         "ours/tcp: 4.00 (4.00\u20134.00)", "faster"],
        ["all_reduce", "3 MiB", "1.2 ms", "600 \u00b5s", "\u2013", "\u2013", "openmpi",
         "ours/shm: 0.50 (0.50\u20130.50)", "slower"],
        ["scan", "64 B", "WRONG", "WRONG", "gloo", "ours/shm: 3.00 (3.00\u20133.00)", "WRONG"],
        ["sendrecv", "1 KiB", "\u2013", "7.5 \u00b5s", "", "", ""]]


def test_the_summary_has_the_worst_cell(page: Page) -> None:
    assert [row for row in page.rows if row[0] in ("2", "4")] == [
        ["2", "ours/shm", "openmpi, gloo", "3", "2", "2", "0", "1", "0", "1.26",
         "all_reduce 3 MiB: 0.50 (0.50\u20130.50) beside openmpi"],
        ["2", "ours/tcp", "gloo", "1", "1", "1", "0", "0", "0", "4.00", "all_reduce 8 B: 4.00 (4.00\u20134.00) beside gloo"],
        ["4", "ours/shm", "gloo", "1", "1", "0", "0", "0", "1", "3.00", "scan 64 B: 3.00 (3.00\u20133.00) beside gloo"]]


def test_machine_method_and_plots_are_there(page: Page) -> None:
    text = "".join(page.texts)
    assert "a <processor>, 2 processors, Linux, 2026-11-29T12:00:00; rounds of a cell: 2; busy processes beside: 3." in text
    assert "Note. one <note>" in text and "took turns" in text
    assert "mpich took no part: pip install mpich & more" in text and "Failed: impi died" in text
    assert ["gloo", "gloo 1.0", "sockets"] in page.rows
    assert page.tags.count("svg") == 2 and "all_reduce, 2 ranks" in page.texts


def test_nothing_comes_from_elsewhere(page: Page) -> None:
    assert not {"script", "link", "img", "iframe", "object", "embed", "image"} & set(page.tags)
    loading = [(name, value) for name, value in page.attributes if re.search(r"//|@import|url\((?!['\"]?#)", value or "")]
    assert loading and all(name.startswith("xmlns") for name, _ in loading)
    assert not re.search(r"https?:|@import|url\(", "".join(page.texts))


def test_files_joined_by_reading_are_as_before(files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "both.json"
    compare.main([f"--read={files[0]}", f"--read={files[1]}", f"--json={path}", f"--ratio-plot={tmp_path / 'r.svg'}"])
    out = capsys.readouterr().out
    assert "# 2 ranks: ours/shm beside openmpi, gloo: 3 cells: 2 faster, 0 unclear, 1 slower, 0 wrong; geometric mean" in out
    document = json.loads(path.read_text())
    assert [(entry["operation"], entry["size"]) for entry in document["cells"] if entry["ranks"] == 2] == [
        ("barrier", 0), ("all_reduce", 8), ("all_reduce", 3 << 20)]
    assert document["cells"][0]["timings"]["ours/shm"]["rounds"] == [[1, 1], [2, 2]]
    assert document["contenders"]["gloo"] == {"version": "gloo 1.0", "transport": "sockets"}
    compare.main([f"--read={path}", f"--json={tmp_path / 'again.json'}"])
    assert (tmp_path / "again.json").read_text() == path.read_text()
    assert ">barrier</text>" in (tmp_path / "r.svg").read_text()


@pytest.mark.parametrize("option", ["--html", "--ratio-plot", "--json"])
def test_a_file_that_cannot_be_written_is_told_first(option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        compare.main([f"{option}={tmp_path / 'none' / 'out.svg'}"])
    assert "there is no folder" in capsys.readouterr().err
