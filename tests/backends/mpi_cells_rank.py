"""A rank of test_mpi_lanes.py: `mpi_cells_rank.py CASE`. Messages of two ranks in cells of their lanes: engine/mpi_lanes.h."""

from __future__ import annotations

import ctypes
import itertools
import random
import sys
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

import arraycomm
from tests.backends.mpi_lanes_rank import CELL, Lanes, marked
from tests.backends.mpi_rank import say


def _in_cells(lanes: Lanes, sender: int) -> int:
    """Messages that a rank has sent in cells, after that."""
    lane = lanes.end - (3 - sender) * (lanes.slots[1] - lanes.slots[0])
    return (ctypes.c_uint64.from_address(lane + 128 + 8).value - 1) // CELL - 1


def _bytes(length: int, place: int, number: int) -> NDArray[np.uint8]:
    """Contents that tell messages apart, at that place of a line."""
    memory = np.empty(length + 128, np.uint8)
    begin = -memory.ctypes.data % 64 + place
    memory[begin : begin + length] = np.arange(length) % 251 + number
    return memory[begin : begin + length]


def _got(part: arraycomm.Group, length: int, number: int, place: int = 0, tag: int = 0) -> int:
    """0 if the next message is that one."""
    out = _bytes(length, place, 0)
    return int(not np.array_equal(part.recv(1 - part.rank, tag, out=out).array, _bytes(length, 0, number)))


def _with_cells(group: arraycomm.Group, case: Callable[[arraycomm.Group], int]) -> tuple[int, list[int]]:
    """What it gives, and how many messages of each rank lay in cells."""
    with marked(group) as (part, lanes):
        wrong = case(part)
        group.barrier()
        counts = [_in_cells(lanes, sender) for sender in range(2)]
        group.barrier()
    return wrong, counts


def answers(group: arraycomm.Group) -> None:
    """Messages to and fro go to cells, if they fit there."""
    told = []
    lengths = (8, 57, 1024, 2056, 4096, 65_536, *range(CELL - 65, CELL - 62), CELL, CELL + 1)
    for length, place in itertools.product(lengths, (0, 16, 63)):
        def to_and_fro(part: arraycomm.Group, length: int = length, place: int = place) -> int:
            wrong = 0
            for number in range(4):
                if part.rank != number % 2:
                    wrong += _got(part, length, number, place)
                else:
                    part.send(_bytes(length, place, number), 1 - part.rank)
            return wrong
        wrong, counts = _with_cells(group, to_and_fro)
        expected = [2, 2] if length + place * (length >= 4096) <= CELL else [0, 0]
        told += [f"{length} at {place}: wrong {wrong}, {counts}"] * (wrong > 0 or counts != expected)
    say(group, f"told {told}")


def streams(group: arraycomm.Group) -> None:
    """Who gets no answers gives away the cell that it has; the other one has both then."""
    def one_way(part: arraycomm.Group, length: int) -> int:
        if part.rank == 1:
            wrong = sum(_got(part, length, number) for number in range(10))
            part.send(np.ones(1), 0, 5)
        else:
            works = [part.isend(_bytes(length, 16, number), 1) for number in range(10)]
            part.recv(1, 5, like=np.empty(1))
            wrong = sum(work.wait() is not None for work in works)
        return wrong
    say(group, [_with_cells(group, lambda part, length=length: one_way(part, length)) for length in (1024, 65_536)])


def both_ways(group: arraycomm.Group) -> None:
    """Both send before either receives: all find their way."""
    chance, lengths = random.Random(3), (57, 1024, 4096, 65_536, CELL - 63)
    def at_once(part: arraycomm.Group) -> int:
        wrong = 0
        for number in range(60):
            every = [[chance.choice(lengths) for _ in range(chance.randrange(4))] for _ in range(2)]
            works = [part.isend(_bytes(length, 16, number), 1 - part.rank) for length in every[part.rank]]
            wrong += sum(_got(part, length, number, 63) for length in every[1 - part.rank])
            for work in works:
                work.wait()
        return wrong
    wrong, counts = _with_cells(group, at_once)
    say(group, f"wrong {wrong}, in cells {min(counts) > 20}")


def waits_in_a_cell(group: arraycomm.Group) -> None:
    """A message that nobody receives yet keeps its cell: others pass it, and its receiver has it from then on."""
    def late(part: arraycomm.Group, length: int) -> int:
        if part.rank == 0:
            works = [part.isend(_bytes(length, 16, 1), 1, 1)] + [part.isend(_bytes(length, 16, n), 1, 2) for n in range(5)]
            wrong = sum(_got(part, length, number, 0, 3) for number in range(3))
            for work in works:
                work.wait()
            part.send(np.ones(1), 1, 4)
            return wrong + sum(_got(part, length, number, 0, 5) for number in (7, 8))
        wrong = sum(_got(part, length, number, 0, 2) for number in range(5))
        works = [part.isend(_bytes(length, 0, number), 0, 3) for number in range(3)]  # the first one in a cell
        part.recv(0, 4, like=np.empty(1))  # in that one
        wrong += _got(part, length, 1, 0, 1)
        works += [part.isend(_bytes(length, 0, number), 0, 5) for number in (7, 8)]  # both in cells
        for work in works:
            work.wait()
        return wrong
    say(group, [_with_cells(group, lambda part, length=length: late(part, length)) for length in (1024, 65_536)])


def refused_in_a_cell(group: arraycomm.Group) -> None:
    """What is refused, before or after it has come, gives its cell away like any other message, once all of it is written."""
    def refuse(part: arraycomm.Group, length: int, early: bool) -> int:
        like, wrong = np.full(length + 1, 9, np.uint8), 0
        if part.rank == 0:
            if early:
                part.recv(1, 4, like=np.empty(0))
            part.send(_bytes(length, 16, 1), 1)
            part.send(_bytes(length, 16, 2), 1, 2)  # there is no cell for it
            part.recv(1, 5, like=np.empty(0))
            part.send(np.empty(0), 1, 6)
            return sum(_got(part, length, number, 0, 3) for number in range(3))
        receives = [part.irecv(0, out=like)] if early else []
        if early:
            part.send(np.empty(0), 0, 4)
        wrong += 0 if early else _got(part, length, 2, 0, 2)
        try:
            (receives or [part.irecv(0, out=like)])[0].wait()
            wrong += 1
        except arraycomm.CollectiveMismatch:
            wrong += bool((like != 9).any())
        wrong += _got(part, length, 2, 0, 2) if early else 0
        part.send(np.empty(0), 0, 5)
        part.recv(0, 6, like=np.empty(0))  # who sends that has written all before it
        for work in [part.isend(_bytes(length, 16, number), 0, 3) for number in range(3)]:
            work.wait()
        return wrong
    say(group, [_with_cells(group, lambda part, length=length, early=early: refuse(part, length, early))
                for length, early in itertools.product((1024, 65_536), (False, True))])


_CASES = {"answers": answers, "streams": streams, "both ways": both_ways, "waits": waits_in_a_cell, "refused": refused_in_a_cell}

if __name__ == "__main__":
    with arraycomm.init(timeout=60) as world:
        _CASES[sys.argv[1]](world)
