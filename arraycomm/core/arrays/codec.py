"""Plain Python data and arrays as bytes, and back: what object collectives send instead of pickles.

Types are kept exactly: what no row of codec_types.py names is refused, an instance of a subclass too. A program adds its own
classes by register_type().

The format is msgpack (https://github.com/msgpack/msgpack/blob/master/spec.md). What msgpack lacks is an array whose first item is
an empty extension with the number of a row, and whose others are what the row makes the object from. Decoding imports no library
and runs nothing that the bytes name. Every length is checked against what was received before memory is allocated.
"""

from __future__ import annotations

import importlib
import itertools
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from . import codec_keys
from .buffer import Buffer
from .types import DType

if TYPE_CHECKING:
    from .codec_types import Row

LONGEST = 2**40  # bytes of one encoded object
DEEPEST = 100  # containers inside each other
PIECE = 1 << 30  # bytes, or characters, that msgpack is given at once; it takes less than 4 GiB
_PLAIN = frozenset((type(None), bool, float))
_LEAST, _END = -(2**63), 2**64  # what msgpack takes of int
_DAMAGED = "these bytes are no object that arraycomm encoded"


KNOWN = ("see the types in docs/reference/objects.md. arraycomm.register_type() adds a class of yours. "
         "ARRAYCOMM_ALLOW_PICKLE=1 (allow_pickle=True), on all ranks that trust each other, allows every object that can "
         "be pickled")


def _msgpack() -> Any:
    try:
        return importlib.import_module("msgpack")
    except ImportError:
        raise ImportError("object collectives need the package msgpack; install it") from None


def register_type(cls: type, encode: Callable[[Any], Any] | None = None, decode: Callable[[Any], Any] | None = None) -> type:
    """Lets objects of exactly this class travel without pickle. Gives the class back, so it serves as a decorator.

    Dataclasses and namedtuples need no more: their fields travel, and `__init__` is not called. For other classes `encode` gives
    what the object is made of, in types that travel, and `decode` makes the object from that; it is given what other ranks sent,
    so it should check it. All ranks register the same classes, under the same module and name.

    - Blocks: never; it is of this process.
    - Errors: TypeError for what is no such class, ValueError when another class of this name is registered.

    Examples:
        >>> import collections
        >>> Point = arraycomm.register_type(collections.namedtuple("Point", "x y"))
        >>> arraycomm.run(lambda group: group.all_gather_object(Point(group.rank, 0)), 2)[0]
        [Point(x=0, y=0), Point(x=1, y=0)]
    """
    from . import codec_types

    return codec_types.register(cls, encode, decode)


def encode(obj: object) -> bytes:
    """The object as bytes. TypeError for what is not supported, ValueError for what is too deep or too long."""
    from . import codec_types

    packed: bytes = _msgpack().packb(_described(obj, DEEPEST, codec_types.find), use_bin_type=True, strict_types=True,
                                     default=_marker, unicode_errors="surrogatepass")
    if len(packed) > LONGEST:
        raise ValueError(f"the object takes {len(packed)} bytes, the limit is {LONGEST}; send long arrays by the collectives "
                         "for arrays")
    return packed


def decode(data: bytes | memoryview) -> Any:
    """The object that was encoded. ValueError for bytes that are none; ImportError for a library, TypeError for a class
    of a program that this process does not know, by name."""
    from . import codec_types

    if len(data) > LONGEST:
        raise ValueError(f"an encoded object of {len(data)} bytes, the limit is {LONGEST}")
    msgpack = _msgpack()
    stray = {msgpack.Timestamp, msgpack.ExtType, codec_types.Row}  # where no object may stand

    def whole(items: Any) -> Any:
        if not stray.isdisjoint(map(type, items)):
            raise ValueError("an extension where an object should stand")
        return items

    def extension(number: int, content: bytes) -> Row:
        if content or not 0 <= number < len(codec_types.ROWS):
            raise ValueError(f"unknown extension type {number}")
        return codec_types.ROWS[number]

    def array(items: list[Any]) -> Any:
        if not items or type(items[0]) is not codec_types.Row:
            return whole(items)
        return items[0].make(*whole(items[1:]))

    def mapping(pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
        whole(itertools.chain.from_iterable(pairs))
        return codec_types.dict_of(pairs)

    try:
        # unpackb() bounds every length by that of the data, and the depth by 1024.
        return whole([msgpack.unpackb(data, raw=False, strict_map_key=False, ext_hook=extension, list_hook=array,
                                      object_pairs_hook=mapping, unicode_errors="surrogatepass")])[0]
    except codec_types.Unregistered:
        raise
    except (ValueError, TypeError, AttributeError, ArithmeticError, LookupError, RuntimeError) as error:
        raise ValueError(f"{_DAMAGED}: {type(error).__name__}: {error}") from error


def _marker(row: Row) -> Any:
    return _msgpack().ExtType(row.number, b"")


def _plain(obj: Any) -> bool:
    kind = type(obj)
    return kind in _PLAIN or (kind is int and _LEAST <= obj < _END) or ((kind is str or kind is bytes) and len(obj) < PIECE)


def _described(obj: Any, depth: int, find: Callable[[Any], Row]) -> Any:
    """The object in what msgpack knows, with rows in front of what it does not."""
    kind = type(obj)
    if kind in _PLAIN or (kind is int and _LEAST <= obj < _END) or ((kind is str or kind is bytes) and len(obj) < PIECE):
        return obj
    if depth == 0:
        raise ValueError(f"the object has more than {DEEPEST} containers inside each other, or contains itself")
    if kind is list:
        return [_described(item, depth - 1, find) for item in obj]
    if kind is dict and all(map(_plain, obj)):
        if len(obj) > codec_keys.COLLIDING:
            codec_keys.check(obj)
        return {key: _described(value, depth - 1, find) for key, value in obj.items()}
    row = find(obj)
    parts = row.parts(obj)
    return [row, *(part if type(part) is memoryview else _described(part, depth - 1, find) for part in parts)]


def as_bytes(buffer: Buffer) -> Buffer:
    """The same memory as bytes in one dimension."""
    return Buffer(buffer.address, buffer.nbytes, DType.UINT8, buffer.device_type, buffer.device_index, buffer.readonly,
                  (buffer.nbytes,), buffer)


# ---- what rows share ----


def typed(kind: type, value: Any) -> Any:
    if type(value) is not kind:
        raise ValueError(f"{type(value).__name__} where {kind.__name__} should stand")
    return value


def derives_from(name: str) -> Callable[[Any], bool]:
    """Whether the type derives from what an imported module has by this name: an object may say another __class__."""
    module, _, attribute = name.rpartition(".")
    return lambda obj: issubclass(type(obj), getattr(sys.modules[module], attribute))
