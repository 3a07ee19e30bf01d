"""A process's state from the kernel: running, sleeping or stopped, its CPU time, and its TCP connections with their byte counts
(sock_diag(7)).

It is read from another process, so the rank has no overhead. The kernel has no counters for shared memory.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import time
from collections.abc import Iterator
from typing import Any

_STATES = {"R": "running", "S": "sleeping", "D": "waiting for a device", "T": "stopped", "t": "stopped by a debugger",
           "Z": "ended", "X": "ended", "I": "idle"}  # proc(5)
_TICK, _PAGE = 1 / os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")


class Process:
    """One process, sampled repeatedly."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._before = (time.monotonic(), 0.0)

    def look(self) -> dict[str, Any]:
        """state; cpu: CPUs used since the last sample; threads; memory in bytes. Empty after the process has ended."""
        try:
            with open(f"/proc/{self._pid}/stat", "rb", buffering=0) as file:
                fields = file.read().rpartition(b")")[2].split()
        except OSError:
            return {}
        state, used, now = fields[0].decode(), (int(fields[11]) + int(fields[12])) * _TICK, time.monotonic()
        then, before = self._before
        self._before = (now, used)
        return {"state": _STATES.get(state, state), "cpu": max(used - before, 0.0) / max(now - then, _TICK) if before else 0.0,
                "threads": int(fields[17]), "memory": int(fields[21]) * _PAGE}


_SOCK_DIAG, _BY_FAMILY, _DUMP = 4, 20, 0x301  # NETLINK_SOCK_DIAG, SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST | NLM_F_DUMP
_DONE, _ERROR = 3, 2  # NLMSG_DONE, NLMSG_ERROR
_INFO = 2  # INET_DIAG_INFO: struct tcp_info
_ESTABLISHED = 1 << 1
_HEAD, _ANSWER, _ATTRIBUTE = struct.Struct("=IHHII"), struct.Struct("=BBBB48sIIIII"), struct.Struct("=HH")
_RTT, _RETRANSMITS, _ACKED = 68, 100, 120  # linux/tcp.h: tcpi_rtt (us), tcpi_total_retrans, tcpi_bytes_acked and _received


def connections(pid: int) -> list[dict[str, Any]]:
    """local and peer address, sent and received bytes, rtt in seconds, retransmitted segments, of each established one.

    Raises OSError if the kernel refuses the request.
    """
    mine = _inodes(pid)
    if not mine:
        return []
    return [found for family in (socket.AF_INET, socket.AF_INET6) for inode, found in _established(family) if inode in mine]


def _inodes(pid: int) -> set[int]:
    found = set()
    for name in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(OSError):  # closed since it was listed
            kind, _, inode = os.readlink(f"/proc/{pid}/fd/{name}").partition(":")
            if kind == "socket":
                found.add(int(inode.strip("[]")))
    return found


def _established(family: int) -> Iterator[tuple[int, dict[str, Any]]]:
    wanted = struct.pack("=BBBBI48x", family, socket.IPPROTO_TCP, 1 << (_INFO - 1), 0, _ESTABLISHED)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _SOCK_DIAG) as kernel:
        kernel.settimeout(1.0)
        kernel.send(_HEAD.pack(_HEAD.size + len(wanted), _BY_FAMILY, _DUMP, 1, 0) + wanted)
        while True:
            data = memoryview(kernel.recv(1 << 18))
            while data:
                length, kind, *_ = _HEAD.unpack_from(data)
                if kind == _DONE:
                    return
                if kind == _ERROR:
                    number = -struct.unpack_from("=i", data, _HEAD.size)[0]
                    raise OSError(number, os.strerror(number))
                yield _connection(family, data[_HEAD.size : length])
                data = data[(length + 3) & ~3 :]


def _connection(family: int, message: memoryview) -> tuple[int, dict[str, Any]]:
    *_, ends, _expires, _read, _write, _user, inode = _ANSWER.unpack_from(message)
    ports, size = struct.unpack_from("!HH", ends), 16 if family == socket.AF_INET6 else 4
    local, peer = (f"{socket.inet_ntop(family, ends[at : at + size])}:{port}"
                   for at, port in zip((4, 20), ports, strict=True))
    found: dict[str, Any] = {"local": local, "peer": peer}
    rest = message[_ANSWER.size :]
    while len(rest) >= _ATTRIBUTE.size:
        length, kind = _ATTRIBUTE.unpack_from(rest)
        if length < _ATTRIBUTE.size:
            break
        info = rest[_ATTRIBUTE.size : length]
        if kind == _INFO and len(info) >= _ACKED + 16:
            sent, received = struct.unpack_from("=QQ", info, _ACKED)
            (rtt,), (again,) = struct.unpack_from("=I", info, _RTT), struct.unpack_from("=I", info, _RETRANSMITS)
            found |= {"sent": sent, "received": received, "rtt": rtt / 1e6, "retransmits": again}
        rest = rest[(length + 3) & ~3 :]
    return inode, found
