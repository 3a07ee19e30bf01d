"""The facade and dist2 have what torch documents, and the committed tables say so."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.distributed import api


@pytest.fixture(scope="module")
def found() -> list[api.Row]:
    return [row for side in api.SIDES for row in api.rows(side)]


def test_nothing_is_missing_or_different_without_a_reason(found: list[api.Row]) -> None:
    assert [f"{finding.name}: {finding.text}" for finding in api.unexplained(found)] == []


def test_no_reason_is_out_of_date(found: list[api.Row]) -> None:
    assert api.stale(found) == []


@pytest.mark.parametrize("side", api.SIDES, ids=lambda side: side.package)
def test_the_committed_table_is_what_the_command_makes(side: api.Side) -> None:
    assert side.path.read_text() == api.table(side), "run python -m tests.distributed.api"


def test_every_documented_form_of_dist2_has_a_row(found: list[api.Row]) -> None:
    theirs = api.DIST2.data["modules"][""]
    ours = {row.name: row.call for row in api.rows(api.DIST2)}
    assert len(theirs) == 58 and list(ours) == list(theirs)
    assert all(form in ours[name] for name, entry in theirs.items() for form in entry.get("forms", ()))


def test_a_difference_is_seen() -> None:
    def ours(tensor: object, group: object = None, async_op: bool = False) -> None: ...

    theirs = {"kind": "function", "documented": True, "call": "(tensor, group=None, async_op=True)"}
    assert [f.text for f in api._compare("all", theirs, ours)] == [
        "`(tensor, group=None, async_op=False)` instead of `(tensor, group=None, async_op=True)`"]
    assert not list(api._compare("all", {**theirs, "call": "(tensor, group=..., async_op=False)"}, ours))
    assert [f.text for f in api._compare("E", {"kind": "exception", "bases": ["OSError"]}, ValueError)] == [
        "does not derive from OSError"]
    assert [f.text for f in api._compare("all", {"kind": "method", "forms": ["(tensor)", "(tensors)"]}, ours)] == [
        "`(tensor, group=None, async_op=False)` instead of `(tensor) or (tensors)`"]
    assert [f.name for f in api._compare("E", {"kind": "class", "members": {"no": "method ()"}}, ValueError)] == ["E.no"]


def test_the_module_behind_is_there_without_an_import_of_its_own() -> None:
    """As in torch; loaded when asked for."""
    program = ("import sys, arraycomm.distributed as dist\n"
               "assert 'arraycomm.distributed.distributed_c10d' not in sys.modules and not hasattr(dist, 'no_such')\n"
               "c10d = dist.distributed_c10d\n"
               "assert c10d.all_reduce is dist.all_reduce and c10d._all_gather_base is dist.all_gather_into_tensor\n"
               "assert c10d._coalescing_manager is dist._coalescing_manager "
               " and callable(c10d._get_default_group) and callable(c10d._get_default_store)")
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
