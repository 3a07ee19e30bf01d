from __future__ import annotations

import contextlib
import errno
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from arraycomm.core.base.errors import DistStoreError
from arraycomm.core.bootstrap.store import FileStore
from arraycomm.core.bootstrap.store import file as implementation
from arraycomm.core.bootstrap.store.table import Op, encode

from ..threads import at_once
from .forked import refused_after_fork

SHORT = timedelta(milliseconds=300)
PROGRAM = """
import sys, os, time
from datetime import timedelta
from arraycomm.core.bootstrap.store import FileStore
store = FileStore(sys.argv[1], int(sys.argv[2]), timedelta(seconds=20))
"""


def run(path: Path, world_size: int, body: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", PROGRAM + body, str(path), str(world_size)], text=True,
                            stdout=subprocess.PIPE)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store"


def test_private_and_removed_by_the_last(path: Path) -> None:
    first = FileStore(path, 2)
    assert path.stat().st_mode & 0o777 == 0o600
    first.set("k", "v")
    first.close()
    assert path.exists()  # the second is still to come
    second = FileStore(path, 2)
    assert second.get("k") == b"v"
    second.close()
    second.close()
    assert not path.exists()


def test_clones_do_not_count(path: Path) -> None:
    store = FileStore(path, 1)
    twin = store.clone()
    store.close()
    assert path.exists() and twin.check([])
    twin.close()
    assert not path.exists()


def test_unknown_world_size_keeps_the_file(path: Path) -> None:
    FileStore(path).close()
    assert path.exists()


def test_collected_store_leaves(path: Path) -> None:
    store = FileStore(path, 1)
    store.set("k", "v")
    del store
    assert not path.exists()


def test_processes_meet(path: Path) -> None:
    body = "store.add('n', 1); store.set(str(os.getpid()), ''); store.wait(['go']); print(store.add('m', 1))"
    ranks = [run(path, 4, body) for _ in range(3)]
    store = FileStore(path, 4, timedelta(seconds=20))
    store.wait([str(rank.pid) for rank in ranks])
    assert store.add("n", 0) == 3
    store.set("go", "")
    printed = sorted(rank.communicate(timeout=20)[0].strip() for rank in ranks)
    assert printed == ["1", "2", "3"] and [rank.returncode for rank in ranks] == [0, 0, 0]
    store.close()
    assert not path.exists()


def test_left_behind_by_a_crash_is_emptied(path: Path) -> None:
    crashed = run(path, 2, "store.set('stale', 'x'); os.kill(os.getpid(), 9)")
    crashed.communicate(timeout=20)
    assert path.stat().st_size > 0
    store = FileStore(path, 1)
    assert store.list_keys() == []
    store.close()
    assert not path.exists()


def test_a_torn_line_is_passed_over(path: Path) -> None:
    """A user dies in the middle of a write while another lives on."""
    store = FileStore(path, 1)
    store.set("k", "v")
    with open(path, "ab") as file:
        request = encode(Op.SET, [b"torn", b"x" * 100])
        file.write(len(request).to_bytes(4, "little") + request[:-5])
    other = store.clone()
    assert other.list_keys() == ["k"]
    other.set("l", "w")
    assert sorted(store.list_keys()) == ["k", "l"]
    other.close()
    store.close()


def test_symbolic_link(path: Path, tmp_path: Path) -> None:
    path.symlink_to(tmp_path / "target")
    with pytest.raises(DistStoreError, match="symbolic link"):
        FileStore(path, 1)
    assert not (tmp_path / "target").exists()


def test_somebody_elses_data_is_not_touched(path: Path) -> None:
    path.write_text("precious")
    path.chmod(0o600)
    with pytest.raises(DistStoreError, match="holds something else"):
        FileStore(path, 1)
    assert path.read_text() == "precious"
    path.chmod(0o666)
    with pytest.raises(DistStoreError, match="chmod 600"):
        FileStore(path, 1)


def test_directory_fifo_and_missing_directory(path: Path, tmp_path: Path) -> None:
    with pytest.raises(DistStoreError, match="directory"):
        FileStore(tmp_path, 1)
    os.mkfifo(path)
    with pytest.raises(DistStoreError, match="regular"):
        FileStore(path, 1)
    with pytest.raises(DistStoreError, match="No such file"):
        FileStore(tmp_path / "no" / "store", 1)


def test_other_owner(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path.touch(0o600)
    monkeypatch.setattr(os, "geteuid", lambda: 4242)
    with pytest.raises(DistStoreError, match="belongs to user"):
        FileStore(path, 1)


def test_damaged(path: Path) -> None:
    store = FileStore(path, 1)
    with open(path, "ab") as file:
        file.write(b"\xff" * 64)
    with pytest.raises(DistStoreError, match="damaged"):
        store.get("k")


def test_no_space(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = FileStore(path, 1)
    store.set("k", "v")
    written: list[int] = []

    def full(descriptor: int, data: memoryview, offset: int) -> int:
        """Half of it fits."""
        if written:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written.append(original(descriptor, data[:len(data) // 2], offset))
        return written[0]

    original = os.pwrite
    size = path.stat().st_size
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        with pytest.raises(DistStoreError, match="No space"):
            store.set("k", "w" * 100)
    assert path.stat().st_size == size
    assert store.get("k") == b"v"  # as the others see it
    store.close()


@contextlib.contextmanager
def tiny_file_system(directory: Path) -> Iterator[None]:
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16k", "none", directory], capture_output=True)
    if done.returncode:
        pytest.skip("mounting a file system needs privileges")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", directory], check=True)


def test_no_space_for_real(tmp_path: Path) -> None:
    with tiny_file_system(tmp_path):
        store = FileStore(tmp_path / "store", 1)
        with pytest.raises(DistStoreError, match="No space"):
            store.set("k", "v" * 20_000)
        store.set("k", "fits")
        assert store.get("k") == b"fits"
        store.close()


def test_stopped_holder_is_told(path: Path) -> None:
    """A process that is stopped while it holds the lock must not hang the others for ever."""
    body = ("import fcntl; from arraycomm.core.bootstrap.store import file\n"
            "file._lock(store._descriptor, fcntl.F_WRLCK, file._LOG_BYTE); print('held', flush=True); time.sleep(60)")
    holder = run(path, 1, body)
    assert holder.stdout is not None and holder.stdout.readline() == "held\n"
    holder.send_signal(signal.SIGSTOP)
    with pytest.raises(DistStoreError, match="timeout.*locked"):
        FileStore(path, 1, SHORT)
    holder.kill()
    holder.communicate()
    FileStore(path, 1, SHORT).close()


def test_fork_and_close(path: Path) -> None:
    store = FileStore(path, 1)
    assert refused_after_fork(lambda: store.set("k", "v"), store.close)
    store.set("k", "v")
    store.close()
    assert not path.exists()
    with pytest.raises(DistStoreError, match="closed"):
        store.get("k")


def test_removed_between_opening_and_locking(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    original = implementation._open

    def removed_by_the_last_user(name: str) -> int:
        descriptor = original(name)
        if not calls:
            os.unlink(name)
        calls.append(name)
        return descriptor

    monkeypatch.setattr(implementation, "_open", removed_by_the_last_user)
    first, second = FileStore(path, 2), FileStore(path, 2)
    first.set("k", "v")
    assert second.get("k") == b"v" and len(calls) == 3
    first.close()
    second.close()


def test_opening_while_the_last_one_leaves(path: Path) -> None:
    """Nobody ends up in a file that has just been removed."""
    def work(_: int) -> None:
        for _ in range(30):
            store = FileStore(path, 1)
            assert store.add("n", 1) >= 1
            store.close()

    at_once(4, work)
    assert not path.exists()
