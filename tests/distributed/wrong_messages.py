"""Wrong calls of messages, and of questions about groups: see wrong.py. Two ranks."""

from __future__ import annotations

from typing import Any

from .wrong import Case, Site

RANKS = 2
_NOT_SENT = "torch sends before it looks, and waits for a rank that is not there"
_UNHASHED = "torch looks it up in a dictionary; one kind of error for all that is no group here"
_TORCHS_OWN = "what torch raises comes from Python on the way, and does not name the argument"
_CLOSED = "torch goes on with a destroyed group as long as somebody holds it"


def _fixed(s: Site) -> Any:
    """A read-only array of NumPy's."""
    x = s.zeros(2)
    x.flags.writeable = False
    return x


MESSAGES = [
    Case("send without a rank", ValueError, "Must specify", lambda s: s.dist.send(s.a)),
    Case("send with both ranks", ValueError, "Can't specify both", lambda s: s.dist.send(s.a, s.next, group_dst=s.next)),
    Case("send to itself", ValueError, "Invalid destination rank", lambda s: s.dist.send(s.a, s.rank)),
    Case("send of a number to itself", ValueError, "Invalid destination rank", lambda s: s.dist.send(3, s.rank)),
    Case("send to rank -1", None, "Global rank -1 is not part of group",
         lambda s: s.dist.send(s.a, -1), fatal="it waits", ours=ValueError, why=_NOT_SENT),
    Case("send to rank 7", None, "Global rank 7 is not part of group",
         lambda s: s.dist.send(s.a, 7), fatal="it waits", ours=ValueError, why=_NOT_SENT),
    Case("send to group rank 7", None, "Group rank 7 is not part of group",
         lambda s: s.dist.send(s.a, group_dst=7), fatal="it waits", ours=ValueError, why=_NOT_SENT),
    Case("send to group rank -1", None, "Group rank -1 is not part of group",
         lambda s: s.dist.send(s.a, group_dst=-1), fatal="it waits", ours=ValueError, why=_NOT_SENT),
    Case("send to a str", TypeError, "", lambda s: s.dist.send(s.a, "1")),
    Case("send to a fraction", TypeError, "", lambda s: s.dist.send(s.a, float(s.next))),
    Case("send of a list", TypeError, "", lambda s: s.dist.send([s.a], s.next)),
    Case("send of a number", TypeError, "", lambda s: s.dist.send(3, s.next)),
    Case("send of None", TypeError, "", lambda s: s.dist.send(None, s.next)),
    Case("send of a strided array", RuntimeError, "has to be contiguous", lambda s: s.dist.send(s.strided, s.next)),
    Case("send with a str as tag", TypeError, "", lambda s: s.dist.send(s.a, s.next, tag="a")),
    Case("send with a fraction as tag", TypeError, "", lambda s: s.dist.send(s.a, s.next, tag=1.5)),
    Case("send with tag -1", RuntimeError, "", lambda s: s.dist.send(s.a, s.next, tag=-1)),
    Case("send in a str", ValueError, "is not registered", lambda s: s.dist.send(s.a, s.next, group="x")),
    Case("send with another keyword", TypeError, "", lambda s: s.dist.send(s.a, s.next, foo=1)),
    Case("isend without a rank", ValueError, "Must specify", lambda s: s.dist.isend(s.a)),
    Case("isend with both ranks", ValueError, "Can't specify both", lambda s: s.dist.isend(s.a, s.next, group_dst=s.next)),
    Case("isend to rank 7", None, "Global rank 7 is not part of group",
         lambda s: s.dist.isend(s.a, 7), fatal="it waits", ours=ValueError, why=_NOT_SENT),
    Case("isend of a number", TypeError, "", lambda s: s.dist.isend(3, s.next)),
    Case("isend of a strided array", RuntimeError, "has to be contiguous", lambda s: s.dist.isend(s.strided, s.next)),
    Case("isend in a str", ValueError, "is not registered", lambda s: s.dist.isend(s.a, s.next, group="x")),
    Case("recv with both ranks", ValueError, "Can't specify both", lambda s: s.dist.recv(s.a, s.next, group_src=s.next)),
    Case("recv from rank 7", None, "Global rank 7 is not part of group",
         lambda s: s.dist.recv(s.a, 7), fatal="it waits", ours=ValueError, why=_NOT_SENT),
    Case("recv from group rank -1", None, "Group rank -1 is not part of group",
         lambda s: s.dist.recv(s.a, group_src=-1), fatal="it waits", ours=ValueError, why=_NOT_SENT),
    Case("recv from a str", TypeError, "", lambda s: s.dist.recv(s.a, "1")),
    Case("recv into a number", TypeError, "", lambda s: s.dist.recv(3, s.next)),
    Case("recv into a list", TypeError, "", lambda s: s.dist.recv([s.a], s.next)),
    Case("recv into a strided array", RuntimeError, "has to be contiguous", lambda s: s.dist.recv(s.strided, s.next)),
    Case("irecv into a strided array", RuntimeError, "has to be contiguous", lambda s: s.dist.irecv(s.strided, s.next)),
    Case("irecv into a read-only array", ValueError, "read-only", lambda s: s.dist.irecv(_fixed(s), s.next), only="numpy"),
    Case("recv with a str as tag", TypeError, "", lambda s: s.dist.recv(s.a, s.next, tag="a")),
    Case("recv in a str", ValueError, "is not registered", lambda s: s.dist.recv(s.a, s.next, group="x")),
    Case("irecv with both ranks", ValueError, "Can't specify both", lambda s: s.dist.irecv(s.a, s.next, group_src=s.next)),
    Case("irecv from rank -1", None, "Global rank -1 is not part of group",
         lambda s: s.dist.irecv(s.a, -1), fatal="it waits", ours=ValueError, why=_NOT_SENT),
    Case("irecv into a number", TypeError, "", lambda s: s.dist.irecv(3, s.next)),
    Case("send in a closed group", ValueError, "", lambda s: s.dist.send(s.a, s.next, group=s.closed)),
    Case("isend in a closed group", ValueError, "", lambda s: s.dist.isend(s.a, s.next, group=s.closed)),
]
BATCHES_AND_OBJECTS = [
    Case("P2POp of send", ValueError, "Invalid ``op``", lambda s: s.dist.P2POp(s.dist.send, s.a, s.next)),
    Case("P2POp of a name", ValueError, "Invalid ``op``", lambda s: s.dist.P2POp("isend", s.a, s.next)),
    Case("P2POp without a rank", ValueError, "Must specify", lambda s: s.dist.P2POp(s.dist.isend, s.a)),
    Case("P2POp with both ranks", ValueError, "Can't specify both",
         lambda s: s.dist.P2POp(s.dist.isend, s.a, s.next, group_peer=s.next)),
    Case("P2POp of a number", TypeError, "Expected parameter `tensor`", lambda s: s.dist.P2POp(s.dist.isend, 3, s.next)),
    Case("P2POp with rank 7", None, "Global rank 7 is not part of group",
         lambda s: s.dist.P2POp(s.dist.isend, s.a, 7), ours=ValueError, why="it could only fail later"),
    Case("P2POp with group rank 7", None, "Group rank 7 is not part of group",
         lambda s: s.dist.P2POp(s.dist.isend, s.a, group_peer=7), ours=ValueError, why="it could only fail later"),
    Case("P2POp in a str", ValueError, "is not registered", lambda s: s.dist.P2POp(s.dist.isend, s.a, s.next, "x")),
    Case("batch of nothing", IndexError, "list index out of range", lambda s: s.dist.batch_isend_irecv([])),
    Case("batch of a number", ValueError, "Invalid ``p2p_op_list``", lambda s: s.dist.batch_isend_irecv([3])),
    Case("batch that is no list", ValueError, "", lambda s: s.dist.batch_isend_irecv((s.dist.P2POp(s.dist.isend, s.a, s.next),))),
    Case("batch in two groups", ValueError, "",
         lambda s: s.dist.batch_isend_irecv([
             s.dist.P2POp(s.dist.isend, s.a, s.next), s.dist.P2POp(s.dist.isend, s.a, s.next, s.group)])),
    Case("batch with a strided array", RuntimeError, "has to be contiguous",
         lambda s: s.dist.batch_isend_irecv([s.dist.P2POp(s.dist.isend, s.strided, s.next)])),
    Case("objects without a rank", ValueError, "Must specify", lambda s: s.dist.send_object_list([1])),
    Case("objects with both ranks", ValueError, "Can't specify both",
         lambda s: s.dist.send_object_list([1], s.next, group_dst=s.next)),
    Case("objects to itself", ValueError, "Invalid destination rank", lambda s: s.dist.send_object_list([1], s.rank)),
    Case("objects to rank 7", None, "Global rank 7 is not part of group",
         lambda s: s.dist.send_object_list([1], 7), fatal="it waits", ours=ValueError, why=_NOT_SENT),
    Case("objects in a str", ValueError, "is not registered", lambda s: s.dist.send_object_list([1], s.next, group="x")),
    Case("objects from rank 7", None, "Global rank 7 is not part of group",
         lambda s: s.dist.recv_object_list([None], 7), fatal="it waits", ours=ValueError, why=_NOT_SENT),
    Case("objects from both ranks", ValueError, "Can't specify both",
         lambda s: s.dist.recv_object_list([None], s.next, group_src=s.next)),
]
QUESTIONS = [
    Case("rank in a str", ValueError, "is not registered", lambda s: s.dist.get_rank("x")),
    Case("size of a str", AttributeError, "", lambda s: s.dist.get_world_size("x"), ours=ValueError, why=_UNHASHED),
    Case("members of a str", KeyError, "", lambda s: s.dist.get_process_group_ranks("x"), ours=ValueError, why=_UNHASHED),
    Case("backend of a str", ValueError, "", lambda s: s.dist.get_backend("x")),
    Case("backend configuration of a str", TypeError, "",
         lambda s: s.dist.get_backend_config("x"), ours=ValueError, why=_UNHASHED),
    Case("backend outside", ValueError, "", lambda s: s.dist.get_backend(s.dist.GroupMember.NON_GROUP_MEMBER)),
    Case("rank of a closed group", ValueError, "", lambda s: s.dist.get_rank(s.closed)),
    Case("size of a closed group", None, "", lambda s: s.dist.get_world_size(s.closed), ours=ValueError, why=_CLOSED),
    Case("members of a closed group", KeyError, "",
         lambda s: s.dist.get_process_group_ranks(s.closed), ours=ValueError, why=_CLOSED),
    Case("backend of a closed group", ValueError, "", lambda s: s.dist.get_backend(s.closed)),
    Case("all_reduce on a closed group", None, "",
         lambda s: s.dist.all_reduce(s.a, group=s.closed), ours=RuntimeError, why=_CLOSED),
    Case("barrier on a closed group", None, "", lambda s: s.dist.barrier(s.closed), ours=RuntimeError, why=_CLOSED),
    Case("group rank of a rank that is not there", ValueError, "", lambda s: s.dist.get_group_rank(s.group, 7)),
    Case("global rank of a rank that is not there", ValueError, "", lambda s: s.dist.get_global_rank(s.group, 7)),
    Case("global rank of a str", ValueError, "", lambda s: s.dist.get_global_rank(s.group, "a")),
    Case("group rank in a closed group", ValueError, "", lambda s: s.dist.get_group_rank(s.closed, 0)),
    Case("world rank 7", None, "",
         lambda s: s.dist.get_group_rank(s.dist.group.WORLD, 7),
         ours=ValueError, why="torch gives any number back for the world"),
    Case("world's group rank 7", None, "",
         lambda s: s.dist.get_global_rank(s.dist.group.WORLD, 7),
         ours=ValueError, why="torch gives any number back for the world"),
    Case("end of a closed group", ValueError, "", lambda s: s.dist.destroy_process_group(s.closed)),
    Case("end of a str", ValueError, "", lambda s: s.dist.destroy_process_group("x")),
    Case("closed group of an unknown kind", TypeError, "", lambda s: s.dist.get_rank([0]), ours=ValueError, why=_UNHASHED),
    Case("backend that is no str", ValueError, "", lambda s: s.dist.Backend(3)),
    Case("backend of an unknown device", RuntimeError, "", lambda s: s.dist.get_default_backend_for_device("abc")),
    Case("backend of no device", TypeError, "", lambda s: s.dist.get_default_backend_for_device(None)),
]
CASES = MESSAGES + BATCHES_AND_OBJECTS + QUESTIONS
