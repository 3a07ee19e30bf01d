"""The whole exception tree.

Every error of a group derives from `DistError`, which is a RuntimeError as in torch.distributed. Wrong arguments are
`ValueError` or `TypeError` and are raised before anything is sent.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager


class DistError(RuntimeError):
    """Base of all errors between ranks.

    - Raised: as one of its subclasses; itself where another rank has an object that cannot be sent.
    - Afterwards: a GroupError has finished the group; after others it is usable.

    Examples:
        >>> def work(group):
        ...     try:
        ...         group.all_gather_object(object() if group.rank == 0 else 1)
        ...     except (TypeError, arraycomm.DistError) as error:
        ...         return type(error).__name__
        >>> arraycomm.run(work, 2)
        ['TypeError', 'DistError']
    """


class DistBackendError(DistError):
    """A backend failed, or is not available here.

    - Raised: by init() for a backend whose library is missing, and by calls that the backend cannot carry out.
    - Afterwards: there is no group, or it is as before; the text says what to install.

    Examples:
        >>> issubclass(arraycomm.DistBackendError, arraycomm.DistError)
        True
    """


class DistNetworkError(DistError):
    """An address could not be resolved, bound or reached.

    - Raised: by init() and by stores, with the address.
    - Afterwards: nothing has been opened; correct the address, MASTER_ADDR, or the interface, and try again.

    Examples:
        >>> try:
        ...     arraycomm.init("tcp://127.0.0.1:0", rank=1, world_size=2, timeout=0.1)
        ... except (ValueError, arraycomm.DistError) as error:
        ...     print("no world")
        no world
    """


class DistStoreError(DistError):
    """The store failed, or a key was not written in time.

    - Raised: by init() when not all ranks come within its timeout (the text names them), or when the store is lost.
    - Afterwards: there is no group. A store stays usable after a key that did not come.

    Examples:
        >>> from arraycomm.distributed import HashStore
        >>> from datetime import timedelta
        >>> try:
        ...     HashStore().wait(["never set"], timedelta(seconds=0.01))
        ... except arraycomm.DistStoreError as error:
        ...     print("never set" in str(error))
        True
    """


class QueueEmptyError(DistStoreError):
    """A non-blocking pop found an empty queue.

    - Raised: by queue_pop(key, block=False) of a store.
    - Afterwards: the store is as before; ask again later, or let the pop block.

    Examples:
        >>> from arraycomm.distributed import HashStore
        >>> try:
        ...     HashStore().queue_pop("jobs", block=False)
        ... except arraycomm.QueueEmptyError:
        ...     print("none")
        none
    """


class AuthFailed(DistNetworkError):
    """The other side does not know this job's secret, or speaks another protocol.

    - Raised: by init() and by stores, when they connect to a store or to a rank.
    - Afterwards: nothing has been opened. Give all ranks the same ARRAYCOMM_SECRET or ARRAYCOMM_SECRET_FILE.

    Examples:
        >>> issubclass(arraycomm.AuthFailed, arraycomm.DistNetworkError)
        True
    """


class RemoteError(Exception):
    """An exception that another rank sent as an object.

    Attributes:
        type_name: the name of its type there.
        text: what it said.

    - Raised: on the other ranks, when a reduction's function fails; object calls give it as a value, and raise nothing.
    - Afterwards: the group is usable.

    Examples:
        >>> def work(group):
        ...     return group.broadcast_object(KeyError("x") if group.rank == 0 else None)
        >>> arraycomm.run(work, 2)[1].type_name
        'KeyError'
    """

    def __init__(self, type_name: str, text: str) -> None:
        super().__init__(type_name, text)
        self.type_name, self.text = type_name, text

    def __str__(self) -> str:
        return f"{self.type_name}: {self.text}"


class ResourceError(DistError):
    """Memory, descriptors or a quota ran out.

    - Raised: by init(), empty() and operations that need shared memory or descriptors; the text names need and limit.
    - Afterwards: raised by empty() the group is usable; raised by init() there is none.

    Examples:
        >>> issubclass(arraycomm.ResourceError, arraycomm.DistError)
        True
    """


class DeviceError(ValueError, RuntimeError):
    """The group's backends do not move arrays on this device. A ValueError, and a RuntimeError too.

    - Raised: before anything is sent, for an array on a device that no backend of the group knows.
    - Afterwards: the group is usable; move the array, or open the group with a backend for the device.

    Examples:
        >>> issubclass(arraycomm.DeviceError, ValueError), issubclass(arraycomm.DeviceError, RuntimeError)
        (True, True)
    """


class OutputError(ValueError):
    """A result cannot be written into this array where it lies."""


class ImmutableOutput(OutputError):
    """It is read-only, or of a library whose arrays never change."""


class StridedOutput(OutputError):
    """It is not C-contiguous: a result can be written elsewhere and copied into it."""


class GroupError(DistError):
    """An operation of a group failed and the group cannot be used any more.

    Attributes:
        ranks: the culprits, as ranks of the group whose method raised; may be empty.
        world_ranks: the same in the same order, as ranks of the world that init() made.
        sequence: the operation's number in the group, 0 if none was in progress.

    - Raised: as one of its subclasses, by the operation in progress and by every later one.
    - Afterwards: the group can only be shrunk or closed; buffers of the operation may hold parts of a result.

    Examples:
        >>> def work(group):
        ...     if group.rank == 1:
        ...         return None                              # leaves
        ...     try:
        ...         group.barrier()
        ...     except arraycomm.GroupError as error:
        ...         return type(error).__name__, error.ranks
        >>> arraycomm.run(work, 2)
        [('PeerLost', (1,)), None]
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
    """A rank died, was stopped, became unreachable or left.

    - Raised: by operations that need the lost rank, within a second of its end; the text names it and the
      cause.
    - Afterwards: shrink() gives a group of the ranks that are left.

    Examples:
        >>> def work(group):
        ...     if group.rank == 1:
        ...         return None                              # leaves
        ...     try:
        ...         group.barrier()
        ...     except arraycomm.PeerLost:
        ...         return group.shrink().size
        >>> arraycomm.run(work, 3)
        [2, None, 2]
    """


class CollectiveTimeout(GroupError, TimeoutError):
    """An operation did not end within its timeout. A TimeoutError too.

    - Raised: by the operation on the ranks that waited; its ranks are those that were late.
    - Afterwards: the group is finished on all ranks: shrink(exclude=...) without the late ones, or close().

    Examples:
        >>> def work(group):
        ...     if group.rank == 0:
        ...         try:
        ...             group.barrier(timeout=0.1)
        ...         except arraycomm.CollectiveTimeout as error:
        ...             return error.ranks
        >>> import threading; late = threading.Event()
        >>> def both(group):
        ...     if group.rank == 1:
        ...         late.wait(10)
        ...     found = work(group)
        ...     late.set()
        ...     return found
        >>> arraycomm.run(both, 2)
        [(1,), None]
    """


class CollectiveMismatch(GroupError):
    """The ranks called different operations, or with different count, dtype, reduction or root.

    - Raised: on all ranks, before any buffer is written; the text has two calls that differ.
    - Afterwards: the group is finished. After a message that does not fit its receive it is usable.

    Examples:
        >>> def work(group):
        ...     try:
        ...         group.all_reduce(np.ones(2 + group.rank))
        ...     except arraycomm.CollectiveMismatch:
        ...         return "differ"
        >>> arraycomm.run(work, 2)
        ['differ', 'differ']

    From the call that differs; a root that has returned from its broadcast or scatter gets it from its next call or close().
    """


class Aborted(GroupError):
    """The group was aborted, by this rank or by a peer, or was closed while the operation was in progress.

    - Raised: by operations in progress when abort() is called on any rank, or when a signal interrupts a rank inside one.
    - Afterwards: shrink() gives a group of all ranks that are left, all of them after abort().

    Examples:
        >>> def work(group):
        ...     try:
        ...         group.abort("start again") if group.rank == 0 else group.barrier()
        ...     except arraycomm.Aborted:
        ...         pass
        ...     return group.shrink().size
        >>> arraycomm.run(work, 2)
        [2, 2]
    """


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
