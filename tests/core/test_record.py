from __future__ import annotations

import pickle
from collections.abc import Callable

import pytest

from arraycomm.core.base.record import Record


class Place(Record):
    rank: int
    host: str = "here"
    close: Callable[[], int] = lambda: 7


def test_is_a_tuple_with_names() -> None:
    place = Place(1, host="there")
    assert place == (1, "there", place.close) and place.rank == 1 and place.close() == 7
    assert hash(place) == hash(tuple(place)) and Place(rank=2).host == "here"
    assert place._replace(rank=3) == Place(3, "there") and repr(Place(1, "a", int)).startswith("Place(rank=1, host='a', close=")
    with pytest.raises(AttributeError):
        place.rank = 2  # type: ignore[misc]


def test_survives_pickling() -> None:
    place = Place(1, "there", len)
    copy = pickle.loads(pickle.dumps(place))
    assert copy == place and type(copy) is Place


@pytest.mark.parametrize(("values", "named"), [((), {}), ((1, 2, 3, 4), {}), ((1,), {"port": 2}), ((), {"host": "x", "port": 1})])
def test_refuses_other_fields(values: tuple[object, ...], named: dict[str, object]) -> None:
    with pytest.raises(TypeError, match="has the fields rank, host, close"):
        Place(*values, **named)  # type: ignore[arg-type]
