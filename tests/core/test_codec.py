"""The codec of objects: what it keeps, what it refuses, and bytes that nobody encoded."""

from __future__ import annotations

import argparse
import collections
import dataclasses
import datetime
import decimal
import enum
import fractions
import http
import pathlib
import random
import re
import subprocess
import sys
import types
import uuid
from typing import Any, NamedTuple, cast
from unittest import mock

import jax
import jax.numpy as jnp
import ml_dtypes
import msgpack
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import arraycomm
from arraycomm.core.arrays import codec, codec_keys, codec_types

EXACT: list[Any] = [None, True, False, 0, -1, 2**63, 2**64, -(2**70), 1.5, float("inf"), -0.0, 1 + 2j, "", "é\ud800", b"", b"\0x",
                    [], [1, [2, [3]]], (), (1, ((2,), "a")), {}, {"a": 1, 2: [3], (4, 5): None, b"k": {1}}, set(), {1, "a"},
                    frozenset([1, (2,)]), [[(), {}], set()], {2**70: 1, frozenset([1j]): {}}, bytearray(b"x"), range(1, 9, 2),
                    slice(1, None), collections.OrderedDict([(2, {}), ("a", ())]), collections.Counter("aab"),
                    collections.deque([1, 2], 3), argparse.Namespace(a=1, b=[]), types.SimpleNamespace(a=(1,)),
                    decimal.Decimal("-0E+3"), decimal.Decimal("sNaN7"), fractions.Fraction(-1, 3), uuid.UUID(int=2**127),
                    datetime.date(2020, 2, 29), datetime.time(1, 2, 3, 4, datetime.timezone.utc, fold=1),
                    datetime.datetime(1, 1, 1, tzinfo=datetime.timezone(datetime.timedelta(hours=-1), "x"), fold=1),
                    datetime.timedelta(-1, 2, 3), pathlib.Path("/x/\udc80"), pathlib.PureWindowsPath("c:\\x"), http.HTTPStatus.OK,
                    re.IGNORECASE | re.MULTILINE, np.str_("a\0"), np.bytes_(b"a\0"), np.datetime64("2020-01"), np.longdouble(1.5),
                    np.zeros(1, [("a", "i4")])[0], ml_dtypes.bfloat16(2), np.dtype(">f4"),
                    np.dtype([(("title", "a"), "i4", (2,))]),
                    np.dtype([("a", "i1"), ("b", [("c", "f8")])], align=True), np.dtype(ml_dtypes.int4), torch.float32,
                    torch.device("cuda:1"), torch.Size([1, 2])]
ARRAYS = [np.arange(6.0).reshape(2, 3).T, np.zeros((0, 3), "int8"), np.array(3), np.ones(2, ml_dtypes.bfloat16), np.array([True]),
          np.ones(3, "complex128"), torch.arange(6).reshape(2, 3)[:, ::2], torch.ones(2, dtype=torch.bfloat16), torch.tensor(2.5),
          np.array([["a", "bcd"]]), np.array([b"a\0b"]), np.array(["2020", "NaT"], "M8[25us]")[:1], np.array([5], "m8[ns]"),
          np.ones((2, 0), ">f4"), np.arange(3, dtype=">i8"), np.array([(1, [2, 3])], [("a", "i1"), ("b", ">f8", (2,))]),
          np.ones(2, "longdouble"), np.array([1, -2], ml_dtypes.int4), jnp.arange(3, dtype="float32"), jax.random.key(0),
          jnp.array([1, -2], "int4"), np.float32(2.5), np.int64(-7), np.bool_(True)]


def there_and_back(obj: Any) -> Any:
    return codec.decode(codec.encode(obj))


@pytest.mark.parametrize("obj", EXACT, ids=repr)
def test_plain_data_is_kept(obj: Any) -> None:
    found = there_and_back(obj)
    assert type(found) is type(obj) and repr(found) == repr(obj)  # tells -0.0 from 0, True from 1 and tuples from lists
    assert not isinstance(obj, str) or len(found) == len(obj)  # NumPy's repr leaves NULs out


@pytest.mark.parametrize("x", ARRAYS, ids=lambda x: f"{type(x).__module__}-{x.dtype}-{tuple(x.shape)}")
def test_arrays_are_kept(x: Any) -> None:
    found = there_and_back([x])[0]
    assert type(found) is type(x) and found.dtype == x.dtype and found.shape == x.shape and bool((found == x).all())


class Number(int):
    pass


LOOP: list[Any] = []
LOOP.append(LOOP)


@pytest.mark.parametrize("obj", [object(), Number(3), memoryview(b"a"), int, LOOP, {1: [object()]}],
                         ids=lambda obj: type(obj).__name__)
def test_the_rest_is_refused(obj: Any) -> None:
    with pytest.raises((TypeError, ValueError)) as caught:
        codec.encode(obj)
    if type(obj) in (object, Number):
        assert "ARRAYCOMM_ALLOW_PICKLE=1" in str(caught.value)


class Subclass(torch.Tensor):
    pass


class Metadata(collections.OrderedDict[str, int]):
    pass


class Named(NamedTuple):
    a: int
    b: Any = ()


@dataclasses.dataclass(frozen=True)
class Data:
    a: Any
    b: Any = dataclasses.field(default=(), compare=False)


@dataclasses.dataclass
class Slots:
    __slots__ = ("a",)
    a: Any


class More(Named):
    """A namedtuple with room for attributes."""


@dataclasses.dataclass
class SlotsBeside:
    __slots__ = ("a", "beside")
    a: int


@dataclasses.dataclass
class Contents(dict[str, int]):
    a: int = 0


@dataclasses.dataclass
class Failure(Exception):
    a: int = 0

    def __str__(self) -> str:
        raise RuntimeError


class Own:
    def __init__(self, a: int) -> None:
        self.a = a


class Colour(enum.Flag):
    RED = 1
    BLUE = 2


def with_attribute(obj: Any) -> Any:
    obj.beside = 1
    return obj


BARE = object.__new__(Data)
WRAPPED: list[Any] = [
    np.matrix([1]), np.ma.array([1]), np.rec.array([(1,)]), np.recarray(1, [("a", "i4")])[0], np.array([None]),
    np.array(["a"], np.dtypes.StringDType()), np.dtype("O"), np.dtype([("a", [("b", "O")])]), torch.ones(1).as_subclass(Subclass),
    torch.ones(2).to_sparse(), torch.nn.UninitializedParameter(), torch.ones(1, device="meta"), Metadata(a=1),
    with_attribute(collections.OrderedDict()), collections.defaultdict(int), Named(1), Data(1), Own(1),
    mock.Mock(spec=Colour.RED), mock.Mock(spec=np.float32(1)), mock.Mock(spec=ValueError()),
    cast(Any, enum.Enum)("Local", "A").A, datetime.datetime(2020, 1, 1, tzinfo=type("Zone", (datetime.tzinfo,), {})())]


@pytest.mark.parametrize("obj", WRAPPED, ids=lambda obj: f"{type(obj).__module__}.{type(obj).__name__}")
def test_what_would_lose_its_type_is_refused_at_every_depth(obj: Any) -> None:
    for whole in (obj, [obj], {"a": (1, [obj])}, types.SimpleNamespace(a=[obj])):
        with pytest.raises(TypeError, match="cannot be sent|not supported|no plain dtype|no memory"):
            codec.encode(whole)


def test_memmap_is_refused(tmp_path: pathlib.Path) -> None:
    with pytest.raises(TypeError, match=r"memmap cannot be sent without pickle: it would arrive as numpy\.ndarray"):
        codec.encode([np.memmap(tmp_path / "x", np.int8, "w+", shape=3)])


@pytest.mark.parametrize("dtype", [torch.float4_e2m1fn_x2, torch.bits16, torch.complex32])
def test_tensors_without_arithmetic_travel_too(dtype: torch.dtype) -> None:
    x = torch.arange(24, dtype=torch.uint8).view(2, 12).view(dtype)[:, ::2]
    found = there_and_back([x])[0]
    assert found.dtype == dtype and found.shape == x.shape
    assert torch.equal(found.view(torch.uint8), x.clone().view(torch.uint8))
    with pytest.raises(ValueError, match="no object that arraycomm encoded: TypeError: dtype torch.qint8"):
        codec.decode(row("torch.Tensor", False, "qint8", [1], b"1"))


@pytest.mark.parametrize("needed", [True, False])
def test_tensors_keep_whether_they_need_gradients(needed: bool) -> None:
    parameter, tensor = there_and_back([torch.nn.Parameter(torch.ones(2), needed), torch.ones(2, requires_grad=needed) * 2])
    assert type(parameter) is torch.nn.Parameter and type(tensor) is torch.Tensor
    assert parameter.requires_grad == tensor.requires_grad == needed and tensor.tolist() == [2, 2] and tensor.is_leaf


def test_a_state_dict_keeps_its_metadata() -> None:
    state = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3)).state_dict()
    found = there_and_back(state)
    assert type(found) is type(state) and list(found) == list(state) and found._metadata == state._metadata
    assert all(torch.equal(found[name], state[name]) for name in state)


def test_exceptions_arrive_as_what_they_said() -> None:
    found = there_and_back([KeyError("x"), arraycomm.PeerLost("gone", ranks=(1,)), arraycomm.RemoteError("a.B", "c"), Failure()])
    assert all(type(one) is arraycomm.RemoteError for one in found)
    assert [(one.type_name, one.text) for one in found] == [
        ("KeyError", "'x'"), ("arraycomm.core.base.errors.PeerLost", "gone"), ("a.B", "c"),
        (f"{__name__}.Failure", "(its text could not be made: RuntimeError)")]
    assert str(found[0]) == "KeyError: 'x'"


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec_types, "_REGISTERED", {})
    for cls in (Named, Data, Slots, More, SlotsBeside):
        assert arraycomm.register_type(cls) is cls
    arraycomm.register_type(Own, lambda own: own.a, Own)
    arraycomm.register_type(Number, int, Number)


@pytest.mark.usefixtures("registered")
def test_registered_classes_travel(monkeypatch: pytest.MonkeyPatch) -> None:
    objs = [Named(1, [Data(2, (Slots({1}),))]), Data(1), Number(7)]
    assert repr(there_and_back(objs)) == repr(objs) and [type(one) for one in there_and_back(objs)] == [type(one) for one in objs]
    colours = [Colour.RED | Colour.BLUE, Colour(0), Colour.RED]
    assert there_and_back(Own(3)).a == 3 and there_and_back(colours) == colours
    for odd in (BARE, Slots.__new__(Slots)):
        with pytest.raises(TypeError, match="have no value"):
            codec.encode(odd)
    for beside in (with_attribute(More(1)), with_attribute(SlotsBeside(1))):
        with pytest.raises(TypeError, match=r"attributes beside its fields: \['beside'\]"):
            codec.encode(beside)
    assert there_and_back([More(1, 2), SlotsBeside(1)]) == [More(1, 2), SlotsBeside(1)]
    data = codec.encode([Named(1)])
    for other in (data.replace(b"Named", b"Names"), codec.encode([Data(1)]).replace(b"Data", b"Date")):
        with pytest.raises(TypeError, match=r"test_codec\.(Names|Date) arrived, which this rank has not registered"):
            codec.decode(other)
    with pytest.raises(ValueError, match="are not the fields"):
        codec.decode(codec.encode([Data(1)]).replace(b"\xa1a", b"\xa1z"))
    with pytest.raises(ValueError, match="another class is registered"):
        arraycomm.register_type(type("Own", (), {"__module__": Own.__module__, "__qualname__": "Own"}), str, str)
    for wrong in ((3,), (Own,), (Own, str), (list,), (Contents,), (Failure,)):
        with pytest.raises(TypeError, match="register_type"):
            arraycomm.register_type(*wrong)


def test_bytes_import_nothing() -> None:
    """What needs a library or a module that the receiver has not imported is an error that names it, and it stays so."""
    objs = {"numpy": np.ones(1), "torch": torch.ones(1), "torch.nn": torch.nn.Parameter(torch.ones(1)), "jax": jnp.ones(1),
            "http": http.HTTPStatus.OK, "torch ": torch.float32}
    program = ("import sys\nfrom arraycomm.core.arrays import codec\n"
               f"for name, data in {[(name.strip(), codec.encode([obj])) for name, obj in objs.items()]!r}:\n"
               "    try:\n        codec.decode(data)\n    except ImportError as error:\n"
               "        assert f'import {name} before' in str(error), error\n"
               "    else:\n        raise SystemExit(name)\n"
               "assert not {'numpy', 'torch', 'jax', 'http'} & sys.modules.keys()")
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr


MARKS = [msgpack.Timestamp(1), *(msgpack.ExtType(number, content) for number in (1, 127) for content in (b"", b"a"))]


@pytest.mark.parametrize("mark", MARKS, ids=repr)
def test_marks_where_no_object_stands_are_refused(mark: Any) -> None:
    for whole in (mark, [1, mark], {1: mark}, {mark: 1}, {"a": [[1, mark]]}):
        with pytest.raises(ValueError, match="no object that arraycomm encoded"):
            codec.decode(msgpack.packb(whole))


def row(name: str, *parts: Any) -> bytes:
    number = next(row.number for row in codec_types.ROWS if f"{row._module}.{row._name}" == name)
    data: bytes = msgpack.packb([msgpack.ExtType(number, b""), *parts])
    return data


ZERO, HUGE = decimal.Decimal(0), (2**61 - 1) << 5000  # of one hash, and their comparison takes the square of HUGE's length


@pytest.mark.parametrize("obj", [
    {ZERO, HUGE}, frozenset((ZERO, HUGE)), {ZERO: 1, HUGE: 2}, {(1, ZERO), (1, HUGE)}, {frozenset({ZERO}), frozenset({(HUGE,)})},
    {fractions.Fraction(HUGE, 3), ZERO}, collections.OrderedDict([(HUGE, 1), (ZERO, 2)]),
    collections.Counter([HUGE, ZERO]), {Data(ZERO), Data(HUGE)}], ids=str)
@pytest.mark.usefixtures("registered")
def test_what_takes_long_to_compare_is_refused(obj: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """By who sends it, and by who is sent it all the same."""
    with pytest.raises(ValueError, match="take long to compare"):
        codec.encode(obj)
    with monkeypatch.context() as careless:
        careless.setattr(codec_keys, "check", lambda keys: keys)
        data = codec.encode(obj)
    with pytest.raises(ValueError, match="take long to compare"):
        codec.decode(data)


@pytest.mark.parametrize("kind", [set, frozenset, dict.fromkeys, collections.Counter, collections.OrderedDict.fromkeys])
def test_keys_of_one_hash_are_refused_before_they_are_sent(kind: Any) -> None:
    for keys in ([k * (2**61 - 1) for k in range(65)], [(k * (2**61 - 1),) for k in range(65)]):
        with pytest.raises(ValueError, match="65 members or keys have the same hash; send them in a list"):
            codec.encode([kind(keys)])
        assert there_and_back(kind(keys[1:])) == kind(keys[1:])


def test_long_integers_and_decimals_in_one_object() -> None:
    obj = [{HUGE: ZERO}, {ZERO, decimal.Decimal("1.5"), 2**3000, fractions.Fraction(1, 3), "a", None}, {(HUGE, 1), (2, HUGE)}]
    assert there_and_back(obj) == obj


def test_long_text_and_bytes_go_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """As msgpack takes less than 4 GiB of one."""
    monkeypatch.setattr(codec, "PIECE", 5)
    obj = ["four", "five!", "\u20ac" * 7 + "\ud800", b"1234", b"12345", bytes(range(50)), bytearray(b"abcdefgh"), 2**90,
           {"a long key": b"a long value", ("in a", b"tuple of"): 1}, pathlib.PurePosixPath("/a/path"), frozenset({b"members"})]
    assert repr(there_and_back(obj)) == repr(obj)
    assert there_and_back(np.arange(9.0)).tolist() == list(range(9))
    with pytest.raises(ValueError, match="no object that arraycomm encoded"):
        codec.decode(row("builtins.bytes", "text"))


def many(count: int) -> list[Any]:
    long = msgpack.ExtType(next(row.number for row in codec_types.ROWS if row._name == "int"), b"")
    return [[long, (k * (2**61 - 1)).to_bytes(12, "little")] for k in range(count)]


@pytest.mark.parametrize("data", [
    row("builtins.set", *many(20000)), row("builtins.frozenset", *many(20000)),
    row("builtins.dict", *(part for key in many(20000) for part in (key, 0))), row("builtins.bytearray", 2**40),
    row("decimal.Decimal", 5.0), row("fractions.Fraction", 1, 0), row("datetime.datetime", 1, 1, 1, 0, 0, 0, 0, 0, 3),
    row("argparse.Namespace", {1: 2}), row("collections.OrderedDict", {"items": 1}), row("numpy.ndarray", "|O", [1], b"12345678"),
    row("numpy.ndarray", "<U0", [2**60], b""), row("numpy.ndarray", ["<f4", [2**40]], [], b""), row("torch.dtype", "nn"),
    row("enum.Enum", "os", "environ", "PATH"), row("enum.Enum", "http", "HTTPStatus", "nothing"), row("uuid.UUID", b"1"),
    row("builtins.tuple") + b"\0", row("builtins.complex", 1.0)], ids=lambda data: repr(data[:30]))
def test_hostile_rows_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="no object that arraycomm encoded"):
        codec.decode(data)


KEYS = (st.none() | st.integers() | st.text() | st.binary() | st.decimals(allow_nan=False) | st.fractions() | st.datetimes()
        | st.uuids())
LEAVES = KEYS | st.complex_numbers(allow_nan=False) | st.timedeltas() | st.times()
VALUES = st.recursive(LEAVES, lambda inner: (
    st.lists(inner) | st.dictionaries(KEYS, inner) | st.lists(inner).map(tuple) | st.lists(inner).map(collections.deque)
    | st.sets(KEYS) | st.frozensets(KEYS | st.tuples(KEYS, KEYS))
    | st.dictionaries(st.tuples(KEYS), inner).map(collections.OrderedDict)), max_leaves=20)


@given(VALUES)
def test_whatever_is_composed_comes_back(obj: Any) -> None:
    found = there_and_back(obj)
    assert found == obj and type(found) is type(obj)


@given(st.recursive(st.none() | st.integers(-2**63, 2**64 - 1) | st.text(max_size=5) | st.binary(max_size=9) | st.sampled_from(
    [msgpack.ExtType(row.number, b"") for row in codec_types.ROWS]), lambda inner: st.lists(inner, max_size=6) | st.dictionaries(
    st.text(max_size=5) | st.integers(0, 9), inner, max_size=3), max_leaves=15))
def test_whatever_a_peer_composes_is_an_object_or_an_error(parts: Any) -> None:
    try:
        found = codec.decode(msgpack.packb(parts))
    except (ValueError, TypeError, ImportError):
        return
    assert type(found) not in (msgpack.ExtType, msgpack.Timestamp, codec_types.Row)


def nested(depth: int) -> Any:
    obj: Any = 0
    for _ in range(depth):
        obj = (obj,)
    return obj


def test_depth_and_length_have_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    assert there_and_back(nested(codec.DEEPEST)) == nested(codec.DEEPEST)
    with pytest.raises(ValueError, match="contains itself"):
        codec.encode(nested(codec.DEEPEST + 1))
    with pytest.raises(ValueError, match="no object that arraycomm encoded"):
        codec.decode(b"\x91" * 1100 + b"\0")  # lists of one item
    monkeypatch.setattr(codec, "LONGEST", 100)
    with pytest.raises(ValueError, match="the limit is 100"):
        codec.encode("x" * 200)
    with pytest.raises(ValueError, match="the limit is 100"):
        codec.decode(bytes(200))


def test_damaged_bytes_are_an_error_and_nothing_else() -> None:
    """Random bytes, and everything above cut off, extended, or with some bytes changed."""
    rng = random.Random(7)
    good = [codec.encode(obj) for obj in [*EXACT, *ARRAYS[:6], EXACT]]
    bad = [rng.randbytes(rng.randrange(60)) for _ in range(3000)]
    for data in good:
        bad += [data[: rng.randrange(len(data))] for _ in range(20)] + [data + b"\0"]
        for _ in range(60):
            changed = bytearray(data)
            for _ in range(rng.randrange(1, 4)):
                changed[rng.randrange(len(changed))] = rng.randrange(256)
            bad.append(bytes(changed))
    refused = 0
    for data in bad:
        try:
            codec.decode(data)
        except (ValueError, ImportError):  # an Enum of a module whose name was changed
            refused += 1
    assert refused > 3000


@pytest.mark.parametrize("array", [["os", [0]], ["<f4", [1]], ["<f4", [1], b"123"], [5, [1], b""], ["|i1", [-1]],
                                   ["|i1", [2**62, 4]],
                                   ["|i1", [2**62, 0, 2**62]], [], [1] * 5, ["|i1", [1], "a"], ["|i1", [True], b"1"],
                                   [{"fields": [["a", 9, "<f8"]], "itemsize": 8, "align": False}, [1], bytes(8)]], ids=str)
def test_arrays_that_do_not_fit_are_refused(array: list[Any]) -> None:
    with pytest.raises(ValueError, match="no object that arraycomm encoded"):
        codec.decode(row("numpy.ndarray", *array))
    with pytest.raises(ValueError, match="no object that arraycomm encoded"):
        codec.decode(row("torch.Tensor", False, *array))
