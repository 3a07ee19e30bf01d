from __future__ import annotations

import fcntl
import io
import os
import resource
import socket
from pathlib import Path

import pytest

from arraycomm.backends.socket import segment
from arraycomm.core.base.errors import AuthFailed, DistNetworkError, ResourceError
from arraycomm.core.bootstrap.auth import Hello, Purpose


def _received(files: list[io.FileIO], size: int) -> io.FileIO:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        socket.send_fds(ours, [b"\x01"], [file.fileno() for file in files])
        return segment.receive(theirs, size)


def test_segment_travels() -> None:
    with segment.create(8192) as made, _received([made], 8192) as got:
        os.pwrite(made.fileno(), b"hello", 100)
        assert os.pread(got.fileno(), 5, 100) == b"hello"
        assert not os.get_inheritable(got.fileno())
        with pytest.raises(OSError):
            got.truncate(1)
        with pytest.raises(OSError):
            fcntl.fcntl(got, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)


def test_bad_segments_are_refused(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    with segment.create(8192) as made, io.FileIO(os.memfd_create("bare"), "r+") as bare, \
            io.FileIO(str(tmp_path / "file"), "w+") as file:
        with pytest.raises(DistNetworkError, match="8192 bytes where 4096"):
            _received([made], 4096)
        with pytest.raises(AuthFailed, match="sealed"):
            _received([bare], 0)
        with pytest.raises(AuthFailed, match="sealed"):
            _received([file], 0)
        with pytest.raises(AuthFailed, match="2 descriptors"):
            _received([made, made], 8192)
        with pytest.raises(AuthFailed, match="0 descriptors"):
            _received([], 8192)
    ours, theirs = socket.socketpair()
    ours.close()
    with theirs, pytest.raises(DistNetworkError, match="closed"):
        segment.receive(theirs, 8192)
    assert len(os.listdir("/proc/self/fd")) == before


def test_segment_is_handed_out_once_to_each() -> None:
    offers = segment.Offers()
    with segment.create(4096) as made:
        offers.offer(7, made, {1, 2})
    for sender, gets in ((1, True), (1, False), (3, False), (2, True)):
        ours, theirs = socket.socketpair()
        with theirs:
            offers.hand_out(ours, Hello("job", Purpose.SEGMENT, sender=sender, group=7))
            if gets:
                segment.receive(theirs, 4096).close()
            else:
                with pytest.raises(DistNetworkError):
                    segment.receive(theirs, 4096)
    assert 7 not in offers


def test_lent_memory_is_taken_without_a_handshake() -> None:
    before = len(os.listdir("/proc/self/fd"))
    lent = segment.Lent()
    with lent.take(8192) as made:
        for rank in (3, 5):
            taken = segment.take(os.getpid(), lent.name, 8192, rank)
            assert taken is not None
            with taken:
                os.pwrite(made.fileno(), b"hello", 100)
                assert os.pread(taken.fileno(), 5, 100) == b"hello"
                with pytest.raises(OSError):
                    taken.truncate(1)
        lent.hear()
        assert lent.taken == {3, 5}
        with pytest.raises(DistNetworkError, match="8192 bytes where 4096"):
            segment.take(os.getpid(), lent.name, 4096, 7)
    inode, rest = lent.name.split(" ", 1)
    assert segment.take(os.getpid(), f"{int(inode) + 1} {rest}", 8192, 9) is None
    lent.close()
    lent.close()
    assert segment.take(os.getpid(), lent.name, 8192, 9) is None
    assert len(os.listdir("/proc/self/fd")) == before


def test_who_comes_first_gives_lent_memory_its_size() -> None:
    lent = segment.Lent()
    taken = segment.take(os.getpid(), lent.name, 4096, 1)
    assert taken is not None
    with taken, lent.take(4096) as made:
        assert os.fstat(made.fileno()).st_size == 4096
    with pytest.raises(DistNetworkError, match="4096 bytes where 8192"):
        lent.take(8192)
    lent.close()


def test_memory_that_cannot_be_lent() -> None:
    before = len(os.listdir("/proc/self/fd"))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    least = os.dup(0)  # the lowest number that is free
    os.close(least)
    for descriptors in (0, 1):
        resource.setrlimit(resource.RLIMIT_NOFILE, (least + descriptors, hard))
        try:
            with pytest.raises(ResourceError, match="ulimit -n"):
                segment.Lent()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert len(os.listdir("/proc/self/fd")) == before


def _named(file: int, pipe: int) -> str:
    """As a hostile rank's card may name two descriptors of a process of its peers' user."""
    return " ".join(f"{os.fstat(end).st_ino} {end}" for end in (file, pipe))


def test_only_lent_memory_is_taken(tmp_path: Path) -> None:
    """A card may name any descriptor of any process of this user: nothing but memory that was made to be lent is written to."""
    before = len(os.listdir("/proc/self/fd"))
    read, write = os.pipe()
    victims = [io.FileIO(str(tmp_path / "data"), "w+"), io.FileIO("/dev/shm/arraycomm-test-lent", "w+"),
               io.FileIO(os.memfd_create("somebody's", os.MFD_ALLOW_SEALING), "r+"),
               io.FileIO(os.memfd_create("arraycomm"), "r+"),  # sealed against seals
               io.FileIO(os.memfd_create("arraycomm", os.MFD_ALLOW_SEALING), "r+")]
    for victim in victims:
        victim.write(b"kept")
    for victim in victims:
        for size in (4096, 0):
            try:
                assert segment.take(os.getpid(), _named(victim.fileno(), write), size, 1) is None
            except (AuthFailed, DistNetworkError):
                assert victim in victims[3:]
        assert os.pread(victim.fileno(), 100, 0) == b"kept"
        assert os.fstat(victim.fileno()).st_size == 4
    assert fcntl.fcntl(victims[4], fcntl.F_GET_SEALS) == 0
    for other in (read, write, os.open("/dev/null", os.O_RDWR), os.open("/dev/zero", os.O_RDWR)):
        assert segment.take(os.getpid(), _named(other, write), 4096, 1) is None
    os.close(other - 1)
    os.close(other)
    lent = segment.Lent()
    with lent.take(4096) as good:  # memory as it must be, beside what is no pipe
        for victim in victims:
            assert segment.take(os.getpid(), _named(good.fileno(), victim.fileno()), 4096, 1) is None
            assert os.fstat(victim.fileno()).st_size == 4
    for victim in victims:
        victim.close()
    os.unlink("/dev/shm/arraycomm-test-lent")
    os.close(read)
    os.close(write)
    lent.close()
    assert len(os.listdir("/proc/self/fd")) == before
