"""launch/ending.py: when the ranks that are left are told to end."""

from __future__ import annotations

import time

import pytest

from arraycomm.launch import ending


class _Failure:
    def __init__(self, consequence: bool) -> None:
        self.consequence = consequence


@pytest.mark.parametrize(("failures", "settle"), [
    ([False], ending.SETTLE_S),
    ([True], ending.PATIENT_S),
    ([True, True], ending.PATIENT_S),
    ([True, False], ending.SETTLE_S),  # from the second failure on
    ([False, True], ending.SETTLE_S),
])
def test_who_lost_a_peer_only_is_patient(failures: list[bool], settle: float) -> None:
    schedule, known, before = ending.Schedule(), [], time.monotonic()
    for consequence in failures:
        known.append(_Failure(consequence))
        schedule.plan_end(known)
    due = schedule.next()
    assert due is not None and before + settle <= due <= time.monotonic() + settle
    assert list(schedule.due()) == []


def test_a_further_failure_postpones_nothing() -> None:
    schedule, known = ending.Schedule(), [_Failure(False)]
    schedule.plan_end(known)
    due = schedule.next()
    for consequence in (True, False, False):
        known.append(_Failure(consequence))
        schedule.plan_end(known)
        assert schedule.next() == due


def test_all_are_ended_within_two_seconds() -> None:
    assert ending.PATIENT_S + ending.GRACE_S < 2 > ending.SETTLE_S + ending.GRACE_S
