"""The whole exception tree.

Every error of a group derives from `DistError`, which is a RuntimeError as in torch.distributed. Wrong arguments are
`ValueError` or `TypeError` and are raised before anything is sent.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager


class DistError(RuntimeError):
    """Base of everything that goes wrong between ranks."""


class DistBackendError(DistError):
    """A backend failed, or is not available here."""


class DistNetworkError(DistError):
    """An address could not be resolved, bound or reached."""


class DistStoreError(DistError):
    """The store failed, or a key did not come in time."""


class QueueEmptyError(DistStoreError):
    """A non-blocking pop found an empty queue."""


class AuthFailed(DistNetworkError):
    """The other side does not know this job's secret (or speaks another protocol)."""


class RemoteError(Exception):
    """An exception that another rank sent as an object. Attributes: `type_name`, the name of its type there, and `text`."""

    def __init__(self, type_name: str, text: str) -> None:
        super().__init__(type_name, text)
        self.type_name, self.text = type_name, text

    def __str__(self) -> str:
        return f"{self.type_name}: {self.text}"


class ResourceError(DistError):
    """Memory, descriptors or a quota ran out; the message names need and limit."""


class DeviceError(ValueError, RuntimeError):
    """The group's backends do not move arrays on this device. A RuntimeError too, which torch.distributed's programs expect."""


class OutputError(ValueError):
    """A result cannot be written into this array where it lies."""


class ImmutableOutput(OutputError):
    """It is read-only, or of a library whose arrays never change."""


class StridedOutput(OutputError):
    """It is not C-contiguous: a result can be written elsewhere and copied into it."""


class GroupError(DistError):
    """An operation of a group failed and the group cannot be used any more.

    Attributes: `ranks` (the culprits, as ranks of the group whose method raised; may be empty), `world_ranks` (the same in
    the same order, as ranks of the world that init() made), `sequence` (the operation's number in the group, 0 if none was
    under way).
    """

    def __init__(self, message: str, *, ranks: tuple[int, ...] = (), members: Sequence[int] | None = None,
                 sequence: int = 0) -> None:
        """members: the group's, as ranks of the world; None: the group is the world."""
        super().__init__(message)
        self.ranks = ranks
        self.world_ranks = ranks if members is None else tuple(members[rank] for rank in ranks)
        self.sequence = sequence

    def __reduce__(self) -> tuple[object, ...]:
        # Keyword-only attributes would be lost by the default, and errors travel from spawned ranks to their parent.
        return type(self), (str(self),), self.__dict__


class PeerLost(GroupError):
    """A rank died, was stopped, became unreachable or left."""


class CollectiveTimeout(GroupError, TimeoutError):
    """An operation did not end within its timeout."""


class CollectiveMismatch(GroupError):
    """The ranks called different operations, or with different count, dtype, reduction or root.

    From the call that differs; a root that has returned from its broadcast or scatter gets it from its next call or close().
    """


class Aborted(GroupError):
    """The group was aborted, by this rank or by a peer, or was closed while the operation was under way."""


@contextmanager
def counted_in(members: Sequence[int], name: str, world: Sequence[int] | None = None) -> Iterator[None]:
    """Errors inside are of other groups of the same ranks, or of a part of them: their `ranks` become those of the group that
    was called, which has this name and these members (ranks of the world).

    world: the world's ranks for what the errors take for the world, where that is a part of it.
    """
    try:
        yield
    except GroupError as error:
        if world is not None:
            error.world_ranks = tuple(world[rank] for rank in error.world_ranks)
        ranks = tuple(members.index(rank) for rank in error.world_ranks if rank in members)
        if ranks != error.ranks:
            numbers = ", ".join(map(str, ranks))
            error.args = (f"{error}; in group {name!r}, which was called, that is rank {numbers}",)
            error.ranks = ranks
        raise
