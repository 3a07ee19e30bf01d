"""Addresses of this machine: selects the one that peers can reach, and listens on it only."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import struct
from typing import Any, NamedTuple

from ..base import settings
from ..base.errors import DistNetworkError

_SIOCGIFFLAGS, _SIOCGIFADDR = 0x8913, 0x8915  # linux/sockios.h
_IFF_UP = 1
MAPPED = bytes(10) + b"\xff\xff"  # prefix of an IPv4-mapped IPv6 address
_LOOPBACK6 = bytes(15) + b"\x01"
_LOOPBACKS = (("127.0.0.1", socket.AF_INET), ("::1", socket.AF_INET6))
_LINK_SCOPE = "20"  # /proc/net/if_inet6: link-local addresses, which need an interface name
_BACKLOG = 1024  # a thousand ranks may connect at once; the kernel lowers it to net.core.somaxconn
# Addresses reserved for documentation (RFC 5737, RFC 3849): nothing answers there, but the route is the default route.
_SOMEWHERE = {socket.AF_INET: "192.0.2.1", socket.AF_INET6: "2001:db8::1"}


class Interface(NamedTuple):
    name: str
    family: socket.AddressFamily
    address: str


def interfaces() -> list[Interface]:
    """The addresses of the interfaces that are up, in the kernel's order; IPv6 without link-local ones."""
    found = []
    ipv6 = _ipv6_addresses()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for _, name in socket.if_nameindex():
            request = struct.pack("16s24x", name.encode())
            try:
                flags = struct.unpack("16xH", fcntl.ioctl(sock, _SIOCGIFFLAGS, request)[:18])[0]
            except OSError:
                continue  # removed since it was listed
            if not flags & _IFF_UP:
                continue
            try:
                raw = fcntl.ioctl(sock, _SIOCGIFADDR, request)[20:24]
                found.append(Interface(name, socket.AF_INET, socket.inet_ntoa(raw)))
            except OSError as error:
                if error.errno not in (errno.EADDRNOTAVAIL, errno.ENODEV):
                    raise DistNetworkError(f"cannot read the address of interface {name}: {error.strerror}") from error
            found += [Interface(name, socket.AF_INET6, address) for owner, address in ipv6 if owner == name]
    return found


def _ipv6_addresses() -> list[tuple[str, str]]:
    try:
        with open("/proc/net/if_inet6", encoding="ascii") as table:
            rows = [line.split() for line in table]
    except FileNotFoundError:
        return []  # a kernel without IPv6
    return [(row[5], socket.inet_ntop(socket.AF_INET6, bytes.fromhex(row[0]))) for row in rows if row[3] != _LINK_SCOPE]


def select(pattern: str, among: list[Interface]) -> list[Interface]:
    """The interfaces that match a pattern, in its order: prefixes `eth,ib0`, exact `=eth0,eth1`, all but `^docker,lo`.

    `^=` excludes exact names. This is NCCL_SOCKET_IFNAME's grammar. Raises DistNetworkError when nothing is left.
    """
    exclude, rest = pattern.startswith("^"), pattern.removeprefix("^")
    exact = rest.startswith("=")
    names = [name.strip() for name in rest.removeprefix("=").split(",") if name.strip()]

    def fits(interface: Interface, name: str) -> bool:
        return interface.name == name if exact else interface.name.startswith(name)

    if exclude:
        chosen = [i for i in among if not any(fits(i, name) for name in names)]
    else:
        chosen = list(dict.fromkeys(i for name in names for i in among if fits(i, name)))
    if not chosen:
        known = ", ".join(dict.fromkeys(i.name for i in among)) or "none"
        raise DistNetworkError(f"no interface fits ARRAYCOMM_SOCKET_IFNAME (or GLOO_SOCKET_IFNAME) = {pattern!r}; this "
                               f"machine has: {known}")
    return chosen


def resolve(host: str, port: int = 0) -> list[tuple[socket.AddressFamily, str]]:
    """The addresses of a host, in the resolver's order. Raises DistNetworkError naming the host."""
    with contextlib.suppress(ValueError):
        packed(host)  # a numeric address needs no resolver, whose idna codec is slow to load
        return [(socket.AF_INET6 if ":" in host else socket.AF_INET, host)]
    try:
        rows = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise DistNetworkError(f"cannot resolve the host {host!r}: {error}; set MASTER_ADDR to an address that this "
                               "machine can reach") from None
    return list(dict.fromkeys((family, str(address[0])) for family, _, _, _, address in rows))


def is_loopback(address: str) -> bool:
    """Whether a numeric address is of the loopback interface."""
    raw = packed(address)
    if raw.startswith(MAPPED):
        raw = raw[len(MAPPED):]
    return raw[0] == 127 if len(raw) == 4 else raw == _LOOPBACK6


def loopback_address() -> str:
    """The loopback address: 127.0.0.1, or ::1 on a host that has only that."""
    for address, family in _LOOPBACKS:
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as sock:
                sock.bind((address, 0))
                return address
        except OSError:
            continue  # if there is neither, listen() raises
    return _LOOPBACKS[0][0]


def packed(address: str) -> bytes:
    """The 4 or 16 bytes of a numeric address. Raises ValueError for anything else."""
    plain = address.partition("%")[0]
    try:
        return socket.inet_pton(socket.AF_INET6 if ":" in plain else socket.AF_INET, plain)
    except OSError:
        raise ValueError(f"{address!r} is not a numeric address") from None


def means_loopback(host: str) -> bool:
    """Whether this host name stands for the loopback interface, unlike a host's own name that resolves to 127.0.1.1."""
    if host.lower() == "localhost" or host.lower().startswith(("localhost.", "ip6-localhost")):
        return True
    try:
        return is_loopback(host)
    except ValueError:
        return False


def routing_address(host: str, port: int) -> str:
    """The local source address of packets to a host. Nothing is sent. Raises DistNetworkError."""
    reasons = []
    for family, address in resolve(host, port):
        try:
            return _source_address(family, address, port)
        except OSError as error:
            reasons.append(f"{address}: {error.strerror}")
    raise DistNetworkError(f"this machine has no route to {host!r} ({'; '.join(reasons)}); check MASTER_ADDR and the "
                           "network, or set ARRAYCOMM_SOCKET_IFNAME")


def _source_address(family: socket.AddressFamily, address: str, port: int) -> str:
    with socket.socket(family, socket.SOCK_DGRAM) as sock:
        sock.connect(numeric(address, port or 9))
        return own_address(sock)


def numeric(address: str, port: int) -> Any:
    """A numeric address for connect() and bind(), with the scope id: a plain pair would lose that of fe80::1%eth0."""
    # as bytes: text would load the idna codec
    return socket.getaddrinfo(address.encode(), port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)[0][4]


def own_address(sock: socket.socket) -> str:
    """A socket's address, including the scope of a link-local one (fe80::1%eth0), which Python omits."""
    address, _, *more = sock.getsockname()
    scope = more[1] if more else 0
    return f"{address}%{socket.if_indextoname(scope)}" if scope and "%" not in address else str(address)


def from_here(address: str, mine: str) -> str:
    """A peer's address with this host's scope id: interface names are local to a host, and `mine` is on the same link."""
    plain, named, _ = address.partition("%")
    scope = mine.partition("%")[2]
    return f"{plain}%{scope}" if named and scope else address


def outside_address() -> str:
    """The address of the default route, else of the first interface that is not loopback. Raises DistNetworkError."""
    for family, somewhere in _SOMEWHERE.items():
        try:
            return _source_address(family, somewhere, 9)
        except OSError:
            continue  # no default route for this family
    for interface in interfaces():
        if not is_loopback(interface.address):
            return interface.address
    raise DistNetworkError("this machine has no address but loopback; ranks on other hosts cannot reach it")


def select_addresses(like: str = "") -> list[str]:
    """The addresses selected by ARRAYCOMM_SOCKET_IFNAME, empty if it is not set. Raises DistNetworkError.

    All of one family, because peers need a common one: that of the address `like` if possible, otherwise IPv4.
    """
    pattern = settings.get("ARRAYCOMM_SOCKET_IFNAME")
    if not pattern:
        return []
    chosen = select(pattern, interfaces())
    wanted = socket.AF_INET6 if ":" in like else socket.AF_INET
    return [i.address for i in chosen if i.family == wanted] or [i.address for i in chosen]


def publish_addresses(store_host: str, store_port: int) -> list[str]:
    """The addresses that this rank publishes to its peers, one per interface to use.

    Those of ARRAYCOMM_SOCKET_IFNAME; else the source address of the route to the store, which may be loopback.
    If the hostname resolves to 127.0.1.1 on its own machine, the default route's address.
    Raises DistNetworkError.
    """
    route = routing_address(store_host, store_port)
    if is_loopback(route) and not means_loopback(store_host):
        return select_addresses(route) or [outside_address()]
    return select_addresses(route) or [route]


def listen_addresses(host: str) -> list[str]:
    """Listen addresses for a store server at `host`: only those that its clients resolve."""
    addresses = [address for _, address in resolve(host)]
    if not means_loopback(host) and all(is_loopback(address) for address in addresses):
        # Debian's 127.0.1.1: only this machine resolves its name so; other hosts connect to the real address.
        addresses.append(outside_address())
    return addresses


def listen(address: str, port: int = 0) -> socket.socket:
    """A socket that listens on one numeric address. Port 0: a free port, within ARRAYCOMM_PORT_RANGE if that is set.

    Raises DistNetworkError with the address and a remedy.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    if port == 0:
        return bind_in_range(address, family)
    try:
        return _listen(family, address, port)
    except OSError as error:
        raise DistNetworkError(f"The server socket has failed to listen on any local network address: {address} port {port}: "
                               f"{error.strerror}; {_remedy(error, address)}") from error


def bind_in_range(address: str, family: socket.AddressFamily) -> socket.socket:
    """Listens on a free port of ARRAYCOMM_PORT_RANGE, or on any where that is not set. Raises DistNetworkError."""
    ports = port_range()
    start = os.getpid() % len(ports)  # spreads ranks that start together over the ports
    for port in [*ports[start:], *ports[:start]]:
        try:
            return _listen(family, address, port)
        except OSError as error:
            if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                raise DistNetworkError(f"cannot listen on {address}: {error.strerror}; {_remedy(error, address)}") from error
    raise DistNetworkError(f"no free port on {address} in ARRAYCOMM_PORT_RANGE={settings.get('ARRAYCOMM_PORT_RANGE')} "
                           f"({len(ports)} ports tried); widen the range: each rank needs one, the store one more")


def port_range() -> range:
    """The ports that listening sockets may take; range(0, 1) leaves it to the kernel. Raises ValueError."""
    text = settings.get("ARRAYCOMM_PORT_RANGE")
    if not text:
        return range(0, 1)
    first, _, last = text.partition("-")
    try:
        ports = range(int(first), int(last or first) + 1)
    except ValueError:
        ports = range(0)
    if not ports or ports[0] < 1 or ports[-1] > 65535:
        raise ValueError(f"ARRAYCOMM_PORT_RANGE must be first-last with 1 <= first <= last <= 65535, got {text!r}")
    return ports


def _listen(family: socket.AddressFamily, address: str, port: int) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        # Connections of an earlier job in TIME_WAIT must not block the port; a listener still does, at listen().
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind(numeric(address, port))
        sock.listen(_BACKLOG)
        return sock
    except BaseException:
        sock.close()
        raise


def _remedy(error: OSError, address: str) -> str:
    if error.errno == errno.EADDRINUSE:
        return "another process has this port: choose another one (MASTER_PORT, or `arraycomm-run --master-port`)"
    if error.errno == errno.EADDRNOTAVAIL and is_loopback(address):
        return "this machine's loopback does not have the address: see `ip address show lo`"
    if error.errno == errno.EADDRNOTAVAIL:
        return "this machine does not have the address: rank 0 must run on the host that MASTER_ADDR names"
    if error.errno == errno.EACCES:
        return "choose a port above 1023"
    return "check MASTER_ADDR and ARRAYCOMM_SOCKET_IFNAME"
