from __future__ import annotations

import contextlib
import multiprocessing
import os
import socket
import stat
import threading
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from arraycomm.core.base.errors import AuthFailed, DistStoreError, PeerLost
from arraycomm.core.bootstrap import ends, environment
from arraycomm.core.bootstrap.environment import Place, detect, first_host
from arraycomm.core.bootstrap.rendezvous import Rendezvous, announced, rendezvous
from arraycomm.core.bootstrap.store import HashStore, PrefixStore, TCPStore

from ..ports import free_port
from ..threads import at_once

TIMEOUT = timedelta(seconds=20)
SHORT = timedelta(milliseconds=300)


def in_threads(size: int, **arguments: object) -> list[Rendezvous]:
    """Ranks as threads of this process; their results in order of rank."""
    def run(rank: int) -> Rendezvous:
        environ = arguments.get("environs", [{}] * size)[rank]  # type: ignore[index]
        rest = {k: v for k, v in arguments.items() if k != "environs"}
        if "environs" not in arguments:
            rest |= {"rank": rank, "world_size": size}
        return rendezvous(timeout=TIMEOUT, environ=environ, **rest)  # type: ignore[arg-type]

    return at_once(size, run)


def check_met(meetings: list[Rendezvous]) -> None:
    assert [m.rank for m in meetings] == list(range(len(meetings)))
    assert {m.size for m in meetings} == {len(meetings)}
    assert len({m.job for m in meetings}) == 1 and meetings[0].job
    for meeting in meetings:
        meeting.store.set(f"from{meeting.rank}", str(meeting.rank))
    for meeting in meetings:
        assert meeting.store.multi_get([f"from{r}" for r in range(len(meetings))]) == [
            str(r).encode() for r in range(len(meetings))]
    closers = [threading.Thread(target=m.close) for m in meetings]
    for closer in closers:
        closer.start()
    for closer in closers:
        closer.join(10)


def test_a_plain_process_is_a_world_of_one() -> None:
    meeting = rendezvous(environ={})
    assert (meeting.rank, meeting.size, meeting.addresses) == (0, 1, ["127.0.0.1"])
    meeting.close()


@pytest.mark.parametrize("size", [1, 3])
def test_tcp(size: int) -> None:
    check_met(in_threads(size, init_method=f"tcp://127.0.0.1:{free_port()}"))


def test_tcp_ipv6() -> None:
    meetings = in_threads(2, init_method=f"tcp://[::1]:{free_port()}")
    assert meetings[0].addresses == ["::1"]
    check_met(meetings)


def test_a_world_of_one_needs_no_port() -> None:
    environ = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    for alone in (rendezvous(environ={**environ, "RANK": "0", "WORLD_SIZE": "1"}),
                  rendezvous(environ=environ, rank=0, world_size=1)):
        assert (alone.rank, alone.size) == (0, 1)
        alone.close()


def test_file(tmp_path: Path) -> None:
    check_met(in_threads(3, init_method=f"file://{tmp_path}/with%20space"))
    assert list(tmp_path.iterdir()) == []


def test_given_store() -> None:
    store = HashStore()
    first = in_threads(3, store=store)
    jobs = {meeting.job for meeting in first}
    keys = len(store.list_keys())
    for _ in range(5):
        again = in_threads(3, store=store)
        jobs |= {meeting.job for meeting in again}
        check_met(again)
    assert len(jobs) == 6
    assert len(store.list_keys()) <= keys + 3  # worlds left behind are tidied away
    store.set("still", "open")


def test_environment_with_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    environs = [{"RANK": str(r), "WORLD_SIZE": "3", "MASTER_ADDR": "localhost", "MASTER_PORT": str(port),
                 "LOCAL_RANK": str(r), "ARRAYCOMM_SECRET": "ab" * 32} for port in [free_port()] for r in range(3)]
    meetings = in_threads(3, environs=environs)
    assert [m.local_rank for m in meetings] == [0, 1, 2]
    assert meetings[0].secret == b"\xab" * 32
    check_met(meetings)


def test_launcher_hosts_the_store() -> None:
    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, secret=b"\xab" * 32)
    environs = [{"RANK": str(r), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(server.port),
                 "ARRAYCOMM_STORE": "launcher", "ARRAYCOMM_SECRET": "ab" * 32} for r in range(2)]
    for _ in range(3):
        check_met(in_threads(2, environs=environs))
    environs[0]["ARRAYCOMM_SECRET"] = "cd" * 32
    with pytest.raises(AuthFailed, match="ARRAYCOMM_SECRET"):
        rendezvous(environ=environs[0], timeout=TIMEOUT)
    server.close()


def test_whose_agent_serves_the_store() -> None:
    """A program under our launcher meets elsewhere where it says so, unless a torchrun that it was started by has said so."""
    ours = {"ARRAYCOMM_STORE": "launcher@127.0.0.1:1234", "MASTER_ADDR": "127.0.0.1", "TORCHELASTIC_USE_AGENT_STORE": "True",
            "TORCHELASTIC_RUN_ID": "none"}
    inner = {"MASTER_PORT": "5678", "TORCHELASTIC_ERROR_FILE": ""}
    assert not environment.hosted_by_torch({**ours, "MASTER_PORT": "1234"})
    assert not environment.hosted_by_torch({**ours, "MASTER_PORT": "5678"})
    assert environment.hosted_by_torch({**ours, **inner})
    assert environment.hosted_by_torch({name: inner.get(name, ours.get(name, "")) for name in
                                        ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_USE_AGENT_STORE")})


def test_torchrun_agent_store() -> None:
    distributed = pytest.importorskip("torch.distributed")
    server = distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    environs = [{"RANK": str(r), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(server.port),
                 "TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "2", "LOCAL_RANK": str(r),
                 "LOCAL_WORLD_SIZE": "2"} for r in range(2)]
    meetings = in_threads(2, environs=environs)
    check_met(meetings)
    assert any(key.startswith("arraycomm/2/world/") for key in server.list_keys())


def test_mpirun_without_address_meets_in_a_private_file(tmp_path: Path) -> None:
    environs = [by_mpirun(tmp_path, rank) for rank in range(2)]
    meetings = in_threads(2, environs=environs)
    directory = tmp_path / f"arraycomm-{os.geteuid()}"
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert meetings[0].addresses == ["127.0.0.1"]
    check_met(meetings)
    assert list(directory.iterdir()) == []


def child(rank: int, port: int, worlds: int, results: multiprocessing.Queue[object]) -> None:
    try:
        environ = {"RANK": str(rank), "WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        for _ in range(worlds):
            meeting = rendezvous(environ=environ, timeout=TIMEOUT)
            meeting.store.set(f"{rank}", meeting.job)
            assert meeting.store.multi_get(["0", "1", "2"]) == [meeting.job.encode()] * 3
            meeting.close()
        results.put(None)
    except BaseException as error:
        results.put(f"rank {rank}: {error!r}")


def test_worlds_one_after_the_other_on_one_port() -> None:
    """Rank 0's store ends and begins again each time, while the others may come back before it."""
    context = multiprocessing.get_context("spawn")
    results: multiprocessing.Queue[object] = context.Queue()
    port = free_port()
    ranks = [context.Process(target=child, args=(rank, port, 4, results), daemon=True) for rank in range(3)]
    for process in ranks:
        process.start()
    assert [results.get(timeout=40) for _ in ranks] == [None] * 3
    for process in ranks:
        process.join(10)
        assert process.exitcode == 0


def test_a_rank_that_found_an_earlier_worlds_store_starts_over() -> None:
    port = free_port()
    old = TCPStore("127.0.0.1", port, is_master=True)
    results: list[Any] = []

    def join(rank: int) -> None:
        try:
            results.append(rendezvous(f"tcp://127.0.0.1:{port}", rank=rank, world_size=2, timeout=TIMEOUT, environ={}))
        except Exception as error:
            results.append(error)

    early = threading.Thread(target=join, args=(1,))
    early.start()
    old.wait(["arraycomm/0/world/1/came/1"])
    old.close()
    join(0)
    early.join(20)
    assert all(isinstance(result, Rendezvous) for result in results), results
    check_met(sorted(results, key=lambda m: m.rank))


def test_absent_ranks_are_named() -> None:
    with pytest.raises(DistStoreError, match=r"rank 1 of 4: timeout after .*: 0, 2, 3;"):
        rendezvous(store=HashStore(), rank=1, world_size=4, timeout=SHORT, environ={})


def test_an_absurd_number_of_ranks() -> None:
    """The ranks that are named are looked for, not all."""
    looked: list[str] = []

    class Counting(HashStore):
        def check(self, keys: Sequence[str]) -> bool:
            looked.extend(keys)
            return super().check(keys)

    with pytest.raises(DistStoreError, match=r"rank 1 of 100000: timeout after .*: 0, 2, 3, .*, 20, \.\.\.;"):
        rendezvous(store=Counting(), rank=1, world_size=100_000, timeout=SHORT, environ={})
    assert len(looked) < 100


@pytest.mark.parametrize(("number", "error"), [(2, "rank 0 .host a, pid 7. failed"), (1, "did not join: 0, 1")])
def test_an_end_is_told_to_ranks_of_the_launchers_numbers(number: int, error: str) -> None:
    """To others, whose init() was told one, it would name another rank than the one that ended."""
    with contextlib.closing(TCPStore("127.0.0.1", 0, is_master=True, secret=b"\xab" * 32)) as served:
        ends.note(served, 0, 3, "host a, pid 7", "exited with code 0", b"\xab" * 32)
        environ = {"RANK": str(number), "WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(served.port),
                   "ARRAYCOMM_STORE": "launcher", "ARRAYCOMM_SECRET": "ab" * 32}
        with pytest.raises((DistStoreError, PeerLost), match=error):
            rendezvous(rank=2, environ=environ, timeout=timedelta(seconds=1.5))


def test_ranks_that_give_up_together_blame_nobody_who_came() -> None:
    """The second to give up hears of the first one, and had begun anew for what was left of its own time."""
    store = HashStore()
    store.set_timeout(timedelta(seconds=20))

    def run(rank: int) -> str:
        with pytest.raises(DistStoreError) as caught:
            rendezvous(rank=rank, world_size=3, store=store, timeout=timedelta(seconds=0.6 + 0.1 * rank), environ={})
        return str(caught.value)

    for text in at_once(2, run):
        assert "did not join: 2;" in text, text


def test_two_processes_of_one_rank() -> None:
    store = HashStore()
    PrefixStore("arraycomm/0/world", store).set("rank/0", "elsewhere process 7")
    with pytest.raises(AuthFailed, match="rank 0 is taken by elsewhere process 7"):
        rendezvous(store=store, rank=0, world_size=2, timeout=SHORT, environ={})


def test_different_world_sizes() -> None:
    store = HashStore()
    with pytest.raises(DistStoreError):
        rendezvous(store=store, rank=0, world_size=2, timeout=SHORT, environ={})
    with pytest.raises(ValueError, match="world_size 3, others in this store have 2"):
        rendezvous(store=store, rank=1, world_size=3, timeout=SHORT, environ={})


def test_different_names() -> None:
    """Who gives up waiting hears of ranks that came to a world of another name."""
    store, told = HashStore(), []
    for rank in (1, 0, 1):
        with pytest.raises(DistStoreError) as caught:
            rendezvous(store=store, rank=rank, world_size=3, timeout=SHORT, name="ab"[rank], environ={})
        told.append(str(caught.value))
    assert "did not join: 0, 2; see whether" in told[0]
    assert "did not join: 1, 2; this rank joined with name='a', and some absent ranks joined last with name='b': ranks" in told[1]
    assert "did not join: 0, 2; this rank joined with name='b', and some absent ranks joined last with name='a': ranks" in told[2]


def test_different_backends() -> None:
    """All hear of it, whoever came first."""
    store = HashStore()
    names = ("socket", "nccl", "socket")

    def run(rank: int) -> str:
        with pytest.raises((ValueError, PeerLost)) as caught:
            rendezvous(store=store, rank=rank, world_size=3, timeout=TIMEOUT, backend=names[rank], environ={})
        return str(caught.value)

    for text in at_once(3, run):
        assert "has backend 'nccl'" in text or "rank 1 'nccl'" in text, text
        assert "ARRAYCOMM_BACKEND" in text


def by_mpirun(tmp_path: Path, rank: int, size: int = 2) -> dict[str, str]:
    return {"OMPI_COMM_WORLD_RANK": str(rank), "OMPI_COMM_WORLD_SIZE": str(size), "OMPI_COMM_WORLD_LOCAL_RANK": str(rank),
            "OMPI_COMM_WORLD_LOCAL_SIZE": str(size), "PMIX_NAMESPACE": "prterun-x-1@1", "XDG_RUNTIME_DIR": str(tmp_path)}


def test_a_rank_that_meets_elsewhere_is_not_waited_for(tmp_path: Path) -> None:
    with announced("mpi", "world", by_mpirun(tmp_path, 0)), \
            pytest.raises(ValueError, match="rank 1 of 2 has backend 'socket', rank 0 'mpi'"):
        rendezvous(environ=by_mpirun(tmp_path, 1), timeout=TIMEOUT, backend="socket")


def test_a_rank_that_would_meet_elsewhere_hears_of_those_that_wait(tmp_path: Path) -> None:
    def run(rank: int) -> str:
        with pytest.raises(PeerLost, match="rank 2 .* ValueError: rank 2 of 3 has backend 'mpi', rank [01] 'socket'"):
            rendezvous(environ=by_mpirun(tmp_path, rank, 3), timeout=TIMEOUT, backend="socket")
        return ""

    def waits() -> bool:
        for path in tmp_path.glob("arraycomm-*/*"):
            with contextlib.suppress(FileNotFoundError):  # others come and go
                if b"backend" in path.read_bytes():
                    return True
        return False

    def late(rank: int) -> str:
        while not waits():
            time.sleep(0.01)
        with (pytest.raises(ValueError, match="rank 2 of 3 has backend 'mpi'"),
              announced("mpi", "world", by_mpirun(tmp_path, 2, 3))):
            pass
        return ""

    at_once(3, lambda rank: late(rank) if rank == 2 else run(rank))


def test_ranks_that_meet_elsewhere_leave_nothing(tmp_path: Path) -> None:
    for _ in range(2):
        with announced("mpi", "world", by_mpirun(tmp_path, 0)), announced("mpi", "world", by_mpirun(tmp_path, 1)):
            pass
        assert list((tmp_path / f"arraycomm-{os.geteuid()}").iterdir()) == []
    with announced("mpi", "world", {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "192.0.2.77", "MASTER_PORT": "1"}):
        pass  # nobody serves there, and nobody is waited for


@pytest.mark.parametrize("arguments, environ", [
    ({"rank": 0}, {"WORLD_SIZE": "1"}), ({"world_size": 1}, {"RANK": "0"}), ({"rank": 0, "world_size": 1}, {"WORLD_SIZE": "2"}),
    ({"rank": 0, "world_size": 1}, {"RANK": "7"}), ({"rank": 0}, {"RANK": "5", "WORLD_SIZE": "1"}),
    ({"rank": 0, "init_method": "env://"}, {"WORLD_SIZE": "1", "LOCAL_RANK": "0"})])
def test_a_half_by_argument_the_other_by_variable(arguments: dict[str, Any], environ: dict[str, str]) -> None:
    """Arguments count before variables, and together they are as good as both from one place."""
    meeting = rendezvous(environ={"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), **environ}, **arguments)
    assert (meeting.rank, meeting.size) == (0, 1)
    meeting.close()


@pytest.mark.parametrize("arguments, environ, text", [
    ({"rank": 2}, {"WORLD_SIZE": "2"}, "rank 2 of world_size 2"),
    ({"world_size": 2}, {"RANK": "3"}, "rank 3 of world_size 2"),
    ({"rank": 0}, {"WORLD_SIZE": "x"}, "WORLD_SIZE must be a whole number, got 'x'"),
    ({"init_method": "env://"}, {}, "rank .RANK. and world_size .WORLD_SIZE. not given"),
    ({"rank": 0}, {}, "world_size .WORLD_SIZE. not given"),
    ({"init_method": "tcp://h:1"}, {}, "not given"),
    ({}, {"RANK": "0"}, "RANK is set but WORLD_SIZE is not"),
    ({}, {"WORLD_SIZE": "2"}, "WORLD_SIZE is set but RANK is not"),
    ({}, {"RANK": "x", "WORLD_SIZE": "2"}, "RANK must be a whole number, got 'x'"),
    ({}, {"RANK": "2", "WORLD_SIZE": "2"}, "rank 2 of world_size 2"),
    ({}, {"RANK": "0", "WORLD_SIZE": "2"}, "MASTER_ADDR .* and MASTER_PORT"),
    ({}, {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "h"}, "set MASTER_PORT"),
    ({"rank": 0, "world_size": 2}, {}, "set MASTER_ADDR to the host of rank 0 and MASTER_PORT to a free port there, on all"),
    ({"rank": 0, "world_size": 2}, {"MASTER_PORT": "²"}, "MASTER_PORT must be a whole number, got '²'"),
    ({"rank": 0, "world_size": 2}, {"MASTER_PORT": "x"}, "MASTER_PORT must be a whole number, got 'x'"),
    *(({}, {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "h", "MASTER_PORT": port}, f"1 to 65535, got {port}")
      for port in ("0", "-1", "65536")),
    *(({}, {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": host, "MASTER_PORT": "1"}, "name or the address of rank 0's host, and")
      for host in ("http://h", "h:29500", "[::1]", "a b", "::1::")),
    ({"rank": 0, "world_size": 2, "init_method": "tcp://h"}, {}, "needs a host and a port"),
    ({"rank": 0, "world_size": 2, "init_method": "tcp://h:99999"}, {}, "needs a host and a port"),
    ({"rank": 0, "world_size": 2, "init_method": "file://x"}, {}, "three slashes"),
    ({"rank": 0, "world_size": 2, "init_method": "http://x"}, {}, "unknown scheme"),
    ({"rank": 0, "init_method": "tcp://h:1?rank=1&world_size=2"}, {}, "rank is 0 by argument and 1"),
    ({"init_method": "tcp://h:1?size=1"}, {}, "unknown size"),
    ({"init_method": "tcp://h:1?rank=a&world_size=2"}, {}, "rank must be a whole number"),
    ({"init_method": "env://", "store": HashStore()}, {}, "not both"),
    ({}, {"JOB_COMPLETION_INDEX": "1"}, "WORLD_SIZE is not: set it to the job's completions"),
    ({}, {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"}, "mpirun: -x"),
])
def test_what_is_missing_is_named(arguments: dict[str, object], environ: Mapping[str, str], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        rendezvous(environ=environ, timeout=SHORT, **arguments)  # type: ignore[arg-type]


def test_no_secret_beyond_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ARRAYCOMM_INSECURE", raising=False)
    with pytest.raises(AuthFailed, match=r"ARRAYCOMM_SECRET.*ARRAYCOMM_SECRET_FILE.*ARRAYCOMM_INSECURE=1"):
        rendezvous("tcp://192.0.2.77:1", rank=0, world_size=2, timeout=SHORT, environ={})


def test_query_in_the_url() -> None:
    port = free_port()
    url = f"tcp://127.0.0.1:{port}?rank={{}}&world_size=2"
    check_met(at_once(2, lambda rank: rendezvous(url.format(rank), timeout=TIMEOUT, environ={})))


SLURM = {"SLURM_PROCID": "5", "SLURM_STEP_NUM_TASKS": "8", "SLURM_LOCALID": "1", "SLURM_STEP_NUM_NODES": "4",
         "SLURM_STEP_NODELIST": "node[07-09,12],gpu1", "SLURM_JOB_ID": "77", "SLURM_STEP_ID": "0"}


def test_environments(monkeypatch: pytest.MonkeyPatch) -> None:
    place = detect(SLURM)
    assert place is not None and (place.rank, place.size, place.local_rank, place.host) == (5, 8, 1, "node07")
    assert place.port is not None and 15000 <= place.port < 30000 and place.job == "slurm 77.0"
    chosen = detect({**SLURM, "MASTER_ADDR": "h", "MASTER_PORT": "99"})
    assert chosen is not None and (chosen.host, chosen.port) == ("h", 99)
    assert detect({"SLURM_PROCID": "0", "SLURM_NTASKS": "8"}) is None  # the batch script itself
    one = detect({**SLURM, "SLURM_STEP_NUM_NODES": "1"})
    assert one is not None and one.local
    mpich = detect({"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"})
    assert mpich == Place("mpirun (MPICH)", 1, 2, 1, 2)
    monkeypatch.setattr(socket, "getfqdn", lambda: "train-3.svc.ns.svc.cluster.local")
    pod = detect({"JOB_COMPLETION_INDEX": "3", "WORLD_SIZE": "4"})
    assert pod is not None and (pod.rank, pod.host, pod.port) == (3, "train-0.svc.ns.svc.cluster.local", 29500)
    mixed = detect({**SLURM, "RANK": "1", "WORLD_SIZE": "2"})
    assert mixed is not None and mixed.rank == 1 and mixed.launcher == "environment"


@pytest.mark.parametrize("nodes, first", [
    ("n1", "n1"), ("n1,n2", "n1"), ("n[1-3]", "n1"), ("n[003,5]", "n003"), ("n[3-5]x,m1", "n3x"),
    ("r[1-2]n[4,6]", "r1n4"), ("a-b[10-12],c", "a-b10")])
def test_first_host(nodes: str, first: str) -> None:
    assert first_host(nodes) == first


@pytest.mark.parametrize("nodes", ["", ",", "n[1"])
def test_bad_nodelist(nodes: str) -> None:
    with pytest.raises(ValueError, match="MASTER_ADDR"):
        first_host(nodes)
