"""all_reduce_tree: over memory, and over links, where algorithms add in different orders."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from ...conformance.worlds import Settings, World
from .conftest import Programs


def test_bits_do_not_depend_on_buckets(pair: Programs) -> None:
    pair.run("trees.buckets", eager=(6000,))


def test_bits_over_links(tmp_path: Path) -> None:
    environ = (("ARRAYCOMM_ALGORITHM", "all_reduce=bruck:4000,all_reduce=ring"),)
    with closing(World(Settings(3, "tcp", environ), tmp_path)) as world:
        world.run(".frameworks.jax.trees.buckets", eager=())


def test_wrong_calls(pair: Programs) -> None:
    pair.run("trees.wrong_calls")
