"""Messages between two ranks. dst and src are ranks of the world, group_dst and group_src of the group: give one of them.

Messages of one tag between two ranks keep their order, and are independent of collectives. Arrays must be contiguous
(RuntimeError), as in torch. A send may return before its message was received.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from arraycomm.core.arrays.types import DeviceType

from ..process_groups.process_group import ProcessGroup
from ..process_groups.world import is_outside, resolve
from . import arguments
from .arguments import packed, peer
from .entry import Held, begin, current, entered, operation
from .methods import untimed
from .work import Message, Receive, Work


def send(tensor: Any, dst: int | None = None, group: ProcessGroup | None = None, tag: int = 0,
         group_dst: int | None = None) -> None:
    """Sends an array to rank dst of the world, or group_dst of the group.

    Messages of one tag between two ranks keep their order, and are independent of collectives.

    - Shapes: any; the receiver's array has as many elements.
    - Dtypes: every one; the receiver's is the same.
    - Memory: tensor must be contiguous. It may be changed when the call has returned.
    - Blocks: until tensor may be changed. A short message is buffered while there is capacity, a long one waits for its receiver.
    - Timeout: the group's. CollectiveTimeout, and the group cannot be used any more.
    - Errors: ValueError for this rank itself and outside of the group, TypeError and RuntimeError for the array and the tag. Then
      PeerLost, Aborted.

    Examples:
        On each of two ranks:

        >>> x = np.full(1, 7.0 * (dist.get_rank() == 0))
        >>> if dist.get_rank() == 0:
        ...     dist.send(x, dst=1)
        ... else:
        ...     sender = dist.recv(x, src=0)
        >>> x
        array([7.])
    """
    if group is None and group_dst is None and dst is not None and packed(tensor) and not current.profiler._is_profiler_enabled:
        short: Any = getattr(current.default, "_rooted", None)
        if short is not None and dst != short.rank and short._plain_send(tensor, dst, tag) is not NotImplemented:
            return
    pg = resolve(group)
    to = arguments.other(pg, _rank("dst", pg, dst, group_dst))
    _sendable(tensor, tag)
    entered(group, "send")
    pg.core.send(tensor, to, tag)


def recv(tensor: Any, src: int | None = None, group: ProcessGroup | None = None, tag: int = 0,
         group_src: int | None = None) -> int:
    """Receives into the array and gives the sender's global rank. Without src and group_src: from any rank.

    - Shapes: the message has as many elements as tensor.
    - Dtypes: the message's is tensor's.
    - Memory: tensor must be contiguous and writable.
    - Blocks: until the message has arrived.
    - Timeout: the group's. CollectiveTimeout, and the group cannot be used any more.
    - Errors: ValueError where only this rank itself could send and has not: call isend() first. TypeError and RuntimeError for
      the
      array and the tag. CollectiveMismatch for a message of another size or dtype; the group stays usable. PeerLost, Aborted.

    Examples:
        On each of two ranks:

        >>> x = np.full(1, 7.0 * (dist.get_rank() == 1))
        >>> if dist.get_rank() == 1:
        ...     dist.send(x, dst=0, tag=3)
        ... else:
        ...     assert dist.recv(x, tag=3) == 1
        >>> x
        array([7.])
    """
    if group is None and group_src is None and not current.profiler._is_profiler_enabled:
        short: Any = getattr(current.default, "_rooted", None)
        alone = short is None or src == short.rank or (src is None and short.size == 1)
        got = NotImplemented if alone else short._plain_recv(src, tag, out=tensor)
        if got is not NotImplemented:
            return int(got.source)
    pg = entered(group, "irecv")
    if pg is None:
        return -1
    source = _source(pg, src, group_src)
    _receivable(tensor, tag)
    if (source == pg.rank() or (source is None and pg.size() == 1)) and not _sent_to_itself(pg, tensor, tag):
        raise ValueError(f"Invalid source rank: only this rank itself could send what recv() waits for, and it has sent "
                         f"nothing with tag {tag}: call isend() before, or irecv()")
    return int(pg.ranks[pg.core.recv(source, tag, out=tensor).source])


@operation()
def isend(tensor: Any, dst: int | None = None, group: Any = None, tag: int = 0, group_dst: int | None = None) -> Work | None:
    """As send(), but returns a Work at once. A rank may send to itself.

    - Shapes: any; the receiver's array has as many elements.
    - Dtypes: every one; the receiver's is the same.
    - Memory: tensor must be contiguous, and must not be changed before the Work has ended.
    - Blocks: never; Work.wait() does.
    - Timeout: the group's, for the message itself. That of Work.wait(timeout) does not end the message.
    - Errors: as send(); those after the arguments' come from Work.wait().

    Examples:
        On each of two ranks:

        >>> other, x = 1 - dist.get_rank(), np.empty(1, int)
        >>> going = dist.isend(np.full(1, dist.get_rank()), dst=other)
        >>> dist.recv(x, src=other) == other == x.item()
        True
        >>> going.wait()
        True
    """
    to = _rank("dst", group, dst, group_dst)
    _sendable(tensor, tag)
    return _begun(group, Message, lambda async_op: group.core.isend(tensor, to, tag), tensor)


@operation()
def irecv(tensor: Any, src: int | None = None, group: Any = None, tag: int = 0, group_src: int | None = None) -> Work | None:
    """As recv(), but returns a Work at once. Its source_rank() is the sender's rank in the group.

    - Shapes: the message has as many elements as tensor.
    - Dtypes: the message's is tensor's.
    - Memory: tensor must be contiguous and writable, and must not be read or written before the Work has ended.
    - Blocks: never; Work.wait() does.
    - Timeout: the group's, for the message itself. That of Work.wait(timeout) does not end the message.
    - Errors: as recv(); those after the arguments' come from Work.wait().

    Examples:
        On each of two ranks:

        >>> other, x = 1 - dist.get_rank(), np.empty(1, int)
        >>> coming = dist.irecv(x)
        >>> dist.send(np.full(1, 5), dst=other)
        >>> coming.wait(), x.item(), coming.source_rank() == other
        (True, 5, True)
    """
    source = _source(group, src, group_src)
    _receivable(tensor, tag)
    return _begun(group, Receive, lambda async_op: group.core.irecv(source, tag, out=tensor), tensor)


def _begun(pg: ProcessGroup, kind: type[Work], start: Callable[..., Any], tensor: Any) -> Work | None:
    return begin(pg, Held(start, (tensor,)), True) if pg._holds_all else kind(start(async_op=True), (tensor,))


def _rank(name: str, pg: ProcessGroup, rank: Any, group_rank: Any) -> int:
    """As peer(), but TypeError unless the rank is an integer: torch checks that for messages, and not for collectives."""
    if rank is not None and not hasattr(rank, "__index__"):
        raise arguments.wrong_type(name, "int", rank)
    return peer(pg, rank, group_rank)


def _source(pg: ProcessGroup, src: Any, group_src: Any) -> int | None:
    return None if src is None and group_src is None else _rank("src", pg, src, group_src)


def _sent_to_itself(pg: ProcessGroup, tensor: Any, tag: int) -> bool:
    """Whether a message to this rank itself is pending; also True if that is unknown (device memory, some backends)."""
    on_host = arguments.read("tensor", tensor).device_type == DeviceType.CPU
    if not on_host or not hasattr(untimed(pg.core)._communicator, "probe"):
        return True
    return pg.core.probe(pg.rank(), tag, timeout=0) is not None


def _sendable(tensor: Any, tag: Any) -> None:
    """A packed array and a tag. TypeError otherwise, and RuntimeError as in torch for a strided one and a tag below 0."""
    arguments.array("tensor", tensor)
    if not packed(tensor):
        raise RuntimeError("input tensor has to be contiguous: `tensor` is strided; pass a contiguous copy of it")
    if not hasattr(tag, "__index__"):
        raise TypeError(f"tag must be an int, got {tag!r}")
    if tag < 0:
        raise RuntimeError(f"Tag must be nonnegative, got {tag}")


def _receivable(tensor: Any, tag: Any) -> None:
    """As _sendable(), and the array must be writable in place."""
    _sendable(tensor, tag)
    arguments.written("tensor", tensor)


class P2POp:
    """One message for batch_isend_irecv().

    Args:
        op: isend or irecv.
        peer: a rank of the world; or group_peer, of the group.

    - Shapes: those of isend() or irecv().
    - Dtypes: every one.
    - Memory: tensor is kept until the message has ended.
    - Blocks: never; nothing is sent before batch_isend_irecv().
    - Errors: ValueError for another op, and when both or no peers are given; TypeError for what is no array.

    Examples:
        On each of two ranks:

        >>> dist.P2POp(dist.isend, np.ones(1), 1 - dist.get_rank()).tag
        0
    """

    def __init__(self, op: Callable[..., Any], tensor: Any, peer: int | None = None, group: ProcessGroup | None = None,
                 tag: int = 0, group_peer: int | None = None) -> None:
        if op not in (isend, irecv):
            raise ValueError("Invalid ``op``. Expected ``op`` to be of type ``torch.distributed.isend`` or "
                             "``torch.distributed.irecv``: pass isend or irecv of arraycomm.distributed.")
        arguments.array("tensor", tensor)
        self.op, self.tensor, self.tag = op, tensor, tag
        self.group: Any = group
        self.group_peer = self.peer = -1
        if not is_outside(group):
            self.group = pg = resolve(group)
            self.group_peer = arguments.peer(pg, peer, group_peer)
            self.peer = pg.ranks[self.group_peer]

    def __repr__(self) -> str:
        if is_outside(self.group):
            return f"P2POp({self.op.__name__} of a group without this rank)"
        ends = (self.group.rank(), self.group_peer) if self.op is isend else (self.group_peer, self.group.rank())
        return (f"P2POp({self.op.__name__} pg={self.group.group_name}, group_src={ends[0]}, group_dst={ends[1]},  "
                f"{self.tensor.shape}, {self.tensor.dtype})")


def batch_isend_irecv(p2p_op_list: list[P2POp]) -> list[Work]:
    """Starts all messages of the list and gives their Works, in the list's order. The order cannot cause a deadlock.

    - Blocks: never; Work.wait() does.
    - Timeout: the group's, for each message. CollectiveTimeout from Work.wait(), and the group cannot be used any more.
    - Errors: IndexError for an empty list, ValueError for an entry that is no P2POp and for more than one group, before the first
      message starts. Those of the messages come from Work.wait().

    Examples:
        On each of two ranks:

        >>> other, x = 1 - dist.get_rank(), np.empty(1, int)
        >>> works = dist.batch_isend_irecv([dist.P2POp(dist.isend, np.full(1, dist.get_rank()), other),
        ...                                 dist.P2POp(dist.irecv, x, other)])
        >>> [work.wait() for work in works], x.item() == other
        ([True, True], True)
    """
    if not isinstance(p2p_op_list, list) or not all(isinstance(op, P2POp) for op in p2p_op_list):
        raise ValueError("Invalid ``p2p_op_list``. Each op is expected to to be of type ``torch.distributed.P2POp``: pass a "
                         "list of P2POp of arraycomm.distributed.")
    group = p2p_op_list[0].group
    if any(op.group is not group for op in p2p_op_list):
        raise ValueError("All ops need to use the same group.")
    if entered(group, "batch_isend_irecv") is None:
        return []
    for op in p2p_op_list:
        (_sendable if op.op is isend else _receivable)(op.tensor, op.tag)
    return [op.op(op.tensor, None, op.group, op.tag, op.group_peer) for op in p2p_op_list]
