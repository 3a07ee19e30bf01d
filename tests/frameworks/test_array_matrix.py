"""The table of libraries and operations, over the libraries that the tests need anyhow."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import arraycomm

from . import array_matrix
from .array_matrix import LIBRARIES, OPERATIONS, YES, Library, Operation


@pytest.mark.parametrize("name", ["NumPy", "torch"])
def test_every_operation_takes_and_gives_a_librarys_arrays(name: str) -> None:
    assert array_matrix.row(name) == dict.fromkeys(OPERATIONS, YES)


def test_the_page_has_every_library_and_operation_and_what_is_measured_here() -> None:
    page = array_matrix.PAGE.read_text(encoding="utf-8")
    head, _, *rows = [line.split(" | ") for line in page.partition(array_matrix.BEGIN)[2].splitlines() if line.startswith("|")]
    assert head[2:] == [*list(OPERATIONS)[:-1], f"{list(OPERATIONS)[-1]} |"]
    assert [row[0] for row in rows] == [f"| {name}" for name in LIBRARIES]
    for name in ("| NumPy", "| torch"):
        assert next(row[2:] for row in rows if row[0] == name) == [YES] * (len(OPERATIONS) - 1) + [f"{YES} |"]


def _said(operation: Operation, make: Any = lambda module, values: values) -> str:
    library = Library("numpy", "numpy", make)
    found = arraycomm.run(lambda group: array_matrix.cell(group, library, np, operation), 2)
    return found[0]


def test_a_cell_is_yes_only_for_the_right_result_of_the_right_type() -> None:
    whole, half = np.arange(1, 5, dtype=np.float32), np.arange(2.0)
    assert _said(Operation(lambda group, x, y, h: x, (whole, 2 * whole))) == YES
    assert _said(Operation(lambda group, x, y, h: x + 1, (whole, 2 * whole))) == "wrong"
    assert _said(Operation(lambda group, x, y, h: x, (None, None))) == "wrong"
    assert _said(Operation(lambda group, x, y, h: memoryview(x), (whole, 2 * whole))) == "builtins.memoryview"
    assert _said(Operation(lambda group, x, y, h: group.all_reduce(half.tolist()), (whole, whole))).startswith("TypeError: ")


def test_a_library_that_crashes_has_a_row_that_says_so() -> None:
    assert set(array_matrix.asked("no such library").values()) == {"exit code 1: KeyError: 'no such library'"}


def test_the_table_has_notes_for_what_is_no_plain_yes() -> None:
    plain = dict.fromkeys(OPERATIONS, YES)
    cells = {**plain, "scan": "TypeError: no\n  floats", "gather": "builtins.memoryview", "reduce": "wrong"}
    rows = {"NumPy": ("2.0", plain), "CuPy": ("", {}), "A": ("1", cells), "B": ("1", cells)}
    lines = array_matrix.table(rows).splitlines()
    assert lines[2] == "| NumPy | 2.0 |" + " yes |" * len(OPERATIONS)
    assert lines[3].startswith("| CuPy | not installed |  |")
    shown = dict(zip(OPERATIONS, lines[4].strip("| ").split(" | ")[2:], strict=True))
    assert shown == {**plain, "scan": "no (1)", "gather": "yes (2)", "reduce": "wrong"}
    assert lines[5] == lines[4].replace("A", "B", 1)
    assert lines[6:] == ["", "1. TypeError: no floats", "2. The result is a `builtins.memoryview`."]
