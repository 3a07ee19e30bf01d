"""The types that travel without pickle, one row each: what an object is made of, and how it is made of that again.

What a row makes may come from a hostile rank: it checks the types of its parts, allocates no more than they are long, calls no
method that they name and takes classes and libraries only where this process has them already.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import math
import operator
import re
import sys
from collections.abc import Callable, Iterable

from . import codec, codec_keys
from .codec import as_bytes
from .dlpack import allocate, resolve, wrap
from .errors import RemoteError
from .typed import Any
from .types import DeviceType, DType

_FRACTION_BITS = 1 << 16  # of numerator and denominator: their common divisor takes time by the square of that
_DTYPE = re.compile(r"[<>|][biufcmMSUV]\d{1,10}(\[\d{0,9}[A-Za-zμ]{1,3}(/\d{1,9})?\])?")  # NumPy's dtype.str without objects
_KNOWN = ("see the types in docs/semantics.md. arraycomm.register_type() adds a class of yours. ARRAYCOMM_ALLOW_PICKLE=1 "
          "(allow_pickle=True), on all ranks that trust each other, allows every object that can be pickled")


class Unregistered(TypeError):
    """An object of a class that this rank has not registered."""


class Row:
    """A type by its public name, or by a test. Its number stands in the bytes."""

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
_EXACT: dict[type, Row] = {}  # of types that a row names, those seen
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
                     f"{': ' + why if why else ''}; what can: {_KNOWN}")


def register(cls: type, encode: Callable[[Any], Any] | None, decode: Callable[[Any], Any] | None) -> type:
    if not isinstance(cls, type):
        raise TypeError(f"register_type needs a class, got {cls!r}")
    if (encode is None) != (decode is None):
        raise TypeError("register_type needs encode and decode, or neither")
    if encode is None or decode is None:
        if dataclasses.is_dataclass(cls):
            encode, decode = _dataclass_fields, functools.partial(_dataclass_of, cls)
        elif issubclass(cls, tuple) and hasattr(cls, "_make") and hasattr(cls, "_fields"):
            encode, decode = tuple, functools.partial(_namedtuple_of, cls)
        else:
            raise TypeError(f"{cls.__qualname__} is neither a dataclass nor a namedtuple: register_type needs encode and decode")
    name = _name(cls)
    if _REGISTERED.get(name, (cls,))[0] is not cls:
        raise ValueError(f"another class is registered as {name}")
    _REGISTERED[name] = (cls, encode, decode)
    return cls


# ---- what rows share ----


def _name(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def _typed(kind: type, value: Any) -> Any:
    if type(value) is not kind:
        raise ValueError(f"{type(value).__name__} where {kind.__name__} should stand")
    return value


def dict_of(pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
    codec_keys.check([key for key, _ in pairs])
    return dict(pairs)


def _set(kind: Callable[[Iterable[Any]], Any]) -> Callable[..., Any]:
    def make(*members: Any) -> Any:
        return kind(codec_keys.check(members))

    return make


def _flat(mapping: dict[Any, Any]) -> list[Any]:
    return [part for pair in mapping.items() for part in pair]


def _paired(flat: tuple[Any, ...]) -> dict[Any, Any]:
    return dict_of(list(zip(flat[::2], flat[1::2], strict=True)))


def _of(name: str, *kinds: type) -> Callable[..., Any]:
    """Calls what the standard library or an imported one has by this name, with parts of just these types."""
    def make(*parts: Any) -> Any:
        module, _, attribute = name.rpartition(".")
        checked = [_typed(kind, part) for kind, part in zip(kinds, parts, strict=True)]
        return getattr(importlib.import_module(module), attribute)(*checked)

    return make


# ---- containers and values of Python ----


def _ordered(obj: Any) -> list[Any]:
    attributes = vars(obj)
    if attributes.keys() - {"_metadata"}:  # torch's state_dict() has that one
        raise _refused(obj, f"it has the attributes {sorted(attributes)}")
    return [dict(attributes), *_flat(obj)]


def _ordered_of(attributes: Any, *flat: Any) -> Any:
    import collections

    if _typed(dict, attributes).keys() - {"_metadata"}:
        raise ValueError("an OrderedDict with attributes")
    found = collections.OrderedDict(_paired(flat))
    vars(found).update(attributes)
    return found


def _namespace(name: str) -> Callable[[Any], Any]:
    def make(values: Any) -> Any:
        if not all(type(key) is str for key in _typed(dict, values)):
            raise ValueError("a namespace with names that are no text")
        found = _of(name)()
        vars(found).update(values)
        return found

    return make


def _fraction(obj: Any) -> list[int]:
    if max(obj.numerator.bit_length(), obj.denominator.bit_length()) > _FRACTION_BITS:
        raise ValueError(f"a Fraction of more than {_FRACTION_BITS} bits")
    return [obj.numerator, obj.denominator]


def _fraction_of(numerator: int, denominator: int) -> Any:
    if max(_typed(int, numerator).bit_length(), _typed(int, denominator).bit_length()) > _FRACTION_BITS:
        raise ValueError("a Fraction that is too long")
    return _of("fractions.Fraction", int, int)(numerator, denominator)


def _moment(obj: Any) -> list[Any]:
    return [obj.hour, obj.minute, obj.second, obj.microsecond, obj.fold, obj.tzinfo]


def _time_of(name: str) -> Callable[..., Any]:
    def make(*parts: Any) -> Any:
        import datetime

        *numbers, fold, zone = parts
        if zone is not None:
            _typed(datetime.timezone, zone)
        return getattr(datetime, name)(*(_typed(int, part) for part in numbers), zone, fold=_typed(int, fold))

    return make


def _timezone_of(offset: Any, *names: Any) -> Any:
    import datetime

    return datetime.timezone(_typed(datetime.timedelta, offset), *(_typed(str, name) for name in names))


def _uuid_of(data: bytes) -> Any:
    import uuid

    return uuid.UUID(bytes=_typed(bytes, data))


def _deque_of(longest: Any, *items: Any) -> Any:
    import collections

    return collections.deque(items, None if longest is None else _typed(int, longest))


def _counter_of(*flat: Any) -> Any:
    import collections

    return collections.Counter(_paired(flat))


# ---- classes of programs ----


def _is_enum(obj: Any) -> bool:
    return isinstance(obj, sys.modules["enum"].Enum)


def _known_class(module: str, path: str) -> Any:
    """The class of an imported module; None where there is none. Asks no __getattr__, which may import."""
    found: Any = sys.modules.get(_typed(str, module))
    for name in _typed(str, path).split("."):
        found = getattr(found, "__dict__", {}).get(name)
    return found


def _enum_parts(obj: Any) -> list[Any]:
    kind = type(obj)
    if _known_class(kind.__module__, kind.__qualname__) is not kind:
        raise _refused(obj, "other ranks find an Enum by its name in a module only")
    names = [obj.name] if obj.name in kind.__members__ else [member.name for member in kind if member in obj]
    if not names or _enum_of(kind.__module__, kind.__qualname__, *names) != obj:
        raise _refused(obj, "its value is no combination of its members")
    return [kind.__module__, kind.__qualname__, *names]


def _enum_of(module: str, path: str, *names: str) -> Any:
    kind = _known_class(module, path)
    if kind is None:
        raise ImportError(f"a member of {module}.{path} arrived, and this process has no such Enum: import {module} before")
    if not isinstance(kind, importlib.import_module("enum").EnumMeta):
        raise ValueError(f"{module}.{path} is no Enum")
    return functools.reduce(operator.or_, [kind.__members__[name] for name in names])


def _dataclass_fields(obj: Any) -> dict[str, Any]:
    names = [field.name for field in dataclasses.fields(obj)]
    if getattr(obj, "__dict__", {}).keys() - set(names):
        raise _refused(obj, f"it has attributes beside its fields: {sorted(vars(obj).keys() - set(names))}")
    missing = [name for name in names if not hasattr(obj, name)]
    if missing:
        raise _refused(obj, f"its fields {missing} have no value")
    return {name: getattr(obj, name) for name in names}


def _dataclass_of(cls: Any, values: Any) -> Any:
    if _typed(dict, values).keys() != {field.name for field in dataclasses.fields(cls)}:
        raise ValueError(f"{sorted(map(str, values))} are not the fields of {_name(cls)}")
    found = object.__new__(cls)
    for name, value in values.items():
        object.__setattr__(found, name, value)  # frozen ones too
    return found


def _namedtuple_of(cls: Any, values: Any) -> Any:
    if len(_typed(tuple, values)) != len(cls._fields):
        raise ValueError(f"{len(values)} values for the fields of {_name(cls)}")
    return tuple.__new__(cls, values)


def _is_registered(obj: Any) -> bool:
    return _REGISTERED.get(_name(type(obj)), (None,))[0] is type(obj)


def _registered_parts(obj: Any) -> list[Any]:
    name = _name(type(obj))
    return [name, _REGISTERED[name][1](obj)]


def _registered_of(name: str, content: Any) -> Any:
    if _typed(str, name) not in _REGISTERED:
        raise Unregistered(f"an object of class {name} arrived, which this rank has not registered: "
                           "arraycomm.register_type() it on all ranks")
    return _REGISTERED[name][2](content)


def _error_parts(obj: BaseException) -> list[str]:
    return [obj.type_name, obj.text] if type(obj) is RemoteError else [_name(type(obj)).removeprefix("builtins."), str(obj)]


def _error_of(name: str, text: str) -> RemoteError:
    return RemoteError(_typed(str, name), _typed(str, text))


# ---- NumPy, torch, JAX ----


def _spec(dtype: Any) -> Any:
    """A dtype of NumPy in plain data. TypeError for one whose elements hold more than bytes."""
    numpy = sys.modules["numpy"]
    if dtype.subdtype is not None:
        return [_spec(dtype.subdtype[0]), list(dtype.subdtype[1])]
    if dtype.type.__module__ == "ml_dtypes":
        return f"ml_dtypes.{dtype.name}"
    if dtype.names is not None and dtype.type is numpy.void:
        fields = [[name, dtype.fields[name][1], *dtype.fields[name][2:], _spec(dtype.fields[name][0])] for name in dtype.names]
        return {"fields": fields, "itemsize": dtype.itemsize, "align": dtype.isalignedstruct}
    if dtype.names is None and dtype.type is not numpy.record and _DTYPE.fullmatch(dtype.str):
        return dtype.str
    raise TypeError(f"the dtype {dtype!r} of NumPy cannot be sent without pickle; what can: {_KNOWN}")


def _dtype_of(spec: Any) -> Any:
    numpy = sys.modules["numpy"]
    if type(spec) is list:
        base, shape = spec
        return numpy.dtype((_dtype_of(base), tuple(_typed(int, length) for length in shape)))
    if type(spec) is dict:
        fields = [(_typed(str, name), _typed(int, offset), [_typed(str, one) for one in title], _dtype_of(inner))
                  for name, offset, *title, inner in spec["fields"]]
        described = {"names": [field[0] for field in fields], "offsets": [field[1] for field in fields],
                     "formats": [field[3] for field in fields], "itemsize": _typed(int, spec["itemsize"])}
        if any(field[2] for field in fields):
            described["titles"] = [field[2][0] if field[2] else None for field in fields]
        return numpy.dtype(described, align=_typed(bool, spec["align"]))
    if _typed(str, spec).startswith("ml_dtypes."):
        library = sys.modules.get("ml_dtypes")
        if library is None:
            raise ImportError("a dtype of ml_dtypes arrived, which this process has not imported: import ml_dtypes before")
        kind = vars(library)[spec.removeprefix("ml_dtypes.")]
        if not (isinstance(kind, type) and issubclass(kind, numpy.generic)):
            raise ValueError(f"{spec} is no dtype")
        return numpy.dtype(kind)
    if not _DTYPE.fullmatch(spec):
        raise ValueError(f"{spec!r} is no dtype")
    return numpy.dtype(spec)


def _pieces(data: memoryview) -> list[memoryview]:
    return [data[start : start + codec.PIECE] for start in range(0, len(data), codec.PIECE)]


def _bytes_of(*pieces: Any) -> bytes:
    return b"".join([_typed(bytes, piece) for piece in pieces])


def _fill(memory: memoryview, pieces: tuple[Any, ...]) -> None:
    start = 0
    for piece in pieces:
        memory[start : start + len(piece)] = piece
        start += len(piece)


def _check_length(shape: Any, itemsize: int, pieces: tuple[Any, ...]) -> None:
    if len(_typed(list, shape)) > 64 or any(_typed(int, length) < 0 for length in shape) \
            or math.prod(shape) * itemsize != sum(len(_typed(bytes, piece)) for piece in pieces):
        raise ValueError(f"an array of shape {shape} and {itemsize} bytes an element that has another length")


def _numpy(obj: Any) -> list[Any]:
    numpy = sys.modules["numpy"]
    array = numpy.asarray(obj)
    if not array.dtype.itemsize:
        raise TypeError(f"an array of NumPy's dtype {array.dtype!r}, which has no bytes, cannot be sent without pickle")
    spec = _spec(array.dtype)
    return [spec, list(array.shape), *_pieces(memoryview(numpy.ascontiguousarray(array).reshape(-1).view(numpy.uint8)))]


def _numpy_of(spec: Any, shape: Any, *pieces: Any) -> Any:
    numpy, dtype = sys.modules["numpy"], _dtype_of(spec)
    _check_length(shape, dtype.itemsize, pieces)
    if not dtype.itemsize or dtype.subdtype is not None:
        raise ValueError(f"an array of dtype {dtype!r}")
    found = numpy.empty(tuple(shape), dtype)
    if found.nbytes:
        _fill(memoryview(found.reshape(-1).view(numpy.uint8)), pieces)
    return found


def _is_numpy_scalar(obj: Any) -> bool:
    numpy = sys.modules["numpy"]
    return isinstance(obj, numpy.generic) and type(obj) is obj.dtype.type and type(obj) not in (numpy.object_, numpy.record)


def _is_dtype(obj: Any) -> bool:
    return isinstance(obj, sys.modules["numpy"].dtype)


def _host(obj: Any) -> list[Any]:
    buffer = resolve(obj)
    if buffer.device_type != DeviceType.CPU:
        raise TypeError("an object may hold arrays in host memory only; copy this one to the CPU first")
    return [DType(buffer.dtype).label, list(buffer.shape), *_pieces(memoryview(as_bytes(buffer)))]


def _host_of(label: str, shape: Any, pieces: tuple[Any, ...], template: Any) -> Any:
    dtype = DType[_typed(str, label).upper()]
    _check_length(shape, dtype.itemsize, pieces)
    buffer = allocate(tuple(shape), dtype)
    _fill(memoryview(as_bytes(buffer)), pieces)
    return wrap(buffer, template)


def _tensor(obj: Any) -> list[Any]:
    return [obj.requires_grad, *_host(obj.detach())]


def _tensor_of(needs_gradient: Any, label: str, shape: Any, *pieces: Any) -> Any:
    found = _host_of(label, shape, pieces, sys.modules["torch"].empty(0))
    return found.requires_grad_() if _typed(bool, needs_gradient) else found


def _parameter_of(needs_gradient: Any, label: str, shape: Any, *pieces: Any) -> Any:
    torch = sys.modules["torch"]
    return torch.nn.Parameter(_host_of(label, shape, pieces, torch.empty(0)), _typed(bool, needs_gradient))


def _is_jax(obj: Any) -> bool:
    return isinstance(obj, sys.modules["jax"].Array)


def _jax_of(label: str, shape: Any, *pieces: Any) -> Any:
    return _host_of(label, shape, pieces, sys.modules["jax"].numpy.zeros(0))


def _torch_dtype_of(name: Any) -> Any:
    torch = sys.modules["torch"]
    return _typed(torch.dtype, vars(torch).get(_typed(str, name)))


def _size_of(*lengths: Any) -> Any:
    return sys.modules["torch"].Size([_typed(int, length) for length in lengths])


# ---- the table. The order is the number in the bytes. ----

Row("builtins.object", _registered_parts, _registered_of, _is_registered)  # first: a program's word counts more than a row
Row("builtins.tuple", tuple, lambda *items: items)
Row("builtins.set", tuple, _set(set))
Row("builtins.frozenset", tuple, _set(frozenset))
Row("builtins.dict", _flat, lambda *flat: _paired(flat))  # where a key is no plain value
Row("builtins.int", lambda obj: [obj.to_bytes(obj.bit_length() // 8 + 1, "little", signed=True)],  # beyond 64 bits
    lambda data: int.from_bytes(_typed(bytes, data), "little", signed=True))
Row("builtins.bytes", lambda obj: _pieces(memoryview(obj)), _bytes_of)  # long ones
Row("builtins.str", lambda obj: _pieces(memoryview(obj.encode(errors="surrogatepass"))),
    lambda *pieces: _bytes_of(*pieces).decode(errors="surrogatepass"))
Row("builtins.complex", lambda obj: [obj.real, obj.imag], _of("builtins.complex", float, float))
Row("builtins.bytearray", lambda obj: [bytes(obj)], _of("builtins.bytearray", bytes))
Row("builtins.range", lambda obj: [obj.start, obj.stop, obj.step], _of("builtins.range", int, int, int))
Row("builtins.slice", lambda obj: [obj.start, obj.stop, obj.step], lambda start, stop, step: slice(start, stop, step))
Row("collections.OrderedDict", _ordered, _ordered_of)
Row("collections.Counter", _flat, _counter_of)
Row("collections.deque", lambda obj: [obj.maxlen, *obj], _deque_of)
Row("argparse.Namespace", lambda obj: [dict(vars(obj))], _namespace("argparse.Namespace"))
Row("types.SimpleNamespace", lambda obj: [dict(vars(obj))], _namespace("types.SimpleNamespace"))
Row("decimal.Decimal", lambda obj: [str(obj)], _of("decimal.Decimal", str))
Row("fractions.Fraction", _fraction, _fraction_of)
Row("uuid.UUID", lambda obj: [obj.bytes], _uuid_of)
Row("datetime.date", lambda obj: [obj.year, obj.month, obj.day], _of("datetime.date", int, int, int))
Row("datetime.time", _moment, _time_of("time"))
Row("datetime.datetime", lambda obj: [obj.year, obj.month, obj.day, *_moment(obj)], _time_of("datetime"))
Row("datetime.timedelta", lambda obj: [obj.days, obj.seconds, obj.microseconds], _of("datetime.timedelta", int, int, int))
Row("datetime.timezone", lambda obj: obj.__getinitargs__(), _timezone_of)
for _path in ("PosixPath", "WindowsPath", "PurePosixPath", "PureWindowsPath"):
    Row(f"pathlib.{_path}", lambda obj: [str(obj)], _of(f"pathlib.{_path}", str))
Row("enum.Enum", _enum_parts, _enum_of, _is_enum)
Row("builtins.BaseException", _error_parts, _error_of, lambda obj: isinstance(obj, BaseException))
Row("numpy.str_", lambda obj: [str(obj)], _of("numpy.str_", str))
Row("numpy.bytes_", lambda obj: [bytes(obj)], _of("numpy.bytes_", bytes))
Row("numpy.ndarray", _numpy, _numpy_of)
Row("numpy.generic", _numpy, lambda *parts: _numpy_of(*parts)[()], _is_numpy_scalar)
Row("numpy.dtype", lambda obj: [_spec(obj)], _dtype_of, _is_dtype)
Row("torch.Tensor", _tensor, _tensor_of)
Row("torch.nn.Parameter", _tensor, _parameter_of)
Row("torch.dtype", lambda obj: [str(obj).removeprefix("torch.")], _torch_dtype_of)
Row("torch.device", lambda obj: [str(obj)], _of("torch.device", str))
Row("torch.Size", tuple, _size_of)
Row("jax.random.key", lambda obj: [str(sys.modules["jax"].random.key_impl(obj)), *_host(sys.modules["jax"].random.key_data(obj))],
    lambda impl, *data: sys.modules["jax"].random.wrap_key_data(_jax_of(*data), impl=_typed(str, impl)),
    lambda obj: _is_jax(obj) and not _is_dtype(obj.dtype))
Row("jax.Array", _host, _jax_of, _is_jax)
