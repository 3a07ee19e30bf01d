"""Arrays that peers read where they lie: symmetric ones, and private ones by the system's leave."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from .worlds import World, only


@only(lambda settings: settings.transport == "shm" or settings.size > 2)
@pytest.mark.parametrize(
    "task",
    ["kinds", "private", "some_private", "long_exchanges", "messages", "libraries", "lifetime", "between_others", "refusals"],
)
def test_symmetric(world: World, task: str) -> None:
    world.run(f"symmetric.{task}")


KINDS = ("broadcast", "all_gather", "gather", "scatter", "all_to_all", "all_reduce", "reduce_scatter")


@pytest.mark.parametrize("ranks", [2, 3])
def test_one_copy_always(special: Callable[..., World], ranks: int) -> None:
    """Not only where a measurement prefers it, and for the shortest arrays too."""
    world = special(ranks, "shm", {"ARRAYCOMM_ALGORITHM": ",".join(f"{kind}=direct" for kind in KINDS[:-2])})
    world.run("symmetric.private")


@pytest.mark.parametrize("ranks", [2, 3])
def test_symmetric_always(special: Callable[..., World], ranks: int) -> None:
    world = special(ranks, "shm", {"ARRAYCOMM_ALGORITHM": ",".join(f"{kind}=direct:{2**64 - 1}" for kind in KINDS)})
    for task in ("kinds", "some_private"):
        world.run(f"symmetric.{task}")


def test_mismatch_is_seen(special: Callable[..., World]) -> None:
    special(2, "shm").run("mismatches.empty")
