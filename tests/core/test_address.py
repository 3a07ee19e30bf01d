from __future__ import annotations

import socket
import struct

import pytest

from arraycomm.core.base.errors import DistNetworkError
from arraycomm.core.bootstrap import address
from arraycomm.core.bootstrap.address import Interface

from ..threads import at_once

V4, V6 = socket.AF_INET, socket.AF_INET6
MACHINE = [Interface("lo", V4, "127.0.0.1"), Interface("lo", V6, "::1"), Interface("eth0", V4, "10.0.0.1"),
           Interface("eth0", V6, "fd00::1"), Interface("eth1", V4, "10.0.1.1"), Interface("ib0", V4, "10.0.2.1"),
           Interface("docker0", V4, "172.17.0.1")]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A machine with several interfaces, on which the store's host routes out through eth0."""
    monkeypatch.setattr(address, "interfaces", lambda: MACHINE)
    for name in ("ARRAYCOMM_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "ARRAYCOMM_PORT_RANGE"):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


def test_own_interfaces() -> None:
    found = address.interfaces()
    assert Interface("lo", V4, "127.0.0.1") in found
    for interface in found:
        with socket.socket(interface.family) as sock:
            sock.bind((interface.address, 0))  # only an address of this machine can be bound


@pytest.mark.parametrize("pattern, names", [
    ("eth", ["eth0", "eth1"]), ("eth1,eth0", ["eth1", "eth0"]), ("eth0", ["eth0"]), ("ib,eth1", ["ib0", "eth1"]),
    ("=eth0", ["eth0"]), ("=ib0,eth1", ["ib0", "eth1"]), ("^docker,lo", ["eth0", "eth1", "ib0"]),
    ("^=docker0,lo,ib0", ["eth0", "eth1"]), (" eth0 , ib0 ", ["eth0", "ib0"])])
def test_patterns(pattern: str, names: list[str]) -> None:
    assert list(dict.fromkeys(i.name for i in address.select(pattern, MACHINE))) == names


@pytest.mark.parametrize("pattern", ["wlan", "=eth", "^lo,eth,ib,docker"])
def test_pattern_that_fits_nothing(pattern: str) -> None:
    with pytest.raises(DistNetworkError, match="ARRAYCOMM_SOCKET_IFNAME.*lo, eth0, eth1, ib0, docker0"):
        address.select(pattern, MACHINE)


def test_loopback() -> None:
    assert all(map(address.is_loopback, ("127.0.0.1", "127.0.1.1", "::1", "::ffff:127.0.0.1", "::1%lo")))
    assert not any(map(address.is_loopback, ("10.0.0.1", "0.0.0.0", "::", "fe80::1%eth0")))
    assert all(map(address.means_loopback, ("localhost", "LOCALHOST", "localhost.localdomain", "127.0.1.1", "::1")))
    assert not any(map(address.means_loopback, ("node1", "10.0.0.1", "localhost1")))


def test_routing_address() -> None:
    assert address.routing_address("127.0.0.1", 1) == "127.0.0.1"
    assert address.routing_address("::1", 1) == "::1"
    with pytest.raises(DistNetworkError, match="nowhere.invalid"):
        address.routing_address("nowhere.invalid", 1)


def test_published_on_loopback(machine: pytest.MonkeyPatch) -> None:
    assert address.publish_addresses("127.0.0.1", 1) == ["127.0.0.1"]
    assert address.publish_addresses("::1", 1) == ["::1"]
    assert address.listen_addresses("127.0.0.1") == ["127.0.0.1"]


def test_published_on_chosen_interfaces(machine: pytest.MonkeyPatch) -> None:
    machine.setenv("GLOO_SOCKET_IFNAME", "ib0")
    assert address.publish_addresses("127.0.0.1", 1) == ["10.0.2.1"]
    machine.setenv("ARRAYCOMM_SOCKET_IFNAME", "eth")
    assert address.publish_addresses("127.0.0.1", 1) == ["10.0.0.1", "10.0.1.1"]
    assert address.publish_addresses("::1", 1) == ["fd00::1"]
    machine.setenv("ARRAYCOMM_SOCKET_IFNAME", "ib0")
    assert address.publish_addresses("::1", 1) == ["10.0.2.1"]  # it has no other


def test_hostname_that_resolves_to_127_0_1_1(machine: pytest.MonkeyPatch) -> None:
    """Debian's /etc/hosts: rank 0 is told its own name, and must not tell the others a loopback address."""
    machine.setattr(socket, "getaddrinfo", lambda *a, **k: [(V4, socket.SOCK_STREAM, 6, "", ("127.0.1.1", 0))])
    machine.setattr(address, "outside_address", lambda: "10.0.0.1")
    assert address.publish_addresses("node1", 1) == ["10.0.0.1"]
    assert address.listen_addresses("node1") == ["127.0.1.1", "10.0.0.1"]


def test_outside_address_without_default_route(machine: pytest.MonkeyPatch) -> None:
    def unreachable(*_: object) -> str:
        raise OSError(101, "Network is unreachable")

    machine.setattr(address, "_source_address", unreachable)
    assert address.outside_address() == "10.0.0.1"
    machine.setattr(address, "interfaces", lambda: MACHINE[:2])
    with pytest.raises(DistNetworkError, match="no address but loopback"):
        address.outside_address()


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_listen(host: str) -> None:
    with address.listen(host) as sock:
        port = sock.getsockname()[1]
        socket.create_connection((host, port)).close()
        with pytest.raises(DistNetworkError, match=f"port {port}.*another process has this port"):
            address.listen(host, port)


def test_port_is_free_again_at_once() -> None:
    """Connections in TIME_WAIT do not keep the next job from its port."""
    with address.listen("127.0.0.1") as sock:
        where = sock.getsockname()
        client = socket.create_connection(where)
        server, _ = sock.accept()
        server.close()
        assert client.recv(1) == b""
        client.close()
    address.listen(*where).close()


def test_address_of_another_machine() -> None:
    with pytest.raises(DistNetworkError, match="198.51.100.1.*MASTER_ADDR"):
        address.listen("198.51.100.1")


def test_port_range(machine: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        first = probe.getsockname()[1]
    machine.setenv("ARRAYCOMM_PORT_RANGE", f"{first}-{first + 2}")
    taken = []
    with pytest.raises(DistNetworkError, match=f"ARRAYCOMM_PORT_RANGE={first}-{first + 2} .3 ports tried"):
        while True:
            taken.append(address.listen("127.0.0.1"))
    assert 1 <= len(taken) <= 3 and all(first <= s.getsockname()[1] <= first + 2 for s in taken)
    for sock in taken:
        sock.close()


@pytest.mark.parametrize("text", ["x", "5-4", "0-10", "1-70000", "1-2-3", "-5"])
def test_bad_port_range(machine: pytest.MonkeyPatch, text: str) -> None:
    machine.setenv("ARRAYCOMM_PORT_RANGE", text)
    with pytest.raises(ValueError, match="ARRAYCOMM_PORT_RANGE must be first-last"):
        address.listen("127.0.0.1")


def test_two_listeners_race_for_one_port(machine: pytest.MonkeyPatch) -> None:
    """SO_REUSEADDR lets both bind; only one may listen, and the other has to move on."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        first = probe.getsockname()[1]
    machine.setenv("ARRAYCOMM_PORT_RANGE", f"{first}-{first + 40}")
    made = at_once(8, lambda _: address.listen("127.0.0.1"))
    assert len({sock.getsockname()[1] for sock in made}) == 8
    for sock in made:
        assert struct.unpack("i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN, 4))[0] == 1
        sock.close()


def test_the_interface_of_a_link_local_address() -> None:
    """It belongs to the address, and each host has its own name for it."""
    name = socket.if_indextoname(1)
    assert address.numeric(f"fe80::1%{name}", 5) == ("fe80::1", 5, 0, 1)
    assert address.numeric("127.0.0.1", 5) == ("127.0.0.1", 5)
    assert address.from_here("fe80::1%far", "fe80::2%near") == "fe80::1%near"
    assert address.from_here("fe80::1%far", "10.0.0.1") == "fe80::1%far"
    assert address.from_here("10.0.0.2", "fe80::2%near") == "10.0.0.2"
