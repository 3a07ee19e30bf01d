"""The facade has what torch.distributed documents, and the committed table says so."""

from __future__ import annotations

import pytest

from tests.distributed import api


@pytest.fixture(scope="module")
def found() -> list[api.Row]:
    return api.rows()


def test_nothing_is_missing_or_different_without_a_reason(found: list[api.Row]) -> None:
    assert [f"{finding.name}: {finding.text}" for finding in api.unexplained(found)] == []


def test_no_reason_is_out_of_date(found: list[api.Row]) -> None:
    assert api.stale(found) == []


def test_the_committed_table_is_what_the_command_makes() -> None:
    assert api.TABLE.read_text() == api.table(), "run python -m tests.distributed.api"


def test_a_difference_is_seen() -> None:
    def ours(tensor: object, group: object = None, async_op: bool = False) -> None: ...

    theirs = {"kind": "function", "documented": True, "call": "(tensor, group=None, async_op=True)"}
    assert [f.text for f in api._compare("all", theirs, ours)] == [
        "`(tensor, group=None, async_op=False)` instead of `(tensor, group=None, async_op=True)`"]
    assert not list(api._compare("all", {**theirs, "call": "(tensor, group=..., async_op=False)"}, ours))
    assert [f.text for f in api._compare("E", {"kind": "exception", "bases": ["OSError"]}, ValueError)] == [
        "does not derive from OSError"]
    assert [f.name for f in api._compare("E", {"kind": "class", "members": {"no": "method ()"}}, ValueError)] == ["E.no"]
