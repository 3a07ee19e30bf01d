"""The user id of the peer of a TCP connection over loopback, from the kernel.

Queried by netlink (sock_diag(7)), which looks up one connection in a few microseconds. If netlink is not permitted, from
/proc/net/tcp, which lists the whole hash table and takes milliseconds.
"""

from __future__ import annotations

import errno
import socket
import struct

from .address import MAPPED, packed

_SOCK_DIAG = 4  # NETLINK_SOCK_DIAG
_BY_FAMILY = 20  # SOCK_DIAG_BY_FAMILY
_REQUEST = 1  # NLM_F_REQUEST
_HEAD = struct.Struct("=IHHII")  # nlmsghdr
_ANY = 0xFFFFFFFF
_ANSWER = struct.Struct("=BBBB48sIIIII")  # inet_diag_msg; the last two are user and inode
_NO_NETLINK = (errno.EPERM, errno.EACCES, errno.EAFNOSUPPORT, errno.EPROTONOSUPPORT, errno.EOPNOTSUPP)


def user(sock: socket.socket) -> int | None:
    """The user id; None if this system has neither source. Raises ConnectionAbortedError if the peer has closed, OSError."""
    found = _by_netlink(sock)
    return _by_table(sock) if found is None else found


def _by_netlink(sock: socket.socket) -> int | None:
    """None if netlink has no answer."""
    theirs, ours = sock.getpeername(), sock.getsockname()
    ends = struct.pack("!HH", theirs[1], ours[1]) + b"".join(packed(end[0]).ljust(16, b"\0") for end in (theirs, ours))
    wanted = struct.pack("=BBBBI", sock.family, socket.IPPROTO_TCP, 0, 0, _ANY) + ends + struct.pack("=III", 0, _ANY, _ANY)
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _SOCK_DIAG) as kernel:
            kernel.send(_HEAD.pack(_HEAD.size + len(wanted), _BY_FAMILY, _REQUEST, 1, 0) + wanted)
            answer = kernel.recv(4096)
    except OSError as error:
        if error.errno in _NO_NETLINK:
            return None
        raise
    if _HEAD.unpack_from(answer)[1] != _BY_FAMILY:
        return None  # an error: no such connection, or a kernel without this
    *_, uid, inode = _ANSWER.unpack_from(answer, _HEAD.size)
    if not inode:  # closed by its process: the kernel shows such sockets as root's
        raise ConnectionAbortedError
    return int(uid)


def _by_table(sock: socket.socket) -> int | None:
    # The peer of an IPv4 connection may be a dual-stack socket, as in torch's clients.
    tables = [("tcp6", b"")] if sock.family == socket.AF_INET6 else [("tcp", b""), ("tcp6", MAPPED)]
    known = False
    for table, before in tables:
        ends = f"{_kernel_name(sock.getpeername(), before)} {_kernel_name(sock.getsockname(), before)} "
        try:
            with open(f"/proc/net/{table}", encoding="ascii") as rows:
                # "  sl  local_address rem_address   st tx_queue:rx_queue tr:tm->when retrnsmt   uid ..."
                lines = [row.partition(": ")[2] for row in rows]
        except FileNotFoundError:
            continue
        known = True
        for line in lines:
            if line.startswith(ends):
                return int(line.split()[6])
    if not known:
        return None
    raise ConnectionAbortedError


def _kernel_name(address: tuple[str, int], before: bytes = b"") -> str:
    """"0100007F:1F90" for 127.0.0.1 port 8080 on a little-endian machine."""
    raw = before + packed(address[0])
    words = struct.unpack(f"={len(raw) // 4}I", raw)
    return "".join(f"{word:08X}" for word in words) + f":{address[1]:04X}"
