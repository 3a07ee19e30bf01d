"""The C API (arraycomm.h), called from threads of C's own (c_api.c). The ranks are threads of this process."""

from __future__ import annotations

import ctypes
import gc
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import arraycomm
from arraycomm.core.bootstrap.store import HashStore

from ..engine.compiling import COMPILER
from . import api_pages

HERE = Path(__file__).resolve().parent


def compiled(folder: Path) -> str:
    subprocess.run([COMPILER, "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", f"-I{arraycomm.get_include()}",
                    str(HERE / "c_api.c"), "-o", f"{folder}/c_api.so", "-pthread"], check=True)
    return f"{folder}/c_api.so"


@pytest.fixture(scope="module")
def callers(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    loaded = ctypes.CDLL(compiled(tmp_path_factory.mktemp("c_api")))
    assert loaded.begin(arraycomm.get_library().encode()) == 0
    return loaded


@pytest.mark.parametrize("command", [["cc", "-std=c99"], ["c++", "-std=c++11", "-x", "c++"]], ids=["C", "C++"])
def test_the_header_stands_alone(command: list[str], tmp_path: Path) -> None:
    (tmp_path / "alone.c").write_text('#include "arraycomm.h"\nconst acomm_api *use(acomm_api_function get);\n')
    subprocess.run([*command, "-Wall", "-Wextra", "-pedantic", "-Werror", f"-I{arraycomm.get_include()}", "-c", "alone.c"],
                   cwd=tmp_path, check=True)


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("name", ["works", "leaves", "aborts"])
def test_from_threads_of_c(callers: ctypes.CDLL, name: str, size: int) -> None:
    def work(group: arraycomm.Group) -> int:
        return int(callers.in_a_thread(name.encode(), ctypes.c_int64(group.handle())))

    assert arraycomm.run(work, size, timeout=60.0) == [0] * size


def test_a_handle_is_never_used_again(callers: ctypes.CDLL) -> None:
    handles = []
    for _ in range(300):  # more than a piece of the table
        with arraycomm.init() as group:
            handles.append(group.handle())
            assert group.handle() == handles[-1] and callers.barrier(ctypes.c_int64(handles[-1])) == 0
    assert len(set(handles)) == 300
    assert callers.barrier(ctypes.c_int64(handles[0])) == -5  # ACOMM_CLOSED


def test_a_group_lives_while_only_its_handle_is_known(callers: ctypes.CDLL) -> None:
    handle = arraycomm.init().handle()
    gc.collect()
    assert callers.in_a_thread(b"works", ctypes.c_int64(handle)) > 0  # rank 1 is none of one
    assert callers.barrier(ctypes.c_int64(handle)) == 0
    assert callers.close_group(ctypes.c_int64(handle)) == 0 and callers.barrier(ctypes.c_int64(handle)) == -5


def test_in_a_child_made_by_fork(callers: ctypes.CDLL) -> None:
    with arraycomm.init() as group:
        handle, text = ctypes.c_int64(group.handle()), ctypes.create_string_buffer(300)
        child = os.fork()
        if not child:
            code = callers.barrier(handle)
            callers.text(text, 300)
            os._exit(0 if code == -12 and b"made by fork" in text.value else 1)
        assert os.waitpid(child, 0)[1] == 0 and callers.barrier(handle) == 0


def test_ctrl_c_in_a_call_is_raised_in_python(callers: ctypes.CDLL) -> None:
    """The first rank waits in C, in the main thread, for one that does not come."""
    store, there = HashStore(), threading.Event()

    def second() -> None:
        with arraycomm.init(rank=1, world_size=2, store=store, timeout=60.0) as other:
            there.wait(60)
            os.kill(os.getpid(), signal.SIGINT)
            with pytest.raises(arraycomm.DistError):
                other.barrier()

    peer = threading.Thread(target=second, daemon=True)
    peer.start()
    with pytest.raises(KeyboardInterrupt), arraycomm.init(rank=0, world_size=2, store=store, timeout=60.0) as group:
        handle = ctypes.c_int64(group.handle())
        there.set()
        callers.barrier(handle)
    peer.join(60)
    assert not peer.is_alive()


PAGE = api_pages.Page("c-api.md")


def test_the_page_has_every_name_of_the_header() -> None:
    header = api_pages.Header("arraycomm.h")
    kinds = {f"ACOMM_{kind}" for kind in api_pages.kinds()}
    words = header.words() - {"ACOMM_API_H"} | kinds
    functions, fields = header.functions("acomm_api"), header.fields("acomm_call")
    assert len(functions) == 13 and len(fields) > 15 and len(words) > 60
    assert words | functions | fields <= PAGE.names()
    assert PAGE.constants() <= words  # no name that the header does not have


def test_the_pages_codes_have_the_headers_values() -> None:
    codes = dict(re.findall(r"^    (ACOMM_\w+) = (-?\d+)", api_pages.Header("arraycomm.h").source, re.MULTILINE))
    assert codes == dict(re.findall(r"^\| `(ACOMM_\w+)` \| (-?\d+) \|", PAGE.text, re.MULTILINE))


def test_the_pages_example_compiles_and_runs(tmp_path: Path) -> None:
    (c,), (python,) = PAGE.blocks("c"), PAGE.blocks("python")
    api_pages.library(tmp_path, "mean", c)
    (tmp_path / "mean.py").write_text(python)
    done = subprocess.run([sys.executable, "mean.py"], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.stdout == "[0.5, 0.5]\n", done.stderr
