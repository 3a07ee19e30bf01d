"""Backends of other packages: in Python, and with an engine in C that knows the installed headers only."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import arraycomm

from ..engine.compiling import COMPILER, compile_with

TINY = """
from arraycomm.core.interface import registry


class TinyBackend:
    '''The socket backend's, under another name.'''

    name, devices, on_gpus = "tiny", frozenset({1, 14}), ""

    def unavailable(self):
        return None

    def meet(self, timeout, name):
        return None

    def open(self, meeting, *, name, timeout):
        return registry.get("socket").open(meeting, name=name, timeout=timeout)
"""
MIRROR = """
import ctypes, os
from arraycomm._engine import Shortcut
from arraycomm.core.interface import registry
from arraycomm.core.base.errors import DistBackendError

engine = ctypes.CDLL(os.path.join(os.path.dirname(__file__), "mirror.so"))
engine.mirror_open.restype = ctypes.c_void_p
engine.mirror_calls.argtypes = [ctypes.c_void_p]
ENTRIES = ctypes.addressof(ctypes.c_char.in_dll(engine, "mirror_entries"))


class Communicator:
    def __init__(self, inner):
        self._inner, self.engine = inner, engine.mirror_open(inner.rank, inner.size)
        self.shortcut = Shortcut(ENTRIES, self.engine, inner.rank, inner.size, lambda code, failure: DistBackendError(str(code)))

    def __getattr__(self, name):
        return getattr(self._inner, name)


class MirrorBackend:
    name, devices, on_gpus = "mirror", frozenset({1}), ""

    def unavailable(self):
        return None

    def meet(self, timeout, name):
        return None

    def open(self, meeting, *, name, timeout):
        return Communicator(registry.get("socket").open(meeting, name=name, timeout=timeout))
"""
PROGRAM = """
import sys
from concurrent.futures import ThreadPoolExecutor
import numpy as np
import arraycomm, arraycomm.info
from arraycomm.core.bootstrap.store import HashStore

name, store, size = sys.argv[1], HashStore(), 2
if name == "mirror":
    import mirror
    mirror.engine.mirror_world(size)

def work(rank):
    with arraycomm.init(rank=rank, world_size=size, store=store, timeout=60.0) as group:  # ARRAYCOMM_BACKEND says which
        assert group.backend == name
        x = np.arange(4.0) + rank
        for y, want in ((group.all_reduce(x), [1, 3, 5, 7]), (group.all_reduce(x, "max"), [1, 2, 3, 4]),
                        (group.all_reduce(x, async_op=True).result(), [1, 3, 5, 7]), (group.all_reduce(x, out=x), [1, 3, 5, 7]),
                        (group.all_gather(x[:1]), [1, 1]), (group.scan(np.ones(2)), [rank + 1] * 2)):
            assert y.tolist() == want, (y, want)
        return mirror.engine.mirror_calls(group._communicator.engine) if name == "mirror" else 2

with ThreadPoolExecutor(size) as pool:
    assert list(pool.map(work, range(size))) == [2, 2]
found = arraycomm.info.backends()
assert found["mirror"] is None and found["tiny"] is None and "nowhere" in found["broken"], found
assert "tiny" in arraycomm.info.table()["scan"]["cpu"]
import arraycomm.distributed as dist
if name == "tiny":
    dist.init_process_group("tiny", rank=0, world_size=1, store=dist.HashStore())
    assert dist.get_backend() == "tiny"
for wrong, kind, text in (("tinier", ValueError, "registered are socket, mpi, nccl, broken, mirror, tiny"),
                          ("broken", arraycomm.DistBackendError, "'broken' (nowhere:Backend) cannot be loaded")):
    try:
        arraycomm.init(rank=0, world_size=1, store=HashStore(), backend=wrong)
    except kind as error:
        assert text in str(error), error
    else:
        raise AssertionError(wrong)
print("well")
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As pip would install them."""
    folder = tmp_path_factory.mktemp("site")
    (folder / "tiny.py").write_text(TINY)
    (folder / "mirror").mkdir()
    (folder / "mirror" / "__init__.py").write_text(MIRROR)
    compile_with([COMPILER, "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O1", "-fPIC", "-shared", "-pthread",
                  f"-I{arraycomm.get_include()}", str(Path(__file__).with_name("mirror.c")), "-o",
                  str(folder / "mirror" / "mirror.so")])
    for package, entry in (("tiny", "tiny:TinyBackend"), ("mirror", "mirror:MirrorBackend"), ("broken", "nowhere:Backend")):
        facts = folder / f"{package}-1.0.dist-info"
        facts.mkdir()
        (facts / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        (facts / "entry_points.txt").write_text(f"[arraycomm.backends]\n{package} = {entry}\n")
    return folder


@pytest.mark.parametrize("name", ["tiny", "mirror"])
def test_a_backend_of_another_package(name: str, site: Path) -> None:
    path = os.pathsep.join([str(site), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run([sys.executable, "-c", PROGRAM, name], capture_output=True, text=True, timeout=120,
                          env=os.environ | {"PYTHONPATH": path, "ARRAYCOMM_BACKEND": name})
    assert (done.returncode, done.stdout) == (0, "well\n"), done.stderr
