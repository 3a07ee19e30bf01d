"""Selection files: thresholds at odd places, and ranks that do not have the same file."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from arraycomm.core.interface import tuning
from arraycomm.core.interface.tuning import Choice, Pick
from arraycomm.launch.errors import ProcessRaisedException
from arraycomm.launch.spawn import spawn
from tests.present import present

from .worlds import World

Special = Callable[..., World]
MACHINE = {"cpu": "none", "cores": 1, "date": "2026-01-01", "arraycomm": "0"}
ODD = [1, 63, 64, 65, 66, 130, 194, 195, 258, 260, 1000, 20_000]


def write(path: Path, choices: Sequence[Choice]) -> str:
    path.write_text(tuning.text(MACHINE, choices))
    return str(path)


def odd_choices(transport: str, ranks: int) -> list[Choice]:
    """Every algorithm in turn for 257 bytes more, the last one for all that is longer."""
    made = []
    for operation in tuning.operations():
        names = tuning.names(transport)[operation]
        picks = [Pick(name, 257 * number) for number, name in enumerate(names, 1)]
        made.append(Choice(operation, transport, ranks, (*picks[:-1], Pick(names[-1], None))))
    return made


@pytest.mark.parametrize(("transport", "hosts"), [("shm", ""), ("loopback", ""), ("tcp", "abc"), ("hosts", "aab")])
def test_odd_thresholds(special: Special, tmp_path: Path, transport: str, hosts: str) -> None:
    file = write(tmp_path / "t", [*odd_choices(transport, 3), *(odd_choices("symmetric", 3) if transport == "shm" else [])])
    way = "auto" if hosts else "tcp" if transport == "loopback" else transport
    world = special(3, way, {"ARRAYCOMM_TUNING": file}, hosts=tuple(hosts))
    expected = {choice.operation: {"1": choice.picks[0].name, "100000": choice.picks[-1].name}
                for choice in odd_choices(transport, 3)}
    expected["all_reduce"] |= {"64": tuning.names(transport)["all_reduce"][0], "65": tuning.names(transport)["all_reduce"][1]}
    world.run("tuned.chosen", expected=expected)
    world.run("algorithms.varied", environ={}, counts=ODD, exact=False)
    if transport == "shm":
        world.run("symmetric.kinds")


def test_groups_have_the_choices_of_their_size(special: Special, tmp_path: Path) -> None:
    file = write(tmp_path / "t", [Choice("broadcast", "loopback", 2, (Pick("chain", None),)),
                                  Choice("broadcast", "loopback", 5, (Pick("binomial", None),))])
    world = special(4, "tcp", {"ARRAYCOMM_TUNING": file})
    world.run("tuned.chosen", expected={"broadcast": {"1": "binomial"}, "barrier": {"0": "dissemination"}})
    world.run("tuned.of_half", operation="broadcast", name="chain")


def test_what_was_measured_on_one_host_does_not_count_between_hosts(special: Special, tmp_path: Path) -> None:
    file = write(tmp_path / "t", [Choice("broadcast", "loopback", 3, (Pick("chain", None),))])
    special(3, "tcp", {"ARRAYCOMM_TUNING": file}).run("tuned.chosen", expected={"broadcast": {"1": "chain"}})
    world = special(3, "tcp", {"ARRAYCOMM_TUNING": file}, hosts=("a", "b", "c"))
    world.run("tuned.chosen", expected={"broadcast": {"1": tuning.shipped("broadcast", "tcp", 3)[0].name}})


def test_a_file_that_says_nothing_of_the_world_is_announced(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file = write(tmp_path / "t", odd_choices("tcp", 2))
    spawn(meet, ([file] * 2,), 2)
    (line,) = [line for line in capfd.readouterr().err.splitlines() if "ARRAYCOMM_TUNING" in line]
    assert f"{file} has no entry for 2 ranks over shm, only for tcp (2 ranks); the engine's own table chooses" in line


def test_the_variable_goes_before_the_file(special: Special, tmp_path: Path) -> None:
    file = write(tmp_path / "t", [Choice("all_reduce", "loopback", 2, (Pick("doubling", 4000), Pick("halving", None)))])
    world = special(2, "tcp", {"ARRAYCOMM_TUNING": file, "ARRAYCOMM_ALGORITHM": "all_reduce=bruck:400,reduce=pairwise"})
    world.run("tuned.chosen", expected={"all_reduce": {"100": "bruck", "101": "doubling", "1001": "halving"},
                                        "reduce": {"1": "pairwise"}})


def join(rank: int, files: Sequence[str], told: Sequence[Sequence[str]], folder: str) -> None:
    """Every rank must be told."""
    import os

    import arraycomm

    os.environ["ARRAYCOMM_TUNING"] = files[rank]
    try:
        arraycomm.init(timeout=30)
    except Exception as error:
        if not all(text in str(error) for text in told[rank]):
            raise
        Path(folder, f"told-{rank}").touch()
    else:
        raise AssertionError(f"rank {rank} was taken with {files[rank]!r}")


def all_told(tmp_path: Path, files: Sequence[str], told: Sequence[Sequence[str]]) -> None:
    spawn(join, (files, told, str(tmp_path)), len(files))
    assert all((tmp_path / f"told-{rank}").exists() for rank in range(len(files)))


@pytest.mark.parametrize("other", ["another", "none"])
def test_other_files_are_an_error_on_all_ranks(tmp_path: Path, other: str) -> None:
    one = write(tmp_path / "one", odd_choices("shm", 2))
    two = write(tmp_path / "two", odd_choices("shm", 3)) if other == "another" else ""
    text = ("ARRAYCOMM_TUNING is", "measured on none", "on rank 0", "on rank 2", "must be the same on all ranks")
    all_told(tmp_path, [one, one, two], [text] * 3)


def test_the_same_file_in_two_places_is_the_same(tmp_path: Path) -> None:
    files = [write(tmp_path / name, odd_choices("shm", 2)) for name in "ab"]
    spawn(meet, (files,), 2)


def meet(rank: int, files: Sequence[str]) -> None:
    import os

    import arraycomm

    os.environ["ARRAYCOMM_TUNING"] = files[rank]
    with arraycomm.init(timeout=30) as group, present(group.split(0)) as part:
        part.barrier()


def test_a_broken_file_ends_all_ranks(tmp_path: Path) -> None:
    right = write(tmp_path / "right", odd_choices("shm", 2))
    broken = json.loads(Path(right).read_text())
    broken["choices"][0]["use"][0][0] = "rings"
    (tmp_path / "broken").write_text(json.dumps(broken))
    words = ("unknown algorithm 'rings'", "choices[0]", "arraycomm-bench tune")
    all_told(tmp_path, [right, str(tmp_path / "broken")], [("rank 1", "failed"), words])


def test_a_file_that_is_not_there_ends_init(tmp_path: Path) -> None:
    with pytest.raises(ProcessRaisedException, match="cannot read the selection file"):
        spawn(meet, ([str(tmp_path / "none")] * 2,), 2)
