"""What a launcher notes of ended ranks, and who is told."""

from __future__ import annotations

import threading

import pytest

from arraycomm.core.base.errors import PeerLost
from arraycomm.core.bootstrap import ends
from arraycomm.core.bootstrap.gathering import MEET, Gathering
from arraycomm.core.bootstrap.store import HashStore, PrefixStore

PLACE, HOW = "host a, pid 7", "was killed by SIGKILL"


@pytest.fixture
def store() -> HashStore:
    return HashStore()


def gathering(store: HashStore, rank: int, size: int) -> Gathering:
    return Gathering(PrefixStore(f"world of {size}", store), rank, size)


def test_all_that_wait_hear_of_the_rank_that_did_not_come(store: HashStore) -> None:
    raised = {}

    def come(rank: int) -> None:
        ours = gathering(store, rank, 3)
        with pytest.raises(PeerLost, match="rank 1 .host a, pid 7. failed .* SIGKILL before it joined") as error:
            ours.wait(MEET, 20, watch=lambda: ends.tell(store, ours, MEET))
        raised[rank] = error.value.ranks

    threads = [threading.Thread(target=come, args=(rank,)) for rank in (0, 2)]
    for thread in threads:
        thread.start()
    ends.note(store, 1, 3, PLACE, HOW)
    for thread in threads:
        thread.join(20)
    assert raised == {0: (1,), 2: (1,)}


def test_nobody_is_told_where_nothing_was_noted_or_the_rank_had_come(store: HashStore) -> None:
    ours = gathering(store, 0, 2)
    ends.tell(store, ours, MEET)
    store.set("world of 2/came/1", "")  # as wait() there: its end is its will's business from then on
    ends.note(store, 1, 2, PLACE, HOW)
    ends.tell(store, ours, MEET)
    assert not store.check(["world of 2/came/end"])


def test_a_world_of_some_ranks_has_numbers_of_its_own(store: HashStore) -> None:
    ends.note(store, 1, 3, PLACE, HOW)
    ends.tell(store, gathering(store, 0, 2), MEET)
    assert not store.check(["world of 2/came/end"])
