"""Tasks: lengths about every power of two, where ways of moving and their pieces have limits, from places anywhere in a line."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from .worlds import Context

_POWERS = range(9, 23)  # of bytes
_BESIDE = (-65, -64, -48, -1, 0, 1, 64)
_LINE = 64
Bytes = np.ndarray[Any, np.dtype[np.uint8]]


def _memory(count: int) -> Bytes:
    """So many bytes from the beginning of a line, and a line behind them."""
    memory = np.empty(count + 2 * _LINE, np.uint8)
    return memory[-memory.ctypes.data % _LINE :]


def _lengths() -> Iterator[tuple[int, int]]:
    """Bytes, and how far in its line the array begins: malloc's arrays do at 16."""
    for power in _POWERS:
        for beside in _BESIDE:
            yield (1 << power) + beside, 16
        yield 1 << power, 0
        yield 1 << power, 63


def _contents(rank: int, count: int) -> Bytes:
    return np.resize(np.arange(rank, rank + 251, dtype=np.uint8) % 251, count)


def messages(context: Context) -> None:
    """Around a ring, with the receive begun before the send, after it, and out of order."""
    group, me = context.group, context.rank
    right, left = (me + 1) % context.size, (me - 1) % context.size
    sent, got = (_memory((1 << _POWERS.stop) + _LINE) for _ in range(2))
    for count, skew in _lengths():
        x, y, want = sent[skew : skew + count], got[:count], _contents(left, count)
        x[:] = _contents(me, count)
        for way in ("receive first", "send first", "out of order"):
            y.fill(255)
            if way == "receive first":
                work = group.irecv(y, left, out=y)
                group.send(x, right)
            else:
                work = group.isend(x, right, 5)
            if way == "out of order":
                after = group.isend(x[::-1].copy(), right, 6)
                group.recv(y, left, 6, out=y)
                context.check(np.array_equal(y, want[::-1]), f"{count} bytes at {skew} of a line: overtook another")
                after.wait(60)
            if way != "receive first":
                group.recv(y, left, 5, out=y)
            work.wait(60)
            context.check(np.array_equal(y, want), f"{count} bytes at {skew} of a line: {way}")


def collectives(context: Context) -> None:
    """Blocks of those lengths, and, of what all ranks' arrays are joined to, blocks that are theirs together."""
    given, out = (_memory(context.size * ((1 << _POWERS.stop) + _LINE)) for _ in range(2))
    for count, skew in _lengths():
        for block in {count, count // context.size}:
            _collectives(context, given[skew:], out, block, f"blocks of {block} bytes at {skew} of a line")


def _collectives(context: Context, given: Bytes, out: Bytes, block: int, label: str) -> None:
    group, size, me = context.group, context.size, context.rank
    every = [_contents(rank, size * block) for rank in range(size)]
    whole, one, result, joined = given[: size * block], given[:block], out[:block], out[: size * block]
    own = slice(me * block, (me + 1) * block)
    whole[:] = every[me]
    highest, beginnings = np.maximum.reduce(every), np.concatenate([each[:block] for each in every])
    cases: list[tuple[str, Callable[[], object], Bytes, Bytes]] = [
        ("all_reduce", lambda: group.all_reduce(one, op="max", out=result), result, highest[:block]),
        ("reduce_scatter", lambda: group.reduce_scatter(whole, op="max", out=result), result, highest[own]),
        ("all_gather", lambda: group.all_gather(one, out=joined), joined, beginnings),
        ("all_to_all", lambda: group.all_to_all(whole, out=joined), joined, np.concatenate([each[own] for each in every])),
        ("broadcast", lambda: group.broadcast(one, size - 1, out=result), result, every[-1][:block]),
        ("scatter", lambda: group.scatter(None if me else whole, 0, out=result), result, every[0][own]),
        ("reduce", lambda: group.reduce(one, 0, op="max", out=None if me else result), result, highest[:block]),
        ("gather", lambda: group.gather(one, 0, out=None if me else joined), joined, beginnings),
    ]
    for name, call, found, want in cases:
        found.fill(255)
        call()
        context.check((me and name in ("reduce", "gather")) or np.array_equal(found, want), f"{name}, {label}")
