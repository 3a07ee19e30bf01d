"""The types that are serialised without pickle, one row each: functions that take an object apart and rebuild it.

The input of a row may come from a hostile rank. So a row checks the types of the parts, allocates no more than their length,
calls no method that they name, and uses only classes and libraries that this process has loaded.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import importlib
import operator
import sys
from collections.abc import Callable, Iterable
from typing import Any

from ..base.errors import RemoteError
from . import codec_arrays, codec_keys
from .codec import KNOWN, derives_from, typed

_FRACTION_BITS = 1 << 16  # of numerator and denominator: their common divisor takes time by the square of that


class Unregistered(TypeError):
    """An object of a class that this rank has not registered."""


class Row:
    """A type, by its public name or a predicate. The row's number is part of the encoding."""

    def __init__(self, name: str, parts: Callable[[Any], Iterable[Any]], make: Callable[..., Any],
                 test: Callable[[Any], bool] | None = None) -> None:
        self._module, _, self._name = name.rpartition(".")
        self.parts, self._make, self._test = parts, make, test
        self.number = len(ROWS)
        ROWS.append(self)

    def takes(self, obj: Any) -> bool:
        module = sys.modules.get(self._module)
        if module is None:
            return False
        return self._test(obj) if self._test else getattr(module, self._name, None) is type(obj)

    def make(self, *parts: Any) -> Any:
        if self._module.partition(".")[0] in ("numpy", "torch", "jax") and self._module not in sys.modules:
            raise ImportError(f"an object with a {self._module}.{self._name} arrived, and this process has not imported "
                              f"{self._module}: import {self._module} before")
        return self._make(*parts)


ROWS: list[Row] = []
_EXACT: dict[type, Row] = {}  # cache of types that a row names
_REGISTERED: dict[str, tuple[type, Callable[[Any], Any], Callable[[Any], Any]]] = {}


def find(obj: Any) -> Row:
    """The row that takes the object. TypeError when none does."""
    kind = type(obj)
    row = _EXACT.get(kind) or next((row for row in ROWS if row.takes(obj)), None)
    if row is None:
        raise _refused(obj)
    if row._test is None:
        _EXACT[kind] = row
    return row


def _refused(obj: Any, why: str = "") -> TypeError:
    kind = type(obj)
    base = next((base for base in kind.__mro__[1:-1] if base.__module__.partition(".")[0] in ("builtins", "numpy", "torch")),
                None)
    why = why or (f"it would arrive as {base.__module__}.{base.__qualname__}, so convert it before" if base else "")
    return TypeError(f"an object of type {kind.__module__}.{kind.__qualname__} cannot be sent without pickle"
                     f"{': ' + why if why else ''}; what can: {KNOWN}")


def register(cls: type, encode: Callable[[Any], Any] | None, decode: Callable[[Any], Any] | None) -> type:
    if not isinstance(cls, type):
        raise TypeError(f"register_type needs a class, got {cls!r}")
    if (encode is None) != (decode is None):
        raise TypeError("register_type needs encode and decode, or neither")
    if encode is None or decode is None:
        if dataclasses.is_dataclass(cls):
            try:
                object.__new__(cls)
            except TypeError as error:
                raise TypeError(f"objects of {cls.__qualname__} cannot be made of their fields alone ({error}): register_type "
                                "needs encode and decode") from None
            encode, decode = _dataclass_fields, functools.partial(_dataclass_of, cls)
        elif issubclass(cls, tuple) and hasattr(cls, "_make") and hasattr(cls, "_fields"):
            encode, decode = _namedtuple_fields, functools.partial(_namedtuple_of, cls)
        else:
            raise TypeError(f"{cls.__qualname__} is neither a dataclass nor a namedtuple: register_type needs encode and decode")
    name = _name(cls)
    if _REGISTERED.get(name, (cls,))[0] is not cls:
        raise ValueError(f"another class is registered as {name}")
    _REGISTERED[name] = (cls, encode, decode)
    return cls


# ---- helpers for the rows ----


def _name(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def dict_of(pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
    codec_keys.check([key for key, _ in pairs])
    return dict(pairs)


def _flat(mapping: dict[Any, Any]) -> list[Any]:
    codec_keys.check(mapping)
    return [part for pair in mapping.items() for part in pair]


def _paired(flat: tuple[Any, ...]) -> dict[Any, Any]:
    return dict_of(list(zip(flat[::2], flat[1::2], strict=True)))


def _of(name: str, *kinds: type) -> Callable[..., Any]:
    """Calls what the standard library or an imported one has by this name, with parts of just these types."""
    def make(*parts: Any) -> Any:
        module, _, attribute = name.rpartition(".")
        checked = [typed(kind, part) for kind, part in zip(kinds, parts, strict=True)]
        return getattr(importlib.import_module(module), attribute)(*checked)

    return make


# ---- containers and values of Python ----


def _ordered(obj: Any) -> list[Any]:
    attributes = vars(obj)
    if attributes.keys() - {"_metadata"}:  # set by torch's state_dict()
        raise _refused(obj, f"it has the attributes {sorted(attributes)}")
    return [dict(attributes), *_flat(obj)]


def _ordered_of(attributes: Any, *flat: Any) -> Any:
    if typed(dict, attributes).keys() - {"_metadata"}:
        raise ValueError("an OrderedDict with attributes")
    found = collections.OrderedDict(_paired(flat))
    vars(found).update(attributes)
    return found


def _namespace(name: str) -> Callable[[Any], Any]:
    def make(values: Any) -> Any:
        if not all(type(key) is str for key in typed(dict, values)):
            raise ValueError("a namespace with names that are no text")
        found = _of(name)()
        vars(found).update(values)
        return found

    return make


def _bounded(numerator: int, denominator: int) -> list[int]:
    if max(typed(int, numerator).bit_length(), typed(int, denominator).bit_length()) > _FRACTION_BITS:
        raise ValueError(f"a Fraction of more than {_FRACTION_BITS} bits")
    return [numerator, denominator]


def _moment(obj: Any) -> list[Any]:
    return [obj.hour, obj.minute, obj.second, obj.microsecond, obj.fold, obj.tzinfo]


def _time_of(name: str) -> Callable[..., Any]:
    def make(*parts: Any) -> Any:
        import datetime

        *numbers, fold, zone = parts
        if zone is not None:
            typed(datetime.timezone, zone)
        return getattr(datetime, name)(*(typed(int, part) for part in numbers), zone, fold=typed(int, fold))

    return make


def _timezone_of(offset: Any, *names: Any) -> Any:
    import datetime

    return datetime.timezone(typed(datetime.timedelta, offset), *(typed(str, name) for name in names))


# ---- classes of programs ----


def _known_class(module: str, path: str) -> Any:
    """The class of an imported module; None where there is none. Asks no __getattr__, which may import."""
    found: Any = sys.modules.get(typed(str, module))
    for name in typed(str, path).split("."):
        found = getattr(found, "__dict__", {}).get(name)
    return found


def _enum_parts(obj: Any) -> list[Any]:
    kind = type(obj)
    if _known_class(kind.__module__, kind.__qualname__) is not kind:
        raise _refused(obj, "other ranks find an Enum by its name in a module only")
    names = [obj.name] if obj.name in kind.__members__ else [member.name for member in kind if member in obj]
    if _enum_of(kind.__module__, kind.__qualname__, *names) != obj:
        raise _refused(obj, "its value is no combination of its members")
    return [kind.__module__, kind.__qualname__, *names]


def _enum_of(module: str, path: str, *names: str) -> Any:
    kind = _known_class(module, path)
    if kind is None:
        raise ImportError(f"a member of {module}.{path} arrived, and this process has no such Enum: import {module} before")
    if not isinstance(kind, importlib.import_module("enum").EnumMeta):
        raise ValueError(f"{module}.{path} is no Enum")
    if not names and issubclass(kind, sys.modules["enum"].Flag):
        return kind(0)
    return functools.reduce(operator.or_, [kind.__members__[name] for name in names])


def _check_attributes(obj: Any, fields: Iterable[str]) -> None:
    slots = [getattr(kind, "__slots__", ()) for kind in type(obj).__mro__]
    names = {name for group in slots for name in ((group,) if type(group) is str else group) if hasattr(obj, name)}
    others = names.union(getattr(obj, "__dict__", ())).difference(fields, ("__dict__", "__weakref__"))
    if others:
        raise _refused(obj, f"it has attributes beside its fields: {sorted(others)}")


def _dataclass_fields(obj: Any) -> dict[str, Any]:
    names = [field.name for field in dataclasses.fields(obj)]
    _check_attributes(obj, names)
    missing = [name for name in names if not hasattr(obj, name)]
    if missing:
        raise _refused(obj, f"its fields {missing} have no value")
    return {name: getattr(obj, name) for name in names}


def _dataclass_of(cls: Any, values: Any) -> Any:
    if typed(dict, values).keys() != {field.name for field in dataclasses.fields(cls)}:
        raise ValueError(f"{sorted(map(str, values))} are not the fields of {_name(cls)}")
    found = object.__new__(cls)
    for name, value in values.items():
        object.__setattr__(found, name, value)  # also for frozen dataclasses
    return found


def _namedtuple_fields(obj: Any) -> tuple[Any, ...]:
    _check_attributes(obj, obj._fields)
    return tuple(obj)


def _namedtuple_of(cls: Any, values: Any) -> Any:
    if len(typed(tuple, values)) != len(cls._fields):
        raise ValueError(f"{len(values)} values for the fields of {_name(cls)}")
    return tuple.__new__(cls, values)


def _registered_parts(obj: Any) -> list[Any]:
    name = _name(type(obj))
    return [name, _REGISTERED[name][1](obj)]


def _registered_of(name: str, content: Any) -> Any:
    if typed(str, name) not in _REGISTERED:
        raise Unregistered(f"an object of class {name} arrived, which this rank has not registered: "
                           "arraycomm.register_type() it on all ranks")
    return _REGISTERED[name][2](content)


def _error_parts(obj: BaseException) -> list[str]:
    if type(obj) is RemoteError:
        return [obj.type_name, obj.text]
    try:
        text = str(obj)
    except Exception as error:  # from a class of the program
        text = f"(its text could not be made: {type(error).__name__})"
    return [_name(type(obj)).removeprefix("builtins."), text]


# ---- the table. A row's index is its number in the encoding. ----

# First: a program's word counts more than a row.
Row("builtins.object", _registered_parts, _registered_of, lambda obj: _REGISTERED.get(_name(type(obj)), (None,))[0] is type(obj))
Row("builtins.tuple", tuple, lambda *items: items)
Row("builtins.set", lambda obj: codec_keys.check(obj), lambda *members: set(codec_keys.check(members)))
Row("builtins.frozenset", lambda obj: codec_keys.check(obj),
    lambda *members: frozenset(codec_keys.check(members)))
Row("builtins.dict", _flat, lambda *flat: _paired(flat))  # for keys that are no plain values
Row("builtins.int", lambda obj: [obj.to_bytes(obj.bit_length() // 8 + 1, "little", signed=True)],  # beyond 64 bits
    lambda data: int.from_bytes(typed(bytes, data), "little", signed=True))
Row("builtins.bytes", lambda obj: codec_arrays.in_pieces(memoryview(obj)), codec_arrays.bytes_of)  # long ones
Row("builtins.str", lambda obj: codec_arrays.in_pieces(memoryview(obj.encode(errors="surrogatepass"))),
    lambda *pieces: codec_arrays.bytes_of(*pieces).decode(errors="surrogatepass"))
Row("builtins.complex", lambda obj: [obj.real, obj.imag], _of("builtins.complex", float, float))
Row("builtins.bytearray", lambda obj: [bytes(obj)], _of("builtins.bytearray", bytes))
Row("builtins.range", lambda obj: [obj.start, obj.stop, obj.step], _of("builtins.range", int, int, int))
Row("builtins.slice", lambda obj: [obj.start, obj.stop, obj.step], lambda start, stop, step: slice(start, stop, step))
Row("collections.OrderedDict", _ordered, _ordered_of)
Row("collections.Counter", _flat, lambda *flat: collections.Counter(_paired(flat)))
Row("collections.deque", lambda obj: [obj.maxlen, *obj],
    lambda longest, *items: collections.deque(items, None if longest is None else typed(int, longest)))
Row("argparse.Namespace", lambda obj: [dict(vars(obj))], _namespace("argparse.Namespace"))
Row("types.SimpleNamespace", lambda obj: [dict(vars(obj))], _namespace("types.SimpleNamespace"))
Row("decimal.Decimal", lambda obj: [str(obj)], _of("decimal.Decimal", str))
Row("fractions.Fraction", lambda obj: _bounded(obj.numerator, obj.denominator),
    lambda *parts: _of("fractions.Fraction", int, int)(*_bounded(*parts)))
Row("uuid.UUID", lambda obj: [obj.bytes], lambda data: importlib.import_module("uuid").UUID(bytes=typed(bytes, data)))
Row("datetime.date", lambda obj: [obj.year, obj.month, obj.day], _of("datetime.date", int, int, int))
Row("datetime.time", _moment, _time_of("time"))
Row("datetime.datetime", lambda obj: [obj.year, obj.month, obj.day, *_moment(obj)], _time_of("datetime"))
Row("datetime.timedelta", lambda obj: [obj.days, obj.seconds, obj.microseconds], _of("datetime.timedelta", int, int, int))
Row("datetime.timezone", lambda obj: obj.__getinitargs__(), _timezone_of)
for _path in ("PosixPath", "WindowsPath", "PurePosixPath", "PureWindowsPath"):
    Row(f"pathlib.{_path}", lambda obj: [str(obj)], _of(f"pathlib.{_path}", str))
Row("enum.Enum", _enum_parts, _enum_of, derives_from("enum.Enum"))
Row("builtins.BaseException", _error_parts, lambda name, text: RemoteError(typed(str, name), typed(str, text)),
    derives_from("builtins.BaseException"))
Row("numpy.str_", lambda obj: [str.__str__(obj)], _of("numpy.str_", str))
Row("numpy.bytes_", lambda obj: [bytes(obj)], _of("numpy.bytes_", bytes))
Row("numpy.ndarray", codec_arrays.array_parts, codec_arrays.numpy_of)
Row("numpy.generic", codec_arrays.array_parts, lambda *parts: codec_arrays.numpy_of(*parts)[()], codec_arrays.is_numpy_scalar)
Row("numpy.dtype", lambda obj: [codec_arrays.plain_dtype(obj)], codec_arrays.dtype_of, derives_from("numpy.dtype"))
Row("torch.Tensor", codec_arrays.tensor, codec_arrays.tensor_of)
Row("torch.nn.Parameter", codec_arrays.tensor, codec_arrays.parameter_of)
Row("torch.dtype", lambda obj: [str(obj).removeprefix("torch.")], codec_arrays.torch_dtype_of)
Row("torch.device", lambda obj: [str(obj)], _of("torch.device", str))
Row("torch.Size", tuple, lambda *lengths: sys.modules["torch"].Size([typed(int, length) for length in lengths]))
Row("jax.random.key", codec_arrays.jax_key, codec_arrays.jax_key_of,
    lambda obj: codec_arrays.is_jax(obj) and not derives_from("numpy.dtype")(obj.dtype))
Row("jax.Array", codec_arrays.host, codec_arrays.jax_of, codec_arrays.is_jax)
