"""Groups over several hosts: shared memory inside each, TCP between them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ..faults import checks
from ..faults.job import Job, closed_jobs
from . import tasks
from .hosts import Hosts, connections, listeners, missing

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing() or "-")

SECRET = {"ARRAYCOMM_SECRET": "54" * 32}
PER_HOST = 2
Jobs = Callable[..., Job]


@pytest.fixture
def job() -> Iterator[Jobs]:
    """job(hosts, {variables}) -> Job with two ranks on each, rank 0 hosting the store."""
    def make(hosts: Hosts, environ: dict[str, str] | None = None, *, secret: dict[str, str] = SECRET, per_host: int = PER_HOST,
             **options: Any) -> Job:
        spaces = [name for name in hosts.names for _ in range(per_host)]
        place = {"MASTER_ADDR": hosts.address(0), "MASTER_PORT": "29400", "LOCAL_WORLD_SIZE": str(per_host)}
        return Job(len(spaces), environ={**place, **secret, **(environ or {})}, spaces=spaces, tasks=tasks, **options)

    yield from closed_jobs(make)


@pytest.mark.parametrize("count", [2, 4])
def test_all_operations(job: Jobs, count: int) -> None:
    with Hosts(count) as hosts:
        ranks = job(hosts)
        ranks.call("cycle", limit=60)
        placed = ranks.call("places")
        for rank, (numbers, shared) in placed.items():
            assert numbers == [other // PER_HOST for other in range(ranks.size)], rank
            assert shared == 1, "the ranks of a host share one memory file"
        for host, name in enumerate(hosts.names):
            between = {peer for _, _, peer, _ in connections(name)} - {hosts.address(host)}
            assert between <= {hosts.address(other) for other in range(count)} and between
            data = [row for row in connections(name) if row[0] == row[2] and 29400 not in (row[1], row[3])]
            assert not data, "ranks of one host talk through memory"
        checks.clean(ranks, range(ranks.size), poisoned=False)


def test_published_address_is_the_one_that_routes_to_the_store(job: Jobs) -> None:
    """Whatever the hosts believe that their own names mean."""
    with Hosts(2) as hosts:
        ranks = job(hosts, opened=False)
        ranks.call("misname_this_host")
        ranks.call("open_group", timeout=20)
        for rank, (addresses, _) in ranks.call("listening").items():
            assert [address for address, _ in addresses] == [hosts.address(rank // PER_HOST)]
        ranks.call("total")


def test_two_interfaces_share_the_connections(job: Jobs) -> None:
    with Hosts(2, links=2) as hosts:
        ranks = job(hosts, {"ARRAYCOMM_SOCKET_IFNAME": "eth0,eth1", "ARRAYCOMM_ALGORITHM": "all_reduce=ring"}, per_host=1)
        ranks.call("cycle")
        used = Counter((local, peer) for local, _, peer, _ in connections(hosts.names[0]))
        print(used)
        for link in range(2):
            assert used[hosts.address(0, link), hosts.address(1, link)] >= 2
        crossed = [pair for pair in used if pair[0].split(".")[2] != pair[1].split(".")[2]]
        assert not crossed


def test_interfaces_carry_what_they_can(job: Jobs) -> None:
    """A slow interface does not make the fast one wait for its turn."""
    with Hosts(2, links=2) as hosts:
        for host in range(2):
            hosts.slow(host, "20mbit", link=0)
        ranks = job(hosts, {"ARRAYCOMM_SOCKET_IFNAME": "eth0,eth1"}, per_host=1)
        ranks.call("total", count=2_000_000)
        for host in range(2):
            slow, fast = (hosts.sent(host, link) for link in range(2))
            print(f"host {host} sent {slow} bytes over the slow interface, {fast} over the fast one")
            assert fast > 2 * slow


def test_without_a_secret(job: Jobs) -> None:
    with Hosts(2) as hosts:
        ranks = job(hosts, secret={}, opened=False)
        ranks.begin("open_group", timeout=3)
        answers = ranks.answers()
        assert answers[0].error == "AuthFailed", answers[0].trace
        for setting in ("ARRAYCOMM_SECRET", "ARRAYCOMM_INSECURE=1"):
            assert setting in answers[0].text, answers[0]
        assert all(answer.error for answer in answers.values())


def test_without_a_secret_when_told_so(job: Jobs) -> None:
    with Hosts(2) as hosts:
        ranks = job(hosts, {"ARRAYCOMM_INSECURE": "1"}, secret={})
        ranks.call("total")


def test_port_range(job: Jobs) -> None:
    """Every listening socket, and so every firewall's hole, is in it."""
    with Hosts(2) as hosts:
        ranks = job(hosts, {"ARRAYCOMM_PORT_RANGE": "24000-24009", "MASTER_PORT": "24009"})
        ranks.call("cycle", counts=(1, 5000))
        for name in hosts.names:
            ports = [port for _, port in listeners(name)]
            assert len(ports) >= PER_HOST and all(24000 <= port <= 24009 for port in ports), ports
            for _, port, _, peer_port in connections(name):
                assert 24000 <= port <= 24009 or 24000 <= peer_port <= 24009


def test_port_range_too_small(job: Jobs) -> None:
    with Hosts(2) as hosts:
        ranks = job(hosts, {"ARRAYCOMM_PORT_RANGE": "24000-24000", "MASTER_PORT": "24000"}, opened=False)
        ranks.begin("open_group", timeout=3)
        answer = ranks.answers()[0]
        assert answer.error == "DistNetworkError" and re.search(r"no free port .*24000-24000", answer.text), answer


@pytest.mark.parametrize("way", ["both ways", "one way"])
def test_black_hole(job: Jobs, way: str) -> None:
    """A host that cannot be reached any more: both sides know, each of the other, and neither hangs."""
    with Hosts(2) as hosts:
        ranks = job(hosts, {"ARRAYCOMM_SILENCE": "1", "ARRAYCOMM_HEARTBEAT": "0.2"})
        ranks.begin("cycle_forever", counts=(5000,))
        ranks.answers()
        if way == "both ways":
            hosts.unplug(1)
        else:
            hosts.lose(1, 100)
        since = ranks.now()
        for rank, answer in ranks.answers().items():
            print(f"rank {rank} knew after {1000 * (answer.at - since):.0f} ms")
            assert answer.at - since < 1.2 + checks.SLACK
            if way == "one way" and answer.error == "Aborted":  # those who do not hear it have told it so
                assert "declared lost by the others: unresponsive" in answer.text, answer
                continue
            assert answer.error == "PeerLost" and "unresponsive" in answer.text, answer
            assert answer.ranks[0] // PER_HOST != rank // PER_HOST or way == "one way"
        checks.clean(ranks, range(ranks.size))


def _go_on(ranks: Job, parts: list[list[int]]) -> None:
    """Each of these ranks goes on in a group of its part, whatever it had in between."""
    for part in parts:
        for rank in part:
            while (answer := ranks.answer(rank)).value != part:
                assert not answer.error, answer.trace


def test_going_on_without_a_host(job: Jobs) -> None:
    """The host of rank 0 and of the store, all of it at once; then one more rank."""
    with Hosts(3) as hosts:
        ranks = job(hosts)
        ranks.begin("cycle_on")
        ranks.answers()
        ranks.kill(0)
        ranks.kill(1)
        _go_on(ranks, [[2, 3, 4, 5]])
        ranks.kill(3)
        _go_on(ranks, [[2, 4, 5]])


def test_each_part_of_a_network_goes_on(job: Jobs) -> None:
    with Hosts(2) as hosts:
        ranks = job(hosts, {"ARRAYCOMM_SILENCE": "1", "ARRAYCOMM_HEARTBEAT": "0.2"})
        ranks.begin("cycle_on")
        ranks.answers()
        hosts.unplug(1)
        _go_on(ranks, [[0, 1], [2, 3]])


def test_reset_connections(job: Jobs) -> None:
    with Hosts(2) as hosts:
        ranks = job(hosts)
        ranks.begin("cycle_forever", counts=(5000,))
        ranks.answers()
        since = ranks.now()
        hosts.reset(1)
        for rank, answer in ranks.answers().items():
            assert answer.error in ("PeerLost", "Aborted"), answer
            print(f"rank {rank} knew after {1000 * (answer.at - since):.0f} ms: {answer}")
            assert answer.at - since < 1 + checks.SLACK
        checks.clean(ranks, range(ranks.size))


@pytest.mark.parametrize("percent", [1, 10])
def test_lossy_network(job: Jobs, percent: int) -> None:
    with Hosts(2) as hosts:
        ranks = job(hosts)
        for host in range(2):
            hosts.lose(host, percent)
        ranks.call("cycle", counts=(1, 5000, 50_000) if percent < 5 else (1, 500), limit=90)


def test_slow_network(job: Jobs) -> None:
    """Transfers that take several times the silence: heartbeats do not queue behind them, and progress is no stall."""
    with Hosts(2) as hosts:
        ranks = job(hosts, {"ARRAYCOMM_SILENCE": "1", "ARRAYCOMM_HEARTBEAT": "0.2"}, per_host=1)
        for host in range(2):
            hosts.slow(host, "4mbit")
        since = ranks.now()
        ranks.call("cycle", counts=(100_000,), what="messages")
        assert ranks.now() - since > 1.3, "the network was not slow"


def test_imagined_hosts() -> None:
    """ARRAYCOMM_HOSTID makes ranks of one machine believe in two."""
    with Job(4, of_rank=lambda rank: {"ARRAYCOMM_HOSTID": f"host {rank % 2}"}, tasks=tasks) as ranks:
        ranks.call("cycle")
        assert {tuple(numbers) for numbers, _ in ranks.call("places").values()} == {(0, 1, 0, 1)}
