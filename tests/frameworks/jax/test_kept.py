"""Compiled programs know their group by a number: what they do once it is closed, and what wrong roots do before that."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import arraycomm
import arraycomm.frameworks.jax as comm
from arraycomm.core.bootstrap.store import HashStore


def alone() -> arraycomm.Group:
    return arraycomm.init(store=HashStore(), rank=0, world_size=1)


@pytest.mark.parametrize("jit", [jax.jit, comm.jit])
def test_programs_of_a_closed_group(jit: Callable[..., Any]) -> None:
    """One has run, one was only compiled, one was only made: all tell that the group is closed, and go on telling it when
    another group has been opened, whose own programs work."""
    x = jnp.arange(3.0)
    with alone() as group:
        run, made = jit(lambda x: comm.all_reduce(x, group=group)), jit(lambda x: comm.all_gather(x, group=group))
        compiled = jit(lambda x: comm.broadcast(x, group=group)).lower(x).compile()
        np.testing.assert_array_equal(run(x), x)
    for opened in (False, True):
        if opened:
            group = alone()
            np.testing.assert_array_equal(jit(lambda x, group=group: comm.all_reduce(x * 2, group=group))(x), x * 2)
        for program in (made, run, compiled, run):
            with pytest.raises(arraycomm.Aborted, match="closed"), comm.errors():
                np.asarray(program(x))
    group.close()


def test_programs_of_two_groups_in_turns() -> None:
    """Of the same shapes and operations, so that nothing but the group's number tells them apart."""
    with alone() as first, alone() as second:
        programs = [jax.jit(lambda x, group=group: comm.all_reduce(x, group=group)) for group in (first, second)]
        for turn in range(4):
            for program in programs:
                np.testing.assert_array_equal(program(jnp.full(2, turn)), [turn, turn])
        first.close()
        np.testing.assert_array_equal(programs[1](jnp.full(2, 7)), [7, 7])
        with pytest.raises(arraycomm.Aborted, match="closed"), comm.errors():
            np.asarray(programs[0](jnp.full(2, 7)))


@pytest.mark.parametrize("jit", [jax.jit, comm.jit, lambda function: function], ids=["jax.jit", "jit", "eager"])
@pytest.mark.parametrize("operation", [comm.broadcast, comm.reduce])
def test_wrong_roots(jit: Callable[..., Any], operation: Callable[..., Any]) -> None:
    with alone() as group:
        for root, error in ((1, ValueError), (-1, ValueError), (2**40, ValueError), (2**70, ValueError), (True, TypeError),
                            (0.0, TypeError), ("0", TypeError)):
            with pytest.raises(error, match="root"):
                jit(lambda x, root=root: operation(x, root, group=group))(jnp.ones(2))
        for zero in (np.int32(0), None):
            np.testing.assert_array_equal(jit(lambda x, zero=zero: operation(x, zero, group=group))(jnp.ones(2)), [1, 1])
