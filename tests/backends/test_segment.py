from __future__ import annotations

import fcntl
import io
import os
import socket
from pathlib import Path

import pytest

from arraycomm.backends.socket import segment
from arraycomm.core.base.errors import AuthFailed, DistNetworkError
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
