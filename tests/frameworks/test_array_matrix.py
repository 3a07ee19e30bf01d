"""The table of libraries and operations, over the libraries that the tests need anyhow."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import arraycomm

from . import array_matrix
from .array_matrix import LIBRARIES, OPERATIONS, WRONG, YES, Library, Operation


@pytest.mark.parametrize("name", ["NumPy", "torch"])
def test_every_operation_takes_and_gives_a_librarys_arrays(name: str) -> None:
    assert array_matrix.row(name) == dict.fromkeys(OPERATIONS, YES)


def test_the_page_has_every_library_and_operation_and_what_is_measured_here() -> None:
    text, _, table = array_matrix.PAGE.read_text(encoding="utf-8").partition(array_matrix.BEGIN)
    assert ", ".join(f"`{title}`" for title in OPERATIONS) in " ".join(text.split())
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines() if line.startswith("|")][2:]
    assert [row[0] for row in rows] == [*LIBRARIES]
    for name in ("NumPy", "torch"):
        assert next(row[2:] for row in rows if row[0] == name) == ["all", "", ""]


def _said(operation: Operation, make: Any = lambda module, values: values) -> str:
    library = Library("numpy", "numpy", make)
    found = arraycomm.run(lambda group: array_matrix.cell(group, library, np, operation), 2)
    return found[0]


def test_a_cell_is_yes_only_for_the_right_result_of_the_right_type() -> None:
    whole, half = np.arange(1, 5, dtype=np.float32), np.arange(2.0)
    assert _said(Operation(lambda group, x, y, h: x, (whole, 2 * whole))) == YES
    assert _said(Operation(lambda group, x, y, h: x + 1, (whole, 2 * whole))) == WRONG
    assert _said(Operation(lambda group, x, y, h: x, (None, None))) == WRONG
    assert _said(Operation(lambda group, x, y, h: memoryview(x), (whole, 2 * whole))) == "builtins.memoryview"
    assert _said(Operation(lambda group, x, y, h: group.all_reduce(half.tolist()), (whole, whole))).startswith("TypeError: ")


def test_a_library_that_crashes_has_a_row_that_says_so() -> None:
    assert set(array_matrix.asked("no such library").values()) == {"exit code 1: KeyError: 'no such library'"}


def test_the_table_says_which_operations_do_what() -> None:
    plain = dict.fromkeys(OPERATIONS, YES)
    views = {**dict.fromkeys(OPERATIONS, "builtins.memoryview"), "with out": YES}
    cells = {**plain, "scan": "TypeError: no\n  floats", "gather": "builtins.memoryview", "reduce": WRONG}
    rows = {"NumPy": ("2.0", plain), "CuPy": ("", {}), "A": ("1", cells), "B": ("2", views),
            "C": ("3", dict.fromkeys(OPERATIONS, "TypeError: no floats"))}
    assert array_matrix.table(rows).splitlines()[2:] == [
        "| NumPy | 2.0 | all |  |  |",
        "| CuPy | not installed |  |  |  |",
        "| A | 1 | all others | gather: `memoryview` | reduce; scan (1, 2) |",
        "| B | 2 | with out | all others: `memoryview` |  |",
        "| C | 3 |  |  | all (2) |",
        "", "1. wrong result", "2. TypeError: no floats"]
