"""all_reduce_tree: over memory, and over links, where algorithms add in different orders."""

from __future__ import annotations

from pathlib import Path

from ...conformance.worlds import Settings, World
from .conftest import Programs


def test_bits_do_not_depend_on_buckets(pair: Programs) -> None:
    pair.run("trees.buckets", eager=(6000,))


def test_bits_over_links(tmp_path: Path) -> None:
    world = World(Settings(3, "tcp", (("ARRAYCOMM_ALGORITHM", "all_reduce=bruck:4000,all_reduce=ring"),)), tmp_path)
    try:
        world.run(".frameworks.jax.trees.buckets", eager=())
    finally:
        world.close()


def test_wrong_calls(pair: Programs) -> None:
    pair.run("trees.wrong_calls")
