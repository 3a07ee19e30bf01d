"""What the ranks of test_survivors.py do: tasks for job.py."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

import arraycomm

from .job import Context
from .tasks import OPERATIONS


def recipe() -> str:
    page = Path(__file__).resolve().parents[2] / "docs" / "reference" / "ending.md"
    (found,) = (block for block in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL) if "shrink" in block)
    return str(found)


def go_on(context: Context, known: list[int] | None = None) -> list[Any]:
    """What docs/reference/ending.md says: who is left, and the sum over them. known: of whom this rank has heard before."""
    if known:
        _hear_of(context.world, known)
    group = context.world if not known else context.world.shrink()
    found: dict[str, Any] = {"group": group, "x": np.ones(3), "arraycomm": arraycomm}
    context.say()
    exec(compile(recipe(), "ending.md", "exec"), found)
    return [list(found["group"].ranks), int(found["y"][0])]


def _hear_of(group: arraycomm.Group, known: list[int]) -> None:
    """The first look at who is gone finds these."""
    communicator = group._communicator
    told = [frozenset(known)]
    plain = communicator.gone
    communicator.gone = lambda: told.pop() if told else plain()


def cycle_on(context: Context, *, what: str = "mixed", counts: tuple[int, ...] = (1, 5000)) -> list[int]:
    """As cycle_forever(), and goes on with those who are left whenever a rank is lost, until it is alone. Says who they are, each
    time that they have summed something."""
    group, turn = context.world, 0
    while group.size > 1:
        try:
            turn = int(group.all_reduce(np.array([turn]), "max")[0])  # some had ended one more
            context.say(list(group.ranks))
            while True:
                for count in counts:
                    for operation in OPERATIONS[what]:
                        operation(group, count, turn)
                turn += 1
        except (arraycomm.PeerLost, arraycomm.Aborted):
            group = group.shrink()
    return list(group.ranks)


_shrunk: list[arraycomm.Group] = []  # from the world, or from a part of it


def begin_part(context: Context, members: list[int]) -> None:
    _shrunk[:] = [context.world.subgroup(members, "part")]


def shrink(context: Context, timeout: float | None = None, abort: bool = False, fails: str = "",
           exclude: tuple[int, ...] = ()) -> list[int]:
    """Of the newest group: who is left, and the sum of one of each. abort: the group first. fails: what the first group that it
    gets ends with, on this rank alone."""
    group = _shrunk[-1] if _shrunk else context.world
    if abort:
        group.abort()
    if fails:
        _fail_first(group, {"PeerLost": arraycomm.PeerLost, "KeyboardInterrupt": KeyboardInterrupt}[fails])
    context.say()
    while True:
        _shrunk.append(group := group.shrink(exclude=exclude, timeout=timeout))
        exclude = ()
        try:
            return [*group.ranks, int(group.all_reduce(np.ones(1))[0])]
        except arraycomm.PeerLost:
            continue  # of a rank that others lost already


def _fail_first(group: arraycomm.Group, error: type[BaseException]) -> None:
    """As on a rank that hears of a death when its peers have returned."""
    meet, failed = group._meet, list[int]()

    def once(*arguments: Any) -> arraycomm.Group:
        made = meet(*arguments)
        if not failed:
            failed.append(0)
            made._end(error.__name__)
            raise error("here")
        return made

    mock.patch.object(group, "_meet", once).start()


def close_part(context: Context, reason: str = "") -> None:
    _shrunk[-1].close(reason)


def is_closed(context: Context) -> bool:
    return context.world.closed
