"""The fast path of a group's methods (native/call/shortcut.c) against the slow path, which is the reference."""

from __future__ import annotations

import gc
import inspect
import os
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import arraycomm
from arraycomm.core.arrays import arrays
from arraycomm.core.arrays.dlpack import allocate, wrap
from arraycomm.core.diagnostics import watch


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch) -> Iterator[arraycomm.Group]:
    """A world of one: every call runs to its end alone."""
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    with arraycomm.init() as group:
        yield group


def _x() -> Any:
    return np.arange(6, dtype=np.float32).reshape(3, 2)


CALLS: dict[str, Callable[[arraycomm.Group, Any, Any], Any]] = {
    "all_reduce": lambda g, x, out: g.all_reduce(x, out=out),
    "all_reduce, op": lambda g, x, out: g.all_reduce(x, "max", out=out, timeout=2.5),
    "reduce": lambda g, x, out: g.reduce(x, 0, "product", out=out),
    "broadcast": lambda g, x, out: g.broadcast(x, root=0, out=out),
    "all_gather": lambda g, x, out: g.all_gather(x, form="concat", uneven=False, out=out),
    "gather": lambda g, x, out: g.gather(x, out=out),
    "scatter": lambda g, x, out: g.scatter(x, out=out),
    "reduce_scatter": lambda g, x, out: g.reduce_scatter(x, "sum", counts=None, out=out),
    "all_to_all": lambda g, x, out: g.all_to_all(x, out=out),
}


def _begun(call: str) -> Callable[[arraycomm.Group, Any, Any], arraycomm.Work[Any]]:
    name, _, operation = call.partition(", ")
    return lambda g, x, out: getattr(g, name)(x, **({"op": "max"} if operation else {}), out=out, async_op=True)


BEGUN = {call: _begun(call) for call in CALLS}


def _long(group: arraycomm.Group, call: Callable[..., Any], *args: Any) -> Any:
    shortcut, group._shortcut = group._shortcut, None
    try:
        return call(group, *args)
    finally:
        group._shortcut = shortcut


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_both_ways_agree(group: arraycomm.Group, call: Callable[..., Any]) -> None:
    short, long = call(group, _x(), None), _long(group, call, _x(), None)
    assert type(short) is type(long) and short.dtype == long.dtype
    np.testing.assert_array_equal(short, long)
    out = np.zeros((3, 2), np.float32)
    assert call(group, _x(), out) is out
    np.testing.assert_array_equal(out, long)


@pytest.mark.parametrize("call", BEGUN.values(), ids=BEGUN)
def test_both_ways_begin_alike(group: arraycomm.Group, call: Callable[..., arraycomm.Work[Any]]) -> None:
    for work in (call(group, _x(), None), _long(group, call, _x(), None)):
        assert type(work) is arraycomm.Work
        result = work.result(10.0)
        assert result is work.result() and work.done()
        work.wait(timeout=1)
        np.testing.assert_array_equal(result, _x())
    out = np.zeros((3, 2), np.float32)
    for work in (call(group, _x(), out), _long(group, call, _x(), out)):
        assert work.result() is out
        np.testing.assert_array_equal(out, _x())


def test_barriers_begin_alike(group: arraycomm.Group) -> None:
    for work in (group.barrier(async_op=True), _long(group, lambda g: g.barrier(async_op=True))):
        assert work is not None and work.result(timeout=10) is None and work.done()


@pytest.mark.parametrize("short", [True, False])
def test_messages_begin_alike(group: arraycomm.Group, short: bool) -> None:
    run = (lambda group, call: call(group)) if short else _long
    out = np.zeros((3, 2), np.float32)
    new = run(group, lambda g: g.irecv(0, 4, like=_x()))
    given = run(group, lambda g: g.irecv(tag=5, out=out))
    assert not new.done()
    with pytest.raises(TimeoutError, match="has not ended after 0.001 s; it continues"):
        new.wait(0.001)
    sent = [run(group, lambda g, tag=tag: g.isend(_x(), dest=0, tag=tag)) for tag in (5, 4)]
    assert new.source() == (0, 4) and given.source() == (0, 5)
    assert given.result().array is out and new.result() is new.result()
    assert [(got.source, got.tag) for got in (new.result(1), given.result())] == [(0, 4), (0, 5)]
    np.testing.assert_array_equal(new.result().array, out)
    assert [work.result() for work in sent] == [None, None]


def test_arguments_of_a_work(group: arraycomm.Group) -> None:
    work = group.irecv(0, 4, like=_x())
    for call in (lambda: work.wait("soon"), lambda: work.wait(1, 2), lambda: work.result(limit=1), lambda: work.done(1)):  # type: ignore[call-arg,arg-type]
        with pytest.raises(TypeError):
            call()
    with pytest.raises(ValueError, match="nan"):
        work.wait(float("nan"))
    assert group.all_reduce(_x(), timeout=np.float16(5)).tolist() == _x().tolist()
    for seconds in (0, -1, -1.0, np.float16(-1)):
        with pytest.raises(TimeoutError, match="has not ended yet; it continues"):
            work.result(seconds)
    with pytest.raises(TimeoutError, match=r"not ended after 0\.01 s"):
        work.wait(0.01)
    group.send(_x(), 0, 4)
    work.wait(1e300)
    with pytest.raises(ValueError, match="only a receive"):
        arraycomm.Work(None, lambda: 3).source()
    assert arraycomm.Work(None, lambda: 3).result() == 3


def test_what_is_begun_is_held_and_what_is_forgotten_let_go(group: arraycomm.Group) -> None:
    x, wanted = np.arange(200_000.0), np.arange(200_000.0)  # too long to be sent before its receive is there
    held = weakref.ref(x)
    group.isend(x, 0, tag=8)
    del x
    gc.collect()
    assert held() is not None
    np.testing.assert_array_equal(group.recv(0, 8, like=wanted).array, wanted)
    for _ in range(2):
        group.isend(_x(), 0)
        group.recv(0, like=_x())
    assert held() is None
    work, held = group.isend(x := np.arange(200_000.0), 0, tag=8), weakref.ref(x)
    group.recv(0, 8, like=wanted)
    work.wait()
    del x
    assert held() is None and work.done()  # a Work that has ended holds nothing any more


def test_works_end_with_their_group(group: arraycomm.Group) -> None:
    twin = group.split(0)
    assert twin is not None
    work, forgotten = twin.irecv(0, like=_x()), weakref.ref(array := _x())
    twin.irecv(0, out=array)
    del array
    twin.close()
    for _ in range(2):
        with pytest.raises(arraycomm.DistError, match="closed"):
            work.result()
    assert work.done() and forgotten() is None


INPUTS: dict[str, Callable[[], Any]] = {
    "strided": lambda: np.arange(12, dtype=np.float32).reshape(3, 4)[:, ::2],
    "no dimension": lambda: np.float64(3.0),
    "empty": lambda: np.zeros((3, 0), np.int8),
    "of a subclass": lambda: np.arange(6.0).view(np.matrix),
    "bytes": lambda: b"abcdef",
    "seven dimensions": lambda: np.ones((1, 2, 1, 2, 1, 2, 1), np.uint16),
}


@pytest.mark.parametrize("make", INPUTS.values(), ids=INPUTS)
def test_odd_inputs(group: arraycomm.Group, make: Callable[[], Any]) -> None:
    np.testing.assert_array_equal(group.all_reduce(make()), _long(group, lambda g, x: g.all_reduce(x), make()))


REFUSED: dict[str, Callable[[Any, Any], Any]] = {
    "no argument": lambda g, x: g.all_reduce(),
    "twice": lambda g, x: g.all_reduce(x, "sum", op="sum"),
    "unknown keyword": lambda g, x: g.broadcast(x, rot=0),
    "too many": lambda g, x: g.barrier(1),
    "operation": lambda g, x: g.all_reduce(x, "media"),
    "operation of a strange type": lambda g, x: g.all_reduce(x, []),
    "root": lambda g, x: g.broadcast(x, 1),
    "root of a strange type": lambda g, x: g.broadcast(x, True),
    "dest": lambda g, x: g.send(x, -1),
    "tag": lambda g, x: g.send(x, 0, 2**63),
    "form": lambda g, x: g.all_gather(x, form="rows"),
    "nothing": lambda g, x: g.all_reduce(None),
    "read-only out": lambda g, x: g.all_reduce(x, out=np.broadcast_to(np.float32(0), (3, 2))),
    "out's shape": lambda g, x: g.all_reduce(x, out=np.zeros((2, 3), np.float32)),
    "out's dtype": lambda g, x: g.all_reduce(x, out=np.zeros((3, 2))),
    "out overlaps": lambda g, x: g.all_to_all(x, out=x),
    "foreign bytes": lambda g, x: g.all_reduce(x.astype(">f4")),
}


@pytest.mark.parametrize("call", REFUSED.values(), ids=REFUSED)
def test_errors_are_those_of_the_long_way(group: arraycomm.Group, call: Callable[..., Any]) -> None:
    with pytest.raises((TypeError, ValueError)) as short:
        call(group, _x())
    with pytest.raises(short.type) as long:
        _long(group, call, _x())
    assert str(short.value) == str(long.value)
    group.barrier()


def test_a_group_is_freed_behind_those_in_a_call(group: arraycomm.Group) -> None:
    """Who has seen that it is open is not counted by the engine yet, and would find memory that is free."""
    communicator: Any = group._routes.main
    with communicator.shortcut:
        with pytest.raises(RuntimeError, match="a handler of a signal that came inside"):
            group.close()  # would wait for itself
        closing = threading.Thread(target=group.close)
        closing.start()
        while not communicator.closed:
            time.sleep(0.001)
        closing.join(0.1)
        assert closing.is_alive()
        with pytest.raises(arraycomm.GroupError, match="closed"):
            group.all_reduce(np.zeros((8, 2))[:, 0])
    closing.join(20)
    assert not closing.is_alive()


def test_messages(group: arraycomm.Group) -> None:
    with group.batch():
        group.send(_x(), 0, 7)
        work = group.recv(0, 7, like=_x())
    assert isinstance(work, arraycomm.Work)
    work = group.isend(_x(), 0, tag=3)
    got = group.recv(like=np.zeros((3, 2), np.float32), tag=3, timeout=5.0)
    work.wait()
    assert type(got).__name__ == "Received" and got.source == 0 and got.tag == 3
    assert got == (got.array, 0, 3) and got._replace(tag=4).tag == 4
    with pytest.raises(TypeError, match="unhashable"):  # as arrays are: not a hash that was never computed
        hash(got)
    np.testing.assert_array_equal(got.array, _x())


def test_a_method_looks_like_its_function() -> None:
    method = arraycomm.Group.all_reduce
    assert list(inspect.signature(method).parameters) == ["self", "x", "op", "index", "out", "async_op", "timeout"]
    assert method.__name__ == "all_reduce" and "elementwise" in (method.__doc__ or "")
    assert inspect.getsource(inspect.unwrap(method)).lstrip().startswith("@short")


def test_nothing_leaks(group: arraycomm.Group) -> None:
    x, out = _x(), np.zeros((3, 2), np.float32)

    def turn() -> None:
        for call in CALLS.values():
            call(group, x, None)
            call(group, x, out)
        for refused in REFUSED.values():
            with pytest.raises((TypeError, ValueError)):
                refused(group, x)
        for begun in BEGUN.values():
            begun(group, x, None).result()
            begun(group, x, out).wait()
            begun(group, x, None)
        work = group.isend(x, 0)
        group.recv(0, out=out)
        work.wait()
        with group.batch():
            group.send(x, 0)
            group.recv(0, out=out)
        group.irecv(0, out=out).done()
        group.isend(x, 0)
        bound = group.barrier
        bound(timeout=1.0)

    def held() -> list[int]:
        gc.collect()
        things = (x, out, group, None, NotImplemented, False, "sum", "concat", np.dtype(np.float32), np.ndarray)
        return [len(gc.get_objects()), *(sys.getrefcount(thing) for thing in things)]

    for _ in range(3):
        turn()
    before = held()
    for _ in range(200):
        turn()
    grown = [after - start for start, after in zip(before, held(), strict=True)]
    assert all(abs(n) < 100 for n in grown), grown  # 200 turns


def test_jax_results_by_either_importer(monkeypatch: pytest.MonkeyPatch) -> None:
    jax = pytest.importorskip("jax")
    template = jax.numpy.ones(4, dtype=jax.numpy.bfloat16)

    def made() -> Any:
        buffer = allocate((2, 3), 10)
        array = wrap(buffer, template)
        assert array.unsafe_buffer_pointer() == buffer.address
        return array

    assert arrays.jax_entry(template.device) is not None  # a jaxlib without it is slower: worth knowing
    direct = made()
    monkeypatch.setattr(arrays, "_jax_entries", {template.device: None})
    public = made()
    assert type(direct) is type(public) and direct.dtype == public.dtype and direct.shape == public.shape
    assert direct.sharding == public.sharding and direct.committed == public.committed
    assert direct.weak_type == public.weak_type


@pytest.mark.parametrize("environ", [{}, {"ARRAYCOMM_ALGORITHM": "all_reduce=ring,broadcast=chain,all_gather=ring"},
                                     {"ARRAYCOMM_TRANSPORT": "tcp"}], ids=["slots", "links", "tcp"])
def test_who_waits_lets_other_threads_run(environ: dict[str, str]) -> None:
    subprocess.run([sys.executable, "-m", "tests.core.thread_ranks"], env=os.environ | environ, check=True, timeout=60)


# ---- odd arguments of messages (others: test_paths.py): the fast path declines them, or means what the slow path means ----

_FIXED = np.arange(6, dtype=np.float32).reshape(3, 2)
_FIXED.setflags(write=False)
ODD: dict[str, Any] = {
    "None": None, "True": True, "False": False, "numpy True": np.True_, "0": 0, "1": 1, "-1": -1, "-2": -2, "2**31": 2**31,
    "2**62": 2**62, "2**63": 2**63, "2**64": 2**64, "numpy 0": np.int64(0), "numpy 5": np.uint8(5),
    "numpy -1": np.int8(-1),
    "0.0": 0.0, "1.5": 1.5, "-0.5": -0.5, "nan": float("nan"), "inf": float("inf"),
    "numpy 1.5": np.float16(1.5), "1j": 1j,
    "empty string": "", "sum": "sum", "SUM": "SUM", "max": "max", "list": "list", "stack": "stack", "bytes": b"abc",
    "bytearray": bytearray(6), "tuple": (), "counts": [3], "list of lists": [[1, 2]], "dict": {}, "object": object(), 
    "class": int,
    "array": _FIXED.copy(), "strided": np.arange(6, dtype=np.float32).reshape(2, 3).T,
    "reversed": _FIXED[::-1], "read-only": _FIXED,
    "int32": np.arange(6, dtype=np.int32), "bool array": np.ones((3, 2), bool), "complex": np.ones((3, 2), np.complex64),
    "0-d": np.array(0), "0-d float": np.array(1.5),
    "empty": np.empty((0, 2), np.float32), "text": np.array(["a"]), "objects": np.array([None]),
    "other bytes": np.arange(6, dtype=">f4"), "op": arraycomm.premul_sum(2.0), "dtype": np.dtype("f4"),
}
PLAIN: dict[str, dict[str, Any]] = {
    "send": {"x": _FIXED, "dest": 0, "tag": 9}, "isend": {"x": _FIXED, "dest": 0, "tag": 9},
    "recv": {"source": 0, "tag": 9, "like": _FIXED}, "irecv": {"source": 0, "tag": 9, "like": _FIXED},
}


def _copied(value: Any) -> Any:
    """For each call its own, as results are written there; strides and flags as they were."""
    if not isinstance(value, np.ndarray) or not value.flags.writeable:
        return value
    order = value.T.copy().T if value.flags.f_contiguous and not value.flags.c_contiguous else value
    return order if order is not value else value[...] if any(stride < 0 for stride in value.strides) else value.copy()


def _told(value: Any) -> Any:
    """What can be compared: type, contents, and of errors the text."""
    if isinstance(value, Exception):
        return type(value), str(value)
    if isinstance(value, np.ndarray):
        return np.ndarray, str(value.dtype), value.shape, value.tobytes()
    if isinstance(value, (list, tuple)):
        return type(value), [_told(one) for one in value]
    return type(value), bytes(value) if isinstance(value, (bytearray, memoryview)) else value


def _message(group: arraycomm.Group, name: str, given: dict[str, Any]) -> Any:
    """A message of this rank to itself, the other half as usual."""
    tag = given.get("tag", 0)
    if "send" in name:
        work = getattr(group, name)(**given)
        group.recv(0, tag, like=given["x"])
        return work
    template = given["out"] if given.get("like") is None else given["like"]
    work = group.irecv(**given)
    sent = group.isend(template, 0, max(tag, 0))
    result: Any = work.result(20)
    if name == "recv":
        group.send(template, 0, max(tag, 0))
        result = group.recv(**given)
    sent.wait(20)
    return result


def _answer_of(group: arraycomm.Group, name: str, parameters: dict[str, Any]) -> Any:
    given = {key: _copied(value) for key, value in parameters.items()}
    try:
        found = _message(group, name, given)
        if isinstance(found, arraycomm.Work):
            found = ["work", found.result(20)]
    except arraycomm.DistError:
        raise  # no argument's error, and the group is gone
    except Exception as error:
        return _told(error)
    return _told(found), _told(given.get("out"))


@pytest.mark.parametrize("name", PLAIN)
def test_odd_arguments_of_messages_mean_the_same_on_both_ways(group: arraycomm.Group, name: str) -> None:
    parameters = inspect.signature(getattr(arraycomm.Group, name).__wrapped__).parameters
    unlike, watcher = [], watch.Watcher()
    for parameter in list(parameters)[1:]:
        for label, value in ODD.items():
            if parameter == "timeout" and label in ("0", "0.0", "numpy 0", "0-d"):
                continue  # who is a moment late ends the group
            call = {**PLAIN[name], parameter: value}
            if parameter == "out" and name.endswith("recv"):
                call["like"] = None
            short, long = _answer_of(group, name, call), _long(group, _answer_of, name, call)
            watch.attach(group, watcher)
            watched = _answer_of(group, name, call)
            watch.detach(group, watcher)
            if not short == long == watched:
                unlike.append(f"{parameter}={label}: {short}, {long} and {watched}")
    assert not unlike, "\n".join(unlike)


@pytest.mark.parametrize("short", [True, False])
def test_none_is_the_default(group: arraycomm.Group, short: bool) -> None:
    for name, plain in PLAIN.items():
        parameters = inspect.signature(getattr(arraycomm.Group, name).__wrapped__).parameters
        given = {"self", "tag", *plain}
        free = [p.name for p in parameters.values() if p.default is not p.empty and p.name not in given]
        call = {**plain, **dict.fromkeys(free)}
        answer = _answer_of(group, name, call) if short else _long(group, _answer_of, name, call)
        assert answer == (_answer_of(group, name, plain)[0], _told(None)), name
        with pytest.raises(TypeError, match="ANY_TAG"):
            getattr(group, name)(**{**plain, "tag": None}) if short else _long(
                group, lambda g, name=name, plain=plain: getattr(g, name)(**{**plain, "tag": None}))


@pytest.mark.parametrize("short", [True, False])
def test_the_array_of_a_receive_has_a_role(group: arraycomm.Group, short: bool) -> None:
    run: Any = (lambda group, call: call(group)) if short else _long
    for array in (_x(), np.array(0), bytearray(4), memoryview(b"abc")):
        for receive in (lambda g, a=array: g.recv(a), lambda g, a=array: g.irecv(a, 0), lambda g, a=array: g.recv(a, out=a)):
            with pytest.raises(TypeError, match=r"recv\(source, like=x\).*recv\(source, out=x\)"):
                run(group, receive)
    for given in ({}, {"like": _x(), "out": _x()}):
        with pytest.raises(TypeError, match="one of like= .*and out= "):
            run(group, lambda g, given=given: g.irecv(0, **given))
    x = _x()
    assert run(group, lambda g: g.broadcast(out=x)) is x and x.tolist() == _x().tolist()
    assert run(group, lambda g: g.broadcast(None, None, out=x)) is x
    with pytest.raises(TypeError, match=r"broadcast\(out=x\)"):
        run(group, lambda g: g.broadcast())
    with pytest.raises(ValueError, match="read-only"):
        run(group, lambda g: g.broadcast(out=_FIXED))
