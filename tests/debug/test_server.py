"""The server as a program sees it: one job from its first operations to its end."""

from __future__ import annotations

import functools
import json
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import psutil
import pytest

import arraycomm
from arraycomm.core.bootstrap.address import outside_address
from arraycomm.core.bootstrap.store import HashStore
from arraycomm.debug import start_debug_server
from arraycomm.monitor import page
from arraycomm.monitor import server as servers
from arraycomm.monitor.server import Server

from .jobs import HOSTILE, RANKS, Job, refused, running, sent, until


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    with running(tmp_path_factory.mktemp("job"), "tcp") as job:
        yield job


def test_a_rank_that_holds_the_lock_is_late_and_its_stack_is_shown(job: Job) -> None:
    state = job.headline("Rank 2 has been late for")
    assert state["verdict"]["headline"].endswith("ranks 0 and 1 wait") and state["verdict"]["late"] == [2]
    assert f"process {job.context.pids()[2]}" in state["verdict"]["details"][0]
    assert state["verdict"]["details"][1].startswith("Ranks 0 and 1 wait in all_reduce number 12 of group 'world', for")
    assert all(0 < wait["seconds"] < 60 and wait["missing"] == [2] for wait in state["verdict"]["waits"])
    stacks = job.ask("stacks", "POST")
    assert "load_the_next_batch" in stacks["2"] and "ctypes.PyDLL(None).open" in stacks["2"]
    assert "group.all_reduce(np.ones(3))" in stacks["0"] and "in work" in stacks["1"]


def test_operations_are_counted_and_recorded(job: Job) -> None:
    def look() -> object:
        state = job.ask("state")  # the first time it is asked for records they are on their way
        return state if all(rank["records"] for rank in state["ranks"]) else None

    rank = until(look)["ranks"][1]
    counts = {(row["name"], row["size"]): row for row in rank["counts"]}
    assert counts["all_reduce", 7]["calls"] == 11 and counts["all_reduce", 7]["failures"] == 1
    assert sum(counts["all_reduce", 7]["buckets"].values()) == 11 and counts["broadcast", 3]["bytes"] == 320
    assert [(group["group"], group["rank"], group["size"]) for group in rank["groups"]] == [
        ("world", 1, RANKS), (f"world/1.{HOSTILE}", 1, RANKS)]
    assert [(link["peer"], link["bytes"]) for link in rank["links"]] == [(2, 8192)]
    failed = [record for record in rank["records"] if record["state"] == "failed"]
    assert len(failed) == 1 and "unknown reduction" in failed[0]["error"]
    (now,) = rank["open"]
    assert [now[key] for key in ("name", "state", "dtype", "shape", "sequence")] == ["all_reduce", "running", "float64", [3], 12]
    numbers = [record["number"] for record in rank["records"]]
    assert numbers == list(range(1, len(numbers) + 1))


def test_tcp_links_are_measured(job: Job) -> None:
    pairs = sent(job.ask("state")["ranks"])
    assert min(pairs[0, 1], pairs[1, 2], pairs[2, 0]) > 8192


def test_prometheus_reads_it(job: Job) -> None:
    parser = pytest.importorskip("prometheus_client.parser", reason="prometheus_client is not installed")
    families = {family.name: family for family in parser.text_string_to_metric_families(job.ask("metrics"))}
    calls = {(sample.labels["rank"], sample.labels["operation"]): sample.value
             for sample in families["arraycomm_operations"].samples}
    assert calls["1", "all_reduce"] == 11 and calls["0", "broadcast"] == 10
    assert families["arraycomm_operations"].type == "counter" and families["arraycomm_heartbeat_age_seconds"].type == "gauge"
    assert families["arraycomm_lost_ranks"].samples[0].value == 0 and families["arraycomm_late_ranks"].samples[0].value == 1
    assert {sample.labels["group"] for sample in families["arraycomm_message_bytes"].samples} == {f"world/1.{HOSTILE}"}
    histogram = families["arraycomm_operation_seconds"]
    mine = [s for s in histogram.samples if s.labels["rank"] == "1" and s.labels["operation"] == "all_reduce"]
    buckets = [(float(s.labels["le"]), s.value) for s in mine if s.name.endswith("_bucket")]
    assert histogram.type == "histogram" and buckets == sorted(buckets) and buckets[-1] == (float("inf"), 11)
    assert [s.value for s in mine if s.name.endswith("_count")] == [11]


def test_who_has_no_token_gets_nothing(job: Job) -> None:
    bare, _, token = job.url.partition("?token=")
    for path in ("", "state", "metrics"):
        assert refused(bare + path) == 403 and refused(f"{bare}{path}?token={token[:-1]}") == 403
    assert refused(f"{bare}stacks", "POST") == 403 and refused(job.address("stacks")) == 404
    assert refused(f"{bare}metrics", Authorization=f"Bearer {token}") == 200
    assert refused(job.url, Host="evil.example") == 421 and refused(job.url, Host="localhost:9") == 200
    assert refused(job.address("../../etc/passwd")) == 404 and refused(job.url, "DELETE") == 501


def test_only_rank_0_listens_and_on_loopback(job: Job) -> None:
    listening = [[c.laddr.ip for c in agent.net_connections("inet") if c.status == psutil.CONN_LISTEN] for agent in job.agents]
    assert set(listening[0]) == {"127.0.0.1"} and listening[1:] == [[], []]


def test_a_stopped_rank_says_so(job: Job) -> None:
    pid = job.context.pids()[1]
    os.kill(pid, signal.SIGSTOP)
    try:
        until(lambda: job.ask("state")["ranks"][1]["process"]["state"] == "stopped")
        assert "the process is stopped" in job.ask("stacks", "POST")["1"]
    finally:
        os.kill(pid, signal.SIGCONT)


def test_a_dead_rank_is_named_and_the_end_leaves_no_process(job: Job) -> None:
    pid = job.context.pids()[2]
    os.kill(pid, signal.SIGKILL)
    state = job.headline("Rank 2 has been lost for")
    assert f"process {pid}) has died" in state["verdict"]["details"][0] and state["verdict"]["lost"] == [2]
    assert "arraycomm_lost_ranks 1" in job.ask("metrics")
    until(lambda: all(not rank["open"] for rank in job.ask("state")["ranks"][:2]))  # PeerLost
    assert "PeerLost" in job.ask("state")["ranks"][0]["last"]["error"]
    job.let_go()
    until(job.gone)


def test_what_cannot_be_started_is_said_on_all_ranks() -> None:
    with arraycomm.init() as group:
        with pytest.raises(TypeError, match="takes a Group"):
            start_debug_server("world")  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="port from 0 to 65535"):
            start_debug_server(group, 70000)
        with pytest.raises(ValueError, match="port from 0 to 65535"):
            start_debug_server(group, True)
        for timeout in (0, "5", float("nan")):
            with pytest.raises(ValueError, match="seconds above 0"):
                start_debug_server(group, timeout=timeout)  # type: ignore[arg-type]
        with start_debug_server(group) as first:
            assert first.url is not None
            port = int(first.url.split(":")[2].split("/")[0])
            with pytest.raises(arraycomm.DistBackendError, match=f"rank 0: OSError.*port {port} of .*0 takes a free one"):
                start_debug_server(group, port)
            assert refused(first.url) == 200
        first.close()
        assert type(group) is arraycomm.Group


TOKEN = "a token of a user's"


def test_another_address_needs_a_token(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    try:
        address = outside_address()
    except arraycomm.DistError:
        pytest.skip("this host has no address but loopback")
    monkeypatch.setenv("ARRAYCOMM_DEBUG_ADDRESS", address)
    with arraycomm.init() as group:
        for token in ("", TOKEN[:15]):
            monkeypatch.setenv("ARRAYCOMM_DEBUG_TOKEN", token)
            with pytest.raises(arraycomm.DistBackendError, match=f"{address} needs ARRAYCOMM_DEBUG_TOKEN, of 16 characters"):
                start_debug_server(group)
        monkeypatch.setenv("ARRAYCOMM_DEBUG_TOKEN", TOKEN)
        with start_debug_server(group) as server:
            assert server.url is not None and server.url.startswith(f"http://{address}:")
            page = server.url.partition("?")[0]
            assert refused(f"{page}metrics") == 403 and refused(f"{page}metrics", Authorization=f"Bearer {TOKEN}") == 200
            assert refused(f"{page}metrics", Host="evil.example", Authorization=f"Bearer {TOKEN}") == 421
    logged = [record.getMessage() for record in caplog.records if "debug page" in record.getMessage()]
    assert len(logged) == 1 and page in logged[0] and TOKEN not in logged[0]


def test_the_file_for_node_exporter(tmp_path: Path) -> None:
    """It is whole whenever it is read, and its reader has another user."""
    parser = pytest.importorskip("prometheus_client.parser", reason="prometheus_client is not installed")
    path = tmp_path / "arraycomm.prom"

    def told(count: int) -> bool:
        return path.exists() and f'operation="barrier"}} {count}\n' in path.read_text()

    with arraycomm.init() as group, start_debug_server(group, dump_dir=tmp_path, dump_interval=0.01, enabled_dumps={"metrics"}):
        for count in (1, 2):
            group.barrier()
            until(functools.partial(told, count))
            families = {family.name: family for family in parser.text_string_to_metric_families(path.read_text())}
            assert families["arraycomm_operations"].samples[0].value == count and path.stat().st_mode & 0o777 == 0o644
    assert not [*tmp_path.glob("*.txt")]


def _alone(size: int) -> tuple[HashStore, Server]:
    store: Any = HashStore()
    return store, Server(store, {"size": size, "world": "world", "token": "t" * 16, "timeout": 1.0, "port": 0,
                          "address": "127.0.0.1", "chosen": False})


_REPORT = {"rank": 0, "count": 1, "time": 0.0, "host": "h", "pid": 1, "ended": "closed", "process": {}, "groups": [], "open": [],
           "last": None, "counts": [], "links": [], "connections": []}


def test_a_report_that_nobody_can_read_stops_nothing() -> None:
    store, server = _alone(4)
    for rank, text in enumerate(("{", "[]", '{"count": 1}', json.dumps({**_REPORT, "rank": 3}))):
        store.set(f"report/{rank}", text)
    until(lambda: 3 in server.reports())
    store.set("report/0", json.dumps(_REPORT))
    until(lambda: 0 in server.reports())
    assert server.state()["verdict"]["lost"] == (1, 2) and set(server.reports()) == {0, 3}
    server._http.server_close()


def test_whatever_a_rank_tells_the_others_are_shown() -> None:
    """JSON of any depth and length, and fields of other kinds: the collector goes on, and the page says which rank it is."""
    store, server = _alone(2)
    good = {**_REPORT, "count": 7}
    store.set("report/0", json.dumps(good))
    wrong: list[str | bytes] = [b"\xff\xfe", "[" * 100_000, '{"a":' * 100_000, "null", "1e999",
                                '"' + "x" * (5 << 20) + '"', "\0", "{}"]
    odd: tuple[Any, ...] = (None, [], {}, "x", 5, -1, 1.5, [5], [None], [{}], [[]], {"a": []}, [{"rank": "x"}])
    wrong += [json.dumps({**_REPORT, "rank": 1, field: value}) for field in _REPORT for value in odd]
    for number, text in enumerate(wrong):
        store.set("report/1", text)
        store.set("records/0", text)
        server.collect()
        state = server.state()
        told = "Rank 1 sent an invalid report" in " ".join(state["verdict"]["details"])
        assert told or number >= 8, text[:100]
        assert state["ranks"][0]["host"] == "h" and state["ranks"][0]["records"] == [] and json.dumps(state)
        assert server.metrics()
    store.set("report/1", json.dumps({**_REPORT, "rank": 1, "count": 9}))
    server.collect()
    assert set(server.reports()) == {0, 1} and "invalid report" not in " ".join(server.state()["verdict"]["details"])
    store.set("stacks/0", "[" * 100_000)
    store.set("stacks/1", '{"request": 99, "text": "here"}')
    assert server.stacks()["1"] == "here"
    server._http.server_close()


def test_it_ends_though_a_rank_has_never_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "_SILENT", 0.5)
    store, server = _alone(2)
    store.set("report/0", json.dumps(_REPORT))
    ending = threading.Thread(target=server.linger, daemon=True)
    ending.start()
    ending.join(20)
    assert not ending.is_alive()


def _cannot(rank: int) -> None:
    if rank == 1:
        mock.patch.object(page, "StackFile", refuse).start()
    with arraycomm.init(timeout=20) as group:
        with pytest.raises(arraycomm.DistBackendError, match="rank 1: RuntimeError: no signal is free"):
            start_debug_server(group)
        assert not psutil.Process().children()


def refuse() -> None:
    raise RuntimeError("no signal is free")


def test_what_one_rank_cannot_start_is_said_on_all() -> None:
    arraycomm.spawn(_cannot, nprocs=2)


def test_it_starts_where_another_package_of_the_name_lies(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A source tree, say, whose engine was not built."""
    (tmp_path / "arraycomm").mkdir()
    (tmp_path / "arraycomm" / "__init__.py").write_text("raise ImportError('not this one')")
    monkeypatch.chdir(tmp_path)
    arraycomm.spawn(_start, nprocs=2)


def _start(rank: int) -> None:
    group = arraycomm.init()
    start_debug_server(group)
    group.close()
