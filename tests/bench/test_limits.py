"""Times of a machine made up, and that the measurements measure: orders of magnitude and no more."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket

import pytest

from arraycomm.bench import compare, limits, machine, model
from arraycomm.bench.model import Limits

FIGURES = {"call": 0.2, "shared_memory_ping": 0.1, "switch": 1.5, "copy_l2": 50.0, "copy_l3": 40.0, "copy_memory": 12.0,
           "copy_memory_4k": 10.0, "copy_l2_together": 25.0, "copy_l3_together": 20.0, "copy_memory_together": 4.0,
           "copy_memory_4k_together": 5.0}
MACHINE = Limits(2, 1 << 20, 32 << 20, FIGURES)


@pytest.mark.parametrize(("size", "together", "ranks", "bandwidth"), [
    (8, False, 1, 50e3), (512 << 10, False, 2, 50e3), (513 << 10, False, 2, 40e3), (256 << 10, False, 4, 50e3),
    (257 << 10, False, 4, 40e3), (8 << 20, True, 2, 20e3), (16 << 20, True, 2, 2 / (1 / 20e3 + 1 / 5e3)),
    (16 << 20, False, 4, 4 / (1 / 40e3 + 3 / 12e3))])
def test_arrays_are_copied_where_they_fit_with_their_copies(size, together, ranks, bandwidth):
    assert MACHINE.bandwidth(size, together, ranks) == pytest.approx(bandwidth)


@pytest.mark.parametrize(("ranks", "time"), [(1, 0.25), (2, 0.25), (3, 2.0), (4, 2.0), (8, 5.5)])
def test_small_ones_cost_a_call_each_and_the_switches_between_them(ranks, time):
    assert MACHINE.time("barrier", 0, ranks) == pytest.approx(time)
    assert MACHINE.time("all_reduce", 8, ranks) == pytest.approx(time)


@pytest.mark.parametrize(("operation", "ranks", "bytes_in_turn", "together"), [
    ("all_reduce", 2, 1.0, True), ("all_reduce", 4, 2.0, True), ("all_gather", 2, 1.0, True), ("all_to_all", 4, 2.0, True),
    ("reduce_scatter", 2, 0.75, True), ("reduce_scatter", 4, 1.25, True), ("broadcast", 2, 1.0, False),
    ("broadcast", 4, 1.5, True), ("sendrecv", 2, 1.0, False), ("sendrecv", 5, 1.0, True)])
def test_large_ones_write_what_is_received_once(operation, ranks, bytes_in_turn, together):
    size = 1 << 28
    expected = bytes_in_turn * size / MACHINE.bandwidth(size, together, ranks)
    assert MACHINE.time(operation, size, ranks) == pytest.approx(expected)


def test_what_could_not_be_measured_makes_the_time_lower():
    bare = Limits(2, 1 << 20, 32 << 20, {**FIGURES, "shared_memory_ping": None, "switch": None})
    assert bare.time("barrier", 0, 4) == pytest.approx(0.4)


def test_limits_are_read_as_written(tmp_path):
    path = str(tmp_path / "limits.json")
    model.write(path, MACHINE, {"machine": "made up"})
    assert model.read(path) == MACHINE
    assert compare.parser().parse_args(["--limits", path]).limits == MACHINE


@pytest.mark.parametrize(("text", "told"), [("{}", "is not what `arraycomm-bench limits --json` writes"), ("[]", "is not what"),
                                            ("no", "cannot read limits: Expecting value")])
def test_another_file_is_refused(tmp_path, capsys, text, told):
    (tmp_path / "other.json").write_text(text)
    with pytest.raises(SystemExit):
        compare.parser().parse_args(["--limits", str(tmp_path / "other.json")])
    assert told in capsys.readouterr().err


def test_tables():
    lines = limits.model_lines(MACHINE, [2, 4], [8, 1 << 28])
    assert all(len(line) == len(lines[1]) for line in lines[2:])
    assert len(lines) == 2 + 6 * 2 + 1
    assert next(line.split() for line in lines if "sendrecv" in line) == ["sendrecv", "8", "0.25", "2.00"]


@pytest.fixture(scope="module")
def measured():
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (("_MOMENT_S", 1e-3), ("_TIMES", 2), ("_LARGE", 8 << 20), ("_TRIPS", 50),
                            ("_TRIPS_S", 0.01)):
            patch.setattr(machine, name, value)
        # Its processes would measure at full length.
        patch.setattr(machine, "copies_together", lambda processes: {f"{name}_together": 1.0 for name in machine.copies()})
        return machine.measure()


def test_processes_copy_at_the_same_time(monkeypatch):
    monkeypatch.setattr(machine, "_copies_of_one", _quick_copies)
    assert machine.copies_together(2) == {"copy_l2_together": 1.0}


def _quick_copies(connection):
    connection.send(None)
    connection.recv()
    connection.send({"copy_l2": 1.0})


def test_every_figure_is_there_and_plausible(measured):
    missing = {name for name, value in measured.items() if value is None}
    may = {"single_copy", "single_copy_4k", "single_copy_call"}  # containers forbid it
    if not shutil.which("cc") or len(os.sched_getaffinity(0)) < 2:
        may.add("shared_memory_ping")
    assert missing <= may
    assert all(0 < value < 1e5 for value in measured.values() if value is not None)
    assert measured["call"] < measured["unix_ping_blocking"]


def test_the_figures_are_told_in_words(measured, monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(limits, "measure", lambda: {**measured, "single_copy": None})
    path = tmp_path / "limits.json"
    assert limits.main(["--np", "2", "--sizes", "8,1M", "--json", str(path)]) == 0
    told = capsys.readouterr().out
    assert re.search(r"process_vm_readv, huge pages +not available\n", told)
    assert re.search(r"TCP loopback, one way +[\d.e+]+ GB/s", told) and "all_reduce     1048576" in told
    assert json.loads(path.read_text())["figures"]["call"] == measured["call"]


def test_a_measuring_process_that_is_gone_is_noticed():
    with machine._process(machine._copies_of_one) as other:
        assert machine._receive(other) is None
    here, there = machine._pair(socket.AF_UNIX)
    there.close()
    with here, pytest.raises(ConnectionError, match="the other measuring process is gone"):
        machine._exchange(here, False, False, 1)


@pytest.mark.parametrize("level", [2, 3])
def test_caches_have_a_size(level):
    assert 64 << 10 <= machine.cache_bytes(level) <= 4 << 30
