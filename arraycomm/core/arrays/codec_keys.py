"""Checks members of sets and keys of dicts, on sending and receiving: rejects those that would take long to compare."""

from __future__ import annotations

import operator
import sys
from collections.abc import Collection, Iterator
from typing import Any

COLLIDING = 64  # maximum number of members or keys with equal hashes
_PLAIN = frozenset((bool, int, float, str, bytes, type(None)))
_LONG = 4096  # bits of a number that Decimals may be compared with: that takes the square of its length


def check(keys: Collection[Any]) -> Collection[Any]:
    """The same. ValueError where many have one hash: each would be compared with all before it; and for Decimals beside long
    integers, which may have one too."""
    if len(keys) > COLLIDING:
        hashes = sorted(map(hash, keys))
        if any(map(operator.eq, hashes, hashes[COLLIDING:])):
            raise ValueError(f"more than {COLLIDING} of {len(keys)} members or keys have the same hash; send them in a list")
    decimal = sys.modules.get("decimal")  # there are Decimals only where it has been imported
    if decimal and not _PLAIN.issuperset(map(type, keys)):
        leaves = list(_leaves(keys))
        if any(type(leaf) is decimal.Decimal for leaf in leaves) and any(map(_is_long, leaves)):
            raise ValueError(f"Decimals beside integers or Fractions of more than {_LONG} bits as members or keys, which take "
                             "long to compare; send them in a list")
    return keys


def _leaves(keys: Collection[Any]) -> Iterator[Any]:
    """The leaf values that a comparison of keys compares."""
    left = list(keys)
    while left:
        key = left.pop()
        if isinstance(key, (tuple, frozenset)):
            left.extend(key)
        elif isinstance(key, slice):
            left.extend((key.start, key.stop, key.step))
        elif hasattr(key, "__dataclass_fields__"):
            left.extend(getattr(key, name, None) for name in key.__dataclass_fields__)
        else:
            yield key


def _is_long(key: Any) -> bool:
    parts = (key,) if type(key) is int else (getattr(key, "numerator", 0), getattr(key, "denominator", 0))
    return any(type(part) is int and part.bit_length() > _LONG for part in parts)
