"""Operations in flight, several groups, messages."""

from __future__ import annotations

import pytest

from .data import FRAMEWORKS
from .worlds import World, only


@pytest.mark.parametrize("framework", [*FRAMEWORKS, "mixed"])
def test_in_flight(world: World, framework: str) -> None:
    world.run("asynchrony.in_flight", framework=framework)


@pytest.mark.parametrize("task", ["every_kind", "out_and_order", "interleaved", "patience", "forgotten_at_the_end",
                                  "several_groups", "threads"])
def test_asynchrony(world: World, task: str) -> None:
    world.run(f"asynchrony.{task}")


@pytest.mark.parametrize("length", [5, 1_000_000])
def test_what_was_begun_goes_on(world: World, length: int) -> None:
    world.run("asynchrony.left_alone", length=length)


@pytest.mark.parametrize("task", ["subsets", "outsiders_and_keys", "closed", "many", "numbers"])
def test_groups(world: World, task: str) -> None:
    world.run(f"groups.{task}")


@pytest.mark.parametrize("framework", [*FRAMEWORKS, "mixed"])
def test_ring_of_messages(world: World, framework: str) -> None:
    world.run("messages.ring", framework=framework)


@pytest.mark.parametrize("task", ["everyone", "tags", "any_source", "batches", "beside_collectives", "in_a_thread", "any_tag",
                                  "pending_objects", "polled", "wrong_size"])
def test_messages(world: World, task: str) -> None:
    world.run(f"messages.{task}")


@pytest.mark.parametrize("framework", ["numpy", "jax"])
def test_messages_in_place(world: World, framework: str) -> None:
    world.run("messages.in_place", framework=framework)


@only(lambda settings: settings.size > 1)
@pytest.mark.parametrize("task", ["matrix", "root_ahead", "late", "uneven_disagreement"])
def test_mismatch(world: World, task: str) -> None:
    world.run(f"mismatches.{task}")
