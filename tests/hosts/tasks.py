"""What ranks on several hosts are asked. Tasks for tests/faults/job.py."""

from __future__ import annotations

import ctypes
import os
import socket
import tempfile
from typing import Any

from ..faults.job import Context, Holdings
from ..faults.survivors import cycle_on as cycle_on

_CLONE_NEWNS, _CLONE_NEWUTS = 0x00020000, 0x04000000
_MS_BIND, _MS_REC, _MS_PRIVATE = 0x1000, 0x4000, 1 << 18


def places(context: Context) -> tuple[list[int], int]:
    """The host of every rank, as this one sees it, and how many memory files it has mapped."""
    communicator: Any = context.world._communicator
    return communicator._endpoint.peers.hosts_of(range(context.size)), Holdings.now().memory_files


def misname_this_host(context: Context) -> None:
    """As Debian installs it: the host's name is an address of loopback. In namespaces of this process alone."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNS | _CLONE_NEWUTS) or libc.mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE, None):
        raise OSError(ctypes.get_errno(), "unshare")
    name = f"misnamed-{context.rank}"
    socket.sethostname(name)
    with tempfile.NamedTemporaryFile("w") as table:
        table.write(f"127.0.0.1 localhost\n127.0.1.1 {name}\n")
        table.flush()
        if libc.mount(table.name.encode(), b"/etc/hosts", None, _MS_BIND, None):
            raise OSError(ctypes.get_errno(), f"mount: {os.strerror(ctypes.get_errno())}")
    assert socket.gethostbyname(name) == "127.0.1.1"
