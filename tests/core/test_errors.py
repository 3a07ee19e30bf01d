"""The ranks that an error names."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import numpy as np
import pytest

import arraycomm
from arraycomm.core.base.errors import counted_in
from arraycomm.core.bootstrap.gathering import MEET, Gathering
from arraycomm.core.bootstrap.store import HashStore

from ..threads import at_once

KINDS = (arraycomm.PeerLost, arraycomm.CollectiveTimeout, arraycomm.CollectiveMismatch, arraycomm.Aborted)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("travel", [copy.copy, copy.deepcopy, lambda error: pickle.loads(pickle.dumps(error))])
def test_both_numbers_travel(kind: type[arraycomm.PeerLost], travel: Callable[[Any], Any]) -> None:
    error = travel(kind("it went", ranks=(2, 0), members=(7, 8, 9), sequence=5))
    assert type(error) is kind and str(error) == "it went"
    assert (error.ranks, error.world_ranks, error.sequence) == ((2, 0), (9, 7), 5)


def test_nobody_and_the_world() -> None:
    assert arraycomm.PeerLost("x").world_ranks == ()
    assert arraycomm.PeerLost("x", ranks=(3,)).world_ranks == (3,)


@pytest.mark.parametrize("members, world, ranks, world_ranks, text", [
    ((0, 1, 2, 3), None, (2, 0), (2, 0), "lost"),
    ((3, 2, 0), None, (1, 2), (2, 0), "lost; in group 'g', which was called, that is rank 1, 2"),
    ((0, 1, 2, 3), (3, 0, 1), (1, 3), (1, 3), "lost; in group 'g', which was called, that is rank 1, 3")])
def test_numbers_of_the_group_that_was_called(members: tuple[int, ...], world: tuple[int, ...] | None, ranks: tuple[int, ...],
                                              world_ranks: tuple[int, ...], text: str) -> None:
    with pytest.raises(arraycomm.PeerLost) as caught, counted_in(members, "g", world):
        raise arraycomm.PeerLost("lost", ranks=(2, 0))
    assert (caught.value.ranks, caught.value.world_ranks, str(caught.value)) == (ranks, world_ranks, text)


@pytest.mark.parametrize("error, ranks", [(arraycomm.PeerLost("rank 2 died", ranks=(2,)), (2,)), (arraycomm.PeerLost("?"), (0,)),
                                          (arraycomm.CollectiveTimeout("rank 2 is late", ranks=(2,)), (0,)), (KeyError(2), (0,))])
def test_who_is_told_of_a_loss_does_not_count_as_lost(error: Exception, ranks: tuple[int, ...]) -> None:
    """Rank 0 fails where ranks meet: the others hear of the rank that made it fail."""
    store = HashStore(timedelta(seconds=20))
    Gathering(store, 0, 3).fail(error)
    with pytest.raises(arraycomm.PeerLost, match=f"rank {ranks[0]} .*{type(error).__name__}") as caught:
        Gathering(store, 1, 3, members=(4, 5, 6)).wait(MEET, 20.0)
    assert (caught.value.ranks, caught.value.world_ranks) == (ranks, (4 + ranks[0],))


def alone(rank: int, size: int, store: HashStore) -> None:
    """Rank 0 after the others have closed."""
    with arraycomm.init(rank=rank, world_size=size, store=store, timeout=50.0) as group:
        group.barrier()
        if rank:
            group.send(np.full(2, float(rank)), 0)
            return
        x, others = np.zeros(2), tuple(range(1, size))
        found: set[int] = set()
        early = group.irecv(like=x)
        for _ in others:
            found.add(group.recv(like=x).source if found else early.result().source)
        assert found == set(others)
        for call in (lambda: group.recv(like=x), lambda: group.probe(), lambda: group.irecv(like=x).result(20),
                     lambda: group.recv_object(), lambda: group.recv(tag=arraycomm.ANY_TAG, out=x)):
            with pytest.raises(arraycomm.PeerLost, match="all other ranks were lost: they have closed the group") as caught:
                call()
            assert caught.value.ranks == caught.value.world_ranks == others
            pending = group.irecv(like=x)
            group.isend(np.full(2, 7.0), 0).wait()
            assert pending.result().array.tolist() == [7, 7]
        group.send_object("mine", 0)
        assert group.recv_object() == ("mine", 0)
        with pytest.raises(arraycomm.PeerLost, match="it has closed the group"):
            group.barrier()


@pytest.mark.parametrize("transport", ["shm", "tcp"])
@pytest.mark.parametrize("size", [2, 3])
def test_all_others_have_closed_the_group(transport: str, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ARRAYCOMM_TRANSPORT", transport)
    store = HashStore(timedelta(seconds=50))
    at_once(size, lambda rank: alone(rank, size, store))
