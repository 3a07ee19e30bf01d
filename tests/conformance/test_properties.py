"""Property tests: shapes, splits, roots and sizes that nobody thought of."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from .data import COMPLEX, DTYPES, OPS, REALS, defined
from .worlds import World

RELAXED = settings(max_examples=30, deadline=None, derandomize=True,
                   suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])

SHAPES = st.lists(st.integers(0, 7), min_size=0, max_size=4).map(tuple) | st.integers(0, 20_000).map(lambda n: (n,))


@st.composite
def calls(draw: st.DrawFn) -> list[dict[str, Any]]:
    """A few calls in a row, each described by plain data."""
    number = draw(st.integers(1, 12))
    return [draw(st.fixed_dictionaries({
        "kind": st.sampled_from(["all_reduce", "reduce", "reduce_scatter", "broadcast", "all_gather", "gather",
                                 "scatter", "all_to_all", "uneven_gather", "uneven_all_to_all", "uneven_scatter"]),
        "dtype": st.sampled_from(DTYPES), "op": st.sampled_from(OPS), "shape": SHAPES, "root": st.integers(0, 7),
        "framework": st.sampled_from(["numpy", "mixed"]),
        "rows": st.lists(st.integers(0, 40), min_size=1, max_size=5)})) for _ in range(number)]


@RELAXED
@given(data=calls())
def test_any_calls(world: World, data: list[dict[str, Any]]) -> None:
    for call in data:
        if not defined(call["op"], call["dtype"]):
            call["op"] = "sum"
    world.run("properties.run", calls=data)


@RELAXED
@given(messages=st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7), st.integers(0, 3), st.integers(0, 5000),
                                   st.sampled_from([*REALS, *COMPLEX])), max_size=25))
def test_any_messages(world: World, messages: list[tuple[int, int, int, int, str]]) -> None:
    size = world.size
    world.run("properties.exchange", messages=[(s % size, d % size, *rest) for s, d, *rest in messages])
