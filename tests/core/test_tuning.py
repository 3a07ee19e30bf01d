"""Selection files: what is read, for how many ranks it holds, and what is refused with which words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from arraycomm.core.interface import tuning
from arraycomm.core.interface.tuning import Choice, Pick

MACHINE = {"cpu": "a cpu", "cores": 2, "date": "2026-01-02", "arraycomm": "0.1.0"}
WHOLE = (Pick("whole", 4096), Pick("sliced", None))
RING = (Pick("ring", None),)


def entry(**other: Any) -> dict[str, Any]:
    return {"operation": "all_reduce", "transport": "shm", "ranks": 2, "use": [["whole", 4096], ["sliced", None]]} | other


def document(*choices: Any, **other: Any) -> dict[str, Any]:
    return {tuning.FORMAT: tuning.VERSION, "machine": MACHINE, "choices": list(choices or [entry()])} | other


def test_what_is_written_is_read(tmp_path: Path) -> None:
    choices = (Choice("all_reduce", "shm", 2, WHOLE), Choice("all_reduce", "tcp", 4, RING))
    path = tmp_path / "tuning.json"
    path.write_text(tuning.text(MACHINE, choices))
    read = tuning.current({tuning.VARIABLE: str(path)})
    assert read is not None and read.choices == choices and read.machine == MACHINE and read.path == str(path)
    assert read.measured == "measured on a cpu, 2 cores, 2026-01-02, arraycomm 0.1.0"
    assert len(path.read_text().splitlines()) == 3 + len(choices)
    assert tuning.current({}) is None


def test_files_that_say_other_things_have_other_names(tmp_path: Path) -> None:
    found = []
    for number, ranks in enumerate((2, 2, 4)):
        path = tmp_path / str(number)
        path.write_text(json.dumps(document(entry(ranks=ranks))))
        found.append(str(tuning.read(str(path))))
    assert found[0] == found[1] != found[2]


@pytest.mark.parametrize(("ranks", "nearest"), [(2, 2), (3, 4), (4, 4), (5, 4), (6, 8), (8, 8), (16, 8), (17, None), (1, 2)])
def test_the_nearest_number_of_ranks_counts(ranks: int, nearest: int | None) -> None:
    made = tuning.Tuning("", "", MACHINE, tuple(Choice("reduce", "tcp", n, (Pick(f"of {n}", None),)) for n in (2, 4, 8)))
    assert made.picks("reduce", "tcp", ranks) == (() if nearest is None else (Pick(f"of {nearest}", None),))
    assert made.picks("reduce", "shm", ranks) == made.picks("gather", "tcp", ranks) == ()


def test_the_engine_gets_a_list() -> None:
    made = tuning.Tuning("", "", MACHINE, (Choice("all_reduce", "shm", 2, WHOLE), Choice("reduce", "shm", 2, RING),
                                           Choice("reduce", "shm", 9, RING)))
    assert made.engine_list("shm", 2) == f"all_reduce=whole:4096,all_reduce=sliced:{2**64 - 1},reduce=ring:{2**64 - 1}"
    assert made.engine_list("tcp", 2) == ""
    assert made.covered() == "shm (2, 9 ranks)"


def test_what_never_comes_to_be_is_left_out() -> None:
    picks = [Pick("a", 10), Pick("b", 10), Pick("a", 20), Pick("c", 15), Pick("c", None), Pick("d", None)]
    assert tuning.simplified(picks) == (Pick("a", 20), Pick("c", None))


def test_the_shipped_table() -> None:
    for operation in tuning.operations():
        algorithms = tuning.names()[operation]
        for transport in tuning.TRANSPORTS:
            for ranks in (2, 4, 64):
                picks = tuning.shipped(operation, transport, ranks)
                assert picks[-1].up_to is None and {pick.name for pick in picks} <= set(algorithms)
                assert {pick.name for pick in picks} <= set(tuning.names(transport)[operation])
    assert tuning.shipped("all_reduce", "symmetric", 2)[-1].name == "direct"
    assert "direct" not in tuning.names("tcp")["broadcast"]
    limits = [dict(tuning.shipped("all_reduce", way, ranks))["bruck"] for ranks in (2, 4) for way in ("loopback", "tcp")]
    assert limits == [512 << 10, 512 << 10, 32 << 10, 8 << 10]


@pytest.mark.parametrize(("found", "told"), [
    ([], 'it does not begin with {"arraycomm tuning": 2'),
    (document(**{tuning.FORMAT: 1}), "its version is 1, this arraycomm reads version 2"),
    (document(more=1), "the file: unknown field 'more'"),
    (document(machine={**MACHINE, "cores": "2"}), "machine: cores must be of type int, got '2'"),
    (document(machine={"cpu": "x"}), "machine: cores is missing"),
    (document(machine={**MACHINE, "cpu": "\0"}), "cannot be printed"),
    (document(7), "choices[0] must be an object"),
    (document(entry(), entry(ranks=4, size=1)), "choices[1]: unknown field 'size'"),
    (document(entry(operation="sum")), "choices[0] (sum over shm, 2 ranks): unknown operation 'sum'; there are all_reduce, "),
    (document(entry(transport="sea")), "unknown transport 'sea'; there are shm, symmetric, loopback, tcp, hosts"),
    (document(entry(ranks=1)), "ranks must be at least 2"),
    (document(entry(ranks=True)), "ranks must be of type int, got True"),
    (document(entry(use=[["rings", None]])), "use[0]: unknown algorithm 'rings'; there are whole, sliced, "),
    (document(entry(transport="tcp")), "use[0]: unknown algorithm 'whole'; there are bruck, "),
    (document(entry(use=[["whole", "4K"], ["sliced", None]])), "the limit must be a number of bytes or null, got '4K'"),
    (document(entry(use=[["whole", -1], ["sliced", None]])), "got -1"),
    (document(entry(use=[["whole"]])), "use[0] must be [algorithm, bytes or null]"),
    (document(entry(use=[])), "use must end with an algorithm whose limit is null"),
    (document(entry(use=[["whole", 4096]])), "use must end with"),
    (document(entry(use=[["whole", 9], ["ring", 8], ["sliced", None]])), "use must have rising limits"),
    (document(entry(use=[["whole", None], ["sliced", None]])), "use must have rising limits"),
    (document(entry(), entry()), "choices[1] is about the same as choices[0]"),
])
def test_what_is_wrong_is_told_with_its_place_and_a_remedy(tmp_path: Path, found: Any, told: str) -> None:
    path = tmp_path / "tuning.json"
    path.write_text(json.dumps(found))
    with pytest.raises(ValueError) as error:
        tuning.read(str(path))
    assert told in str(error.value) and str(path) in str(error.value)
    assert f"arraycomm-bench tune -o {path}" in str(error.value)


@pytest.mark.parametrize(("data", "told"), [(b'{"a": 1,\n "b" 2}', "line 2: "), (b"", "line 1: "), (b"\xff\xfe\xff", "decode")])
def test_what_is_no_json_is_told_with_its_line(tmp_path: Path, data: bytes, told: str) -> None:
    path = tmp_path / "tuning.json"
    path.write_bytes(data)
    with pytest.raises(ValueError, match="selection file") as error:
        tuning.read(str(path))
    assert told in str(error.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="No such file or directory.*unset ARRAYCOMM_TUNING"):
        tuning.read(str(tmp_path / "none"))
