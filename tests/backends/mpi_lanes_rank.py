"""A rank of test_mpi_lanes.py: `mpi_lanes_rank.py CASE`. Messages go through memory that the ranks of a host share."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import mmap
import os
import random
import re
import signal
import struct
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

import arraycomm
from tests.backends.mapped import mapped, maps
from tests.backends.mpi_rank import say
from tests.core.forked import names_the_fork

# Elements of 8 bytes: none, with the head, in the longer ring, and longer than that.
_COUNTS = (0, 1, 256, 257, 4000, 40_000, 200_000, 400_000)
_LONG = 1 << 22
_RING = 2 << 20  # bytes of the longer ring, LONG_RING in mpi_lanes.c
CELL = _RING // 8 + 64  # of a cell: mpi_lanes.h


def order(group: arraycomm.Group) -> None:
    """More than the rings hold is sent before anybody receives; each tag's comes in order, from whomever it is."""
    size, me, chance = group.size, group.rank, random.Random(1)
    for _ in range(3):
        every = [[(chance.choice((7, 2**40)), chance.choice(_COUNTS)) for _ in range(40)] for _ in range(size)]
        sends = [group.isend(np.full(count, me * 100.0 + number), to, tag)
                 for to in range(size) for number, (tag, count) in enumerate(every[to])]
        sends += [group.isend(np.full(300, me * 100.0 + number), to, 8) for to in range(size) for number in range(20)]
        group.barrier()
        wrong = _pass_on(group)
        seen = [0] * size
        for _ in range(20 * size):
            got = group.recv(tag=8, like=np.empty(300))
            wrong += bool((got.array != got.source * 100 + seen[got.source]).any())
            seen[got.source] += 1
        for tag in (2**40, 7):
            for number, (_, count) in ((i, one) for i, one in enumerate(every[me]) if one[0] == tag):
                for source in range(size):
                    wrong += bool((group.recv(source, tag, like=np.empty(count)).array != source * 100 + number).any())
        for work in sends:
            work.wait()
        say(group, f"wrong {wrong}, from each {set(seen)}")


def _pass_on(group: arraycomm.Group) -> int:
    """A message that flows past those that nobody has received yet."""
    x = np.arange(_LONG, dtype=np.float64)
    if group.rank:
        x = group.recv(group.rank - 1, 9, like=np.empty(_LONG)).array
    if group.rank < group.size - 1:
        group.send(x, group.rank + 1, 9)
    return int((x != np.arange(_LONG)).any())


def many(group: arraycomm.Group) -> None:
    """More short ones than a lane has slots, while their receiver stands still: nothing of it looks."""
    first = int(group.broadcast(np.array([os.getpid()]), 0)[0])
    senders = group.split(1 if group.rank else None)
    if senders is not None:
        while any(" (stopped)" not in task.read_text() for task in Path(f"/proc/{first}/task").glob("*/status")):
            os.sched_yield()
        works = [group.isend(np.full(number % 200, float(number)), 0) for number in range(2000)]
        senders.barrier()
        if group.rank == 1:
            os.kill(first, signal.SIGCONT)
        for work in works:
            work.wait()
        senders.close()
    else:
        os.kill(os.getpid(), signal.SIGSTOP)
        wrong = sum(bool((group.recv(source, like=np.empty(number % 200)).array != number).any())
                    for number in range(2000) for source in range(1, group.size))
        say(group, f"wrong {wrong}")


def fills(group: arraycomm.Group) -> None:
    """As much as the longer ring holds, from the beginning of a line and from within one, and what flows behind it: received in
    either order, and with its receive called before or while it flows."""
    memory, wrong = np.empty(_RING + 128, np.uint8), 0
    begin = -memory.ctypes.data % 64
    for skew, first, early in itertools.product((0, 16), (1, 2), (False, True) * 10):
        filling, flowing = memory[begin + skew :][:_RING], np.full(_LONG, 7.0)
        if group.rank:
            like = {1: filling, 2: flowing}
            works = {tag: group.irecv(0, tag, like=np.empty_like(like[tag])) for tag in (1, 2) if early and skew}
            group.send(np.ones(1), 0, 3)
            for tag in (first, 3 - first) if skew == 0 else (1, 2):
                got = works[tag].result() if works else group.recv(0, tag, like=np.empty_like(like[tag]))
                wrong += bool((got.array != (5 if tag == 1 else 7)).any())
        else:
            filling.fill(5)
            group.recv(1, 3, like=np.ones(1))
            filled = group.isend(filling, 1, 1)  # which may be read where it lies: then it ends with its receive, the second here
            if skew:
                filled.wait()
            group.send(flowing, 1, 2)
            filled.wait()
    say(group, f"wrong {wrong}")


def fits(group: arraycomm.Group) -> None:
    """What the longer ring holds ends when it lies there, wherever in the ring the message before it ended."""
    memory, wrong = np.empty(_RING, np.uint8), 0
    lengths = [_RING * part // 8 + more for part in range(1, 8) for more in (-64, 0, 64)]
    for before, after in itertools.product(lengths, lengths):
        if group.rank:
            group.recv(0, 1, out=memory[:before])
            group.send(np.ones(1), 0, 3)
            group.recv(0, 2, like=np.ones(1))
            wrong += bool((group.recv(0, 1, out=memory[:after]).array != 6).any())
        else:
            memory.fill(5)
            group.send(memory[:before], 1, 1)
            group.recv(1, 3, like=np.ones(1))
            memory.fill(6)
            group.send(memory[:after], 1, 1)
            group.send(np.ones(1), 1, 2)
    say(group, f"wrong {wrong}")


def unreadable(group: arraycomm.Group) -> None:
    """Memory that only its owner can read."""
    left = (group.rank - 1) % group.size
    odd = np.frombuffer(mmap.mmap(-1, _LONG, prot=mmap.PROT_WRITE))
    usual, me = np.empty(odd.size), group.rank
    for x in (usual, odd, usual):
        x[:] = np.arange(x.size) + me
        work = group.isend(x, (me + 1) % group.size)
        got = group.recv(left, like=np.empty(x.size))
        work.wait()
        say(group, f"right {np.array_equal(got.array, np.arange(x.size) + left)}")


def refuses(group: arraycomm.Group) -> None:
    """Messages for receives of another length are gone, before and after these were called, and their sender goes on."""
    refused = 0
    for sends, count, early in itertools.product((group.isend, group.send), (5, 2000, _LONG), (False, True)):
        like = np.full(count + 1, 7.0)
        receives = [group.irecv(0, 2, out=like)] if early and group.rank else []
        group.barrier()
        works = [sends(np.zeros(count), 1, 2), sends(np.full(count, 3.0), 1, 2)] if group.rank == 0 else []
        if group.rank:
            try:
                (receives or [group.irecv(0, 2, out=like)])[0].wait()
            except arraycomm.CollectiveMismatch:
                refused += bool((like == 7).all())
            refused += 100 * bool((group.recv(0, 2, like=np.zeros(count)).array == 3).all())
        for work in works:
            assert work is None or work.wait() is None
    say(group, f"refused {refused}")


def gives_up(group: arraycomm.Group) -> None:
    """Rank 0 does, anywhere in a long message, and writes its array at once: nobody takes what it writes then."""
    x, out, gave_up, wrong = np.empty(_LONG), np.empty(_LONG), 0, 0
    for trial in range(1, 31):
        part = group.split(0)
        assert part is not None
        x.fill(trial)
        part.barrier()
        try:
            if part.rank == 0 and trial % 2:  # it flows
                part.send(x, 1, timeout=2e-4 * trial)
            elif part.rank == 0:  # it is offered
                part.isend(x, 1, timeout=2e-4 * trial).wait()
            else:
                wrong += bool((part.recv(0, out=out).array != trial).any())
        except arraycomm.GroupError:
            x.fill(-1)
            gave_up += 1
        part.close()
        group.barrier()
    say(group, f"wrong {wrong}, gave up {gave_up > 0}")


def receiver_gives_up(group: arraycomm.Group) -> None:
    """Rank 1 does, before anything has come and anywhere in a long message, and writes its array at once: nobody else does."""
    x, out, gave_up, wrong = np.ones(_LONG), np.empty(_LONG), 0, 0
    for trial in range(20):
        part = group.split(0)
        assert part is not None
        out.fill(7)
        part.barrier()
        try:
            if part.rank == 0 and trial == 0:
                part.recv(1, 9, like=np.empty(1))  # until it hears of it
            elif part.rank == 0 and trial % 2:
                part.send(x, 1)
            elif part.rank == 0:
                part.isend(x, 1).wait()
            else:
                part.irecv(0, out=out, timeout=2e-4 * trial + 1e-3 * (trial == 0)).wait()
                wrong += bool((out != 1).any())
            part.barrier()
        except arraycomm.CollectiveTimeout as error:
            out.fill(-1)
            gave_up += 1
            wrong += error.ranks != (1 - part.rank,) and part.rank == 1
        part.close()
        wrong += part.rank == 1 and bool((out == -1).any()) and not (out == -1).all()
        group.barrier()
    say(group, f"wrong {wrong}, gave up {gave_up > 0}")


def aborts(group: arraycomm.Group) -> None:
    """Rank 1 does, while messages lie in the rings, are offered, flow and are waited for."""
    began = mapped()
    for _ in range(10):
        part, told = group.split(0), []
        assert part is not None
        works = [part.irecv(None, 9, like=np.empty(5))]
        try:
            if part.rank == 0:
                works += [part.isend(np.full(count, 5.0), 1) for count in (3, 3000, _LONG)]
                part.barrier()
                part.send(np.ones(_LONG), 1)
            else:
                part.barrier()
                assert all((part.recv(0, like=np.empty(count)).array == 5).all() for count in (3, 3000))
                part.abort("enough of it")
        except arraycomm.Aborted as error:
            told.append(str(error))
        for work in works[0], works[-1]:
            try:
                work.wait()
            except arraycomm.Aborted as error:
                told.append(str(error))
        part.close()
        group.barrier()
        assert len(told) == (3 if part.rank == 0 else 2) and all("enough of it" in one for one in told), told
    say(group, f"mapped {mapped() - began}")


def forks(group: arraycomm.Group) -> None:
    """A child is told of each use, and ends as any process does; its parent's messages go on."""
    other, counts = 1 - group.rank, (3, 3000, _LONG)
    part = group.split(0)
    assert part is not None
    receives = [group.irecv(other, 5, like=np.empty(count)) for count in counts]
    group.barrier()
    sends = [part.isend(np.full(count, group.rank + 2.0), other) for count in counts]  # there, and offered, at the fork
    child = os.fork()
    if not child:
        signal.alarm(30)  # ends it where it hangs
        uses: list[Callable[[], object]] = [
            lambda: group.abort("the child's own trouble"), group.check_peers, lambda: group.subgroup([group.rank], "mine"),
            lambda: part.split(0), lambda: group.send(np.ones(1), other), lambda: part.isend(np.ones(_LONG), other),
            lambda: part.recv(other, like=np.empty(3)), receives[0].wait, group.barrier, arraycomm.init]
        uses += [send.wait for send in sends if not send.done()]  # Intel MPI ends long ones, too, before they are received
        refused = [names_the_fork(use) for use in uses]
        part.close()
        sys.exit(0 if all(refused) else 1 + refused.index(False))  # closes the group, too
    status = os.waitpid(child, 0)[1]
    group.barrier()
    works = [group.isend(np.full(count, group.rank + 4.0), other, 5) for count in counts]
    right = all((receive.result().array == other + 4).all() for receive in receives)
    right &= all((part.recv(other, like=np.empty(count)).array == other + 2).all() for count in counts)
    for work in sends + works:
        work.wait()
    part.close()
    say(group, f"child {status >> 8} {status & 255}, right {right}")


def killed(group: arraycomm.Group) -> None:
    """Rank 1 is, while rank 0 reads a message of its, and one flows to rank 2."""
    x = np.ones(2 * _LONG)
    if group.rank == 1:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, 0.3)
    for _ in range(10_000):
        if group.rank == 1:
            group.isend(x, 0)
            group.send(x, 2)
        else:
            group.recv(1, out=x)


def closes(group: arraycomm.Group) -> None:
    """With messages under way: who receives them later has the short ones, and no long one."""
    began = mapped()
    for number in range(10):
        part = group.split(0)
        assert part is not None
        if part.rank == 0:
            works = [part.isend(np.full(count, 5.0), 1) for count in (3, 3000, _LONG, _LONG)]
            part.close()
            group.barrier()
            try:
                works[number % 2 + 2].wait()
            except arraycomm.DistError as error:
                told = str(error)
        else:
            group.barrier()
            right = all((part.recv(0, like=np.empty(count)).array == 5).all() for count in (3, 3000))
            try:
                for _ in range(2):
                    part.recv(0, like=np.empty(_LONG))
            except arraycomm.PeerLost as error:
                told = f"{right} {error}"
            part.close()
        group.barrier()
    say(group, f"mapped {mapped() - began}, {told}")


# ---- what a rank writes that is no arraycomm ----

def _head(group: int, count: int, tag: int, source: int, ticket: int, dtype: int, what: int, at: int, offer: int) -> bytes:
    """struct lane_head of mpi_lanes.h; source, ticket, dtype and what share 64 bits."""
    return struct.pack("<QQqQQQ", group, count, tag, source | ticket << 24 | dtype << 40 | what << 60, at, offer)


_MESSAGE, _OFFERED, _CLEAR, _DONE = 0, 7, 8, 9
_ROW = np.ones(100_000)
_DOUBLE = arraycomm.DType.FLOAT64
# What rank 1 writes for rank 0 to read, and how many bytes it says that lie behind the head.
_FORGED = {
    "a head of no kind": (_head(0, 1, 5, 1, 0, _DOUBLE, 15, 0, 0), 8),
    "a goodbye": (_head(0, 1, 5, 1, 0, _DOUBLE, 1, 0, 0), 8),
    "no dtype": (_head(0, 1, 5, 1, 0, 255, _MESSAGE, 0, 0), 8),
    "more than there is": (_head(0, 2**61, 5, 1, 0, _DOUBLE, _MESSAGE, 0, 0), 8),
    "longer than the ring": (_head(0, 1 << 19, 5, 1, 0, _DOUBLE, _MESSAGE, 0, 1), 0),
    "beyond the ring": (_head(0, 1 << 17, 5, 1, 0, _DOUBLE, _MESSAGE, 1 << 40, 0), 0),
    "out of the ring": (_head(0, 1 << 17, 5, 1, 0, _DOUBLE, _MESSAGE, _RING - 64, 1), 0),
    "in no cell": (_head(0, 1, 5, 1, 0, _DOUBLE, _MESSAGE, 0, 3 << 1 | 1), 0),
    "in a cell beyond all": (_head(0, 1, 5, 1, 0, _DOUBLE, _MESSAGE, 0, 1 << 40), 0),
    "in the other one's cell": (_head(0, 1, 5, 1, 0, _DOUBLE, _MESSAGE, 0, 1 << 1 | 1), 0),
    "longer than its cell": (_head(0, CELL // 8 + 1, 5, 1, 0, _DOUBLE, _MESSAGE, 0, 2 << 1 | 1), 0),
    "out of its cell": (_head(0, 16, 5, 1, 0, _DOUBLE, _MESSAGE, CELL - 120, 2 << 1), 0),
    "an offer that is too long": (_head(0, 2**63, 5, 1, 0, _DOUBLE, _OFFERED, 4096, 1), 0),
    "done with no offer": (_head(0, 0, 0, 1, 0, 0, _DONE, 0, 1), 0),
    "a tag of records": (_head(0, 0, 0, 1, 1, 0, _CLEAR, 0, 1), 0),
    "a piece longer than any": (_head(0, 1, 5, 1, 0, _DOUBLE, _MESSAGE, 0, 0), 60_000),
}


class Lanes(NamedTuple):
    slots: list[int]  # the first one of each rank's lane
    end: int  # of the memory that they lie in


_MARKS = (0x5EA57EDACC0DE0, 0x5EA57EDACC0DE1)


def _lanes() -> Lanes:
    """Of the messages with these tags. The world's memory, and what else the kernel put anywhere, has none."""
    found = []
    for ends in maps():
        begin, end = (int(one, 16) for one in ends.split("-"))
        held = ctypes.string_at(begin, end - begin)
        found += [(mark, begin + match.start() - 24, end) for mark in _MARKS
                  for match in re.finditer(re.escape(mark.to_bytes(8, "little")), held)]
    assert sorted(mark for mark, _, _ in found) == list(_MARKS), found
    return Lanes([slot for _, slot, _ in sorted(found)], found[0][2])


@contextlib.contextmanager
def marked(group: arraycomm.Group) -> Iterator[tuple[arraycomm.Group, Lanes]]:
    """Another group of two ranks. Each sends a first message, in its own cell, which is the other one's then."""
    before, part = mapped(), group.split(0)
    assert part is not None
    part.send(np.ones(1), 1 - part.rank, _MARKS[part.rank])
    part.recv(1 - part.rank, _MARKS[1 - part.rank], like=np.empty(1))
    lanes = _lanes()
    group.barrier()
    yield part, lanes
    part.close()
    while mapped() > before:  # the next one's marks would be there twice
        time.sleep(1e-3)


def _forge(slot: int, head: bytes, behind: int) -> None:
    """In a lane's second slot: link_shm.c."""
    ctypes.memmove(slot + 64 + 8, head, len(head))
    ctypes.c_uint64.from_address(slot + 64).value = 2 << 36 | len(head) << 24 | behind


def _receive_too_much(part: arraycomm.Group, lanes: Lanes) -> None:
    """Rank 1 says so of the lane from rank 0, the second of four, whatever is said otherwise meanwhile."""
    freed = ctypes.c_uint64.from_address(lanes.end - 3 * (lanes.slots[1] - lanes.slots[0]))
    work = part.irecv(0, 5, like=np.empty(1))
    while not work.done():
        freed.value = 1 << 40


def _send_until_it_fails(part: arraycomm.Group) -> None:
    end, works = time.monotonic() + 20, []
    while time.monotonic() < end:
        works.append(part.isend(_ROW, 1))


def hostile(group: arraycomm.Group) -> None:
    """Rank 0 says what it found, and of whom."""
    for name in (*_FORGED, "more received than sent"):
        told = "no error"
        with marked(group) as (part, lanes):
            if group.rank == 1 and name in _FORGED:
                _forge(lanes.slots[1], *_FORGED[name])
            group.barrier()
            try:
                if name not in _FORGED and group.rank == 1:
                    _receive_too_much(part, lanes)
                elif name not in _FORGED:
                    _send_until_it_fails(part)
                part.recv(1 - part.rank, 5, like=np.empty(1), timeout=20)
            except arraycomm.DistError as error:
                told = f"{type(error).__name__} {error}"
        if group.rank == 0:
            say(group, f"{name}: {told}")
        group.barrier()


_CASES = {"order": order, "many": many, "fills": fills, "fits": fits, "unreadable": unreadable, "refuses": refuses,
          "gives up": gives_up, "killed": killed, "receiver gives up": receiver_gives_up, "aborts": aborts, "forks": forks,
          "closes": closes, "hostile": hostile}

if __name__ == "__main__":
    with arraycomm.init(timeout=60) as world:
        try:
            world.barrier()
            _CASES[sys.argv[1]](world)
        except arraycomm.GroupError as error:
            say(world, f"{type(error).__name__} {error.ranks} {error}")
