"""What ranks tell each other through a store: what is not signed for its place is refused by the rank that reads it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from arraycomm.core.base.errors import AuthFailed, DistStoreError
from arraycomm.core.bootstrap import ends
from arraycomm.core.bootstrap.gathering import MEET, Gathering, sign
from arraycomm.core.bootstrap.rendezvous import rendezvous
from arraycomm.core.bootstrap.store import HashStore
from arraycomm.distributed.process_groups import groups, members
from arraycomm.distributed.process_groups.member_lists import MemberList

SECRET, OTHER = b"s" * 32, b"o" * 32
FORGED: list[Callable[[bytes, str], bytes]] = [  # of what a rank would write there, and what that would be about
    lambda content, about: content,
    lambda content, about: sign(OTHER, about, content),
    lambda content, about: sign(None, about, content),
    lambda content, about: sign(SECRET, about + "x", content),
    lambda content, about: sign(SECRET, about, content)[:-1],
    lambda content, about: sign(SECRET, about, content) + b"0",
    lambda content, about: b"\xff" * 99]


def _agree(store: HashStore) -> None:
    core = SimpleNamespace(name="world", ranks=[0, 1], check_peers=lambda: None)
    meeting = SimpleNamespace(store=store, secret=SECRET)
    group: Any = SimpleNamespace(rank=lambda: 0, size=lambda: 2, group_name="0", core=core, _meeting=meeting)
    groups._agree(group, 7, "a split", 20)


def _member_list(store: HashStore) -> MemberList:
    return MemberList(store, 5, ["b", "a"], "a", SECRET)


def _note(store: HashStore) -> None:
    store.set("arraycomm-launch/ended", "")
    ends.tell(store, Gathering(store, 0, 2, SECRET), MEET)


def _backend(store: HashStore) -> None:
    rendezvous(store=store, rank=0, world_size=2, timeout=timedelta(seconds=20), backend="socket",
               environ={"ARRAYCOMM_SECRET": SECRET.hex()})


CASES: dict[str, tuple[str, bytes, str, Callable[..., object]]] = {  # key, content, what it is about, who reads it
    "agree": ("agree/world/7/what", b"another split", "what the ranks of group '0' ask for, number 7", _agree),
    "claim": ("claim/b", b"name\0b", "claim/b of reconfigure() with uuid 5", lambda store: _member_list(store).meet(20)),
    "merge": ("merge/0 of 2/said", b"whole", "the end of merge/0 of 2", lambda store: members.join(store, 2, 1, 20, SECRET)),
    "end": ("arraycomm-launch/ended/1", b"2\0here\0it was killed", "the launcher's note of the end of rank 1", _note),
    "refused": ("arraycomm-launch/refused", b"node 1 was refused", "a launcher's note of a refused node", _note),
    "backend": ("arraycomm/0/world/1/backend", b"nccl\0001", "the backend of 2 ranks", _backend),
}


@pytest.mark.parametrize("forge", range(len(FORGED)))
@pytest.mark.parametrize("case", CASES)
def test_what_somebody_else_wrote_is_refused(case: str, forge: int) -> None:
    key, content, about, read = CASES[case]
    store = HashStore()
    store.set(key, FORGED[forge](content, about))
    with pytest.raises(AuthFailed, match="without the signature of this job"):
        read(store)


@pytest.mark.parametrize("case", CASES)
def test_what_a_rank_wrote_is_believed(case: str) -> None:
    """So the forged ones above are refused for their signature alone."""
    key, content, about, read = CASES[case]
    store = HashStore()
    store.set(key, sign(SECRET, about, content))
    store.set("name/list", sign(SECRET, "name/list of reconfigure() with uuid 5", b"b\na\nc"))
    said = {"agree": "another split", "refused": "node 1 was refused", "claim": "different lists",
            "backend": "has backend 'socket'"}.get(case)
    if said:
        with pytest.raises((ValueError, DistStoreError), match=said):
            read(store)
    else:
        read(store)
    assert case != "end" or store.check([f"{MEET}/end"])


def test_the_list_of_others_is_signed() -> None:
    store = HashStore()
    store.set("claim/b", sign(SECRET, "claim/b of reconfigure() with uuid 5", b"name\0b"))
    store.set("name/list", b"b\na\nc")
    with pytest.raises(AuthFailed, match="name/list of reconfigure"):
        _member_list(store).meet(20)
