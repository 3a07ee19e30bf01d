"""What the reports of several ranks say together."""

from __future__ import annotations

from typing import Any

import pytest

from arraycomm.monitor.verdict import judge, ranks, seconds


def record(name: str = "all_reduce", sequence: int = 0, age: float = 5.0, state: str = "running", group: str = "world",
           **more: Any) -> dict[str, Any]:
    return {"name": name, "group": group, "state": state, "age": age, **({"sequence": sequence} if sequence else {}), **more}


def report(rank: int, begun: int = 3, open: tuple[dict[str, Any], ...] = (), ended: str = "", heard: float = 0.2, size: int = 3,
           state: str = "sleeping", groups: tuple[dict[str, Any], ...] = ()) -> dict[str, Any]:
    last = {**record(sequence=begun, state="done"), "ended": 4.0}
    world = {"group": "world", "rank": rank, "size": size, "begun": begun, "ended": begun - bool(open)}
    return {"rank": rank, "host": "h", "pid": 100 + rank, "ended": ended, "heard": heard, "process": {"state": state},
            "groups": [world, *groups], "open": list(open), "last": last}


def world(*reports: dict[str, Any]) -> dict[int, dict[str, Any]]:
    return {report["rank"]: report for report in reports}


def test_nobody_waits() -> None:
    found = judge(world(*(report(rank) for rank in range(3))), 3)
    assert found.level == "good" and found.headline.endswith("the last operation of the 3 ranks ended 4.2 s ago")
    short = record(sequence=4, age=0.3)
    assert judge(world(report(0, 4, (short,)), report(1), report(2)), 3).level == "good"


def test_who_has_not_come_is_late() -> None:
    waiting = record(sequence=4)
    found = judge(world(report(0, 4, (waiting,)), report(1, state="stopped"), report(2, 4, (waiting,))), 3)
    assert found.level == "late" and found.late == (1,) and not found.lost
    assert found.headline == "Rank 1 has been late for 5.2 s: ranks 0 and 2 wait"
    assert "all_reduce number 3 of group 'world', ended 4.2 s ago. Its process is stopped." in found.details[0]
    assert found.details[1] == ("Ranks 0 and 2 wait in all_reduce number 4 of group 'world', for 5.2 s, and rank 1 has not "
                                "reached it.")


def test_the_cause_is_the_one_that_waits_for_nobody() -> None:
    """0 waits for 1, which waits for a message of 2."""
    asking = record("recv", source=2, age=9.0)
    found = judge(world(report(0, 4, (record(sequence=4),)), report(1, 3, (asking,)), report(2, 4)), 3)
    assert found.late == (2,) and found.headline == "Rank 2 has been late for 9.2 s: rank 1 waits"
    assert "recv from rank 2 in group 'world'" in found.details[1]


def test_a_circle_is_a_deadlock() -> None:
    reports = [report(rank, 3, (record("recv", source=(rank + 1) % 3),)) for rank in range(3)]
    found = judge(world(*reports), 3)
    assert found.level == "bad" and found.headline == "Deadlock: ranks 0 to 2 have waited for each other for 5.2 s"


def test_ranks_of_a_subgroup_are_told_by_the_world() -> None:
    def inside(rank: int, begun: int) -> tuple[dict[str, Any], ...]:
        return ({"group": "world/part", "rank": rank, "size": 2, "begun": begun, "ended": 0},)

    waiting = record(sequence=1, group="world/part")
    found = judge(world(report(0), report(1, open=(waiting,), groups=inside(1, 1)), report(2, groups=inside(0, 0))), 3)
    assert found.late == (2,)


def test_an_asynchronous_operation_waits_only_for_who_has_not_come() -> None:
    begun = record(sequence=4, state="asynchronous")
    assert judge(world(*(report(rank, 4, (begun,)) for rank in range(3))), 3).level == "good"
    assert judge(world(report(0, 4, (begun,)), report(1, 4, (begun,)), report(2, 3)), 3).late == (2,)


def test_nobody_waits_for_a_message_that_is_only_under_way() -> None:
    posted = report(0, open=(record("irecv", source=1, age=60.0, state="asynchronous"),))
    assert judge(world(posted, report(1), report(2)), 3).level == "good"


def test_an_operation_that_all_have_come_to() -> None:
    found = judge(world(*(report(rank, 4, (record(sequence=4),)) for rank in range(3))), 3)
    assert found.headline == "All ranks have reached all_reduce number 4 of group 'world', which has been running for 5.2 s"


@pytest.mark.parametrize("ended, heard, word", [("died", 7.0, "has died, 7.0 s ago"), ("exited", 7.0, "has exited without"),
                                                ("", 11.0, "has sent no report, for 11.0 s")])
def test_lost_ranks_come_first(ended: str, heard: float, word: str) -> None:
    waiting = record(sequence=4)
    found = judge(world(report(0, 4, (waiting,)), report(1, ended=ended, heard=heard), report(2, 4, (waiting,))), 3)
    assert found.level == "bad" and found.lost == (1,) and found.headline == f"Rank 1 has been lost for {heard:.1f} s"
    assert "(h, process 101)" in found.details[0] and word in found.details[0]


def test_who_has_closed_will_not_come() -> None:
    found = judge(world(report(0, 4, (record(sequence=4),)), report(1, ended="closed", heard=30.0), report(2, 4)), 3)
    assert found.late == (1,) and "will not call it" in found.details[0]
    assert judge(world(*(report(rank, ended="closed") for rank in range(3))), 3).headline == "All ranks have closed their groups"


def test_of_who_is_no_longer_recorded_nothing_is_known() -> None:
    found = judge(world(report(0, 4, (record(sequence=4),)), report(1, ended="unrecorded", heard=30.0), report(2, 4)), 3)
    assert found.late == (1,) and "no longer recorded" in found.details[0] and not found.lost
    ended = [report(rank, ended="closed" if rank else "unrecorded") for rank in range(3)]
    assert judge(world(*ended), 3).headline == "No rank is recorded any more"


def test_who_has_never_reported() -> None:
    assert judge(world(report(0)), 3).headline == "Ranks 1 and 2 have not reported yet"


def test_words() -> None:
    assert [ranks(numbers) for numbers in ((3,), (0, 1), (0, 1, 2, 5), (1, 3, 7))] == [
        "rank 3", "ranks 0 and 1", "ranks 0 to 2 and 5", "ranks 1, 3 and 7"]
    assert [seconds(value) for value in (0.04, 99.94, 100, 7384)] == ["0.0 s", "99.9 s", "1 min 40 s", "2 h 3 min"]
