"""The facade's state between calls: the default group, the groups by name, the counters of their names.

The only state at module level of arraycomm.distributed; destroy_process_group() leaves it as it was at import.
"""

from __future__ import annotations

import sys
import warnings
from collections import Counter
from datetime import timedelta
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from arraycomm.core.bootstrap.rendezvous import Rendezvous

    from .groups import ProcessGroup

default_pg_timeout = timedelta(minutes=30)  # unless ARRAYCOMM_TIMEOUT is set
NOT_INITIALIZED = ("Default process group has not been initialized, please make sure to call init_process_group() of "
                   "arraycomm.distributed first")


class NO_PROFILER:  # noqa: N801 - a value
    """The placeholder of torch.autograd.profiler if torch is not loaded."""

    _is_profiler_enabled = False


class World:
    """The state of the process. The only instance is `state`."""

    def __init__(self) -> None:
        self.profiler: Any = NO_PROFILER  # or torch.autograd.profiler: the fast path checks whether it runs
        self.clear()
        self.factories: dict[str, Any] = {}  # by name: the functions given to _dist2.register_backend()
        self.shared: Rendezvous | None = None  # for _dist2's groups; kept, because its address can be served only once
        self.parts = 0  # count of rendezvous derived from it

    def clear(self) -> None:
        self.default: ProcessGroup | None = None
        self.groups: dict[str, ProcessGroup] = {}  # open ones by name, the default group among them
        self.count = 0  # count of assigned names; equal on all ranks
        self.made: Counter[tuple[int, ...]] = Counter()  # count of groups by their members
        self.outside: tuple[int, ...] = ()  # members of the last new group that excludes this rank
        self.shrunk: list[ProcessGroup] = []  # former default groups, whose connections the default group uses

    def profiles(self) -> bool:
        """Whether torch's profiler runs; looks the module up each time, because torch may be loaded later."""
        found = sys.modules.get("torch.autograd.profiler")  # possibly partly loaded, or of an unknown version
        self.profiler = found if hasattr(found, "_is_profiler_enabled") else NO_PROFILER
        return bool(self.profiler._is_profiler_enabled)

    def next_name(self) -> str:
        self.count += 1
        return str(self.count - 1)


state = World()


class _World(type):
    """The metaclass of the classes below: their WORLD changes with initialisation."""

    @property
    def WORLD(cls) -> ProcessGroup | None:  # noqa: N802 - torch's name
        """The default group; None before init_process_group()."""
        return state.default

    @WORLD.setter
    def WORLD(cls, group: ProcessGroup | None) -> None:  # noqa: N802
        state.default = group


class GroupMember(metaclass=_World):
    """Two values: WORLD is the default group, NON_GROUP_MEMBER is what new_group() gives to a rank outside of the group.

    - Blocks: never, as any attribute.
    - Errors: none; WORLD is None before init_process_group().

    Examples:
        On each of two ranks:

        >>> dist.GroupMember.WORLD.size(), dist.GroupMember.NON_GROUP_MEMBER
        (2, -100)
    """

    NON_GROUP_MEMBER = -100


class group(metaclass=_World):  # noqa: N801 - torch's name
    """A namespace with one value: WORLD is the default group.

    - Blocks: never, as any attribute.
    - Errors: none; WORLD is None before init_process_group().

    Examples:
        On each of two ranks:

        >>> dist.group.WORLD.rank() == dist.get_rank()
        True
    """


def default_group() -> ProcessGroup:
    """Raises ValueError before init_process_group()."""
    if state.default is None:
        raise ValueError(NOT_INITIALIZED)
    return state.default


def is_outside(group: Any) -> bool:
    return group is not None and type(group) is int and group == GroupMember.NON_GROUP_MEMBER


def resolve(group: Any = None) -> ProcessGroup:
    """The group itself; the default group for None.

    Raises ValueError before init_process_group(), for NON_GROUP_MEMBER, and for what is no group.
    """
    if group is None:
        return default_group()
    if hasattr(group, "group_desc"):
        return group  # type: ignore[no-any-return]
    if is_outside(group):
        raise ValueError(f"Invalid process group specified: global rank {default_group().rank()} does not belong to it "
                         "(it is GroupMember.NON_GROUP_MEMBER, which new_group() gives to the ranks outside)")
    raise ValueError(f"Group {group!r} is not registered, please create group with arraycomm.distributed.new_group: it is a "
                     f"{type(group).__module__}.{type(group).__qualname__}")


def member(group: Any, what: str, level: int = 3) -> ProcessGroup | None:
    """As resolve(); None, after a warning, for a rank outside. `what`: the function that is called, `level` frames up."""
    if group is not None and is_outside(group):
        warnings.warn(f"Running {what} on global rank {default_group().rank()} which does not belong to the given group.",
                      stacklevel=level)
        return None
    found = resolve(group)
    if state.profiles():
        from .profiling import follow  # imported on demand: only profiling needs it

        follow(found, what)
    return found
