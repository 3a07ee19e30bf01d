"""Every operation, dtype and reduction against the thread world: right is 0 wrong, and a wrong engine is noticed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from arraycomm.bench import options, sweep
from arraycomm.bench.collectives import COLLECTIVES
from arraycomm.bench.data import DTYPES
from arraycomm.bench.frameworks import NumpyArrays
from arraycomm.bench.sweep import Row
from tests.present import present

Array = NDArray[Any]
Spoil = Callable[[Array], None]
_BRIEF = ["-n", "1", "-w", "0", "--batches", "1"]


def measure(run_world: Callable[..., list[Any]], size: int, arguments: list[str], spoil: Spoil | None = None) -> tuple[list[Row],
            list[str]]:
    given = options.parse([*arguments, *_BRIEF])
    framework = NumpyArrays()

    def rank(group: Any) -> tuple[list[Row], list[str]]:
        steps, skipped = sweep.steps(given, group.size, framework)
        return [row for step in steps for row in sweep.rows(group, step, given, framework)], skipped

    results: list[tuple[list[Row], list[str]]] = run_world(size, rank, spoil)
    assert all(rows == results[0][0] for rows, _ in results), "ranks disagree about the rows"
    return results[0]


def wrong(rows: list[Row]) -> list[tuple[str, str, str, int, str, int | None]]:
    return [(row.operation, row.dtype, row.op, row.size, placement, cell.wrong)
            for row in rows for placement, cell in row.cells() if cell.wrong]


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5])
def test_all_operations_are_right(run_world: Callable[..., list[Any]], size: int) -> None:
    rows, _ = measure(run_world, size, ["all", "-b", "8", "-e", "32K", "-f", "16", "-r", "all"])
    assert {row.operation for row in rows} == set(COLLECTIVES)
    assert wrong(rows) == []


@pytest.mark.parametrize("size", [2, 3, 8])
@pytest.mark.parametrize("dtype", DTYPES)
def test_all_dtypes_and_reductions_are_exact(run_world: Callable[..., list[Any]], dtype: str, size: int) -> None:
    operations = "all_reduce,reduce_scatter,scan,exscan"
    rows, _ = measure(run_world, size, [operations, "-b", "9K", "-e", "9K", "-o", "all", "-d", dtype])
    assert rows
    assert wrong(rows) == []


@pytest.mark.parametrize("dtype", DTYPES)
def test_all_dtypes_are_moved(run_world: Callable[..., list[Any]], dtype: str) -> None:
    rows, _ = measure(run_world, 3, ["broadcast,all_to_all,sendrecv", "-b", "9K", "-e", "9K", "-d", dtype])
    assert wrong(rows) == []


def test_every_wrong_element_on_every_rank_is_counted(run_world: Callable[..., list[Any]]) -> None:
    def spoil(result: Array) -> None:
        result[5:8] += 1

    rows, _ = measure(run_world, 4, ["all_reduce", "-b", "64K", "-e", "64K"], spoil)
    assert [cell.wrong for _, cell in rows[0].cells()] == [12, 12]


def test_a_call_that_writes_nothing_is_noticed(run_world: Callable[..., list[Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(COLLECTIVES["broadcast"], "call", lambda group, x, out, case, op: lambda: out)
    rows, _ = measure(run_world, 2, ["broadcast", "-b", "4K", "-e", "4K"])
    assert rows[0].out_of_place.wrong == 2048
    assert present(rows[0].in_place).wrong == 1024  # the root's own array is right


def test_no_check_on_request(run_world: Callable[..., list[Any]]) -> None:
    rows, _ = measure(run_world, 2, ["all_reduce", "-b", "64", "-e", "64", "-c", "0"])
    assert rows[0].out_of_place.wrong is None


def test_sizes_are_the_whole_arrays_and_appear_once(run_world: Callable[..., list[Any]]) -> None:
    rows, _ = measure(run_world, 4, ["all_gather", "-b", "8", "-e", "64", "-f", "2"])
    assert [(row.size, row.count) for row in rows] == [(16, 1), (32, 2), (64, 4)]
    rows, _ = measure(run_world, 4, ["all_reduce", "-b", "8", "-e", "16", "-f", "2"])
    assert [(row.size, row.count) for row in rows] == [(8, 2), (16, 4)]


@pytest.mark.parametrize(
    ("operation", "factor"),
    [("all_reduce", 1.5), ("all_gather", 0.75), ("reduce_scatter", 0.75), ("all_to_all", 0.75), ("gather", 0.75),
     ("scatter", 0.75), ("broadcast", 1), ("reduce", 1), ("sendrecv", 1)],
)
def test_bus_bandwidth(run_world: Callable[..., list[Any]], operation: str, factor: float) -> None:
    rows, _ = measure(run_world, 4, [operation, "-b", "4K", "-e", "4K"])
    cell = rows[0].out_of_place
    assert cell.algbw == pytest.approx(rows[0].size / cell.timing.time / 1e3)
    assert cell.busbw == pytest.approx(cell.algbw * factor)


def test_in_place_forms(run_world: Callable[..., list[Any]]) -> None:
    rows, _ = measure(run_world, 2, ["all", "-b", "64", "-e", "64"])
    assert {row.operation for row in rows if row.in_place} == {
        "all_reduce", "reduce", "broadcast", "all_gather", "gather", "reduce_scatter", "scan", "exscan"}


def test_undefined_combinations_are_skipped_with_the_reason(run_world: Callable[..., list[Any]]) -> None:
    rows, skipped = measure(run_world, 2, ["all_reduce", "-b", "64", "-e", "64", "-o", "band,sum", "-d", "float,int32"])
    assert [(row.dtype, row.op) for row in rows] == [("float32", "sum"), ("int32", "band"), ("int32", "sum")]
    assert skipped == ["band is defined for bool and integers only: float32"]


def test_root_must_be_a_rank() -> None:
    given = options.parse(["broadcast", "-r", "4"])
    with pytest.raises(ValueError, match="-r 4 is not a rank of a world of 4: the last is 3"):
        sweep.steps(given, 4, NumpyArrays())


def test_inputs_differ_between_ranks() -> None:
    from arraycomm.bench.data import values

    for dtype in set(DTYPES) - {"bool"}:
        for op in ("", "sum", "min"):
            if not (dtype == "float8_e8m0fnu" and op == "sum"):
                assert np.any(values(dtype, op, 0, 2, 0, 1021) != values(dtype, op, 1, 2, 0, 1021)), (dtype, op)
