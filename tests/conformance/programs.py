"""Tasks: programs of random calls, which all ranks make by the same numbers, in their own time.

Collectives, some begun and waited for much later, beside messages of which some are received before others that were sent
earlier. Lengths lie about powers of two, and arrays anywhere in a line."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np

import arraycomm

from .lengths import LINE, Array, cases, lie, pattern
from .worlds import Context

_DTYPES = ("uint8", "float32", "float64")
_LONGEST = 21  # powers of two, bytes
_UNDER_WAY = 12  # works, at most
_IN_ORDER = 3  # the tag that messages share


def run(context: Context, seed: int, steps: int = 60) -> None:
    program = _Program(context, seed)
    for number in range(steps):
        program.step(number)
    program.wait_for_all()


@dataclass
class _Message:
    source: int
    dest: int
    tag: int
    mark: int
    count: int
    dtype: str
    skew: int
    early: bool  # it is received before anybody sends,
    blocks: bool  # so that its sender may wait for that
    from_any: bool


class _Program:
    def __init__(self, context: Context, seed: int) -> None:
        self.context, self.group, self.label = context, context.group, f"program {seed}"
        self.shared = Random(seed)  # every rank draws the same of it
        self.own = Random(f"{seed} {context.rank}")
        self.works: list[Callable[[], None]] = []

    def step(self, number: int) -> None:
        if self.own.random() < 0.1:  # ranks come at different times
            time.sleep(self.own.random() * self.own.choice((3e-4, 3e-3)))
        what = self.shared.random()
        if what < 0.55:
            self._collective(number)
        elif what < 0.97:
            self._messages(number)
        else:
            self._part()
        while self.works and (len(self.works) > _UNDER_WAY or self.own.random() < 0.02):
            self.works.pop(0)()

    def wait_for_all(self) -> None:
        while self.works:
            self.works.pop(0)()

    def _length(self, dtype: str) -> int:
        chance = self.shared
        power = chance.choice((chance.randint(0, 12), chance.randint(10, 17), chance.randint(14, _LONGEST)))
        count = (1 << power) + chance.choice((0, 0, 0, -64, 64, -8, 8, -16, 16, chance.randint(-200, 200)))
        return max(0, count) // np.dtype(dtype).itemsize

    def _new(self, at: int, count: int, dtype: str) -> Array:
        return lie(np.empty(count * np.dtype(dtype).itemsize + 2 * LINE, np.uint8), at, count, dtype)

    def _later(self, end: Callable[[], None], always: bool) -> None:
        if always or self.own.random() < 0.5:
            self.works.append(end)
        else:
            end()

    def _collective(self, number: int) -> None:
        chance, size = self.shared, self.group.size
        dtype, root, later = chance.choice(_DTYPES), chance.randrange(size), chance.random() < 0.4
        block = self._length(dtype) // chance.choice((1, size))
        given, out = (self._new(at, size * block, dtype) for at in (chance.choice((0, 8, 16, 48)), 16))
        made = cases(self.group, given, out, block, number, root)
        name = chance.choice([*made, "all_reduce", "barrier"])
        if name == "barrier":
            self.group.barrier()
            return
        call, found, want = made[name]
        work = call(async_op=later)

        def end() -> None:
            if later:
                work.wait(60)
            self.context.check(found is None or np.array_equal(found, want),
                               f"{self.label}, step {number}: {name}, root {root}, blocks of {block} {dtype}")

        self._later(end, later)

    def _draw(self, number: int) -> list[_Message]:
        chance, size = self.shared, self.group.size
        drawn = []
        for i in range(chance.choice((1, 2, size, 2 * size, 12))):
            source, dest, dtype = chance.randrange(size), chance.randrange(size), chance.choice(_DTYPES)
            shares = chance.random() < 0.1
            early = chance.random() < 0.5 and not shares
            drawn.append(_Message(source, dest, _IN_ORDER if shares else 1000 * (number + 1) + i, number + 7 * i,
                                  self._length(dtype), dtype, chance.choice((0, 8, 16, 40)), early,
                                  blocks=early and source != dest and chance.random() < 0.6,
                                  from_any=not shares and chance.random() < 0.2))
        return drawn

    def _messages(self, number: int) -> None:
        me, drawn = self.group.rank, self._draw(number)
        mine = [message for message in drawn if message.dest == me]
        early = [self._receive(message) for message in mine if message.early]
        sent: list[tuple[arraycomm.Work[Any], Array]] = []
        for message in drawn:
            if message.source == me:
                x = self._new(message.skew, message.count, message.dtype)
                x[:] = pattern(message.mark, message.count, message.dtype)
                if message.blocks:
                    self.group.send(x, message.dest, message.tag)
                else:
                    sent.append((self.group.isend(x, message.dest, message.tag), x))
        late = [message for message in mine if not message.early and message.tag != _IN_ORDER]
        self.own.shuffle(late)
        for message in [*late, *(message for message in mine if message.tag == _IN_ORDER)]:
            self._receive(message)()
        for end in early:
            end()

        def end_sends() -> None:
            for work, _ in sent:
                work.wait(60)

        self._later(end_sends, False)

    def _receive(self, message: _Message) -> Callable[[], None]:
        y = self._new(self.own.choice((0, 16)), message.count, message.dtype)
        y.view(np.uint8).fill(255)
        work: Any = self.group.irecv(None if message.from_any else message.source, message.tag, out=y)

        def end() -> None:
            got = work.result(60)
            fine = got.source == message.source and np.array_equal(y, pattern(message.mark, message.count, message.dtype))
            self.context.check(fine, f"{self.label}: {message}")

        return end

    def _part(self) -> None:
        """A group of some ranks, for a while."""
        colours = [self.shared.randint(0, 1) for _ in range(self.group.size)]
        part = self.group.split(colours[self.group.rank])
        assert part is not None
        with part:
            total = part.all_reduce(np.full(50_000, 1.0))
            self.context.check((total == colours.count(colours[self.group.rank])).all(), f"{self.label}: a part's all_reduce")
