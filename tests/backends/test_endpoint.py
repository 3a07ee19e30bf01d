"""Connections and failure detection with real processes. Limits here only end what hangs; nothing is timed."""

from __future__ import annotations

import contextlib
import fcntl
import io
import json
import os
import secrets
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from arraycomm.backends.socket import arrivals, local, peers, segment
from arraycomm.core.auth import Hello, Purpose
from arraycomm.core.errors import AuthFailed, DistNetworkError, DistStoreError
from arraycomm.core.store import HashStore

LIMIT = 40.0  # s for one answer
PROGRAM = Path(__file__).with_name("endpoint_rank.py")


class Process:
    def __init__(self, config: dict[str, Any], environ: dict[str, str]) -> None:
        self.child = subprocess.Popen([sys.executable, str(PROGRAM), json.dumps(config)], stdin=subprocess.PIPE,
                                      stdout=subprocess.PIPE, env={**os.environ, **environ})
        self._buffer = b""

    def tell(self, *command: Any) -> None:
        assert self.child.stdin is not None
        self.child.stdin.write(json.dumps(command).encode() + b"\n")
        self.child.stdin.flush()

    def hear(self, limit: float = LIMIT) -> dict[str, Any]:
        assert self.child.stdout is not None
        while b"\n" not in self._buffer:
            if not select.select([self.child.stdout], [], [], limit)[0]:
                raise AssertionError(f"no answer within {limit} s")
            data = os.read(self.child.stdout.fileno(), 1 << 16)
            assert data, f"the process ended with {self.child.wait(5)}"
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        return json.loads(line)

    def ask(self, *command: Any) -> Any:
        self.tell(*command)
        return self.result()

    def result(self) -> Any:
        answer = self.hear()
        assert "error" not in answer, answer
        return answer["ok"]

    def error(self) -> tuple[str, str]:
        answer = self.hear()
        assert "error" in answer, answer
        return answer["error"], answer["text"]

    def signal(self, number: int) -> None:
        self.child.send_signal(number)

    def end(self) -> None:
        self.child.kill()
        self.child.wait()
        for pipe in (self.child.stdin, self.child.stdout):
            with contextlib.suppress(BrokenPipeError):
                if pipe:
                    pipe.close()


class World:
    def __init__(self, path: Path, size: int, *, environ: dict[str, str] | None = None, changes: Any = None,
                 addresses: tuple[str, ...] = ("127.0.0.1",), timeout: float = 30.0) -> None:
        """`changes`: rank -> what is different in its configuration; its "environ" goes into its environment."""
        secret = secrets.token_hex(32)
        self.ranks = []
        for rank in range(size):
            config = {"rank": rank, "size": size, "path": str(path / "store"), "secret": secret, "job": "job",
                      "timeout": timeout, "addresses": addresses, **(changes or {}).get(rank, {})}
            self.ranks.append(Process(config, {**(environ or {}), **config.pop("environ", {})}))

    def opened(self) -> World:
        for rank in self.ranks:
            rank.result()
        return self

    def all(self, *command: Any, but: tuple[int, ...] = ()) -> list[Any]:
        chosen = [process for rank, process in enumerate(self.ranks) if rank not in but]
        for process in chosen:
            process.tell(*command)
        return [process.hear() for process in chosen]

    def results(self, *command: Any, but: tuple[int, ...] = ()) -> list[Any]:
        answers = self.all(*command, but=but)
        assert all("error" not in answer for answer in answers), answers
        return [answer["ok"] for answer in answers]

    def errors(self, *command: Any, but: tuple[int, ...] = ()) -> list[dict[str, Any]]:
        answers = self.all(*command, but=but)
        assert all("error" in answer for answer in answers), answers
        return answers

    def end(self) -> None:
        for process in self.ranks:
            process.end()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Any]:
    worlds: list[World] = []

    def make(size: int, **options: Any) -> World:
        worlds.append(World(tmp_path, size, **options))
        return worlds[-1]

    yield make
    for world in worlds:
        world.end()


TRANSPORTS = pytest.mark.parametrize("transport", ["shm", "tcp"])


def over(transport: str, **more: str) -> dict[str, str]:
    return {"ARRAYCOMM_TRANSPORT": transport, **more}


# ---- opening and closing ----


@TRANSPORTS
def test_world_works_and_ends(start: Any, transport: str) -> None:
    world = start(3, environ=over(transport)).opened()
    assert world.results("total") == [[6.0, 6.0]] * 3
    assert world.results("hosts") == [[0, 0, 0] if transport == "shm" else [0, 1, 2]] * 3
    world.results("close")


def test_several_hosts(start: Any) -> None:
    hosts = {rank: {"environ": {"ARRAYCOMM_HOSTID": name}} for rank, name in enumerate("aabc")}
    world = start(4, changes=hosts).opened()
    assert world.results("hosts") == [[0, 0, 1, 2]] * 4
    assert world.results("total") == [[10.0, 10.0]] * 4
    world.results("close")


def test_several_addresses_and_connections(start: Any) -> None:
    world = start(2, environ=over("tcp", ARRAYCOMM_SOCKET_CONNECTIONS="3"), addresses=("127.0.0.1", "127.0.0.2"))
    world.opened()
    assert world.results("total") == [[3.0, 3.0]] * 2
    names = _connected_to(world.ranks[1].ask("listeners")[0])
    # Stripes 0 and 2 over the first address, 1 over the second, and each from the sender's own.
    assert sorted(names) == ["127.0.0.1 127.0.0.1", "127.0.0.1 127.0.0.1", "127.0.0.2 127.0.0.2"], names
    world.results("close")


def _connected_to(listeners: list[Any]) -> list[str]:
    """"local remote" addresses of the established connections whose remote end is one of the listeners."""
    found = []
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        ends = [(socket.inet_ntoa(struct.pack("<I", int(end[:8], 16))), int(end[9:], 16)) for end in fields[1:3]]
        if fields[3] == "01" and list(ends[1]) in listeners:
            found.append(f"{ends[0][0]} {ends[1][0]}")
    return found


@TRANSPORTS
def test_nothing_grows(start: Any, transport: str, short: Path) -> None:
    world = start(2, environ=over(transport)).opened()
    world.results("reopen", 2)  # the first time loads modules
    before = world.results("counts")
    world.results("reopen", 50)
    assert world.results("counts") == before
    world.results("close")
    assert os.listdir(short / f"arraycomm-{os.geteuid()}") == []


def test_a_world_of_one_starts_nothing(start: Any) -> None:
    world = start(1).opened()
    assert world.results("total") == [[1.0, 1.0]]
    assert world.results("counts")[0][1] == 1
    world.results("close")


@TRANSPORTS
def test_leaving_as_soon_as_it_is_open(start: Any, transport: str) -> None:
    world = start(4, environ=over(transport))
    for process in world.ranks:
        process.tell("close")
    for process in world.ranks:
        assert [process.result(), process.result()] == [None, None]


def test_absent_rank_is_named(start: Any) -> None:
    world = start(3, changes={1: {"late": True}}, timeout=2.0)
    for rank in (0, 2):
        kind, text = world.ranks[rank].error()
        assert kind == "DistStoreError" and "rank 1 within 2 s" in text, text


def test_wrong_secret(start: Any) -> None:
    world = start(3, changes={1: {"secret": secrets.token_hex(32)}}, timeout=20.0)
    errors = [rank.error() for rank in world.ranks]
    # Whoever comes first finds out, and leaves; the others may find it gone already, or hear of it.
    assert {kind for kind, _ in errors} <= {"AuthFailed", "DistNetworkError"}, errors
    found = [text for kind, text in errors if kind == "AuthFailed"]
    assert any("ARRAYCOMM_SECRET" in text and " to rank " in text for text in found), errors


def test_bad_transport(start: Any) -> None:
    world = start(2, environ=over("shm"), changes={0: {"environ": {"ARRAYCOMM_HOSTID": "elsewhere"}}})
    for rank in world.ranks:
        kind, text = rank.error()
        assert kind == "ValueError" and "ARRAYCOMM_TRANSPORT=shm" in text


# ---- faults ----


def lost(answers: list[dict[str, Any]], rank: int, words: str) -> None:
    for answer in answers:
        assert answer["error"] == "PeerLost" and answer["ranks"] == [rank], answer
        assert words in answer["text"] and f"rank {rank} (host " in answer["text"], answer["text"]


@TRANSPORTS
@pytest.mark.parametrize("when", ["waiting", "idle"])
def test_killed_process(start: Any, transport: str, when: str, short: Path) -> None:
    world = start(4, environ=over(transport)).opened()
    assert world.results("total") == [[10.0, 10.0]] * 4
    survivors = [process for rank, process in enumerate(world.ranks) if rank != 2]
    if when == "waiting":
        for process in survivors:
            process.tell("barrier")
    world.ranks[2].signal(signal.SIGKILL)
    answers = [process.hear() for process in survivors] if when == "waiting" else world.all("barrier", but=(2,))
    lost(answers, 2, "process died (connection closed)")
    lost(world.all("barrier", but=(2,)), 2, "process died")
    world.ranks[2].child.wait()
    world.results("close", but=(2,))
    assert os.listdir(short / f"arraycomm-{os.geteuid()}") == []


def test_two_killed_and_a_group_of_the_others_goes_on(start: Any) -> None:
    world = start(5).opened()
    world.results("split_off", [0, 2, 4], but=(1, 3))
    for rank in (1, 3):
        world.ranks[rank].signal(signal.SIGKILL)
    answers = world.errors("barrier", but=(1, 3))
    assert all(answer["error"] == "PeerLost" and answer["ranks"] in ([1], [3]) for answer in answers), answers
    assert world.results("split_total", but=(1, 3)) == [[9.0, 9.0]] * 3
    # The ring was cut on both sides of rank 2 and has been mended, so its death is seen too.
    world.ranks[2].signal(signal.SIGKILL)
    lost(world.errors("split_total", but=(1, 2, 3)), 1, "process died")


QUICK = {"ARRAYCOMM_HEARTBEAT": "0.1", "ARRAYCOMM_SILENCE": "1.5"}


@TRANSPORTS
def test_stopped_process(start: Any, transport: str) -> None:
    world = start(3, environ=over(transport, **QUICK)).opened()
    world.results("barrier")
    world.ranks[1].signal(signal.SIGSTOP)
    lost(world.errors("barrier", but=(1,)), 1, "unresponsive")
    world.ranks[1].signal(signal.SIGCONT)
    resumed = world.ranks[1]
    resumed.tell("barrier")
    resumed.hear()  # over shared memory it may end well: the others had come to it
    resumed.tell("barrier")
    kind, text = resumed.error()
    assert kind == "Aborted" and "declared lost by the others: unresponsive" in text, text
    world.results("close")


def test_short_stop_is_no_fault(start: Any) -> None:
    world = start(3, environ={"ARRAYCOMM_SILENCE": "4", "ARRAYCOMM_HEARTBEAT": "0.2"}).opened()
    for process in world.ranks[:2]:
        process.tell("barrier")
    world.ranks[2].signal(signal.SIGSTOP)
    with pytest.raises(AssertionError, match="no answer"):
        world.ranks[0].hear(2.0)
    world.ranks[2].signal(signal.SIGCONT)
    world.ranks[2].tell("barrier")
    assert [process.result() for process in world.ranks] == [None] * 3
    assert world.results("total") == [[6.0, 6.0]] * 3
    world.results("close")


def test_exception_and_exit(start: Any) -> None:
    world = start(3).opened()
    world.ranks[0].tell("leave", "key")
    lost(world.errors("barrier", but=(0,)), 0, "exited with KeyError")
    assert world.ranks[0].child.wait(10) == 1


@TRANSPORTS
def test_leaving_early_without_an_error(start: Any, transport: str) -> None:
    """Who leaves after its part harms nobody; who is needed afterwards is missed at once, not at the timeout."""
    world = start(3, environ=over(transport)).opened()
    world.results("total")
    world.ranks[0].tell("leave", "return")
    assert world.ranks[0].child.wait(10) == 0
    answers = world.errors("barrier", but=(0,))
    assert all(answer["error"] == "PeerLost" and answer["ranks"] == [0] for answer in answers), answers
    world.results("close", but=(0,))


def test_closed_group_is_missed(start: Any) -> None:
    world = start(3).opened()
    world.results("split_off", [0, 1, 2])
    world.ranks[1].ask("split_close")
    answers = world.errors("split_total", but=(1,))
    assert all(answer["error"] == "PeerLost" and answer["ranks"] == [1] for answer in answers), answers
    assert world.results("total") == [[6.0, 6.0]] * 3
    world.results("close")


def test_exit_with_an_operation_under_way(start: Any) -> None:
    world = start(2).opened()
    world.ranks[1].ask("barrier_in_thread")
    world.ranks[1].tell("leave", "return")
    assert world.ranks[1].child.wait(10) == 0
    (answer,) = world.errors("total", but=(1,))
    assert answer["error"] in ("PeerLost", "CollectiveMismatch"), answer


def test_strangers(start: Any) -> None:
    world = start(2, environ=over("tcp")).opened()
    addresses, path = world.ranks[0].ask("listeners")
    strangers = []
    for target in [tuple(addresses[0]), path] * 40:
        sock = socket.socket(socket.AF_UNIX if isinstance(target, str) else socket.AF_INET)
        sock.connect(target)
        strangers.append(sock)
    for number, sock in enumerate(strangers):
        with contextlib.suppress(OSError):  # some are refused already
            sock.send([b"GET / HTTP/1.0\r\n\r\n", os.urandom(300), b"", b"ACOM"][number % 4])
    # Data connections are made now, while strangers hold the door.
    assert world.results("total") == [[3.0, 3.0]] * 2
    for sock in strangers:
        sock.close()
    world.results("close")


def test_port_range(start: Any) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        first = min(probe.getsockname()[1], 60000)
    world = start(2, environ={"ARRAYCOMM_PORT_RANGE": f"{first}-{first + 50}"}).opened()
    for addresses, _ in world.results("listeners"):
        assert first <= addresses[0][1] <= first + 50
    world.results("close")


def test_forked_child(start: Any) -> None:
    world = start(2, environ=over("tcp")).opened()
    world.results("total")
    error, sockets = world.ranks[0].ask("use_in_child")
    assert "fork" in error
    # The group's data connections and eventfd stay, as its memory does. Listeners, control connections and the
    # node's descriptors are gone.
    assert int(sockets) <= 4, sockets
    assert world.results("total") == [[3.0, 3.0]] * 2
    child = world.ranks[0].ask("fork")
    try:
        world.ranks[0].signal(signal.SIGKILL)
        lost(world.errors("barrier", but=(0,)), 0, "process died")  # though the child lives and had its descriptors
    finally:
        os.kill(child, signal.SIGKILL)


# ---- the parts ----


def test_host_numbers() -> None:
    def card(host: str) -> peers.Peer:
        return peers.Peer(host, "h", 1, (("127.0.0.1", 1),), "", 1, {})

    assert peers.number_hosts([card(name) for name in "bacab"]) == [0, 1, 2, 1, 0]
    assert peers.host_key() == peers.host_key()


def test_host_id_replaces_the_machine_only(monkeypatch: pytest.MonkeyPatch) -> None:
    before = peers.host_key()
    monkeypatch.setenv("ARRAYCOMM_HOSTID", "rack1")
    assert peers.host_key() != before
    assert peers.host_key().startswith("rack1/")


def test_exchange_refuses_what_is_no_card() -> None:
    store = HashStore(timedelta(seconds=1))
    mine = peers.this_process([("127.0.0.1", 5)], "/path")
    for text in ("[]", "nonsense", "{}", json.dumps({"host": "h", "addresses": []})):
        store.set("peer/1", text)
        with pytest.raises(DistStoreError, match="rank 1"):
            peers.exchange(store, 0, 2, mine, 1.0)


def test_connection_count_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    assert peers.this_process([("127.0.0.1", 5), ("127.0.0.2", 6)], "").connections == 2
    monkeypatch.setenv("ARRAYCOMM_SOCKET_CONNECTIONS", "65")
    with pytest.raises(ValueError, match="ARRAYCOMM_SOCKET_CONNECTIONS"):
        peers.this_process([("127.0.0.1", 5)], "")


def test_arrivals_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrivals, "MOST", 3)
    kept = arrivals.Arrivals(patience=100.0)
    socks = [socket.socket() for _ in range(5)]
    for number, sock in enumerate(socks):
        kept.keep(sock, Hello("job", Purpose.DATA, group=number % 2))
    assert [sock.fileno() < 0 for sock in socks] == [True, True, False, False, False]
    assert [sock for sock, _ in kept.take(0, Purpose.DATA)] == [socks[2], socks[4]]
    assert kept.take(1, Purpose.SEGMENT) == []
    kept.close()
    assert socks[3].fileno() < 0
    socks[2].close()
    socks[4].close()


def test_arrivals_expire() -> None:
    kept = arrivals.Arrivals(patience=0.0)
    first, second = socket.socket(), socket.socket()
    kept.keep(first, Hello("job", Purpose.DATA))
    kept.keep(second, Hello("job", Purpose.DATA))
    assert first.fileno() < 0
    kept.close()


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


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory whose name leaves room for a socket's."""
    with tempfile.TemporaryDirectory(dir="/tmp") as directory:
        monkeypatch.setenv("XDG_RUNTIME_DIR", directory)
        yield Path(directory)


def test_unix_listener_is_private_and_swept(short: Path) -> None:
    sock, path = local.listen()
    directory = Path(path).parent
    assert directory.parent == short
    assert directory.stat().st_mode & 0o777 == 0o700
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    namespace = os.stat("/proc/self/ns/pid").st_ino
    left, foreign = directory / f"{namespace}-{dead.pid}-aa", directory / f"{namespace + 1}-{dead.pid}-aa"
    left.touch()
    foreign.touch()
    local.sweep(str(directory))
    assert sorted(os.listdir(directory)) == sorted([Path(path).name, foreign.name])
    sock.close()
    local.remove(path)
    local.remove(path)


def test_open_directory_is_not_used(short: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (short / f"arraycomm-{os.geteuid()}").mkdir(mode=0o755)
    monkeypatch.setattr("tempfile.tempdir", str(short / ("x" * 100)))  # too long for a socket's path
    sock, path = local.listen()
    assert path.startswith("/tmp/arraycomm-")
    sock.close()
    local.remove(path)
