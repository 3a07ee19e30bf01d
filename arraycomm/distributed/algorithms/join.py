"""Loops in which ranks have different numbers of inputs: a rank that has none left takes part in the others' collectives.

    with Join([averager]):
        for x in inputs:
            averager(x)                 # which calls Join.notify_join_context(self) before its collectives
"""

from __future__ import annotations

import abc
from array import array
from collections.abc import Sequence
from importlib import import_module

from arraycomm.core.base.typed import Any

from ..operations.collectives import all_reduce
from ..process_groups import devices
from ..process_groups.world import resolve

__all__ = ["Join", "JoinHook", "Joinable"]


class JoinHook:
    """What a rank without inputs does for one Joinable. Both methods do nothing where a subclass does not define them."""

    def main_hook(self) -> None:
        """The collectives of one of the others' rounds, in their order, with arrays that leave the result as it is."""

    def post_hook(self, is_last_joiner: bool) -> None:
        """Called once, when no rank has inputs left. is_last_joiner: whether this one was among the last to have some."""


class Joinable(abc.ABC):
    """A class whose objects make the same collectives in each round. It calls Join.notify_join_context(self) before them."""

    _join: Join | None = None  # the context that counts this object's rounds

    @abc.abstractmethod
    def join_hook(self, **kwargs: Any) -> JoinHook:
        """kwargs: those of the context, for all its Joinables."""

    @property
    @abc.abstractmethod
    def join_device(self) -> Any:
        """Of the arrays that the context itself reduces: "cpu", or a GPU, for which torch is needed."""

    @property
    @abc.abstractmethod
    def join_process_group(self) -> Any:
        """Of the context's own collectives; None is the default group."""


class Join:
    """The context. All ranks of the group enter it, with as many Joinables, which have one group.

    Before each round the ranks that have inputs count themselves. Who leaves the context makes the JoinHooks' collectives
    for as long as there are any.
    enable: False where the inputs are known to be even; nothing is counted then. throw_on_early_termination: all ranks raise
    RuntimeError as soon as one has no inputs left. kwargs: for join_hook().
    Raises ValueError without Joinables, and where their groups differ, TypeError for what is no Joinable.
    """

    def __init__(self, joinables: Sequence[Joinable], enable: bool = True, throw_on_early_termination: bool = False,
                 **kwargs: Any) -> None:
        if not joinables:
            raise ValueError("The join context manager requires at least one joinable")
        for one in joinables:
            if not isinstance(one, Joinable):
                raise TypeError(f"a Joinable of arraycomm.distributed.algorithms is needed, got {type(one)}")
        groups = [resolve(one.join_process_group) for one in joinables]
        if any(group is not groups[0] for group in groups):
            raise ValueError("Using join context manager with multiple process groups")
        self._first, self._group, self._device = joinables[0], groups[0], joinables[0].join_device
        self._enabled, self._throws = enable, throw_on_early_termination
        self._hooks = [one.join_hook(**kwargs) for one in joinables]

    def __enter__(self) -> Join:
        self._first._join = self if self._enabled else None
        return self

    def __exit__(self, exc_type: Any, exc_value: Any, exc_traceback: Any) -> None:
        """Returns when no rank has inputs left; at once where the block has raised."""
        self._first._join = None
        if not self._enabled or exc_type is not None:
            return
        last = True
        while self._count(0):
            if self._throws:
                self._count(1)
                raise RuntimeError(f"Rank {self._group.rank()} exhausted all inputs.")
            last = False
            for hook in self._hooks:
                hook.main_hook()
        for hook in self._hooks:
            hook.post_hook(last)

    def _number(self, value: int) -> Any:
        if devices.type_of(self._device) == "cpu":
            return array("q", [value])
        return import_module("torch").tensor([value], device=self._device)

    def _count(self, mine: int) -> int:
        total = self._number(mine)
        all_reduce(total, group=self._group)
        return int(total[0])

    @staticmethod
    def notify_join_context(joinable: Joinable) -> Any:
        """Called by a Joinable before the collectives of a round. Of several in one context the first one's calls count.

        Returns the Work of the count, None where nothing is counted. Raises RuntimeError where throw_on_early_termination
        is set and a rank has no inputs left.
        """
        join = joinable._join
        if join is None:
            return None
        work = all_reduce(join._number(1), group=join._group, async_op=True)
        if join._throws and join._count(0):
            raise RuntimeError("Detected at least one rank that exhausted inputs. Throwing across all ranks.")
        return work
