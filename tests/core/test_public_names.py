"""What dir() of the public classes offers is what users may call."""

from __future__ import annotations

import arraycomm

_GROUP = {
    "abort", "all_gather", "all_gather_object", "all_reduce", "all_to_all", "backend", "barrier", "batch", "broadcast",
    "broadcast_object", "cart", "check_peers", "close", "closed", "empty", "exscan", "gather", "gather_object", "handle", "irecv",
    "irecv_object", "isend", "isend_object", "name", "probe", "rank", "ranks", "recv", "recv_object", "reduce", "reduce_scatter",
    "scan", "scatter", "scatter_objects", "send", "send_object", "sendrecv", "shrink", "size", "split", "subgroup", "timeout",
}


def public(value: object) -> set[str]:
    return {name for name in dir(value) if not name.startswith("_")}


def test_a_group_has_public_names_only() -> None:
    assert arraycomm.run(public, 1) == [_GROUP]


def test_the_package_offers_what_it_exports() -> None:
    extra = public(arraycomm) - set(arraycomm.__all__)
    modules = {name for name in extra if type(getattr(arraycomm, name)) is type(arraycomm)}
    assert extra - modules == {"annotations", "TYPE_CHECKING"}


def test_types_with_parameters_are_made_at_run_time() -> None:
    """As `Work[Array]` in a program without `from __future__ import annotations`."""
    assert arraycomm.Work[int].__origin__ is arraycomm.Work
    assert arraycomm.Received[int](1, 2, 3) == (1, 2, 3)
