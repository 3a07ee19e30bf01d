"""What ranks do while their memory and descriptors are watched. Tasks for tests/faults/job.py."""

from __future__ import annotations

import ctypes
import gc
import logging
import os
import re
import resource
import tracemalloc
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import arraycomm
from arraycomm.core.group.window import Window

from ..faults.job import Context, Holdings


class Memory(NamedTuple):
    """Bytes resident: private, shared (of memory files), and what the C allocator has handed out."""

    private: int
    shared: int
    allocated: int


def memory() -> Memory:
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return Memory(_kib(status["RssAnon"]), _kib(status["RssShmem"]), _allocated())


def _kib(text: str) -> int:
    return int(text.split()[0]) * 1024


class _Mallinfo(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks",
                                                      "fsmblks", "uordblks", "fordblks", "keepcost")]


def _allocated() -> int:
    libc = ctypes.CDLL(None)
    libc.mallinfo2.restype = _Mallinfo
    info = libc.mallinfo2()
    return int(info.uordblks + info.hblkhd)


def _all_in_place(group: arraycomm.Group, x: Any, parts: Any, whole: Any, message: Any) -> None:
    right, left = (group.rank + 1) % group.size, (group.rank - 1) % group.size
    group.all_reduce(x, op="max", out=x)
    group.broadcast(x, out=x)
    group.reduce(x, op="max", out=x)
    group.all_gather(x, out=whole)
    group.gather(x, out=whole)
    group.scatter(whole, out=parts)
    group.reduce_scatter(whole, op="max", out=parts)
    group.all_to_all(whole, out=parts_of(whole, group.size))
    group.barrier()
    if group.rank % 2:
        group.recv(left, out=message)
        group.send(x, right)
    else:
        group.send(x, right)
        group.recv(left, out=message)


_EXCHANGED: dict[int, Any] = {}


def parts_of(whole: Any, size: int) -> Any:
    return _EXCHANGED.setdefault(whole.size, np.empty_like(whole))


def steady(context: Context, count: int, warm: int, turns: int) -> tuple[int, int, int]:
    """Growth in bytes over `turns` of every operation in place: Python's allocations, the C allocator's, resident."""
    group = context.world
    x, parts = np.ones(count), np.ones(count)
    whole, message = np.ones(count * group.size), np.ones(count)
    for _ in range(warm):
        _all_in_place(group, x, parts, whole, message)
    tracemalloc.start()
    try:
        _all_in_place(group, x, parts, whole, message)
        before = memory()
        gc.collect()
        python = tracemalloc.get_traced_memory()[0]
        for _ in range(turns):
            _all_in_place(group, x, parts, whole, message)
        gc.collect()
        grown = tracemalloc.get_traced_memory()[0] - python
        after = memory()
    finally:
        tracemalloc.stop()
    return grown, after.allocated - before.allocated - grown, after.private - before.private


def scratch(context: Context, count: int) -> int:
    """Bytes that this rank holds beyond the array after an all_reduce of `count` float32 in place."""
    x = np.ones(count, np.float32)
    before = memory()
    context.world.all_reduce(x, out=x)
    peak = memory()
    assert (x == context.size).all()
    return peak.private - before.private + peak.shared - before.shared


def peak_scratch(context: Context, count: int) -> int:
    """As scratch(), with what was given back before the end: the highest resident size of the process' life."""
    x = np.ones(count, np.float32)
    Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM
    before = _resident_peak()
    context.world.all_reduce(x, out=x)
    after = _resident_peak()
    assert (x == context.size).all()
    return after - before


def _resident_peak() -> int:
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return _kib(status["VmHWM"])


# ---- making and closing again and again ----


def held(context: Context) -> tuple[Holdings, Memory]:
    gc.collect()
    return Holdings.now(), memory()


def split_again_and_again(context: Context, turns: int, name: str | None = None) -> None:
    """Groups of all ranks, of every second and of one, used and closed."""
    for turn in range(turns):
        group = context.world.split([0, context.rank % 2, context.rank][turn % 3], name=name)
        assert group is not None
        assert group.all_reduce(np.ones(1))[0] == group.size
        group.close()


def init_again_and_again(context: Context, turns: int) -> None:
    for _ in range(turns):
        with arraycomm.init(name="again") as group:
            assert group.all_reduce(np.ones(1))[0] == group.size


def limit_descriptors(context: Context, spare: int) -> None:
    """The process may open `spare` more than it has."""
    soft, hard = len(os.listdir("/proc/self/fd")) - 1 + spare, resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def limit_file_size(context: Context, size: int) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


def limit_address_space(context: Context, spare: int) -> None:
    """The process may map `spare` bytes more than it has."""
    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (mapped + spare, resource.getrlimit(resource.RLIMIT_AS)[1]))


def dumped_and_writable(context: Context) -> tuple[int, int]:
    """Bytes of the library's memory files that a core dump of this process would hold, and that it may write to."""
    array = context.world.empty((1000,), "float32", like=np.zeros(1))
    context.world.all_reduce(array, out=array)
    dumped = writable = 0
    for mapping in re.split(r"\n(?=[0-9a-f]+-[0-9a-f]+ )", Path("/proc/self/smaps").read_text()):
        size = _kib(re.findall(r"^Size: +(.*)", mapping, re.M)[0])
        mine = "/memfd:arraycomm" in mapping
        dumped += size * (mine and " dd" not in mapping)
        writable += size * (mine and " rw-s " in mapping)
    return dumped, writable


def symmetric_and_window(context: Context) -> tuple[float, list[str]]:
    """The sum over symmetric arrays, beside a window over one, and what was logged."""
    records: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: records.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("arraycomm").addHandler(handler)
    array = context.world.empty((1000,), "float32", like=np.zeros(1))
    array[:] = context.rank + 1
    total = float(context.world.all_reduce(array)[-1])
    window = Window(context.world, array, "window")
    window.fence(10)
    got = np.empty(1, np.float32)
    for pending in window.get(got, (context.rank + 1) % context.size, 999):
        pending.wait()
    window.close()
    assert got[0] == (context.rank + 1) % context.size + 1, got
    context.world.empty((5,), "float32", like=np.zeros(1))
    return total, records
