"""launch/environ.py: what a rank is told by its environment."""

from __future__ import annotations

import os

import pytest

from arraycomm.launch.environ import enough_for_xla


@pytest.mark.parametrize(("processors", "environ", "added"), [
    (1, {}, True),
    (1, {"PJRT_NPROC": "1"}, False),  # somebody's choice
    (1, {"PJRT_NPROC": ""}, True),
    (1, {"NPROC": "4"}, False),
    (2, {}, False),
    (8, {"NPROC": "1"}, True),  # which XLA goes by, whoever set it for what
    (8, {"NPROC": "1", "PJRT_NPROC": "3"}, False),
])
def test_xla_has_two_threads(processors: int, environ: dict[str, str], added: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(processors)))
    assert enough_for_xla(environ) == ({"PJRT_NPROC": "2"} if added else {})
